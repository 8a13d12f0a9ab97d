// The forward for 16-bit weights of sets with loose features: a product of what is frequent, sums of the rest.
//
// A tile's 64 rows of one block take the block's most frequent features (near) and the batch's most frequent loose ones
// (hot) as a product on tensor cores, as block_forward.cuh does: two warpgroups multiply and finish tiles in turn. The
// weights of the hot features stay in shared memory for as long as the slab does, those of the near ones come through a
// ring. All other entries, about twelve a row, are added up in registers by eight warps, half a warp a row, with eight
// to sixteen weight rows in flight each, also across rows; their sums go through shared memory to the warpgroup that
// has the tile, whose product is added to them. So the traffic from L2, which bounds all this, never waits for a
// product.
//
// All workers are in the same slab, or in as many as `kAtOnce`, at a time: the weights that are read stay in the L2
// cache.
#pragma once

#include "block_forward.cuh"
#include "slab_forward.cuh"

namespace nnue::full_forward {

using namespace block_product;

template <typename Weight>
struct Shape {
    static_assert(sizeof(Weight) == 2);
    static constexpr bool kBf16 = std::is_same_v<Weight, __nv_bfloat16>;
    static constexpr int kSlab = 64;
    static constexpr int kGroups = 2, kConsumers = 128 * kGroups, kAdders = 256, kThreads = kConsumers + kAdders + 128;
    // 96 registers a thread at the launch: fewer would not do for a product. 5 · 96 = 2 · 120 + 2 · 104 + 32.
    static constexpr int kConsumerRegisters = 120, kAdderRegisters = 104, kProducerRegisters = 32;
    static constexpr int kAdderWarps = kAdders / 32;
    static constexpr int kQueue = 4;  // tiles that the adders are told of ahead
    static constexpr int kChunk = 64, kAtomBytes = kChunk * 128, kChunkBytes = 2 * kAtomBytes;
    static constexpr int kMaxChunks = FullRows::kNearChunks, kStages = kMaxChunks, kHotChunks = FullRows::kHotChunks;
    // A tile's sums come in quarters of 16 rows, one for each warp of a warpgroup. A row is 128 fp32.
    static constexpr int kQuarters = 4, kQuarterRows = kTileRows / kQuarters, kSumBytes = 512,
                         kQuarterBytes = kQuarterRows * kSumBytes;
    static constexpr int kRowBits = FullRows::kWords * 4, kBitBytes = kTileRows * kRowBits, kRows = kBitBytes,
                         kRowBytes = kTileRows * int(sizeof(FullRow)), kInfo = kRows + kRowBytes,
                         kTileBytes = kInfo + 32;
    static constexpr int kTurnBytes = 16 * 128;
    static constexpr int kHot = kStages * kChunkBytes, kSums = kHot + kHotChunks * kChunkBytes,
                         kTurn = kSums + kQuarters * kQuarterBytes, kTile = kTurn + kConsumers / 32 * kTurnBytes,
                         kBias = kTile + kGroups * kTileBytes, kSharedBytes = kBias + 512 + 1024;
    static_assert(kRowBits % 16 == 0 && kTileBytes % 16 == 0);
    // Every warp that adds has two rows of each quarter: it has to follow all phases of the quarters' barriers.
    static_assert(2 * kAdderWarps == kQuarterRows);
};

// What a worker's share is counted in: eight entries of lists.
struct Units {
    static constexpr int kUnitCost = 50, kTileCost = 4, kLeast = 70, kMost = 255, kEntries = 8;
    static constexpr int kSharing = 8;  // what it costs that two workers share a unit

    int cost_begin[kMaxBlocks + 1];  // of a slab's units
    int tile_begin[kMaxBlocks + 1];
    uint8_t chunks[kMaxBlocks];  // at least one
    uint8_t each[kMaxBlocks];    // a tile's cost

    __device__ int cost(int block) const {
        const int tiles = tile_begin[block + 1] - tile_begin[block];
        return tiles == 0 ? 0 : kUnitCost + tiles * each[block];
    }
    // How many of the unit's tiles begin in the first `cost` of it.
    __device__ int tiles_in(int block, int cost) const {
        const int n = each[block], rest = cost - kUnitCost;
        return rest <= 0 ? 0 : min(tile_begin[block + 1] - tile_begin[block], (rest + n - 1) / n);
    }

