// The forward for 16-bit weights: a product on tensor cores for each group of tiles and slab.
//
// A *team* takes an item: a group and one or two slabs. Some of its warps gather a slab of the weights of all features
// of the group (group_features.cuh), in chunks of 64 features, into a ring in shared memory. For each tile of the
// group, four others multiply and finish it. A multiprocessor has two teams that do not wait for each other, so that
// one can multiply while the other begins or ends.
#pragma once

#include "irregular_rows.cuh"
#include "one_hot_product.cuh"

namespace nnue::one_hot_product {

// `kTiles`: the tiles of a group.
template <typename Weight, int kTiles>
struct ForwardShape {
    static_assert(sizeof(Weight) == 2);
    static constexpr bool kBf16 = std::is_same_v<Weight, __nv_bfloat16>;
    static constexpr int kSlab = 64;      // of either half
    static constexpr int kMostSlabs = 2;  // of an item: the next slab's weights arrive while one is finished
    // Two teams of two tiles share a thread block, whose threads share the registers unevenly. With 104 for products,
    // ptxas makes each product wait for the one before (warning C7512); with 112 it does not.
    static constexpr int kTeams = kTiles, kBlocksPerMultiprocessor = 2 / kTeams;
    static constexpr int kCopyWarps = 4 / kTeams;  // warps of a team that copy
    static constexpr int kConsumers = kTeams * kTiles * 128, kThreads = kConsumers + 128;
    static constexpr int kProductRegisters = 112, kCopyRegisters = 32, kLaunchRegisters = 96;
    static_assert(kTeams == 1 || kConsumers * kProductRegisters + 128 * kCopyRegisters == kThreads * kLaunchRegisters);
    static constexpr int kChunk = GroupFeatures::kChunk, kAtomBytes = kChunk * 128, kChunkBytes = 2 * kAtomBytes;
    static constexpr int kStages = 4, kRows = kTiles * kTileRows, kBitsBytes = kRows * int(sizeof(uint2)),
                         kTurnBytes = 16 * 128, kBiasBytes = kMostSlabs * 512;
    // The shared memory of a team.
    static constexpr int kTurn = kStages * kChunkBytes, kBits = kTurn + 4 * kTiles * kTurnBytes,
                         kBias = kBits + kStages * kBitsBytes, kTargets = kBias + kTiles * kBiasBytes,
                         kFeatures = kTargets + kRows * 4;
    // Behind these follow the features of the group, and of the next item's.
    static constexpr int team_bytes(int most) {
        return (kFeatures + kTeams * most * int(sizeof(int32_t)) + 1023) / 1024 * 1024;
    }
    static constexpr int shared_bytes(int most) { return kTeams * team_bytes(most) + 1024; }
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
};

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

// Saves, activates and stores the sums of a tile. `slot` is that of the warp's row lane / 8, and its target is at
// address `targets` in shared memory; rows lane / 8 + 4 k follow. Targets are read when they are needed: they would be
// spilled.
template <typename Shape>
__device__ __forceinline__ void finish_tile(const ForwardProblem& p, float (&acc)[64], uint32_t turn, int slot,
                                            int column, uint32_t targets) {
    const int half = p.num_outputs / 2, columns = min(half - column, Shape::kSlab);
    const int my_column = column + threadIdx.x % 8 * 8;  // of those that this lane stores
    const auto target = [&](int k) { return int(load_shared_4(targets + k * 16)); };
    unsigned wanted = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) wanted |= unsigned(target(k) >= 0 && my_column < half) << k;
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
    if (p.out == nullptr) return;
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
                const int low = __shfl_sync(~0u, target(2 * r), lane / 4 % 4 * 8),
                          high = __shfl_sync(~0u, target(2 * r + 1), lane / 4 % 4 * 8);
                const int of_row = lane < 16 ? low : high;
                float* row = static_cast<float*>(p.out) + size_t(max(of_row, 0)) * width + h * half + column + 2 * t;
#pragma unroll
                for (int j = 0; j < 8; ++j)
                    if (of_row >= 0 && 8 * j < columns)
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
                [&](int k) { return row_of(out, max(target(k), 0), width * 2); });
        }
    }
}

