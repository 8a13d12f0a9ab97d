// The schedule of the backward's product kernel: a list of tasks, which thread blocks take as they become free. A task
// is the weight gradient of one part of a bucket (a stretch of its tiles), one section of its dense ranks and one slab.
// If a bucket has several parts, their products are added up afterwards (`MergeUnit`).
//
// The buckets whose row gradients were made last come first, because those are still in the L2 cache. Which sums are
// made and in which order they are added depends on the batch alone, not on which thread block makes them or when.
#pragma once

#include "one_hot_product.cuh"

namespace nnue::one_hot_product {

constexpr int kMaxSections = kBucketFeatures / kSectionFeatures;
// A bucket's place in the order of tasks: the last bucket comes first. Dense unbucketed features are one more bucket,
// which has all tiles; it comes last.
constexpr int kMaxPlaces = kMaxBuckets + 1;

// The unit of cost of a product is a tile of 64 rows × 64 features × 128 columns. A batch is cut into about
// kTargetParts parts times slabs, none of them cheaper than kLeastPart; both numbers are measured, with 132
// multiprocessors. They do not depend on the GPU, so that sums have the same bits everywhere.
constexpr int kTargetParts = 264, kLeastPart = 96;
// Parts of one bucket cost the same. If it is the only one, and about this many products can be had, they are made all
// at once, with fewer partial sums.
constexpr int kAtOnce = 132;
// By rounding, a bucket has at most 4/3 of its share of parts. A second section costs at least a third of the first
// one, so both together make at most twice the bucket's share of partial sums.
constexpr int kMaxPartials = 2 * kTargetParts;
constexpr int kMaxParts = kMaxPlaces + kTargetParts * 4 / 3;

inline int max_partials(int max_tiles, int slabs) {
    // Dense unbucketed features add as many tiles again.
    return int(min((long long)kMaxPartials, 2LL * max_tiles * slabs * kMaxSections * 6 * 4 / 3 / kLeastPart + 1));
}

// How the thread blocks of the backward's kernels synchronise. The kernel that makes the row gradients sets all of it
// to zero, and so does the last kernel.
struct GradientSync {
    unsigned ticket;     // the next task
    unsigned begun;      // 1: the row gradients are there
    unsigned scheduled;  // 1: the merge units are there as well
    int merge_units;
    unsigned list_ticket;               // tickets (Numbers) taken for lists of unbucketed features
    unsigned finish_tickets[2];         // the same for rare features, and for ranks to merge
    unsigned parts_done[kMaxPartials];  // finished parts, at [first partial sum of a merge unit · slabs + slab]
};

struct Task {
    int slab, bucket;
    int first_rank, feature_tiles;  // its features; a feature tile is 64 ranks
    int first, last;                // tiles first … last − 1
    int partial;                    // the first partial sum of the bucket's parts; −1 if there is only one part
    int part, parts;                // number of the part, out of how many; 0 parts: there are no more tasks
    int reference;                  // the largest exponent of the task's tiles
};

// A section of a bucket that has several parts.
struct MergeUnit {
    int begin;  // where its ranks begin among those of all units
    int bucket, first_rank, partial, parts;
};
constexpr int kMaxMergeUnits = kMaxSections * kMaxPlaces;

struct Schedule {
    int num_buckets, places, slabs, tiles;
    int unbucketed_dense;  // number of ranks
    int parts, products;   // per slab
    int tile_begin[kMaxBuckets + 1];
    int dense[kMaxPlaces];                                          // by bucket
    int parts_of[kMaxPlaces];                                       // by bucket
    int part_begin[kMaxPlaces + 1], partial_begin[kMaxPlaces + 1];  // by place
    int product_begin[kMaxParts + 1];                               // by part

    __device__ bool is_unbucketed(int bucket) const { return bucket == num_buckets; }
    __device__ int bucket_at(int place) const { return place < num_buckets ? num_buckets - 1 - place : num_buckets; }
    __device__ int first_tile(int bucket) const { return is_unbucketed(bucket) ? 0 : tile_begin[bucket]; }
    __device__ int tiles_of(int bucket) const {
        return (is_unbucketed(bucket) ? tiles : tile_begin[bucket + 1]) - first_tile(bucket);
    }
    // A bucket with up to 512 ranks has two sections of half of them, whose products cost the same. With more ranks two
    // halves could cost more than this, because an odd number of feature tiles costs as much as the next even one.
    __device__ int section_features(int bucket) const {
        return dense[bucket] > kSectionFeatures && dense[bucket] <= 512 ? 256 : kSectionFeatures;
    }
    __device__ int first_rank(int bucket, int section) const { return section * section_features(bucket); }
    __device__ int feature_tiles(int bucket, int section) const {
        return max(0, min(dense[bucket] - first_rank(bucket, section), section_features(bucket))) / 64;
    }
    __device__ int sections(int bucket) const {
        return tiles_of(bucket) == 0 ? 0 : (dense[bucket] + kSectionFeatures - 1) / kSectionFeatures;
    }
    // Two warpgroups share the feature tiles, and copying a tile takes as long as multiplying it by two of them.
    __device__ int cost(int bucket, int section) const {
        return section < sections(bucket) ? tiles_of(bucket) * ((feature_tiles(bucket, section) + 1) / 2 * 2) : 0;
    }
    // Where the first `part` parts of the bucket end.
    __device__ int part_end(int bucket, int part) const {
        return first_tile(bucket) + int((long long)tiles_of(bucket) * part / parts_of[bucket]);
    }

