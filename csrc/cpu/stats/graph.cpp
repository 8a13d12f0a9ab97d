// Operators pack_bits, bit_counts and random_walks on CPU, threads from torch's own pool; the contracts are in graph.h.

#include "../../graph.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "../vector.h"

namespace nnue::graph {

struct CountJob {
    const uint64_t *a, *b;
    int64_t columns, words;
    bool symmetric;
    int32_t* out;
};

}  // namespace nnue::graph

#define NNUE_KERNELS "stats/bit_counts_kernels.h"
#include "../for_each_isa.h"

namespace nnue::graph {
namespace {

// ---- bits ----

constexpr int64_t kLine = 8;            // words of a cache line, which a thread writes whole
constexpr int64_t kNeurons = 256;       // at a time
constexpr int64_t kTile = 16;           // rows of a and of b that are read together
constexpr int64_t kTileWords = 1 << 9;  // 4 KiB of each of them: together they stay in the second cache

Tensor pack_bits_op(const Tensor& active_in) {
    const Flags f = check_flags(active_in, Device::cpu);
    const Tensor active = torch::stable::contiguous(active_in);
    const Tensor out = torch::stable::new_empty(active, {f.neurons, f.words}, ScalarType::Long);
    const auto* const from = const_data<uint8_t>(active);
    auto* const to = mutable_data<uint64_t>(out);
    torch::stable::parallel_for(0, divide_up(f.words, kLine), 1, [&](int64_t begin, int64_t end) {
        uint8_t bytes[kWordBits / 8][kNeurons];
        uint64_t words[kNeurons][kLine];
        for (int64_t line = begin; line < end; ++line) {
            const int64_t first = line * kLine, count = std::min(kLine, f.words - first);
            for (int64_t n = 0; n < f.neurons; n += kNeurons) {
                const int64_t width = std::min(kNeurons, f.neurons - n);
                for (int64_t w = 0; w < count; ++w) {
                    std::memset(bytes, 0, sizeof bytes);
                    const int64_t position = (first + w) * kWordBits;
                    for (int64_t bit = 0; bit < std::min<int64_t>(kWordBits, f.positions - position); ++bit) {
                        const uint8_t* const row = from + (position + bit) * f.neurons + n;
                        uint8_t* const byte = bytes[bit / 8];
                        const auto mask = static_cast<uint8_t>(1 << bit % 8);
                        for (int64_t k = 0; k < width; ++k) byte[k] |= row[k] != 0 ? mask : 0;
                    }
                    for (int64_t k = 0; k < width; ++k) {
                        uint64_t word = 0;
                        for (int b = 0; b < kWordBits / 8; ++b) word |= static_cast<uint64_t>(bytes[b][k]) << 8 * b;
                        words[k][w] = word;
                    }
                }
                for (int64_t k = 0; k < width; ++k) std::copy_n(words[k], count, to + (n + k) * f.words + first);
            }
        }
    });
    return out;
}

Tensor bit_counts_op(const Tensor& a_in, const std::optional<Tensor>& b_in) {
    const Bits bits = check_bits(a_in, b_in, Device::cpu);
    const Tensor a = torch::stable::contiguous(a_in);
    const std::optional<Tensor> b = contiguous(b_in);
    const Tensor out = torch::stable::new_empty(a, {bits.rows, bits.columns}, ScalarType::Int);
    const CountJob job{const_data<uint64_t>(a),
                       bits.symmetric ? const_data<uint64_t>(a) : const_data<uint64_t>(*b),
                       bits.columns,
                       bits.words,
                       bits.symmetric,
                       mutable_data<int32_t>(out)};
    std::fill_n(job.out, bits.rows * bits.columns, 0);
    const int64_t down = divide_up(bits.rows, kTile), across = divide_up(bits.columns, kTile);
    torch::stable::parallel_for(0, down * across, 1, [&](int64_t begin, int64_t end) {
        for (int64_t tile = begin; tile < end; ++tile) {
            const int64_t i = tile / across * kTile, j = tile % across * kTile;
            if (bits.symmetric && j < i) continue;
            const int64_t last_i = std::min(i + kTile, bits.rows), last_j = std::min(j + kTile, bits.columns);
            for (int64_t w = 0; w < bits.words; w += kTileWords) {
                NNUE_CALL_BEST_ISA(add_counts, job, i, last_i, j, last_j, w, std::min(w + kTileWords, bits.words));
            }
            if (!bits.symmetric) continue;
            for (int64_t r = i; r < last_i; ++r) {
                for (int64_t c = std::max(r + 1, j); c < last_j; ++c)
                    job.out[c * bits.columns + r] = job.out[r * bits.columns + c];
            }
        }
    });
    return out;
}

// ---- walks ----

// Walks that a thread has at a time: while one waits for memory, the thread works on the others.
constexpr int kTogether = 24;

void walk(const Walks& w, int64_t begin, int64_t end, int64_t* visits) {
    struct Walker {
        int64_t coupon, step, node, edge;
    };
    Walker walkers[kTogether];
    int count = 0;
    int64_t next = begin;
    const auto start = [&](Walker& walker) {
        if (next == end) return false;
        walker = {w.first + next, 0, next % w.nodes, 0};
        ++next;
        return true;
    };
    while (count < kTogether && start(walkers[count])) ++count;
    while (count > 0) {
        for (int k = 0; k < count; ++k) {
            Walker& walker = walkers[k];
            std::atomic_ref(visits[walker.node]).fetch_add(1, std::memory_order_relaxed);
            const Walks::Drawn drawn = w.draw(walker.coupon, walker.step);
            if (w.ends(drawn, walker.step++)) {
                walker.node = -1;
                continue;
            }
            walker.edge = w.edge(walker.node, drawn.edge);
            if (walker.edge >= 0) __builtin_prefetch(w.targets + walker.edge);
        }
        for (int k = 0; k < count;) {
            Walker& walker = walkers[k];
            if (walker.node >= 0) walker.node = w.target(walker.edge);
            if (walker.node < 0 && !start(walker)) {
                walker = walkers[--count];
                // The last walk moves to this place, and its turn is now.
                continue;
            }
            __builtin_prefetch(w.offsets + walker.node);
            __builtin_prefetch(visits + walker.node, 1);
            ++k;
        }
    }
}

Tensor random_walks_op(const Tensor& offsets, const Tensor& targets, const std::optional<Tensor>& thresholds,
                       int64_t first_round, int64_t rounds, double restart, int64_t seed, int64_t stream) {
    const Walks w = check_walks(offsets, targets, thresholds, first_round, rounds, restart, seed, stream, Device::cpu);
    const Tensor out = torch::stable::new_empty(offsets, {w.nodes}, ScalarType::Long);
    auto* const visits = mutable_data<int64_t>(out);
    std::fill_n(visits, w.nodes, 0);
    torch::stable::parallel_for(0, w.count, 1 << 12, [&](int64_t begin, int64_t end) { walk(w, begin, end, visits); });
    return out;
}

}  // namespace
}  // namespace nnue::graph

STABLE_TORCH_LIBRARY_IMPL(nnue, CPU, m) {
    NNUE_IMPL(m, "pack_bits", &nnue::graph::pack_bits_op);
    NNUE_IMPL(m, "bit_counts", &nnue::graph::bit_counts_op);
    NNUE_IMPL(m, "random_walks", &nnue::graph::random_walks_op);
}
