// What the backward's product kernel does: a list of tasks, which thread blocks take as they get free. A task is the
// weight gradient of a part, a stretch of a block's tiles, times a group of its dense ranks, in a slab. Where a block
// has several parts, their products are added up afterwards (`MergeUnit`).
//
// Blocks that were made last come first. Which sums are made, and in which order they are added, depends on the batch
// alone; who makes them, and when, does not matter.
#pragma once

#include "block_product.cuh"

namespace nnue::block_product {

constexpr int kMaxGroups = kBlockFeatures / kGroupFeatures;
// Places are blocks, the last one first. Loose dense features are one more block, of all tiles, at the end.
constexpr int kMaxPlaces = kMaxBlocks + 1;

// What products cost is counted in tiles of 64 rows × 64 features × 128 columns. A batch has about so many parts times
// slabs, a part no less than kLeastPart: measured.
constexpr int kPieces = 2 * kWorkers, kLeastPart = 96;
// A block's parts are no more than 4/3 of its share of pieces, its groups two.
constexpr int kMaxPartials = 2 * kPieces;
constexpr int kMaxParts = kMaxPlaces + kPieces * 4 / 3;

// Up to so many operands of 16 KB, twice what the L2 cache has, a slab's tasks follow each other: the whole backward
// takes 1 % less then, and up to 6 % more with many of them (measured).
constexpr int kFewOperands = 6144;

// Where the entries of rare features of the block that begins with this tile have places: each of a block's 768 is in
// no more than one row in 256, or all together have fewer than two entries a row (block_rows.cuh).
__host__ __device__ inline int rare_place(int tile) {
    return kBlockFeatures * kTileRows / 256 * tile;
}
inline int max_partials(int max_tiles, int slabs) {
    // Loose features have as many tiles again.
    return int(min((long long)kMaxPartials, 2LL * max_tiles * slabs * kMaxGroups * 6 * 4 / 3 / kLeastPart + 1));
}

// What thread blocks tell each other, zero at the start.
struct GradientSync {
    unsigned ticket;   // the next task
    unsigned begun;    // not 0: what the products need of other kernels is there
    unsigned planned;  // not 0: merge units are there, too
    int merge_units;
    unsigned list_ticket;               // given out (Numbers): for loose features' lists
    unsigned finish_tickets[2];         // for rare features, and for ranks to merge
    int rare;                           // rare features
    unsigned parts_done[kMaxPartials];  // of the products that a merge needs, by its first partial · slabs + slab
};

struct Task {
    int slab, block, group;
    int first, last;  // tiles
    int partial;      // the first partial of the block's parts, −1 if it has but one
    int part, parts;  // which of how many; of 0: there are no more tasks
    int reference;    // the largest exponent of its tiles
};

// A group of ranks of a block that has several parts.
struct MergeUnit {
    int begin;  // of its ranks, among all units'
    int block, group, partial, parts;
};
constexpr int kMaxMergeUnits = kMaxGroups * kMaxPlaces;

struct Plan {
    int num_blocks, places, slabs, tiles;
    int loose_dense;      // ranks
    int parts, products;  // times slabs
    bool slab_by_slab;    // the order of tasks; otherwise all slabs of a product follow each other
    int tile_begin[kMaxBlocks + 1];
    int dense[kMaxPlaces];                                          // by block
    int parts_of[kMaxPlaces];                                       // by block
    int part_begin[kMaxPlaces + 1], partial_begin[kMaxPlaces + 1];  // by place
    int product_begin[kMaxParts + 1];                               // by part

    __device__ bool is_loose(int block) const { return block == num_blocks; }
    __device__ int block_at(int place) const { return place < num_blocks ? num_blocks - 1 - place : num_blocks; }
    __device__ int first_tile(int block) const { return is_loose(block) ? 0 : tile_begin[block]; }
    __device__ int tiles_of(int block) const {
        return (is_loose(block) ? tiles : tile_begin[block + 1]) - first_tile(block);
    }
    __device__ int feature_tiles(int block, int group) const {
        return max(0, min(dense[block] - group * kGroupFeatures, kGroupFeatures)) / 64;
    }
    __device__ int groups(int block) const {
        return tiles_of(block) == 0 ? 0 : (dense[block] + kGroupFeatures - 1) / kGroupFeatures;
    }
    // Measured: with few features, copying a tile takes as long as multiplying it.
    __device__ int cost(int block, int group) const {
        return group < groups(block) ? tiles_of(block) * max(feature_tiles(block, group), 2) : 0;
    }
    // Where the first `part` of the block's parts end.
    __device__ int part_end(int block, int part) const {
        return first_tile(block) + int((long long)tiles_of(block) * part / parts_of[block]);
    }

