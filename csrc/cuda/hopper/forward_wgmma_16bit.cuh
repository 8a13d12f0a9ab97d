// The forward for 16-bit weights where all features lie in king buckets: a product on tensor cores, which takes only as
// many near features as occur in some row. The far features of a tile become additional rows of its right operand: each
// far entry has a separate row, so the bits of one row of the left operand are a contiguous range.
//
// A unit of work is one bucket and one slab. Three warpgroups multiply and finish tiles in turn. One more warpgroup
// copies near weights, in chunks of 64 features, and another one copies what each tile needs: bitmaps, targets and far
// weights. Both write to rings in shared memory and run ahead into the next units.
#pragma once

#include <climits>

#include "irregular_rows.cuh"
#include "one_hot_product.cuh"

namespace nnue::one_hot_product {

// Every thread of a warpgroup releases a stage for itself, since any of them may still be reading it.
constexpr int kArrivals = 128;  // of one warpgroup

template <typename Weight>
struct ForwardShape {
    static_assert(sizeof(Weight) == 2);
    static constexpr bool kBf16 = std::is_same_v<Weight, __nv_bfloat16>;
    static constexpr int kSlab = 64;
    static constexpr int kWarpgroups = 3;  // that multiply; one more copies weights, one copies what tiles need
    static constexpr int kConsumers = 128 * kWarpgroups, kThreads = kConsumers + 256;
    // The launch gives 96 registers to each thread. Those that copy hand over some of theirs.
    static constexpr int kConsumerRegisters = 128, kNearRegisters = 40, kTileRegisters = 56;
    static_assert(kConsumers * kConsumerRegisters + 128 * (kNearRegisters + kTileRegisters) <= kThreads * 96);
    static constexpr int kChunk = 64, kAtomBytes = kChunk * 128, kChunkBytes = 2 * kAtomBytes;
    static constexpr int kMaxChunks = kNearFeatures / kChunk, kStages = 8;
    static constexpr int kFarChunk = 64, kFarAtomBytes = kFarChunk * 128, kFarBytes = 2 * kFarAtomBytes;
    static constexpr int kFarStages = 1;  // per warpgroup, a power of two
    // The layout of a tile's stage: bitmaps, targets, where the far entries of its rows begin, TileInfo.
    static constexpr int kTileStages = 2;  // per warpgroup, a power of two
    static constexpr int kRowBits = kNearWords * 4, kTargets = kTileRows * kRowBits, kBegins = kTargets + kTileRows * 4,
                         kInfo = kBegins + (kTileRows + 4) * 4, kTileBytes = kInfo + 48;
    static constexpr int kTurnBytes = 16 * 128, kTurn = kStages * kChunkBytes,
                         kFar = kTurn + kConsumers / 32 * kTurnBytes,
                         kTile = kFar + kWarpgroups * kFarStages * kFarBytes,
                         kBias = kTile + kWarpgroups * kTileStages * kTileBytes, kBiasBytes = 512 + 16,
                         kSharedBytes = kBias + kWarpgroups * kBiasBytes + 1024;
    static_assert(kTileBytes % 16 == 0);
};

// The costs of units, by which work is divided among the workers. A cost of 1 is the product of a tile and a chunk.
struct ForwardUnits {
    static constexpr int kTileCost = 14, kUnitCost = 8;  // of a tile besides its products, of a unit; measured
    static constexpr int kSharing = 6;                   // of sharing a unit between two workers

    int cost_begin[kMaxBuckets + 1];  // of the units of one slab
    int tile_begin[kMaxBuckets + 1];
    uint8_t chunks[kMaxBuckets];  // at least 1, so that no sum stays −0

    __device__ int each(int bucket) const { return chunks[bucket] + kTileCost; }
    __device__ int cost(int bucket) const {
        const int tiles = tile_begin[bucket + 1] - tile_begin[bucket];
        return tiles == 0 ? 0 : kUnitCost + tiles * each(bucket);
    }
    // How many tiles of the unit begin within its first `cost`.
    __device__ int tiles_in(int bucket, int cost) const {
        const int n = each(bucket), rest = cost - kUnitCost;
        return rest <= 0 ? 0 : min(tile_begin[bucket + 1] - tile_begin[bucket], (rest + n - 1) / n);
    }

