// The part of a plan that the 16-bit forward reads (forward_wgmma_16bit.cuh): the features that the rows of a *group*
// of neighbouring tiles have, each of them once, and a bitmap of them for each row.
//
// One thread block takes a group. The entries of its rows set bits in a bitmap of all features. Counting these bits
// gives every entry the place of its feature, in ascending order, and the entry sets its row's bit there. A row that
// has a feature twice is left out, and so are all rows of a group with too many features.
#pragma once

#include "bucket_plan.cuh"

namespace nnue {

struct GroupFeatures {
    static constexpr int kChunk = 64, kMost = 3072;
    int32_t* features;  // [groups, most]: padding repeats the first feature
    uint2* bits;      // [groups, most / kChunk, tiles · 64], by slot: bits stand for places, permuted as in BucketPlan
    int32_t* chunks;  // [groups]
    uint64_t* left_out;  // [groups · tiles]: bit i is set if row i, in the tile's order, is left out
    int tiles;           // of a group
    int most;            // features that a group has room for

    // The most features of a group. For two tiles these are all features of two buckets, since a group that begins in
    // one bucket may end in the next one.
    static constexpr int most_of(int tiles) { return tiles == 1 ? kMost : std::min(kMost, 2 * kBucketFeatures); }
    __host__ __device__ int rows() const { return tiles * kTileRows; }
    int groups(const IndexRows& in) const {
        return (BucketPlan::tiles(in.positions, in.num_buckets) + tiles - 1) / tiles;
    }
};

// Whether a plan for these rows has them.
inline bool has_group_features(const IndexRows& in) {
    return in.weight_bytes == 2;
}

inline GroupFeatures carve_group_features(Carver& carver, const IndexRows& in) {
    GroupFeatures out{};
    if (!has_group_features(in)) return out;
    // Rows of a king bucket share most of their features, so two tiles have a third more features than one, and the
    // forward copies a third less. With unbucketed features they have nearly twice as many.
    out.tiles = in.num_unbucketed > 0 ? 1 : 2;
    out.most = std::min(GroupFeatures::most_of(out.tiles), std::min(in.max_active, GroupFeatures::kMost) * out.rows());
    const size_t groups = out.groups(in), places = groups * out.most;
    out.features = carver.take<int32_t>("group_features", places);
    out.bits = carver.take<uint2>("group_bits", places / GroupFeatures::kChunk * out.rows());
    out.chunks = carver.take<int32_t>("group_chunks", groups);
    out.left_out = carver.take<uint64_t>("left_out", groups * out.tiles);
    return out;
}

namespace group_features {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kEach = 8;  // entries of a row that a lane has in registers
static_assert(GroupFeatures::kMost < 1 << 16 &&
              GroupFeatures::kMost % GroupFeatures::kChunk == 0);  // before_word has 16 bits

struct Shape {
    int words;  // of 64 bits, of the bitmap
    int pitch;  // 32-bit words per row of bits, including one that avoids bank conflicts
    size_t bytes;
    __host__ __device__ constexpr Shape(int features, int most, int rows)
        : words((features + 127) / 128 * 2),
          pitch(most / 32 + 1),
          bytes(size_t(words) * (sizeof(uint64_t) + sizeof(uint16_t)) + size_t(rows) * pitch * sizeof(uint32_t)) {}
    __host__ __device__ Shape(const IndexRows& in, const GroupFeatures& of)
        : Shape(in.num_bucketed + in.num_unbucketed, of.most, of.rows()) {}
};

template <int kTiles>
__global__ void __launch_bounds__(kThreads, 3) list_features(IndexRows in, BucketPlan plan, GroupFeatures out) {
    constexpr int kRows = kTiles * kTileRows, kLanes = kThreads / kRows;
    extern __shared__ __align__(16) uint64_t bitmap[];
    __shared__ int warp_sums[kWarps], first_feature;
    __shared__ uint32_t left_out[kRows / 32];
    const Shape shape(in, out);
    uint16_t* const before_word = reinterpret_cast<uint16_t*>(bitmap + shape.words);
    uint32_t* const row_bits = reinterpret_cast<uint32_t*>(before_word + shape.words);
    for (int i = threadIdx.x; i < shape.words / 2; i += kThreads) reinterpret_cast<uint4*>(bitmap)[i] = {0, 0, 0, 0};
    if (threadIdx.x < kRows / 32) left_out[threadIdx.x] = 0;
    ptx::let_next_kernel_start();
    ptx::wait_for_kernels_before();
    const int group = blockIdx.x, in_row = threadIdx.x % kLanes, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int slots = plan.tile_begin[in.num_buckets] * kTileRows - group * kRows;  // from the first of the group on
    if (slots <= 0) return;
    const int number = threadIdx.x / kLanes;
    const RowOrder own =
        number < slots ? plan.order[group * kRows + number] : RowOrder{group * kRows + number, -1, 0, 0};
    const int32_t* const row = bucket_plan::row_pointer(in, own.row);
    const int slot = own.slot - group * kRows;

    // Indices that are too large are skipped here; the index check reports them.
    const unsigned num_features = in.num_bucketed + in.num_unbucketed;
    int first[kEach];
    for (int i = 0; i < kEach; ++i) {
        const int k = in_row + i * kLanes, feature = k < own.count ? row[k] : -1;
        first[i] = unsigned(feature) < num_features ? feature : -1;
    }
    const auto for_each = [&](const auto& visit) {
        for (int i = 0; i < kEach; ++i)
            if (first[i] >= 0) visit(first[i], 1u << i);
#pragma unroll 1
        for (int k = in_row + kEach * kLanes; k < own.count; k += kLanes)
            if (unsigned(row[k]) < num_features) visit(row[k], 1u << kEach);
    };
    constexpr int kChunk = GroupFeatures::kChunk;
    const int most = out.most, words = (shape.words + kThreads - 1) / kThreads, begin = int(threadIdx.x) * words,
              end = min(begin + words, shape.words);
    int32_t* const features = out.features + size_t(group) * most;
    uint32_t* const own_bits = row_bits + slot * shape.pitch;
    __syncthreads();
    // Most features are there already, set by other rows. The entry that sets one stores it, too.
    unsigned stores = 0;  // bit i: the lane's entry i; bit kEach: all after them, since one of them does
    for_each([&](int feature, unsigned which) {
        uint32_t* const word = reinterpret_cast<uint32_t*>(bitmap) + feature / 32;
        const uint32_t bit = 1u << feature % 32;
        if ((*static_cast<volatile uint32_t*>(word) & bit) == 0 && (atomicOr(word, bit) & bit) == 0) stores |= which;
    });
    __syncthreads();

    int mine = 0;
    for (int i = begin; i < end; ++i) mine += __popcll(bitmap[i]);
    int before = bucket_plan::sum_before(mine, warp_sums, warp, lane, [] { __syncthreads(); }), count = 0;
    for (int w = 0; w < kWarps; ++w) count += warp_sums[w];
    for (int i = begin; i < end; ++i) {
        if (before == 0 && bitmap[i] != 0) first_feature = i * 64 + __ffsll(bitmap[i]) - 1;
        before_word[i] = uint16_t(before);
        before += __popcll(bitmap[i]);
    }
    if (count > most) {
        if (threadIdx.x == 0) out.chunks[group] = 0;
        if (threadIdx.x < kTiles) out.left_out[group * kTiles + threadIdx.x] = ~uint64_t(0);
        return;
    }
    const int chunks = (count + kChunk - 1) / kChunk;
    for (int i = in_row; i < 2 * chunks; i += kLanes) own_bits[i] = 0;
    __syncthreads();
    int entries = 0;
    for_each([&](int feature, unsigned which) {
        const uint64_t word = bitmap[feature / 64];
        const int place = before_word[feature / 64] + __popcll(word & ((uint64_t(1) << feature % 64) - 1));
        atomicOr(own_bits + place / 32, 1u << bit_of_index(place % 32));
        if (stores & which) features[place] = feature;
        ++entries;
    });
    __syncthreads();
    for (int i = in_row; i < 2 * chunks; i += kLanes) entries -= __popc(own_bits[i]);
    for (int d = 1; d < kLanes; d *= 2) entries += __shfl_xor_sync(~0u, entries, d);
    if (entries != 0) {  // the row has a feature twice
        for (int i = in_row; i < 2 * chunks; i += kLanes) own_bits[i] = 0;
        if (in_row == 0) atomicOr(left_out + number / 32, 1u << number % 32);
    }
    __syncthreads();
    uint2* const bits = out.bits + size_t(group) * (most / kChunk) * kRows;
    for (int i = threadIdx.x; i < chunks * kRows; i += kThreads) {
        const uint32_t* const from = row_bits + i % kRows * shape.pitch + i / kRows * 2;
        bits[i] = {from[0], from[1]};
    }
    if (count + int(threadIdx.x) < chunks * kChunk) features[count + threadIdx.x] = first_feature;
    if (threadIdx.x == 0) out.chunks[group] = chunks;
    if (threadIdx.x < kTiles)
        out.left_out[group * kTiles + threadIdx.x] =
            uint64_t(left_out[2 * threadIdx.x + 1]) << 32 | left_out[2 * threadIdx.x];
}

// `kMostFeatures`: of a set.
template <int kMostFeatures>
void build(const IndexRows& in, const BucketPlan& plan, const GroupFeatures& out, cudaStream_t stream) {
    constexpr size_t kMost = std::max(Shape(kMostFeatures, GroupFeatures::most_of(1), kTileRows).bytes,
                                      Shape(kMostFeatures, GroupFeatures::most_of(2), 2 * kTileRows).bytes);
    static_assert(kMost + 1024 <= 227 * 1024);
    start("list_features", out.tiles == 1 ? list_features<1> : list_features<2>, int(kMost), out.groups(in), kThreads,
          Shape(in, out).bytes, stream, in, plan, out);
}

}  // namespace group_features
}  // namespace nnue
