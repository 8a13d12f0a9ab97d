// The part of a plan that the 16-bit forward needs where there are unbucketed features
// (unbucketed_forward_wgmma_16bit.cuh): the features that the rows of a tile have, each of them once, and a bitmap of
// them for each row.
//
// One thread block takes a tile. The entries of its rows set bits in a bitmap of all features. Counting these bits
// gives every entry the place of its feature, in ascending order, and the entry sets its row's bit there. A row that
// has a feature twice is left out, and so are all rows of a tile with more than kMost features.
#pragma once

#include "bucket_plan.cuh"

namespace nnue {

struct TileFeatures {
    static constexpr int kChunk = 64, kMost = 3072;
    int32_t* features;   // [tiles, most]: padding repeats the first feature
    uint2* bits;         // [tiles, most / kChunk, 64], by slot: bits stand for places, permuted as in BucketPlan
    int32_t* chunks;     // [tiles]
    uint64_t* left_out;  // [tiles]: bit i is set if row i, in the tile's order, is left out

    static __host__ __device__ int most(const IndexRows& in) {
        return (in.max_active < kMost / kTileRows ? in.max_active : kMost / kTileRows) * kTileRows;
    }
};

namespace tile_features {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kLanes = kThreads / kTileRows, kEach = 8;  // lanes per row; entries per lane in registers
// The bitmap covers this many features. If there are more, they are processed window by window.
constexpr int kWindow = 1 << 17;
static_assert(TileFeatures::kMost < 1 << 16 &&
              TileFeatures::kMost % TileFeatures::kChunk == 0);  // before_word has 16 bits

struct Shape {
    int words,
        pitch;  // 64-bit words of the bitmap; 32-bit words per row of bits, including one that avoids bank conflicts
    size_t bytes;
    __host__ __device__ constexpr Shape(int features, int most)
        : words(((features < kWindow ? features : kWindow) + 127) / 128 * 2),
          pitch(most / 32 + 1),
          bytes(size_t(words) * (sizeof(uint64_t) + sizeof(uint16_t)) + size_t(kTileRows) * pitch * sizeof(uint32_t)) {}
    __host__ __device__ explicit Shape(const IndexRows& in)
        : Shape(in.num_bucketed + in.num_unbucketed, TileFeatures::most(in)) {}
};

// long: each window of features passes several barriers, with the counts so far in registers.
__global__ void __launch_bounds__(kThreads, 4)
    list_features(IndexRows in, BucketPlan plan, const RowOrder* order, TileFeatures out) {
    extern __shared__ __align__(16) uint64_t bitmap[];
    __shared__ int warp_sums[kWarps], first_feature;
    __shared__ uint32_t left_out[2];
    const Shape shape(in);
    uint16_t* const before_word = reinterpret_cast<uint16_t*>(bitmap + shape.words);
    uint32_t* const row_bits = reinterpret_cast<uint32_t*>(before_word + shape.words);
    const auto clear_bitmap = [&] {
        for (int i = threadIdx.x; i < shape.words / 2; i += kThreads)
            reinterpret_cast<uint4*>(bitmap)[i] = {0, 0, 0, 0};
    };
    clear_bitmap();
    if (threadIdx.x < 2) left_out[threadIdx.x] = 0;
    ptx::let_next_kernel_start();
    ptx::wait_for_kernels_before();
    const int tile = blockIdx.x, in_row = threadIdx.x % kLanes, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (tile >= plan.tile_begin[in.num_buckets]) return;
    const int number = threadIdx.x / kLanes;
    const RowOrder own = order[tile * kTileRows + number];
    const int32_t* const row = bucket_plan::row_pointer(in, own.row);
    const int slot = own.slot - tile * kTileRows;

    // Indices that are too large are skipped here; the index check reports them.
    const unsigned num_features = in.num_bucketed + in.num_unbucketed;
    int first[kEach];
    for (int i = 0; i < kEach; ++i) {
        const int k = in_row + i * kLanes, feature = k < own.count ? row[k] : -1;
        first[i] = unsigned(feature) < num_features ? feature : -1;
    }
    const auto for_each = [&](const auto& visit) {
        for (int i = 0; i < kEach; ++i)
            if (first[i] >= 0) visit(first[i]);
#pragma unroll 1
        for (int k = in_row + kEach * kLanes; k < own.count; k += kLanes)
            if (unsigned(row[k]) < num_features) visit(row[k]);
    };
    constexpr int kChunk = TileFeatures::kChunk;
    const int most = TileFeatures::most(in), words = (shape.words + kThreads - 1) / kThreads,
              begin = int(threadIdx.x) * words, end = min(begin + words, shape.words);
    int32_t* const features = out.features + size_t(tile) * most;
    uint32_t* const own_bits = row_bits + slot * shape.pitch;
    int count = 0, chunks = 0, entries = 0;
#pragma unroll 1
    for (unsigned window = 0; window < num_features; window += kWindow) {
        const auto for_each_here = [&](const auto& visit) {
            for_each([&](int feature) {
                if (unsigned(feature) - window < kWindow) visit(feature - int(window));
            });
        };
        if (window > 0) {
            __syncthreads();
            clear_bitmap();
        }
        __syncthreads();
        for_each_here([&](int bit) { atomicOr(reinterpret_cast<uint32_t*>(bitmap) + bit / 32, 1u << bit % 32); });
        __syncthreads();

        int mine = 0;
        for (int i = begin; i < end; ++i) mine += __popcll(bitmap[i]);
        const int until = bucket_plan::inclusive_sum(mine, lane);
        if (lane == 31) warp_sums[warp] = until;
        __syncthreads();
        int before = count + until - mine;
        for (int w = 0; w < kWarps; ++w) {
            before += w < warp ? warp_sums[w] : 0;
            count += warp_sums[w];
        }
        bool is_first = before == 0 && mine > 0;
        for (int i = begin; i < end; ++i) {
            if (is_first && bitmap[i] != 0)
                first_feature = int(window) + i * 64 + __ffsll(bitmap[i]) - 1, is_first = false;
            before_word[i] = uint16_t(before);
            before += __popcll(bitmap[i]);
        }
        if (count > most) {
            if (threadIdx.x == 0) out.chunks[tile] = 0, out.left_out[tile] = ~uint64_t(0);
            return;
        }
        const int cleared = chunks;
        chunks = (count + kChunk - 1) / kChunk;
        for (int i = 2 * cleared + in_row; i < 2 * chunks; i += kLanes) own_bits[i] = 0;
        __syncthreads();
        for_each_here([&](int bit) {
            const int place = before_word[bit / 64] + __popcll(bitmap[bit / 64] & ((uint64_t(1) << bit % 64) - 1));
            atomicOr(own_bits + place / 32, 1u << bit_of_index(place % 32));
            features[place] = int(window) + bit;
            ++entries;
        });
    }
    __syncthreads();
    for (int i = in_row; i < 2 * chunks; i += kLanes) entries -= __popc(own_bits[i]);
    for (int d = 1; d < kLanes; d *= 2) entries += __shfl_xor_sync(~0u, entries, d);
    if (entries != 0) {  // the row has a feature twice
        for (int i = in_row; i < 2 * chunks; i += kLanes) own_bits[i] = 0;
        if (in_row == 0) atomicOr(left_out + number / 32, 1u << number % 32);
    }
    __syncthreads();
    uint2* const bits = out.bits + size_t(tile) * most;
    for (int i = threadIdx.x; i < chunks * kTileRows; i += kThreads) {
        const uint32_t* const from = row_bits + i % kTileRows * shape.pitch + i / kTileRows * 2;
        bits[i] = {from[0], from[1]};
    }
    if (count + int(threadIdx.x) < chunks * kChunk) features[count + threadIdx.x] = first_feature;
    if (threadIdx.x == 0) {
        out.chunks[tile] = chunks;
        out.left_out[tile] = uint64_t(left_out[1]) << 32 | left_out[0];
    }
}

inline void build(const IndexRows& in, const BucketPlan& plan, const RowOrder* order, const TileFeatures& out,
                  cudaStream_t stream) {
    constexpr Shape kLargest(kWindow, TileFeatures::kMost);
    start("list_features", list_features, int(kLargest.bytes), BucketPlan::tiles(in.positions, in.num_buckets),
          kThreads, Shape(in).bytes, stream, in, plan, order, out);
}

}  // namespace tile_features

// Whether a plan for these rows has them.
inline bool has_tile_features(const IndexRows& in) {
    return in.num_unbucketed > 0 && in.weight_bytes == 2;
}

inline TileFeatures carve_tile_features(Carver& carver, const IndexRows& in) {
    const size_t tiles = BucketPlan::tiles(in.positions, in.num_buckets), places = tiles * TileFeatures::most(in);
    TileFeatures out{};
    out.features = carver.take<int32_t>("tile_features", places);
    out.bits = carver.take<uint2>("tile_bits", places);  // as many as places: a chunk has 64 features and 64 rows
    out.chunks = carver.take<int32_t>("tile_chunks", tiles);
    out.left_out = carver.take<uint64_t>("tile_left_out", tiles);
    return out;
}

}  // namespace nnue