    // Called by all threads of the thread block.
    __device__ void load(const BackwardProblem& p, int slabs_) {
        const int buckets = p.in.num_buckets;
        for (int b = threadIdx.x; b <= buckets; b += blockDim.x) {
            tile_begin[b] = __ldcg(p.plan.tile_begin + b);
            if (b < buckets) dense[b] = __ldcg(p.plan.dense + b);
        }
        if (threadIdx.x == 0) {
            num_buckets = buckets, places = buckets + (p.in.num_unbucketed > 0), slabs = slabs_;
            if (places > buckets) {
                unbucketed_dense = __ldcg(&p.unbucketed.summary->dense);
                dense[buckets] = (unbucketed_dense + 63) / 64 * 64;
            }
        }
        __syncthreads();
        if (threadIdx.x < 32) load_lists();
        __syncthreads();
    }

    // The number of parts of the only bucket, if their products are to be made at once; otherwise 0.
    __device__ int parts_at_once() const {
        const int products_of_part = sections(0) * slabs;
        if (places > 1 || products_of_part == 0) return 0;
        const int parts = kAtOnce / products_of_part, whole = cost(0, 0);
        const bool fills = parts * products_of_part * 10 >= kAtOnce * 9;
        return fills && whole >= parts * kLeastPart ? parts : 0;
    }

    // Called by one warp.
    __device__ void load_lists() {
        const int lane = threadIdx.x;
        if (lane == 0) tiles = tile_begin[num_buckets];
        __syncwarp();
        const int total =
            sums_before(part_begin, places, [&](int i) { return cost(bucket_at(i), 0) + cost(bucket_at(i), 1); });
        const int target = int(max((long long)kLeastPart, (long long)total * slabs / kTargetParts + 1));
        __syncwarp();
        const int part_count = sums_before(part_begin, places, [&](int i) {
            const int bucket = bucket_at(i), whole = cost(bucket, 0);
            if (const int few = parts_at_once(); few > 0) return parts_of[bucket] = few;
            return parts_of[bucket] = 2 * (long long)whole > 3 * (long long)target ? (whole + target / 2) / target : 1;
        });
        __syncwarp();
        sums_before(partial_begin, places, [&](int i) {
            const int bucket = bucket_at(i);
            return parts_of[bucket] > 1 ? parts_of[bucket] * sections(bucket) : 0;
        });
        const int product_count = sums_before(product_begin, part_count, [&](int part) {
            return sections(bucket_at(last_begun(part_begin, places, part)));
        });
        if (lane == 0) parts = part_count, products = product_count;
    }

    __device__ Task task(int ticket) const {
        Task t{};
        t.partial = -1;
        if (ticket >= products * slabs) return t;
        // All slabs of a product follow one another, so that the last products are the smallest ones.
        t.slab = ticket % slabs;
        const int item = ticket / slabs;
        const int part = last_begun(product_begin, parts, item), place = last_begun(part_begin, places, part);
        t.bucket = bucket_at(place);
        const int section = item - product_begin[part];
        t.first_rank = first_rank(t.bucket, section), t.feature_tiles = feature_tiles(t.bucket, section);
        t.parts = parts_of[t.bucket];
        // The last tiles of the bucket come first, because their row gradients are the most recent.
        t.part = t.parts - 1 - (part - part_begin[place]);
        t.first = part_end(t.bucket, t.part);
        t.last = part_end(t.bucket, t.part + 1);
        if (t.parts > 1) t.partial = partial_begin[place] + section * t.parts;
        return t;
    }

    // Writes the list of merge units, followed by one unit that marks the end, and returns their number. Called by one
    // warp.
    __device__ int list_merges(MergeUnit* units) const {
        const int lane = threadIdx.x % 32;
        int count = 0, begin = 0;  // units and ranks before these
        for (int base = 0; base < places; base += 32) {
            const int bucket = bucket_at(min(base + lane, places - 1));
            const int here = base + lane < places && parts_of[bucket] > 1 ? sections(bucket) : 0;
            const int ranks = here == 0 ? 0 : dense[bucket];
            const int units_until = bucket_plan::inclusive_sum(here, lane),
                      ranks_until = bucket_plan::inclusive_sum(ranks, lane);
            for (int section = 0; section < here; ++section)
                units[count + units_until - here + section] = {
                    begin + ranks_until - ranks + first_rank(bucket, section), bucket, first_rank(bucket, section),
                    partial_begin[base + lane] + section * parts_of[bucket], parts_of[bucket]};
            count += __shfl_sync(~0u, units_until, 31), begin += __shfl_sync(~0u, ranks_until, 31);
        }
        if (lane == 0) units[count] = {begin, 0, 0, 0, 0};
        return count;
    }
};

}  // namespace nnue::one_hot_product