// An item has up to `slabs` slabs.
// long: the warps that copy and those that multiply share stages and barriers.
template <typename Weight, int kTiles>
__global__ void __launch_bounds__(ForwardShape<Weight, kTiles>::kThreads,
                                  ForwardShape<Weight, kTiles>::kBlocksPerMultiprocessor)
    forward_kernel(ForwardProblem p, int slabs) {
    using S = ForwardShape<Weight, kTiles>;
    constexpr uint32_t kOne = S::kBf16 ? kOneBf16 : kOneFp16;
    extern __shared__ char shared_raw[];
    __shared__ uint64_t barriers[2 * S::kTeams * S::kStages];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = p.num_outputs / 2, most = p.group_features.most;
    const bool copies = warp >= S::kConsumers / 32;
    const int in_role = copies ? warp - S::kConsumers / 32 : warp,
              team = S::kTeams == 1 ? 0 : __shfl_sync(~0u, in_role / (copies ? S::kCopyWarps : 4 * kTiles), 0);
    const uint32_t shared = ((shared_address(shared_raw) + 1023) & ~1023u) + team * S::team_bytes(most);
    const uint32_t full = shared_address(barriers) + team * S::kStages * 16, empty = full + 8 * S::kStages;
    if (threadIdx.x < S::kTeams * S::kStages) {
        // Every thread arrives for itself, since any of them may still be reading a stage.
        uint64_t* const stage = barriers + threadIdx.x / S::kStages * 2 * S::kStages + threadIdx.x % S::kStages;
        barrier_init(shared_address(stage), 32 * S::kCopyWarps);
        barrier_init(shared_address(stage + S::kStages), 128 * kTiles);
    }
    __syncthreads();
    wait_for_kernels_before();
    let_next_kernel_start();
    const int tiles = p.plan.tile_begin[p.in.num_buckets], groups = (tiles + kTiles - 1) / kTiles,
              first_item = int(blockIdx.x) * S::kTeams + team, step = int(gridDim.x) * S::kTeams,
              end_item = groups * ((half + slabs * S::kSlab - 1) / (slabs * S::kSlab));
    unsigned use = 0;  // of the ring's places
    if (copies) {
        if constexpr (S::kTeams > 1) give_registers<S::kCopyRegisters>();
        // Each warp copies kOfWarp neighbouring features of a chunk, and each half of it half of these.
        constexpr int kOfWarp = S::kChunk / S::kCopyWarps, kOfHalf = kOfWarp / 2, kLanes = kOfWarp / 4;
        const int copier = in_role % S::kCopyWarps, sixteenth = lane % 16;
        const unsigned row_bytes = unsigned(p.num_outputs) * sizeof(Weight);
        const int first = copier * kOfWarp + lane / 16 * kOfHalf;  // among a chunk's features
        const uint32_t swizzled = shared + (sixteenth < 8 ? 0 : S::kAtomBytes) + operand_offset(first, sixteenth % 8);
        // A warp also copies the numbers of the features whose weights it will copy, four in a lane, while the weights
        // of the previous item arrive. It copies as many as groups usually have before it loads the number of chunks,
        // which it returns.
        const int four = copier * kOfWarp + lane % kLanes * 4;
        const auto copy_features = [&](int group, uint32_t to) {
            constexpr int kTogether = 32 / kLanes;  // chunks whose features a warp copies at once
            const int32_t* const from = p.group_features.features + size_t(group) * most + four;
            const auto copy = [&](int chunk, int end) {
                if (chunk < end) copy_async_16(to + (chunk * S::kChunk + four) * 4, from + chunk * S::kChunk, true);
            };
#pragma unroll 1  // registers are scarce
            for (int c = 0; c < 2 * kTogether; c += kTogether) copy(c + lane / kLanes, most / S::kChunk);
            const int chunks = __shfl_sync(~0u, p.group_features.chunks[group], 0);
#pragma unroll 1
            for (int c = 2 * kTogether; c < chunks; c += kTogether) copy(c + lane / kLanes, chunks);
            copy_async_commit();
            return chunks;
        };
        uint32_t features = shared + S::kFeatures, next_features = features + (S::kTeams - 1) * most * 4;
        int next_chunks = first_item < end_item ? copy_features(first_item % groups, features) : 0;
        copy_async_commit();  // an empty group in place of an earlier item's weights, for copy_async_wait<1>
#pragma unroll 1
        for (int item = first_item; item < end_item; item = S::kTeams == 1 ? end_item : item + step) {
            const int group = item % groups, first_column = item / groups * slabs * S::kSlab, chunks = next_chunks;
            copy_async_wait<1>();
            __syncwarp();
            if (S::kTeams > 1 && item + step < end_item)
                next_chunks = copy_features((item + step) % groups, next_features);
            const int end_column = min(half, first_column + slabs * S::kSlab);
            int own_column = first_column + sixteenth % 8 * 8;
            const char* from = reinterpret_cast<const char*>(static_cast<const Weight*>(p.weight) +
                                                             (sixteenth < 8 ? 0 : half) + own_column);
            constexpr int kBitLanes = 32 * kTiles / S::kCopyWarps;  // a chunk has 512 bytes of bitmaps per tile
            const int own_bits = copier * kBitLanes + lane;
            const char* const bits =
                reinterpret_cast<const char*>(p.group_features.bits + size_t(group) * (most / S::kChunk) * S::kRows) +
                own_bits * 16;
#pragma unroll 1
            for (int column = first_column; column < end_column; column += S::kSlab) {
                const bool exists = own_column < half;
                uint32_t which = features + first * 4;
                const char* chunk_bits = bits;
#pragma unroll 1
                for (int c = 0; c < chunks; ++c) {
                    const RingPlace<S::kStages> place(use++);
                    uint4 eight[2] = {load_shared_16<true>(which), load_shared_16<true>(which + 16)};
                    barrier_wait(empty + 8 * place.stage, place.phase ^ 1);
                    if (kBitLanes == 32 || lane < kBitLanes)
                        copy_async_16(shared + S::kBits + own_bits * 16 + place.stage * S::kBitsBytes, chunk_bits,
                                      true);
                    chunk_bits += S::kBitsBytes;
                    const uint32_t to = swizzled + place.stage * S::kChunkBytes;
#pragma unroll
                    for (int j = 0; j < kOfHalf; j += 8) {
                        if (j > 0)
                            eight[0] = load_shared_16<true>(which + 32), eight[1] = load_shared_16<true>(which + 48);
                        const unsigned of[8] = {eight[0].x, eight[0].y, eight[0].z, eight[0].w,
                                                eight[1].x, eight[1].y, eight[1].z, eight[1].w};
#pragma unroll
                        for (int i = 0; i < 8; ++i)
                            copy_async_16((to + (j + i) * 128) ^ (i << 4), row_of(from, of[i], row_bytes), exists);
                    }
                    barrier_arrive_copied(full + 8 * place.stage);
                    which += S::kChunk * 4;
                }
                from += S::kSlab * sizeof(Weight), own_column += S::kSlab;
            }
            copy_async_commit();
            const uint32_t used = features;
            features = next_features, next_features = used;
        }
        copy_async_wait_all();
    } else {  // ---- products
        if constexpr (S::kTeams > 1) take_registers<S::kProductRegisters>();
        const int warpgroup = S::kTeams == 1 ? 0 : __shfl_sync(~0u, warp / 4, 0), tile_in_group = warpgroup % kTiles;
        const uint32_t all_bias = shared + S::kBias + tile_in_group * S::kBiasBytes,
                       all_targets = shared + S::kTargets + tile_in_group * kTileRows * 4;
        const int t = lane % 4, shift = 4 * t, stored_row = warp % 4 * 16 + lane / 8;
        const uint32_t bits = shared + S::kBits + (in_role % (4 * kTiles) * 16 + lane / 4) * 8,
                       turn = shared + S::kTurn + in_role % (4 * kTiles) * S::kTurnBytes;
#pragma unroll 1
        for (int item = first_item; item < end_item; item = S::kTeams == 1 ? end_item : item + step) {
            const int group = item % groups, first_column = item / groups * slabs * S::kSlab,
                      end_column = min(half, first_column + slabs * S::kSlab), tile = group * kTiles + tile_in_group;
            const int chunks = __shfl_sync(~0u, p.group_features.chunks[group], 0);
            const int thread = thread_number() % 128;
            if constexpr (S::kTeams > 1)
                warpgroup_barrier(warpgroup);  // until all warps have finished the previous item
#pragma unroll
            for (int slab = 0; slab < S::kMostSlabs; ++slab) {  // columns of the first half, then of the second
                const int c = first_column + slab * S::kSlab + thread % S::kSlab;
                store_shared_4(all_bias + slab * 512 + thread * 4,  // + 0.0f, so that no sum is −0
                               c < half ? __float_as_uint(p.bias[c + (thread < S::kSlab ? 0 : half)] + 0.0f) : 0);
            }
            if (thread < kTileRows)  // the last group may have fewer tiles
                store_shared_4(all_targets + thread * 4,
                               tile < tiles ? uint32_t(p.plan.slot_target[tile * kTileRows + thread]) : ~0u);
            warpgroup_barrier(warpgroup);
#pragma unroll 1
            for (int column = first_column; column < end_column; column += S::kSlab) {
                const uint32_t bias = all_bias + (column - first_column) * 8 + 8 * t;
                float acc[64];
#pragma unroll
                for (int j = 0; j < 16; ++j) {
                    const uint2 b = load_shared_8(bias + 32 * j);
                    acc[4 * j] = acc[4 * j + 2] = __uint_as_float(b.x);
                    acc[4 * j + 1] = acc[4 * j + 3] = __uint_as_float(b.y);
                }
                fence_registers(acc);
                uint32_t a[2][2][4];
                uint32_t before = 0;  // the stage of the chunk before
#pragma unroll 1
                for (int c = 0; c < chunks; ++c) {
                    const RingPlace<S::kStages> place(use++);
                    barrier_wait(full + 8 * place.stage, place.phase);
                    fence_shared_for_wgmma();
                    const uint2 low = load_shared_8(bits + place.stage * S::kBitsBytes),
                                high = load_shared_8(bits + place.stage * S::kBitsBytes + 64);
                    const uint32_t operand = operand_descriptor(shared + place.stage * S::kChunkBytes, S::kAtomBytes);
#pragma unroll
                    for (int s = 0; s < 2; ++s) {
                        wgmma_wait<1>();
                        if (s == 1 && c > 0) barrier_arrive(empty + 8 * before);
                        const uint32_t word_low = (s ? low.y : low.x) >> shift,
                                       word_high = (s ? high.y : high.x) >> shift;
                        multiply_word<S::kBf16>(acc, a[s], word_low, word_high, kOne, operand + s * 256);
                    }
                    before = place.stage;
                }
                wgmma_wait<0>();
                fence_registers(acc);
                if (chunks > 0) barrier_arrive(empty + 8 * before);
                finish_tile<S>(p, acc, turn, tile * kTileRows + stored_row, column, all_targets + stored_row * 4);
            }
        }
    }
}

