// Graphs of neurons: the contracts of the operators, the checks that hold on every device, and one step of a walk.
//
// pack_bits: columns of flags as rows of bits
//   active   [P, N] bool or uint8
//   output   [N, ceil(P / 64)] int64: bit p % 64 of word p / 64 in row n is set where active[p, n] is not 0
//
// bit_counts: how many bits each row of a shares with each row of b
//   a        [N, W] int64; b: [M, W] int64; if it is absent, b is a, and only one half of the counts is computed
//   output   [N, M] int32: the number of set bits of a[i] & b[j]. W < 2^25.
//
// random_walks: how often walks visit each node of a graph
//   offsets  [n + 1] int64, targets [edges] int32: the edges of node v are targets[offsets[v]] ... (CSR), n < 2^31
// thresholds [edges] int32, or absent: all edges of a node are equally likely. The bits are those of unsigned numbers:
// with
//            32 random bits r an edge of v is the first with r < threshold, the last one in any case.
//   output   [n] int64: visits
//
// A coupon is one walk. Round r has the coupons r n + v, one for each node v, where its walk begins. After each visit a
// walk stops with probability `restart` (to 2^-32), and otherwise follows an edge; from a node without edges it goes to
// any node. So π(v) = visits(v) restart / (n rounds) is PageRank without bias: the expected walk of a
//   coupon has 1 / restart visits, and its k-th node is distributed as k steps from a uniform start.
//
//   Step s of coupon c takes its 64 random bits from number c 2^20 + s of the stream (random.h, `bits` of int64): the
//   lower half decides whether the walk stops, the upper half where it goes. So visits do not depend on the device, on
//   threads, or on how many rounds are walked at once. A walk ends at 2^20 visits, which would be a bias if walks were
//   that long: `restart` is 2^-14 or more, so that they are not.
//
//   Memory is safe for any input: offsets are cut to 0 ... edges, and a target that is not a node ends its walk.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "checks.h"
#include "dtypes.h"
#include "host_device.h"
#include "random.h"

namespace nnue::graph {

constexpr const char* kPack = "pack_bits";
constexpr const char* kCounts = "bit_counts";
constexpr const char* kWalks = "random_walks";
constexpr int kWordBits = 64;
constexpr int64_t kMostWords = 1 << 25;  // counts have 31 bits

struct Flags {
    int64_t positions, neurons, words;
};

inline Flags check_flags(const Tensor& active, Device device) {
    check_device(kPack, "active", active, device, active, "active");
    check_dtype(kPack, "active", active, {ScalarType::Bool, ScalarType::Byte});
    check_shape(kPack, "active", active, {-1, -1}, "[P, N]");
    return {active.size(0), active.size(1), divide_up(active.size(0), kWordBits)};
}

struct Bits {
    int64_t rows, columns, words;  // of a, of b, of each row
    bool symmetric;                // b is a
};

inline Bits check_bits(const Tensor& a, const std::optional<Tensor>& b, Device device) {
    check_device(kCounts, "a", a, device, a, "a");
    check_dtype(kCounts, "a", a, {ScalarType::Long});
    check_shape(kCounts, "a", a, {-1, -1}, "[N, W]");
    if (a.size(1) >= kMostWords) fail(kCounts, "a", text(a.size(1)) + " words", "fewer than 2^25");
    if (!b) return {a.size(0), a.size(0), a.size(1), true};
    check_device(kCounts, "b", *b, device, a, "a");
    check_dtype(kCounts, "b", *b, {ScalarType::Long});
    check_shape(kCounts, "b", *b, {-1, a.size(1)}, "[M, W]");
    return {a.size(0), b->size(0), a.size(1), false};
}

constexpr int kStepBits = 20;
constexpr int64_t kMostSteps = int64_t{1} << kStepBits, kMostCoupons = int64_t{1} << 42;
constexpr double kLeastRestart = 0x1p-14;  // one of 10^27 walks has more visits than kMostSteps

struct Walks {
    const int64_t* offsets;
    const int32_t* targets;
    const int32_t* thresholds;
    int64_t nodes, edges;
    int64_t first, count;  // coupons; `first` is a multiple of nodes
    uint64_t seed, stream;
    uint64_t stop;  // a walk ends where 32 random bits are less