    // All threads of the thread block.
    __device__ void load(const BlockRows& rows, const FullRows& full, int num_blocks, int slabs) {
        // No sum of costs may overflow.
        const int most = min(kMost, (1 << 30) / slabs / (rows.tile_begin[num_blocks] + 1) - kUnitCost);
        for (int b = threadIdx.x; b <= num_blocks; b += blockDim.x) {
            const int begin = rows.tile_begin[b];
            tile_begin[b] = begin;
            if (b == num_blocks) break;
            chunks[b] = uint8_t(min(max((rows.used[b] + 63) / 64, 1), FullRows::kNearChunks));
            const int tiles = max(rows.tile_begin[b + 1] - begin, 1);
            each[b] = uint8_t(max(min(max(full.block_entries[b] / tiles / kEntries, kLeast) + kTileCost, most), 1));
        }
        __syncthreads();
        if (threadIdx.x < 32) sums_before(cost_begin, num_blocks, [&](int block) { return cost(block); });
        __syncthreads();
    }
};

// Worker i takes an equal stretch of the tiles in every slab, or in every so-manyth, one slab after the other.
// Stretches move on a little from slab to slab, so that what they gain or lose by ending with a tile evens out; the
// last worker's may end where the first one's began.
struct Pieces {
    static constexpr int kAtOnce = 4, kSteps = 8;

    const Units& units;
    const int num_blocks, slabs;
    int step, worker, workers;        // among those that take the same slabs
    int at, end;                      // in the slab: its units' cost, twice round
    int slab, block, lo, hi, chunks;  // the piece: tiles lo … hi − 1

    __device__ Pieces(const Units& units_, int num_blocks_, int slabs_)
        : units(units_), num_blocks(num_blocks_), slabs(slabs_) {
        step = slabs % kAtOnce == 0 ? kAtOnce : 1;
        worker = int(blockIdx.x) / step, workers = kWorkers / step;
        slab = int(blockIdx.x) % step;
        begin_slab();
    }

    __device__ int begin_of(int which) const {
        const int total = units.cost_begin[num_blocks], move = slab / step % kSteps;
        const int even = int((long long)total * (which * kSteps + move) / (workers * kSteps));
        return stretch_begin(even, total, units.cost_begin, num_blocks, Units::kSharing);
    }
    __device__ void begin_slab() {
        at = begin_of(worker);
        end = worker + 1 < workers ? begin_of(worker + 1) : units.cost_begin[num_blocks] + begin_of(0);
    }