constexpr int kLeftOutGrid = 264, kLeftOutThreads = 256;

// The sums of one row in plain fp32: one thread block computes, saves, activates and stores them.
template <typename Weight>
__device__ __forceinline__ void sum_row(const ForwardProblem& p, int row, int slot, int target) {
    const int half = p.num_outputs / 2;
    for (int c = threadIdx.x; c < half; c += blockDim.x) {
        float v[2] = {p.bias[c] + 0.0f, p.bias[half + c] + 0.0f};  // + 0.0f, so that no sum is −0
        constexpr int kAhead = 8;
        const int32_t* const entries = bucket_plan::row_pointer(p.in, row);
        bool open = true;
        for (int first = 0; open && first < p.in.max_active; first += kAhead) {
            int features[kAhead];
            float weights[kAhead][2] = {};
            for (int i = 0; i < kAhead; ++i) features[i] = first + i < p.in.max_active ? entries[first + i] : -1;
            for (int i = 0; i < kAhead; ++i) {
                open = open && features[i] >= 0;
                if (!open || features[i] >= p.in.num_bucketed + p.in.num_unbucketed) continue;
                const Weight* weight = static_cast<const Weight*>(p.weight) + size_t(features[i]) * p.num_outputs + c;
                weights[i][0] = cuda::to_sum(weight[0]), weights[i][1] = cuda::to_sum(weight[half]);
            }
            for (int i = 0; i < kAhead; ++i) v[0] += weights[i][0], v[1] += weights[i][1];
        }
        if (p.saved != nullptr) {
            const uint32_t encoded = encode(v[0], v[1], p.bound);
            for (int h = 0; h < 2; ++h) {
                const size_t at = saved_at(slot, h, c, p.num_outputs);
                static_cast<uint16_t*>(p.saved)[at] = uint16_t(encoded >> (16 * h));
            }
        }
        if (p.out == nullptr) continue;
        if (p.activation != Activation::kIdentity) v[0] = clip(v[0], p.bound), v[1] = clip(v[1], p.bound);
        if (p.activation == Activation::kPairwise) {
            store(p.out, size_t(target) * half + c, finished(p, v[0] * (v[1] * p.scale)), p.out_type);
            continue;
        }
        for (int h = 0; h < 2; ++h)
            store(p.out, size_t(target) * p.num_outputs + h * half + c,
                  finished(p, v[h] * (p.activation == Activation::kSCReLU ? v[h] * p.scale : p.scale)), p.out_type);
    }
}

