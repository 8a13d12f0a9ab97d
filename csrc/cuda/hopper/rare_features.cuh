// The rare features of each king bucket: those that the backward's products leave out, because few rows have them. A
// kernel of the plan lists their slots.
#pragma once

#include "one_hot_product.cuh"

namespace nnue::rare_features {

using namespace one_hot_product;

constexpr int kThreads = 256, kWarps = kThreads / 32, kGrid = 512;

struct RareFeatures {
    int begin[kMaxBuckets + 1];       // where those of each bucket begin in the list of all
    int word_begin[kMaxBuckets + 1];  // the same, counted in words of 32 features of a bucket

    // Called by one warp.
    __device__ void load(const BucketPlan& plan, int num_buckets) {
        const auto count = [&](int bucket) { return max(plan.used[bucket] - plan.dense[bucket], 0); };
        sums_before(begin, num_buckets, count);
        sums_before(word_begin, num_buckets, [&](int bucket) { return (count(bucket) + 31) / 32; });
    }
};

// A thread block takes 32 features of a bucket at a time, whose bitmaps are neighbours in memory. Each lane takes a
// feature, and each warp an eighth of the bucket's tiles.
__global__ void __launch_bounds__(kThreads) list_rare(IndexRows in, BucketPlan plan) {
    constexpr int kTogether = 8;  // tiles whose bitmaps are loaded at once
    __shared__ RareFeatures rare;
    __shared__ int counts[2][kWarps][33];  // entries of each feature in a warp's tiles; [32]: see `before`
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, num_buckets = in.num_buckets;
    ptx::wait_for_kernels_before();
    if (warp == 0) rare.load(plan, num_buckets);
    __syncthreads();
    if (blockIdx.x == 0 && threadIdx.x == 0) *plan.num_rare = rare.begin[num_buckets];
    int parity = 0;
    for (int item = blockIdx.x; item < rare.word_begin[num_buckets]; item += gridDim.x, parity ^= 1) {
        const int bucket = last_begun(rare.word_begin, num_buckets, item),
                  first = (item - rare.word_begin[bucket]) * 32;
        const int number = rare.begin[bucket] + first + lane, dense = plan.dense[bucket];
        const bool has_feature = number < rare.begin[bucket + 1];
        const int all = plan.tile_begin[bucket], tiles = plan.tile_begin[bucket + 1] - all;
        const int begin = all + tiles * warp / kWarps, end = all + tiles * (warp + 1) / kWarps;
        const uint2* bits = plan.feature_bits + dense + first + (has_feature ? lane : 0);
        const auto for_each_word = [&](const auto& visit) {
            for (int base = begin; base < end; base += kTogether) {
                uint2 words[kTogether] = {};
                for (int i = 0; i < kTogether; ++i)
                    if (has_feature && base + i < end) words[i] = bits[size_t(base + i) * kBucketFeatures];
                for (int i = 0; i < kTogether; ++i) visit(base + i, words[i]);
            }
        };
        // Entries of the features before these. Irregular rows count too, so there is always enough room.
        int before = 0;
        for (int i = threadIdx.x; i < first; i += kWarps * 32)
            before += plan.counts[bucket * kBucketFeatures + plan.ranked[bucket * kBucketFeatures + dense + i]];
        before = __reduce_add_sync(~0u, before);
        int count = 0;
        for_each_word([&](int, uint2 word) { count += __popc(word.x) + __popc(word.y); });
        counts[parity][warp][lane] = count;
        if (lane == 0) counts[parity][warp][32] = before;
        __syncthreads();
        int total = 0, mine = 0, place = rare_place(all);
        for (int w = 0; w < kWarps; ++w) {
            mine += w < warp ? counts[parity][w][lane] : 0;
            total += counts[parity][w][lane];
            place += counts[parity][w][32];
        }
        place += bucket_plan::inclusive_sum(total, lane) - total;
        if (warp == 0 && has_feature) {
            const int local = plan.ranked[bucket * kBucketFeatures + dense + first + lane];
            plan.rare[number] = {bucket * in.bucket_size + local, uint32_t(place), uint32_t(total)};
        }
        int* to = plan.rare_slots + place + mine;
        for_each_word([&](int tile, uint2 word) {
            const int slot = tile * kTileRows;
            for (uint32_t b = word.x; b != 0; b &= b - 1) *to++ = slot + index_of_bit(__ffs(b) - 1);
            for (uint32_t b = word.y; b != 0; b &= b - 1) *to++ = slot + 32 + index_of_bit(__ffs(b) - 1);
        });
    }
}

// The kernels of the plan must have been launched before this one.
inline void list(const IndexRows& in, const BucketPlan& plan, cudaStream_t stream) {
    start("list_rare", list_rare, 0, kGrid, kThreads, 0, stream, in, plan);
}

}  // namespace nnue::rare_features