    // All threads of the thread block.
    __device__ void load(const BackwardProblem& p, int slabs_) {
        const int blocks = p.in.num_blocks;
        for (int b = threadIdx.x; b <= blocks; b += blockDim.x) {
            tile_begin[b] = __ldcg(p.rows.tile_begin + b);
            if (b < blocks) dense[b] = __ldcg(p.rows.dense + b);
        }
        if (threadIdx.x == 0) {
            num_blocks = blocks, places = blocks + (p.in.num_loose > 0), slabs = slabs_;
            slab_by_slab = (long long)slabs * p.max_tiles <= kFewOperands;
            if (places > blocks) {
                loose_dense = __ldcg(&p.loose.summary->dense);
                dense[blocks] = (loose_dense + 63) / 64 * 64;
            }
        }
        __syncthreads();
        if (threadIdx.x < 32) load_lists();
        __syncthreads();
    }

    // A warp.
    __device__ void load_lists() {
        const int lane = threadIdx.x;
        if (lane == 0) tiles = tile_begin[num_blocks];
        __syncwarp();
        const int total =
            sums_before(part_begin, places, [&](int i) { return cost(block_at(i), 0) + cost(block_at(i), 1); });
        const int target = int(max((long long)kLeastPart, (long long)total * slabs / kPieces + 1));
        __syncwarp();
        const int part_count = sums_before(part_begin, places, [&](int i) {
            const int block = block_at(i), whole = cost(block, 0);
            return parts_of[block] = 2 * (long long)whole > 3 * (long long)target ? (whole + target / 2) / target : 1;
        });
        __syncwarp();
        sums_before(partial_begin, places, [&](int i) {
            const int block = block_at(i);
            return parts_of[block] > 1 ? parts_of[block] * groups(block) : 0;
        });
        const int product_count = sums_before(product_begin, part_count, [&](int part) {
            return groups(block_at(last_begun(part_begin, places, part)));
        });
        if (lane == 0) parts = part_count, products = product_count;
    }

    __device__ Task task(int ticket) const {
        Task t{};
        t.partial = -1;
        if (ticket >= products * slabs) return t;
        t.slab = slab_by_slab ? ticket / products : ticket % slabs;
        const int item = slab_by_slab ? ticket % products : ticket / slabs;
        const int part = last_begun(product_begin, parts, item), place = last_begun(part_begin, places, part);
        t.block = block_at(place);
        t.group = item - product_begin[part];
        t.parts = parts_of[t.block];
        // The block's last tiles first, as their row gradients come.
        t.part = t.parts - 1 - (part - part_begin[place]);
        t.first = part_end(t.block, t.part);
        t.last = part_end(t.block, t.part + 1);
        if (t.parts > 1) t.partial = partial_begin[place] + t.group * t.parts;
        return t;
    }

    // Writes the list of merge units, and one more where the last one ends; returns their number. A warp.
    __device__ int list_merges(MergeUnit* units) const {
        const int lane = threadIdx.x % 32;
        int count = 0, begin = 0;  // units and ranks before
        for (int base = 0; base < places; base += 32) {
            const int block = block_at(min(base + lane, places - 1));
            const int here = base + lane < places && parts_of[block] > 1 ? groups(block) : 0;
            const int ranks = here == 0 ? 0 : dense[block];
            const int units_until = block_rows::warp_inclusive_sum(here, lane),
                      ranks_until = block_rows::warp_inclusive_sum(ranks, lane);
            for (int group = 0; group < here; ++group)
                units[count + units_until - here + group] = {
                    begin + ranks_until - ranks + group * kGroupFeatures, block, group,
                    partial_begin[base + lane] + group * parts_of[block], parts_of[block]};
            count += __shfl_sync(~0u, units_until, 31), begin += __shfl_sync(~0u, ranks_until, 31);
        }
        if (lane == 0) units[count] = {begin, 0, 0, 0, 0};
        return count;
    }
};

}  // namespace nnue::block_product