// Adds up the rows that the product leaves out, divided evenly among the thread blocks. Usually there are none.
template <typename Weight>
__global__ void __launch_bounds__(kLeftOutThreads) left_out_kernel(ForwardProblem p) {
    __shared__ uint64_t left_out[kLeftOutThreads];
    __shared__ unsigned tiles_with_any[kLeftOutThreads / 32];
    wait_for_kernels_before();
    const int tiles = p.plan.tile_begin[p.in.num_buckets];
    bool any = false;
#pragma unroll 4
    for (int tile = threadIdx.x; tile < tiles; tile += kLeftOutThreads) any |= p.group_features.left_out[tile] != 0;
    if (__syncthreads_count(any) == 0) return;
    unsigned number = 0;
    for (int first = 0; first < tiles; first += kLeftOutThreads) {
        const int own = first + int(threadIdx.x);
        const uint64_t own_rows = own < tiles ? p.group_features.left_out[own] : 0;
        left_out[threadIdx.x] = own_rows;
        const unsigned any = __ballot_sync(~0u, own_rows != 0);
        if (threadIdx.x % 32 == 0) tiles_with_any[threadIdx.x / 32] = any;
        __syncthreads();
        for (int w = 0; w < kLeftOutThreads / 32; ++w)
            for (unsigned which = tiles_with_any[w]; which != 0; which &= which - 1) {
                const int i = 32 * w + __ffs(int(which)) - 1;
                for (uint64_t rows = left_out[i]; rows != 0; rows &= rows - 1) {
                    if (number++ % gridDim.x != blockIdx.x) continue;
                    const RowOrder row = p.plan.order[(first + i) * kTileRows + __ffsll((long long)rows) - 1];
                    if (row.target >= 0) sum_row<Weight>(p, row.row, row.slot, row.target);
                }
            }
        __syncthreads();
    }
}