    // Called by all threads of the thread block.
    __device__ void load(const BucketPlan& plan, int num_buckets, int chunk, int max_chunks) {
        for (int b = threadIdx.x; b <= num_buckets; b += blockDim.x) {
            tile_begin[b] = plan.tile_begin[b];
            if (b < num_buckets) chunks[b] = uint8_t(min(max((plan.used[b] + chunk - 1) / chunk, 1), max_chunks));
        }
        __syncthreads();
        if (threadIdx.x < 32) sums_before(cost_begin, num_buckets, [&](int bucket) { return cost(bucket); });
        __syncthreads();
    }
};

// Worker i of W takes an equal stretch of the units in order, with the slab as the outermost loop. A unit may be cut
// into pieces that belong to consecutive workers.
struct ForwardPieces {
    const ForwardUnits& units;
    const int num_buckets;
    int cost, end;
    int slab, bucket, lo, hi, chunks;  // of the piece: tiles lo … hi − 1

    __device__ ForwardPieces(const ForwardUnits& units_, int num_buckets_, int slabs)
        : units(units_), num_buckets(num_buckets_) {
        cost = begin_of(blockIdx.x, slabs);
        end = begin_of(blockIdx.x + 1, slabs);
    }

    __device__ int begin_of(int worker, int slabs) const {
        const int total = units.cost_begin[num_buckets] * slabs;
        return stretch_begin(even_begin(total, worker), total, units.cost_begin, num_buckets, ForwardUnits::kSharing);
    }

    __device__ bool next() {
        while (cost < end) {
            slab = cost / units.cost_begin[num_buckets];
            const int rest = cost - slab * units.cost_begin[num_buckets];
            bucket = last_begun(units.cost_begin, num_buckets, rest);
            const int from = rest - units.cost_begin[bucket];
            const int take = min(units.cost_begin[bucket + 1] - rest, end - cost);
            lo = units.tile_begin[bucket] + units.tiles_in(bucket, from);
            hi = units.tile_begin[bucket] + units.tiles_in(bucket, from + take);
            chunks = units.chunks[bucket];
            cost += take;
            if (lo < hi) return true;
        }
        return false;
    }
};

// The place in a ring of stages that is used the `use`-th time, counted from 0. When the stage holds what was copied to
// it, phase `phase` of its barrier "full" is complete. Counters take fewer registers than places that advance.
template <int kStages>
struct RingPlace {
    int stage;
    uint32_t phase;
    __device__ explicit RingPlace(unsigned use) : stage(int(use % kStages)), phase(use / kStages % 2) {
        static_assert((kStages & (kStages - 1)) == 0);
    }
    // Each warpgroup has its own ring of tiles and of far chunks, because it does not follow those of the others:
    // waiting for the parity of a barrier works only while no warpgroup is two phases ahead.
    __device__ RingPlace(int warpgroup, unsigned use) : RingPlace(use) { stage += warpgroup * kStages; }
};

// The next tile of a warpgroup.
struct TileInfo {
    int tile, column;
    int chunks;       // of near weights; 0 if there are no more tiles
    int far;          // far entries
    int first_chunk;  // counted through all units of the worker
    int last;         // whether this is the warpgroup's last tile of the piece
};

// A mask of bits begin … end − 1 of a word; both may lie outside the word.
__device__ __forceinline__ uint32_t bit_range(int begin, int end) {
    begin = max(begin, 0);
    uint32_t mask;
    asm("bmsk.clamp.b32 %0, %1, %2;" : "=r"(mask) : "r"(begin), "r"(max(end - begin, 0)));
    return mask;
}

// The compiler does not move uses of these registers across this point.
__device__ __forceinline__ void fence_registers(float (&v)[64]) {
#pragma unroll
    for (float& x : v) asm volatile("" : "+f"(x)::"memory");
}

// Stores a warp's 16 rows × 64 columns of 16 bits from the register layout of wgmma to global memory, through shared
// memory: eight lanes store the 128 bytes of a row. `word(j, r)` gives columns 8 j + 2 t, + 1 of row g + 8 r.
// `where(k)` gives the address of row lane / 8 + 4 k, which is stored if bit k of `wanted` is set.
template <typename Word, typename Where>
__device__ __forceinline__ void store_turned(uint32_t turn, unsigned wanted, const Word& word, const Where& where) {
    const int lane = threadIdx.x % 32;
    const uint32_t to = turn + operand_offset(lane % 16, lane / 16), from = turn + operand_offset(lane / 8, lane % 8);
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
        const uint32_t words[4] = {word(j, 0), word(j, 1), word(j + 1, 0), word(j + 1, 1)};
        store_matrices(to ^ (j << 4), words);
    }
    __syncwarp();
    constexpr int kAtOnce = 2;  // all four at once would take too many registers
#pragma unroll
    for (int first = 0; first < 4; first += kAtOnce) {
        uint4 pieces[kAtOnce];
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) pieces[k] = load_shared_16<true>((from + (first + k) * 512) ^ (k % 2 * 64));
        if (first + kAtOnce == 4) __syncwarp();
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k)
            store_global_16(where(first + k), pieces[k], (wanted >> (first + k) & 1) != 0);
    }
}