    __device__ bool next() {
        const int total = units.cost_begin[num_blocks];
        while (true) {
            while (at >= end) {
                slab += step;
                if (slab >= slabs) return false;
                begin_slab();
            }
            const int rest = at >= total ? at - total : at;
            block = last_begun(units.cost_begin, num_blocks, rest);
            const int from = rest - units.cost_begin[block], take = min(units.cost_begin[block + 1] - rest, end - at);
            lo = units.tile_begin[block] + units.tiles_in(block, from);
            hi = units.tile_begin[block] + units.tiles_in(block, from + take);
            chunks = units.chunks[block];
            at += take;
            if (lo < hi) return true;
        }
    }
};

// 16 bytes of a feature's weights, or those of `none` where it is none (< 0): a load that may not be made would have
// the compiler choose between two registers, and wait for them there. Volatile: loads stay ahead of what is done
// meanwhile.
__device__ __forceinline__ uint4 load_weights(const void* weights, int feature, uint32_t row_bytes, const void* none) {
    uint4 v;
    asm volatile(
        "{\n"
        ".reg .pred exists;\n"
        ".reg .b64 from;\n"
        "setp.ge.s32 exists, %4, 0;\n"
        "mad.wide.u32 from, %4, %5, %6;\n"
        "selp.b64 from, from, %7, exists;\n"
        "ld.global.nc.v4.u32 {%0, %1, %2, %3}, [from];\n"
        "}\n"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "r"(feature), "r"(row_bytes), "l"(weights), "l"(none));
    return v;
}

template <typename Weight>
__global__ void __launch_bounds__(Shape<Weight>::kThreads, 1) full_kernel(ForwardProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using S = Shape<Weight>;
    constexpr int kSlab = S::kSlab, kGroups = S::kGroups;
    constexpr uint32_t kOne = S::kBf16 ? kOneBf16 : kOneFp16;
    extern __shared__ char shared_raw[];
    __shared__ Units units;
    __shared__ int shared_first_slab, hot_features[FullRows::kHot];
    __shared__ uint64_t barriers[2 * S::kStages + 2 * kGroups + (kGroups + 1) * S::kQuarters + 2 * S::kQueue];
    __shared__ int2 queue[S::kQueue];  // tile, slab; −1 at the end
    const uint32_t shared = (shared_address(shared_raw) + 1023) & ~1023u;
    const uint32_t full = shared_address(barriers), empty = full + 8 * S::kStages;
    const uint32_t tile_full = empty + 8 * S::kStages, tile_empty = tile_full + 8 * kGroups;
    const uint32_t sum_full = tile_empty + 8 * kGroups, sum_empty = sum_full + 8 * kGroups * S::kQuarters;
    const uint32_t queue_full = sum_empty + 8 * S::kQuarters, queue_empty = queue_full + 8 * S::kQueue;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = p.num_outputs / 2;
    if (threadIdx.x == 0) {
        for (int s = 0; s < S::kStages; ++s) {
            barrier_init(full + 8 * s, 64);
            barrier_init(empty + 8 * s, S::kConsumers);
        }
        for (int s = 0; s < kGroups; ++s) {
            barrier_init(tile_full + 8 * s, 1);
            barrier_init(tile_empty + 8 * s, 128);
        }
        for (int s = 0; s < kGroups * S::kQuarters; ++s) barrier_init(sum_full + 8 * s, S::kAdders);
        for (int s = 0; s < S::kQuarters; ++s) barrier_init(sum_empty + 8 * s, 32);
        for (int s = 0; s < S::kQueue; ++s) {
            barrier_init(queue_full + 8 * s, 1);
            barrier_init(queue_empty + 8 * s, S::kAdders);
        }
    }
    wait_for_kernels_before();
    let_next_kernel_start();
    const int slabs = (half + kSlab - 1) / kSlab;
    units.load(p.rows, p.full, p.in.num_blocks, slabs);
    const unsigned row_bytes = unsigned(p.num_outputs) * sizeof(Weight);
    // A lane has 16 bytes, sixteen lanes a feature: eight of either half.
    const int part = lane % 16;
    const Weight* weights = static_cast<const Weight*>(p.weight) + (part < 8 ? 0 : half) + part % 8 * 8;
    if (threadIdx.x == 0) {
        Pieces piece(units, p.in.num_blocks, slabs);
        shared_first_slab = piece.next() ? piece.slab : 0;
    }
    for (int i = threadIdx.x; i < FullRows::kHot; i += S::kThreads) hot_features[i] = p.full.hot[i];
    __syncthreads();

    if (warp >= (S::kConsumers + S::kAdders) / 32) {
        give_registers<S::kProducerRegisters>();
        const int producer = warp % 4;
        Pieces piece(units, p.in.num_blocks, slabs);
        if (producer == 3 && lane == 0) {  // ---- bitmaps, rows, what the tile is
            RingPlace<kGroups> tile_place;
            int first_chunk = 0, slab = shared_first_slab;
            while (piece.next()) {
                slab = piece.slab;
                for (int tile = piece.lo; tile < piece.hi; ++tile) {
                    const uint32_t to = shared + S::kTile + tile_place.stage * S::kTileBytes,
                                   barrier = tile_full + 8 * tile_place.stage;
                    barrier_wait(tile_empty + 8 * tile_place.stage, tile_place.phase ^ 1);
                    store_shared_16(to + S::kInfo, slab, piece.chunks, first_chunk, tile + kGroups >= piece.hi);
                    barrier_expect(barrier, S::kBitBytes + S::kRowBytes);
                    copy_bulk(to, p.full.bits + size_t(tile) * (S::kBitBytes / 4), S::kBitBytes, barrier);
                    copy_bulk(to + S::kRows, p.full.rows + size_t(tile) * kTileRows, S::kRowBytes, barrier);
                    tile_place.advance();
                }
                first_chunk += piece.chunks;
            }
            for (int i = 0; i < kGroups; ++i) {  // no more tiles
                barrier_wait(tile_empty + 8 * tile_place.stage, tile_place.phase ^ 1);
                const uint32_t to = shared + S::kTile + tile_place.stage * S::kTileBytes;
                store_shared_16(to + S::kInfo, slab, 0, first_chunk, 0);
                barrier_arrive(tile_full + 8 * tile_place.stage);
                tile_place.advance();
            }
        } else if (producer == 2 && lane == 0) {  // ---- tiles for those who add
            RingPlace<S::kQueue> place;
            const auto push = [&](int tile, int slab) {
                barrier_wait(queue_empty + 8 * place.stage, place.phase ^ 1);
                queue[place.stage] = {tile, slab};
                barrier_arrive(queue_full + 8 * place.stage);
                place.advance();
            };
            while (piece.next())
                for (int tile = piece.lo; tile < piece.hi; ++tile) push(tile, piece.slab);
            push(-1, 0);
        } else if (producer < 2) {  // ---- near weights: a warp has 32 features of each chunk
            unsigned filled = 0;    // chunks
            const uint32_t swizzled =
                shared + (part < 8 ? 0 : S::kAtomBytes) + operand_offset(lane / 16, part % 8) + producer * 32 * 128;
            while (piece.next()) {
                const int column = piece.slab * kSlab, block = piece.block;
                const bool exists = column + part % 8 * 8 < half;
                const char* from = reinterpret_cast<const char*>(weights + column) +
                                   size_t(unsigned(block * p.in.block_size)) * row_bytes;
                const int32_t* ranked = p.rows.ranked + block * kBlockFeatures + producer * 32 + lane;
                int next_feature = __ldg(ranked);
#pragma unroll 1
                for (int c = 0; c < piece.chunks; ++c) {
                    const int mine = next_feature;
                    if (c + 1 < piece.chunks) next_feature = __ldg(ranked + (c + 1) * S::kChunk);
                    const unsigned stage = filled % S::kStages;
                    barrier_wait(empty + 8 * stage, (filled / S::kStages & 1) ^ 1);
                    const uint32_t to = swizzled + stage * S::kChunkBytes;
#pragma unroll
                    for (int j = 0; j < 16; ++j) {
                        const int feature = __shfl_sync(~0u, mine, 2 * j + lane / 16);
                        const bool valid = exists && feature >= 0;  // others: zeros
                        copy_async_16((to + j * 256) ^ (2 * j % 8 << 4),
                                      from + size_t(unsigned(max(feature, 0))) * row_bytes, valid);
                    }
                    barrier_arrive_copied(full + 8 * stage);
                    ++filled;
                }
            }
            copy_async_wait_all();
        }
    } else if (warp >= S::kConsumers / 32) {  // ---- sums of lists
        take_registers<S::kAdderRegisters>();
        const int in_quarter = 2 * (warp - S::kConsumers / 32) + lane / 16;  // this half warp's row
        const uint32_t to =
            block_rows::keep(shared + S::kSums + in_quarter * S::kSumBytes + ((part ^ (in_quarter & 7)) << 5));
        const uint32_t queue_address = shared_address(queue);
        // Pairs of rows, counted from the worker's first: a quarter of the tile after the other. What is read ahead.
        unsigned pair = 0;
        int next_tile = 0, next_slab = 0, next_feature = -1, next_most = 0;
        const auto next_row = [&] {
            return unsigned(next_tile * kTileRows + pair % S::kQuarters * S::kQuarterRows + in_quarter);
        };
        const auto look_ahead = [&] {
            if (pair % S::kQuarters == 0) {
                const unsigned stage = pair / S::kQuarters % S::kQueue;
                barrier_wait(queue_full + 8 * stage, pair / S::kQuarters / S::kQueue & 1);
                const uint2 found = load_shared_8(queue_address + 8 * stage);
                barrier_arrive(queue_empty + 8 * stage);
                next_tile = int(found.x), next_slab = int(found.y);
            }
            if (next_tile < 0) return;
            next_most = __ldg(&p.full.rows[next_row()].most);
            next_feature = __ldg(p.full.heads + size_t(next_row()) * FullRows::kHead + part);
        };
        look_ahead();
        while (next_tile >= 0) {
            const unsigned row = next_row();
            const int most = next_most, column = next_slab * kSlab + part % 8 * 8;
            int mine = next_feature;  // 16 entries of each list
            const Weight* const from =
                static_cast<const Weight*>(p.weight) + (part < 8 ? 0 : half) + (column < half ? column : 0);
            ++pair;
            float sum[8] = {};
            // All loads, then all additions, and no load is on its way round a loop: the hardware has six counters to
            // wait for loads by, and the compiler makes do with one of them for all such, so that it waits for the
            // youngest. The barrier, which costs nothing, keeps it from adding before the last load is out.
            const auto add = [&]<int kCount>(std::integral_constant<int, kCount>, bool last) {
                uint4 pieces[kCount];
#pragma unroll
                for (int i = 0; i < kCount; ++i)
                    pieces[i] = load_weights(from, __shfl_sync(~0u, mine, i, 16), row_bytes, p.full.zeros);
                if (last) look_ahead();
                __syncwarp();
#pragma unroll
                for (int i = 0; i < kCount; ++i) slab_forward::add_piece<Weight>(sum, pieces[i]);
            };
#pragma unroll 1
            for (int base = 0;; base += 16) {
                const int rest = most - base;
                const bool last = rest <= 16;
                if (rest > 12)
                    add(std::integral_constant<int, 16>{}, last);
                else if (rest > 8)
                    add(std::integral_constant<int, 12>{}, last);
                else if (rest > 4)
                    add(std::integral_constant<int, 8>{}, last);
                else
                    add(std::integral_constant<int, 4>{}, last);
                if (last) break;
                const int at = base + 16 + part;
                if (base == 0) {
                    mine = __ldg(p.full.heads + size_t(row) * FullRows::kHead + at);
                } else {
                    const int4 found = __ldg(reinterpret_cast<const int4*>(p.full.rows + row));
                    const size_t list = size_t(unsigned(found.x)) * unsigned(p.in.max_active);
                    mine = at < found.z ? __ldg(p.full.lists + list + at) : -1;
                }
            }
            const uint32_t quarter = (pair - 1) % S::kQuarters, tiles = (pair - 1) / S::kQuarters;
            barrier_wait(sum_empty + 8 * quarter, (tiles & 1) ^ 1);
            const uint32_t at = to + quarter * S::kQuarterBytes;
            store_shared_16(at, __float_as_uint(sum[0]), __float_as_uint(sum[1]), __float_as_uint(sum[2]),
                            __float_as_uint(sum[3]));
            store_shared_16(at + 16, __float_as_uint(sum[4]), __float_as_uint(sum[5]), __float_as_uint(sum[6]),
                            __float_as_uint(sum[7]));
            barrier_arrive(sum_full + 8 * (tiles % kGroups * S::kQuarters + quarter));
        }
    } else {  // ---- products
        take_registers<S::kConsumerRegisters>();
        const int group = warp / 4, quarter = warp % 4;
        const int t = lane % 4, shift = block_rows::keep(4 * t);
        const int stored_row = block_rows::keep(quarter * 16 + lane / 8);
        const uint32_t turn = shared + S::kTurn + warp * S::kTurnBytes, bias = shared + S::kBias;
        const uint32_t rows = shared + S::kTile + group * S::kTileBytes;
        const uint32_t row_bits = block_rows::keep(rows + (quarter * 16 + lane / 4) * S::kRowBits);
        const uint32_t sums = block_rows::keep(shared + S::kSums + quarter * S::kQuarterBytes +
                                               lane / 4 * S::kSumBytes + (lane / 4 << 5) + 8 * t);
        const int hot = __shfl_sync(~0u, (__ldg(p.full.hot_count) + 63) / 64, 0);
        uint32_t phase = 0;
        int released = 0;  // chunks, counted from the worker's first
        int next_slab = shared_first_slab;
        const int slab_step = slabs % Pieces::kAtOnce == 0 ? Pieces::kAtOnce : 1;
        const auto wait_for_chunk = [&](int chunk) {
            barrier_wait(full + 8 * (chunk % S::kStages), chunk / S::kStages & 1);
        };
        const auto release_until = [&](int chunk) {
#pragma unroll 1
            for (; released < chunk; ++released) {
                wait_for_chunk(released);  // of units without a tile for us
                barrier_arrive(empty + 8 * (released % S::kStages));
            }
        };
        while (true) {
            barrier_wait(tile_full + 8 * group, phase);
            const uint4 first = load_shared_16<true>(rows + S::kInfo);
            const int slab = __shfl_sync(~0u, int(first.x), 0), chunks = __shfl_sync(~0u, int(first.y), 0);
            const int first_chunk = __shfl_sync(~0u, int(first.z), 0), column = slab * kSlab;
            release_until(first_chunk);  // units without a tile for this group
            // All groups together, also those that have no tile of this slab.
            for (; next_slab <= slab; next_slab += slab_step) {
                threads_barrier(kGroups + 1, S::kConsumers);
                const int from = next_slab * kSlab;
                const bool exists = from + part % 8 * 8 < half;
#pragma unroll 1
                for (int c = 0; c < hot; ++c) {
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        const int k = 16 * j + int(threadIdx.x) / 16;
                        const int feature = hot_features[c * 64 + k];
                        copy_async_16(shared + S::kHot + c * S::kChunkBytes + (part < 8 ? 0 : S::kAtomBytes) +
                                          operand_offset(k, part % 8),
                                      reinterpret_cast<const char*>(weights + from) +
                                          size_t(unsigned(max(feature, 0))) * row_bytes,
                                      exists && feature >= 0);
                    }
                }
                if (threadIdx.x < 128) {
                    const int c = from + threadIdx.x % kSlab;
                    store_shared_4(bias + threadIdx.x * 4,
                                   c < half ? __float_as_uint(p.bias[c + (threadIdx.x < kSlab ? 0 : half)]) : 0);
                }
                copy_async_wait_all();
                fence_shared_for_wgmma();
                threads_barrier(kGroups + 1, S::kConsumers);
            }
            if (chunks == 0) break;
            float acc[64];
            barrier_wait(sum_full + 8 * (group * S::kQuarters + quarter), phase);
#pragma unroll
            for (int j = 0; j < 16; ++j) {
                const uint32_t at = (sums ^ (j % 8 << 5)) + j / 8 * 256;
                const uint2 b = load_shared_8(bias + 32 * j + 8 * t), low = load_shared_8(at),
                            high = load_shared_8(at + 8 * S::kSumBytes);
                acc[4 * j] = __uint_as_float(b.x) + __uint_as_float(low.x);
                acc[4 * j + 1] = __uint_as_float(b.y) + __uint_as_float(low.y);
                acc[4 * j + 2] = __uint_as_float(b.x) + __uint_as_float(high.x);
                acc[4 * j + 3] = __uint_as_float(b.y) + __uint_as_float(high.y);
            }
            barrier_arrive(sum_empty + 8 * quarter);
            fence_registers(acc);
            uint32_t a[2][2][4];
            const auto multiply = [&](int word, uint32_t operand) {
                const uint2 low = load_shared_8(row_bits + word * 8),
                            high = load_shared_8(row_bits + 8 * S::kRowBits + word * 8);
#pragma unroll
                for (int s = 0; s < 2; ++s) {
                    wgmma_wait<1>();
                    const uint32_t word_low = (s ? low.y : low.x) >> shift, word_high = (s ? high.y : high.x) >> shift;
#pragma unroll
                    for (int k = 0; k < 2; ++k) expand(a[s][k], word_low, word_high, k, kOne);
                    wgmma_fence();
#pragma unroll
                    for (int k = 0; k < 2; ++k) wgmma_k16<S::kBf16>(acc, a[s][k], operand + (s * 2 + k) * 128);
                    wgmma_commit();
                }
            };
#pragma unroll
            for (int c = 0; c < S::kHotChunks; ++c) {
                if (c == hot) break;
                multiply(S::kMaxChunks + c, operand_descriptor(shared + S::kHot + c * S::kChunkBytes, S::kAtomBytes));
            }
#pragma unroll
            for (int c = 0; c < S::kMaxChunks; ++c) {
                if (c == chunks) break;
                wait_for_chunk(first_chunk + c);
                fence_shared_for_wgmma();
                multiply(c,
                         operand_descriptor(shared + (first_chunk + c) % S::kStages * S::kChunkBytes, S::kAtomBytes));
            }
            wgmma_wait<0>();
            fence_registers(acc);
            if (first.w != 0) release_until(first_chunk + chunks);
            phase ^= 1;
            const auto row_of = [&](int k) {
                return load_shared_8(rows + S::kRows + (stored_row + 4 * k) * int(sizeof(FullRow)));
            };
            finish_tile<S>(
                p, acc, turn, [&](int k) { return int(row_of(k).x); }, column, [&](int k) { return int(row_of(k).y); });
            barrier_arrive(tile_empty + 8 * group);
        }
    }
#endif
}

template <typename Weight>
cudaError_t forward(const ForwardProblem& p, cudaStream_t stream) {
    using S = Shape<Weight>;
    const cudaError_t error =
        cudaFuncSetAttribute(full_kernel<Weight>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
    return error == cudaSuccess ? launch_early(full_kernel<Weight>, kWorkers, S::kThreads, S::kSharedBytes, stream, p)
                                : error;
}

}  // namespace nnue::full_forward