template <typename Weight, int kTiles>
void forward(const ForwardProblem& p, int multiprocessors, cudaStream_t stream) {
    using S = ForwardShape<Weight, kTiles>;
    constexpr int kFewestItems = 12;  // per team, for two slabs each: with fewer, the last team would end too late
    const int groups = p.group_features.groups(p.in), all_slabs = (p.num_outputs / 2 + S::kSlab - 1) / S::kSlab,
              slabs = (long long)groups * all_slabs >= 2 * kFewestItems * multiprocessors ? S::kMostSlabs : 1;
    // A team that has a thread block of its own takes one item.
    const int grid = S::kTeams == 1 ? groups * ((all_slabs + slabs - 1) / slabs) : multiprocessors;
    start("forward_kernel", forward_kernel<Weight, kTiles>, S::shared_bytes(GroupFeatures::most_of(kTiles)), grid,
          S::kThreads, S::shared_bytes(p.group_features.most), stream, p, slabs);
    start("left_out_kernel", left_out_kernel<Weight>, -1, kLeftOutGrid, kLeftOutThreads, 0, stream, p);
}
template <typename Weight>
void forward(const ForwardProblem& p, int multiprocessors, cudaStream_t stream) {
    p.group_features.tiles == 1 ? forward<Weight, 1>(p, multiprocessors, stream)
                                : forward<Weight, 2>(p, multiprocessors, stream);
}

}  // namespace nnue::one_hot_product