    struct Drawn {
        uint32_t stop, edge;
    };

    NNUE_HOST_DEVICE Drawn draw(int64_t coupon, int64_t step) const {
        const uint64_t number = static_cast<uint64_t>(coupon) << kStepBits | static_cast<uint64_t>(step);
        const random::Words w = random::philox(seed, number / 2, stream);
        return number % 2 == 0 ? Drawn{w.at[0], w.at[1]} : Drawn{w.at[2], w.at[3]};
    }

    NNUE_HOST_DEVICE bool ends(const Drawn& drawn, int64_t step) const {
        return drawn.stop < stop || step + 1 == kMostSteps;
    }

    NNUE_HOST_DEVICE int64_t cut(int64_t offset) const { return offset < 0 ? 0 : offset > edges ? edges : offset; }

    // The edge to follow from a node. If there is none: -1 - n for the node n to go to.
    NNUE_HOST_DEVICE int64_t edge(int64_t node, uint32_t bits) const {
        const int64_t begin = cut(offsets[node]), end = cut(offsets[node + 1]);
        const auto part = [&](int64_t size) {
            return static_cast<int64_t>(static_cast<uint64_t>(bits) * static_cast<uint64_t>(size) >> 32);
        };
        if (begin >= end) return -1 - part(nodes);
        if (thresholds == nullptr) return begin + part(end - begin);
        int64_t low = begin, high = end - 1;  // the edge is one of low ... high
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            if (bits < static_cast<uint32_t>(thresholds[middle])) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        return low;
    }

    // -1: no node.
    NNUE_HOST_DEVICE int64_t target(int64_t edge) const {
        if (edge < 0) return -1 - edge;
        const int64_t node = targets[edge];
        return node >= 0 && node < nodes ? node : -1;
    }
};

inline Walks check_walks(const Tensor& offsets, const Tensor& targets, const std::optional<Tensor>& thresholds,
                         int64_t first_round, int64_t rounds, double restart, int64_t seed, int64_t stream,
                         Device device) {
    const auto check = [&](const char* name, const Tensor& tensor, ScalarType dtype) {
        check_device(kWalks, name, tensor, device, offsets, "offsets");
        check_dtype(kWalks, name, tensor, {dtype});
        check_shape(kWalks, name, tensor, {-1}, "[n]");
        if (!tensor.is_contiguous()) fail(kWalks, name, "a tensor that is not contiguous", "a contiguous one");
    };
    check("offsets", offsets, ScalarType::Long);
    check("targets", targets, ScalarType::Int);
    if (thresholds) {
        check("thresholds", *thresholds, ScalarType::Int);
        check_shape(kWalks, "thresholds", *thresholds, {targets.size(0)}, "[edges]");
    }
    const int64_t nodes = offsets.size(0) - 1;
    if (nodes < 0 || nodes > INT32_MAX) fail(kWalks, "offsets", text(nodes + 1) + " numbers", "1 ... 2^31");
    // The operators divide by it; a graph of no nodes has no coupons.
    const int64_t most = kMostCoupons / std::max<int64_t>(nodes, 1);
    if (first_round < 0 || rounds < 0 || first_round > most || rounds > most - first_round) {
        fail(kWalks, "first_round, rounds", text(first_round) + ", " + text(rounds),
             "0 or more, with at most 2^42 coupons");
    }
    if (!(restart >= kLeastRestart && restart <= 1)) {
        fail(kWalks, "restart", restart, "a probability from 2^-14 on, as walks end at 2^20 visits");
    }
    const auto stop = static_cast<uint64_t>(restart * 4294967296.0 + 0.5);
    return {const_data<int64_t>(offsets),
            const_data<int32_t>(targets),
            const_data<int32_t>(thresholds),
            nodes,
            targets.size(0),
            first_round * nodes,
            rounds * nodes,
            static_cast<uint64_t>(seed),
            static_cast<uint64_t>(stream),
            stop};
}

}  // namespace nnue::graph