// Saves, activates and stores the sums of a tile. `slot` and `targets` are those of the warp's rows lane / 8 + 4 k.
template <typename Shape>
__device__ __forceinline__ void finish_tile(const ForwardProblem& p, float (&acc)[64], uint32_t turn, int slot,
                                            int column, const int (&targets)[4]) {
    const int half = p.num_outputs / 2, columns = min(half - column, Shape::kSlab);
    const int my_column = column + threadIdx.x % 8 * 8;  // of those that this lane stores
    unsigned wanted = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) wanted |= unsigned(targets[k] >= 0 && my_column < half) << k;
    if (p.saved != nullptr) {
        // Read anew for each tile: a number made of it would be kept, and spilled.
        const float bound = __uint_as_float(bucket_plan::keep(__float_as_uint(p.bound)));
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            char* const saved = static_cast<char*>(p.saved) + (h * half + my_column) * 2;  // saved_at(0, h, my_column)
            store_turned(
                turn, wanted,
                [&](int j, int r) {
                    const int i = 32 * h + 4 * j + 2 * r;
                    return encode(acc[i], acc[i + 1], bound);
                },
                [&](int k) { return row_of(saved, slot + 4 * k, p.num_outputs * 2); });
        }
    }
    if (p.activation != Activation::kIdentity) {
#pragma unroll
        for (float& x : acc) x = clip(x, p.bound);
    }
    const bool pairwise = p.activation == Activation::kPairwise;
    if (pairwise) {
#pragma unroll
        for (int i = 0; i < 32; ++i) acc[i] = finished(p, acc[i] * (acc[32 + i] * p.scale));
    } else {
#pragma unroll
        for (float& x : acc) x = finished(p, x * (p.activation == Activation::kSCReLU ? x * p.scale : p.scale));
    }
    const int width = pairwise ? half : p.num_outputs;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        if (h == 1 && pairwise) break;
        if (p.out_type == Float::kFloat32) {
            const int lane = threadIdx.x % 32, t = lane % 4;
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                // Row g + 8 r is row lane' / 8 + 4 k of lane' = 8 (g % 4), with k = g / 4 + 2 r.
                const int low = __shfl_sync(~0u, targets[2 * r], lane / 4 % 4 * 8),
                          high = __shfl_sync(~0u, targets[2 * r + 1], lane / 4 % 4 * 8);
                const int target = lane < 16 ? low : high;
                float* row = static_cast<float*>(p.out) + size_t(max(target, 0)) * width + h * half + column + 2 * t;
#pragma unroll
                for (int j = 0; j < 8; ++j)
                    if (target >= 0 && 8 * j < columns)
                        *reinterpret_cast<float2*>(row + 8 * j) = {acc[32 * h + 4 * j + 2 * r],
                                                                   acc[32 * h + 4 * j + 2 * r + 1]};
            }
        } else {
            char* const out = static_cast<char*>(p.out) + (h * half + my_column) * 2;
            store_turned(
                turn, wanted,
                [&](int j, int r) {
                    const int i = 32 * h + 4 * j + 2 * r;
                    return pack(acc[i], acc[i + 1], p.out_type);
                },
                [&](int k) { return row_of(out, max(targets[k], 0), width * 2); });
        }
    }
}

// long: the warps that copy and those that multiply share stages and barriers, and divide the registers.
template <typename Weight>
__global__ void __launch_bounds__(ForwardShape<Weight>::kThreads, 1) forward_kernel(ForwardProblem p) {
    using Shape = ForwardShape<Weight>;
    constexpr int kSlab = Shape::kSlab, kWarpgroups = Shape::kWarpgroups;
    constexpr uint32_t kOne = Shape::kBf16 ? kOneBf16 : kOneFp16;
    extern __shared__ char shared_raw[];
    __shared__ ForwardUnits units;
    __shared__ uint64_t barriers[2 * (Shape::kStages + kWarpgroups * (Shape::kFarStages + Shape::kTileStages))];
    const uint32_t shared = (shared_address(shared_raw) + 1023) & ~1023u;
    const uint32_t full = shared_address(barriers), empty = full + 8 * Shape::kStages;
    const uint32_t far_full = empty + 8 * Shape::kStages, far_empty = far_full + 8 * kWarpgroups * Shape::kFarStages;
    const uint32_t tile_full = far_empty + 8 * kWarpgroups * Shape::kFarStages,
                   tile_empty = tile_full + 8 * kWarpgroups * Shape::kTileStages;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = p.num_outputs / 2;
    if (threadIdx.x == 0) {
        for (int s = 0; s < Shape::kStages; ++s) {
            barrier_init(full + 8 * s, 128);
            barrier_init(empty + 8 * s, kArrivals * kWarpgroups);
        }
        for (int s = 0; s < kWarpgroups * Shape::kFarStages; ++s) {
            barrier_init(far_full + 8 * s, 64);
            barrier_init(far_empty + 8 * s, kArrivals);
        }
        for (int s = 0; s < kWarpgroups * Shape::kTileStages; ++s) {
            barrier_init(tile_full + 8 * s, 65);  // 64 threads, and one more arrival for TileInfo
            barrier_init(tile_empty + 8 * s, kArrivals);
        }
    }
    if (threadIdx.x < kWarpgroups) store_shared_4(shared + Shape::kBias + threadIdx.x * Shape::kBiasBytes + 512, ~0u);
    // Products also multiply rows of far chunks that have no entry, by 0. So these rows must be finite.
    for (int i = threadIdx.x * 16; i < kWarpgroups * Shape::kFarStages * Shape::kFarBytes; i += Shape::kThreads * 16)
        store_shared_16(shared + Shape::kFar + i, 0, 0, 0, 0);
    wait_for_kernels_before();
    let_next_kernel_start();
    units.load(p.plan, p.in.num_buckets, Shape::kChunk, Shape::kMaxChunks);
    const int slabs = (half + kSlab - 1) / kSlab;
    const unsigned row_bytes = unsigned(p.num_outputs) * sizeof(Weight);
    // Each lane copies 16 bytes, and sixteen lanes copy a feature: eight of them for either half.
    const int sixteenth = lane % 16;
    const Weight* weights = static_cast<const Weight*>(p.weight) + (sixteenth < 8 ? 0 : half) + sixteenth % 8 * 8;

    if (warp >= Shape::kConsumers / 32 + 4) {
        give_registers<Shape::kTileRegisters>();
        const int thread = threadIdx.x % 64;
        ForwardPieces piece(units, p.in.num_buckets, slabs);
        const auto count_of = [&](int tile) {
            return __ldg(p.plan.far_begin + size_t(tile) * (kTileRows + 1) + kTileRows);
        };
        bool more = piece.next();
        int next_tile = piece.lo;
        if (warp % 4 < 2) {  // ---- bitmaps, targets and TileInfo
            int warpgroup = 0, first_chunk = 0;
            unsigned use = 0;  // of the warpgroup's places
            const auto advance = [&] {
                if (++warpgroup == kWarpgroups) warpgroup = 0, ++use;
            };
            int counts = 0, counts_from = INT_MIN / 2;  // each lane has the count of one of 32 tiles
            while (more) {
                const int tile = next_tile;
                if (unsigned(tile - counts_from) >= 32u) {
                    counts_from = tile;
                    counts = count_of(min(tile + lane, piece.hi - 1));
                }
                const RingPlace<Shape::kTileStages> place(warpgroup, use);
                const uint32_t to = shared + Shape::kTile + place.stage * Shape::kTileBytes;
                barrier_wait(tile_empty + 8 * place.stage, place.phase ^ 1);
                const char* bits = reinterpret_cast<const char*>(p.plan.near_bits) + size_t(tile) * Shape::kTargets;
#pragma unroll
                for (int i = 0; i < 3; ++i)
                    copy_async_16(to + (i * 64 + thread) * 16, bits + (i * 64 + thread) * 16, true);
                if (thread < 16)
                    copy_async_16(to + Shape::kTargets + thread * 16,
                                  p.plan.slot_target + tile * kTileRows + thread * 4, true);
                const int32_t* begins = p.plan.far_begin + size_t(tile) * (kTileRows + 1) + thread;
                copy_async_4(to + Shape::kBegins + thread * 4, begins);
                if (thread == 0) copy_async_4(to + Shape::kBegins + kTileRows * 4, begins + kTileRows);
                barrier_arrive_copied(tile_full + 8 * place.stage);
                const int count = __shfl_sync(~0u, counts, tile - counts_from);
                if (thread == 0) {
                    store_shared_16(to + Shape::kInfo, tile, piece.slab * kSlab, piece.chunks, count);
                    store_shared_16(to + Shape::kInfo + 16, first_chunk, tile + kWarpgroups >= piece.hi, 0, 0);
                    barrier_arrive(tile_full + 8 * place.stage);
                }
                advance();
                if (++next_tile == piece.hi) {
                    first_chunk += piece.chunks;
                    more = piece.next();
                    next_tile = piece.lo;
                    counts_from = INT_MIN / 2;
                }
            }
            for (int i = 0; i < kWarpgroups; ++i) {  // no more tiles
                const RingPlace<Shape::kTileStages> place(warpgroup, use);
                barrier_wait(tile_empty + 8 * place.stage, place.phase ^ 1);
                const uint32_t to = shared + Shape::kTile + place.stage * Shape::kTileBytes;
                if (thread == 0) {
                    store_shared_16(to + Shape::kInfo, 0, 0, 0, 0);
                    store_shared_16(to + Shape::kInfo + 16, first_chunk, 0, 0, 0);
                    barrier_arrive(tile_full + 8 * place.stage);
                }
                barrier_arrive(tile_full + 8 * place.stage);
                advance();
            }
        } else {  // ---- far weights: each warp copies every other pair of entries of a chunk
            int warpgroup = 0;
            unsigned uses = 0;  // how often each warpgroup's places were used, eight bits per warpgroup
            // A half warp copies entries 4 j + own of a chunk. Each lane loads the feature of one of its warp's 32
            // entries; shuffles hand them on.
            const int own = warp % 2 * 2 + lane / 16, mine = lane / 2 * 4 + warp % 2 * 2 + lane % 2;
            const uint32_t swizzled = shared + Shape::kFar + (sixteenth < 8 ? 0 : Shape::kFarAtomBytes) +
                                      operand_offset(index_of_bit(own), sixteenth % 8);
            const uint16_t* far = p.plan.far + mine;
            int next_count = 0;
            unsigned next_feature = 0;
            const auto look_ahead = [&](int tile) {
                next_count = count_of(tile);
                next_feature = __ldg(far + size_t(tile) * kTileRows * p.plan.pitch);
            };
            if (more) look_ahead(next_tile);
            while (more) {
                const int tile = next_tile, count = next_count, column = piece.slab * kSlab;
                unsigned feature = next_feature;
                const bool exists = column + sixteenth % 8 * 8 < half;
                const char* from = reinterpret_cast<const char*>(weights + column) +
                                   size_t(unsigned(piece.bucket * p.in.bucket_size)) * row_bytes;
                if (++next_tile == piece.hi) {
                    more = piece.next();
                    next_tile = piece.lo;
                }
                if (more) look_ahead(next_tile);
                for (int base = 0; base < count; base += Shape::kFarChunk) {
                    if (base > 0) feature = __ldg(far + size_t(tile) * kTileRows * p.plan.pitch + base);
                    const int rest = count - base, mine_of_rest = exists ? rest - own : 0;
                    const RingPlace<Shape::kFarStages> place(warpgroup, uses >> 8 * warpgroup);
                    barrier_wait(far_empty + 8 * place.stage, place.phase ^ 1);
                    const uint32_t to = swizzled + place.stage * Shape::kFarBytes;
#pragma unroll
                    for (int first = 0; first < 16; first += 4) {  // at a time, so that their shuffles overlap
                        if (4 * first >= rest) break;
                        unsigned which[4];
#pragma unroll
                        for (int i = 0; i < 4; ++i) which[i] = __shfl_sync(~0u, feature, 2 * (first + i) + lane / 16);
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            // index_of_bit of a sum without carries is the sum of both values. After the last entry
                            // zeros are stored.
                            const int j = first + i, k = (4 * j & 32) + index_of_bit(4 * j & 31);
                            copy_async_16((to + k * 128) ^ (k % 8 << 4), row_of(from, which[i], row_bytes),
                                          mine_of_rest > 4 * j);
                        }
                    }
                    barrier_arrive_copied(far_full + 8 * place.stage);
                    uses = (uses & ~(255u << 8 * warpgroup)) | ((uses >> 8 * warpgroup) + 1 & 255u) << 8 * warpgroup;
                }
                if (++warpgroup == kWarpgroups) warpgroup = 0;
            }
        }
        copy_async_wait_all();
    } else if (warp >= Shape::kConsumers / 32) {  // ---- near weights
        give_registers<Shape::kNearRegisters>();
        const int producer = warp % 4;  // copies 16 features of each chunk
        ForwardPieces piece(units, p.in.num_buckets, slabs);
        unsigned chunk = 0;
        // Element i: a feature of chunk 2 i in lanes 0 … 15, and of chunk 2 i + 1 in the others.
        int next_features[Shape::kMaxChunks / 2] = {}, of_bucket = -1;
        const auto look_ahead = [&] {
            const bool more = piece.next();
            if (more && piece.bucket != of_bucket) {
                of_bucket = piece.bucket;
#pragma unroll
                for (int i = 0; i < Shape::kMaxChunks / 2; ++i)
                    next_features[i] = __ldg(p.plan.ranked + of_bucket * kBucketFeatures +
                                             (2 * i + lane / 16) * Shape::kChunk + producer * 16 + lane % 16);
            }
            return more;
        };
        const uint32_t swizzled =
            (sixteenth < 8 ? 0 : Shape::kAtomBytes) + operand_offset(lane / 16, sixteenth % 8) + producer * 16 * 128;
        bool more = look_ahead();
        while (more) {
            const int column = piece.slab * kSlab, chunks = piece.chunks;
            const bool exists = column + sixteenth % 8 * 8 < half;
            const char* from = reinterpret_cast<const char*>(weights + column) +
                               size_t(unsigned(piece.bucket * p.in.bucket_size)) * row_bytes;
            int features[Shape::kMaxChunks / 2];
#pragma unroll
            for (int i = 0; i < Shape::kMaxChunks / 2; ++i) features[i] = next_features[i];
            more = look_ahead();
#pragma unroll
            for (int c = 0; c < Shape::kMaxChunks; ++c) {
                if (c == chunks) break;
                const RingPlace<Shape::kStages> place(chunk++);
                barrier_wait(empty + 8 * place.stage, place.phase ^ 1);
                const uint32_t to = shared + place.stage * Shape::kChunkBytes + swizzled;
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    const int feature = __shfl_sync(~0u, features[c / 2], c % 2 * 16 + 2 * j + lane / 16);
                    const bool valid = exists && feature >= 0;  // zeros otherwise
                    copy_async_16((to + j * 256) ^ (2 * j % 8 << 4),
                                  from + size_t(unsigned(max(feature, 0))) * row_bytes, valid);
                }
                barrier_arrive_copied(full + 8 * place.stage);
            }
        }
        copy_async_wait_all();
    } else {  // ---- products
        take_registers<Shape::kConsumerRegisters>();
        const int t = lane % 4, shift = bucket_plan::keep(4 * t);
        // The thread's number in the warpgroup, at each use. What is computed from it and kept would be spilled, and
        // local memory is slow here, as next to no L1 cache is left.
        const auto own_thread = [] { return int(thread_number() % 128); };
        const uint32_t bias = shared + Shape::kBias + warp / 4 * Shape::kBiasBytes;  // for the warpgroup's slab
        unsigned far_uses = 0;
        int released = 0, ready = 0;  // in chunks, counted through all units of the worker
        const auto release_until = [&](int chunk) {
            for (; released < chunk; ++released) {
                const RingPlace<Shape::kStages> place(released);
                barrier_wait(full + 8 * place.stage, place.phase);
                barrier_arrive(empty + 8 * place.stage);
            }
        };
        for (unsigned number = 0;; ++number) {  // of the warpgroup's tiles
            const RingPlace<Shape::kTileStages> tile_place(warp / 4, number);
            barrier_wait(tile_full + 8 * tile_place.stage, tile_place.phase);
            const uint32_t rows = shared + Shape::kTile + tile_place.stage * Shape::kTileBytes;
            const uint4 first = load_shared_16<true>(rows + Shape::kInfo);
            const uint2 second = load_shared_8(rows + Shape::kInfo + 16);
            const int tile = int(first.x), column = int(first.y), chunks = __shfl_sync(~0u, int(first.z), 0),
                      far = __shfl_sync(~0u, int(first.w), 0);
            const int first_chunk = __shfl_sync(~0u, int(second.x), 0);
            release_until(first_chunk);  // skips units in which this warpgroup has no tile
            if (chunks == 0) break;
            float acc[64];
            if (int(load_shared_4(bias + 512)) != column) {  // the first column of the bias that is there
                const int thread = threadIdx.x % 128, c = column + thread % kSlab;
                warpgroup_barrier(warp / 4);
                if (thread == 0) store_shared_4(bias + 512, column);
                store_shared_4(bias + thread * 4,
                               c < half ? __float_as_uint(p.bias[c + (thread < kSlab ? 0 : half)]) : 0);
                warpgroup_barrier(warp / 4);
            }
#pragma unroll
            for (int j = 0; j < 16; ++j) {
                const uint2 b = load_shared_8(bias + 32 * j + 8 * t);
                acc[4 * j] = acc[4 * j + 2] = __uint_as_float(b.x);
                acc[4 * j + 1] = acc[4 * j + 3] = __uint_as_float(b.y);
            }
            fence_registers(acc);
            const int row_offset = own_thread() / 32 * 16 + lane / 4;  // of the lane's first sums
            const uint32_t row_bits = rows + row_offset * Shape::kRowBits;
            uint32_t a[2][2][4];
            if (far > 0) {
                const uint32_t begins = rows + Shape::kBegins + row_offset * 4;
                const int begin_low = int(load_shared_4(begins)), end_low = int(load_shared_4(begins + 4)),
                          begin_high = int(load_shared_4(begins + 32)), end_high = int(load_shared_4(begins + 36));
#pragma unroll 1
                for (int base = 0; base < far; base += Shape::kFarChunk) {
                    const RingPlace<Shape::kFarStages> place(warp / 4, far_uses++);
                    barrier_wait(far_full + 8 * place.stage, place.phase);
                    fence_shared_for_wgmma();
                    const uint32_t operand =
                        operand_descriptor(shared + Shape::kFar + place.stage * Shape::kFarBytes, Shape::kFarAtomBytes);
#pragma unroll
                    for (int s = 0; s < 2; ++s) {
                        const int first = base + 32 * s;
                        const uint32_t low = bit_range(begin_low - first, end_low - first) >> shift,
                                       high = bit_range(begin_high - first, end_high - first) >> shift;
                        multiply_word<Shape::kBf16>(acc, a[s], low, high, kOne, operand + s * 256);
                    }
                    if (base + Shape::kFarChunk < far) {  // near products follow the last far ones at once
                        wgmma_wait<0>();
                        barrier_arrive(far_empty + 8 * place.stage);
                    }
                }
            }
#pragma unroll
            for (int c = 0; c < Shape::kMaxChunks; ++c) {
                if (c == chunks) break;
                const uint2 low = load_shared_8(row_bits + c * 8),
                            high = load_shared_8(row_bits + 8 * Shape::kRowBits + c * 8);
                const RingPlace<Shape::kStages> place(first_chunk + c);
                if (first_chunk + c >= ready) {
                    barrier_wait(full + 8 * place.stage, place.phase);
                    fence_shared_for_wgmma();
                    ready = first_chunk + c + 1;
                }
                const uint32_t operand =
                    operand_descriptor(shared + place.stage * Shape::kChunkBytes, Shape::kAtomBytes);
#pragma unroll
                for (int s = 0; s < 2; ++s) {
                    wgmma_wait<1>();
                    if (c == 0 && s == 1 && far > 0)  // the far products are done
                        barrier_arrive(far_empty + 8 * RingPlace<Shape::kFarStages>(warp / 4, far_uses - 1).stage);
                    const uint32_t word_low = (s ? low.y : low.x) >> shift, word_high = (s ? high.y : high.x) >> shift;
                    multiply_word<Shape::kBf16>(acc, a[s], word_low, word_high, kOne, operand + s * 256);
                }
            }
            const int thread = own_thread(), stored_row = thread / 32 * 16 + thread % 32 / 8;  // of its first piece
            int targets[4];
#pragma unroll
            for (int k = 0; k < 4; ++k)
                targets[k] = int(load_shared_4(rows + Shape::kTargets + stored_row * 4 + k * 16));
            barrier_arrive(tile_empty + 8 * tile_place.stage);
            wgmma_wait<0>();
            fence_registers(acc);
            if (second.y != 0) release_until(first_chunk + chunks);
            const uint32_t turn = shared + Shape::kTurn + (warp / 4 * 4 + thread / 32) * Shape::kTurnBytes;
            finish_tile<Shape>(p, acc, turn, tile * kTileRows + stored_row, column, targets);
        }
    }
}

template <typename Weight>
void forward(const ForwardProblem& p, int workers, cudaStream_t stream) {
    using Shape = ForwardShape<Weight>;
    start("forward_kernel", forward_kernel<Weight>, Shape::kSharedBytes, workers, Shape::kThreads, Shape::kSharedBytes,
          stream, p);
    start("irregular_forward_kernel", irregular_forward_kernel<Weight>, -1, kIrregularGrid, 256, 0, stream, p);
}

}  // namespace nnue::one_hot_product
