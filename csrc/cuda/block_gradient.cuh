// The backward of king-bucketed sets: row gradients, and the weight gradient as a product on tensor cores
// (block_product.cuh) over each block's frequent features; rare ones are gathered.
#pragma once

#include <climits>

#include "block_product.cuh"
#include "irregular_rows.cuh"

namespace nnue::block_product {

constexpr int kFlags = 8;  // of a worker: one for each consumer warp
constexpr int kMaxGroups = kBlockFeatures / kGroupFeatures;

// Row gradients lie as the product reads them: for each (slab, tile of 64 slots) one operand of 64 rows × 128 columns,
// two swizzled atoms. bf16: the slab's 64 columns of each half. Two fp16 parts: an atom of 32 columns of each half with
// the high parts, one with the low parts, times the power of two of `exponents` for this (slab, tile).
template <int kParts>
struct GradientShape {
    static constexpr int kSlab = 64 / kParts;  // columns of each half
    static constexpr int kAtomBytes = kTileRows * 128, kOperandBytes = 2 * kAtomBytes;
    static constexpr int kThreads = 256, kGroups = kSlab / 8, kRows = kThreads / kGroups;

    __host__ __device__ static int slabs(int num_outputs) { return (num_outputs / 2 + kSlab - 1) / kSlab; }
    // Of eight columns of half `h` in row `row` of an operand; the low parts lie an atom further on.
    __device__ static uint32_t offset(int h, int row, int group) {
        return kParts == 1 ? h * kAtomBytes + operand_offset(row, group) : operand_offset(row, h * kGroups + group);
    }
};

// A stretch of tiles to a thread block of the row gradients; its sums are a part of the bias gradient.
__host__ __device__ inline int stretch_tiles(int max_tiles) {
    return max(4, (max_tiles + 1023) / 1024);
}
__host__ __device__ inline int stretches(int max_tiles) {
    return (max_tiles + stretch_tiles(max_tiles) - 1) / stretch_tiles(max_tiles);
}

constexpr int kNoExponent = -1000;  // of a tile of zeros

// The exponent of the power of two that leaves numbers of up to this magnitude (its bits) just inside fp16's range.
__device__ __forceinline__ int tile_exponent(unsigned largest) {
    if (largest == 0) return kNoExponent;
    if (largest >= 0x7f800000u) return 0;  // not finite, and stays so
    return max(int(largest >> 23) - 127 - 14, -120);
}
// 2^exponent as a float, 0 below its normal range.
__device__ __forceinline__ float power_of_two(int exponent) {
    return exponent < -126 ? 0.0f : __int_as_float((exponent + 127) << 23);
}

// Eight numbers as they lie in memory.
template <typename T>
struct Eight {
    uint4 raw[sizeof(T) / 2] = {};

    __device__ void load(const T* from) {
#pragma unroll
        for (int i = 0; i < int(sizeof(T) / 2); ++i) raw[i] = __ldg(reinterpret_cast<const uint4*>(from) + i);
    }
    __device__ void unpack_to(float (&x)[8], Float type) const {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const uint32_t* words = &raw[j * sizeof(T) / 8].x;
            float2 two;
            if constexpr (sizeof(T) == 4)
                two = {__uint_as_float(words[2 * j % 4]), __uint_as_float(words[2 * j % 4 + 1])};
            else
                two = unpack(words[j], type);
            x[2 * j] = two.x, x[2 * j + 1] = two.y;
        }
    }
};

// Row gradients in slot order, 0 in padding, and their sums over each stretch of tiles. Thread blocks (slab, stretch):
// those that share rows of memory run together.
template <int kParts, typename Grad, Activation kActivation>
__global__ void __launch_bounds__(GradientShape<kParts>::kThreads) row_gradient_kernel(BackwardProblem p) {
    using Shape = GradientShape<kParts>;
    using Saved = std::conditional_t<kParts == 1, uint16_t, float>;
    constexpr bool kPairwise = kActivation == Activation::kPairwise;
    constexpr int kRows = Shape::kRows, kWarps = Shape::kThreads / 32;
    __shared__ float sums[kRows][Shape::kGroups][17];
    __shared__ unsigned largest[2][kWarps];
    const int group = threadIdx.x % Shape::kGroups, row = threadIdx.x / Shape::kGroups;
    const int half = p.num_outputs / 2, slab = blockIdx.x, column = slab * Shape::kSlab + group * 8;
    const int max_tiles = p.max_tiles, stretch = stretch_tiles(max_tiles);
    const float limit = kParts == 1 ? __half2float(__float2half_ru(p.bound)) : p.bound;
    wait_for_kernels_before();
    let_next_kernel_start();
    if (blockIdx.x == 0 && blockIdx.y == 0)
        for (int i = threadIdx.x; i < kWorkers * kFlags; i += Shape::kThreads) p.flags[i] = 0;
    const int first = blockIdx.y * stretch, last = min(first + stretch, p.rows.tile_begin[p.in.num_blocks]);
    float bias[2][8] = {};
    constexpr int kPasses = kTileRows / kRows;
    for (int tile = first; tile < last; ++tile) {
        char* operand = static_cast<char*>(p.grad_rows) + (size_t(slab) * max_tiles + tile) * Shape::kOperandBytes;
        int targets[kPasses];
        Eight<Grad> grads[kPasses][kPairwise ? 1 : 2];
        Eight<Saved> sums_saved[kPasses][2];
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass)
            targets[pass] = column < half ? __ldg(p.rows.slot_target + tile * kTileRows + pass * kRows + row) : -1;
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {  // all loads first
            if (targets[pass] < 0) continue;
            const Grad* grad = static_cast<const Grad*>(p.grad_out) +
                               size_t(targets[pass]) * (kPairwise ? half : p.num_outputs) + column;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                if (h == 0 || !kPairwise) grads[pass][h].load(grad + h * half);
                if constexpr (kActivation != Activation::kIdentity)
                    sums_saved[pass][h].load(static_cast<const Saved*>(p.saved) +
                                             saved_at(tile * kTileRows + pass * kRows + row, h, column, p.num_outputs));
            }
        }
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
            const int r = pass * kRows + row;
            float g[2][8], s[2][8];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                grads[pass][kPairwise ? 0 : h].unpack_to(g[h], p.grad_type);
                sums_saved[pass][h].unpack_to(s[h], Float::kFloat16);
            }
#pragma unroll
            for (int j = 0; j < 8; ++j) {  // of zeros where there is no row
                g[0][j] *= p.scale;
                g[1][j] *= p.scale;
                differentiate<kActivation>(g[0][j], g[1][j], s[0][j], s[1][j], p.bound, limit);
                bias[0][j] += g[0][j];
                bias[1][j] += g[1][j];
            }
            float scale = 1;
            if constexpr (kParts == 2) {
                static_assert(kRows == kTileRows);
                unsigned mine = 0;
#pragma unroll
                for (int j = 0; j < 8; ++j)
                    mine =
                        max(mine, max(__float_as_uint(g[0][j]) & 0x7fffffffu, __float_as_uint(g[1][j]) & 0x7fffffffu));
                mine = __reduce_max_sync(~0u, mine);
                if (threadIdx.x % 32 == 0) largest[tile % 2][threadIdx.x / 32] = mine;
                __syncthreads();
#pragma unroll
                for (int w = 0; w < kWarps; ++w) mine = max(mine, largest[tile % 2][w]);
                const int exponent = tile_exponent(mine);
                if (threadIdx.x == 0) p.exponents[size_t(slab) * max_tiles + tile] = exponent;
                scale = power_of_two(mine == 0 ? 0 : -exponent);
            }
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                uint32_t high[4], low[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    if constexpr (kParts == 1) {
                        high[j] = pack(g[h][2 * j], g[h][2 * j + 1], Float::kBFloat16);
                    } else {
                        split(g[h][2 * j] * scale, g[h][2 * j + 1] * scale, high[j], low[j]);
                    }
                }
                char* to = operand + Shape::offset(h, r, group);
                *reinterpret_cast<uint4*>(to) = {high[0], high[1], high[2], high[3]};
                if constexpr (kParts == 2)
                    *reinterpret_cast<uint4*>(to + Shape::kAtomBytes) = {low[0], low[1], low[2], low[3]};
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) sums[row][group][i] = bias[i / 8][i % 8];
    __syncthreads();
    for (int i = threadIdx.x; i < Shape::kGroups * 16; i += Shape::kThreads) {
        const int c = slab * Shape::kSlab + i / 16 * 8 + i % 8;
        float sum = 0;
#pragma unroll 8
        for (int y = 0; y < kRows; ++y) sum += sums[y][i / 16][i % 16];
        if (c < half) p.bias_partial[size_t(blockIdx.y) * p.num_outputs + i % 16 / 8 * half + c] = sum;
    }
}

// The product: a unit is (slab, block, group of 384 of the block's dense ranks). Two warpgroups hold the sums of a
// unit's features × 128 operand columns in registers and turn bitmaps into products; a warp has row gradients and
// bitmaps copied ahead of them. A unit shared by several workers is finished by the first of them, which adds what the
// others left in `partial`, in their order.
template <int kParts>
struct BackwardShape : GradientShape<kParts> {
    using GradientShape<kParts>::kOperandBytes;
    static constexpr int kBitBytes = kGroupFeatures * sizeof(uint2);
    static constexpr int kStages = 8;
    static constexpr int kConsumers = 256, kThreads = kConsumers + 128, kWarps = kConsumers / 32;
    static constexpr int kFeatureTiles = kGroupFeatures / 64 / (kConsumers / 128);  // of 64 features, per warpgroup
    // A consumer warp turns 16 rows of results, 256 bytes each, around in shared memory; banks ask for the stride.
    static constexpr int kRowStride = kParts == 1 ? 272 : 288, kTurnBytes = 16 * kRowStride;
    // Behind the operands: for each stage bitmaps, the barriers "full" and "empty", the left operand's `one`; for each
    // consumer warp the above and the unit's features.
    static constexpr int kBits = kStages * kOperandBytes, kTurn = kBits + kStages * kBitBytes,
                         kFeatures = kTurn + kWarps * kTurnBytes, kFull = kFeatures + kWarps * kFeatureTiles * 64,
                         kEmpty = kFull + kStages * 8, kOnes = kEmpty + kStages * 8;
    static constexpr int kSharedBytes = kOnes + kStages * 4 + 1024;
    static_assert(kWarps == kFlags);
};

// What a unit costs is counted in products of 64 rows × 64 features × 128 columns: first what finishing it takes, then
// so many for each of its tiles. Worker i takes an equal stretch of the units in order, so a unit may be cut into
// pieces that belong to consecutive workers; the first of them finishes it.
struct Units {
    int cost_begin[kMaxGroups * kMaxBlocks + 1];  // of a slab's units: kMaxGroups for each block
    int tile_begin[kMaxBlocks + 1];
    int dense[kMaxBlocks];

    __device__ int feature_tiles(int unit) const {
        const int ranks = dense[unit / kMaxGroups] - unit % kMaxGroups * kGroupFeatures;
        return max(0, min(ranks, kGroupFeatures)) / 64;
    }
    __device__ int tiles(int unit) const { return tile_begin[unit / kMaxGroups + 1] - tile_begin[unit / kMaxGroups]; }
    // Measured: with few features, copying a tile takes as long as multiplying it.
    __device__ int tile_cost(int unit) const { return max(feature_tiles(unit), 2); }
    // `stretch`: what a worker gets; where a unit is more, the others' sums have to be added.
    __device__ int cost(int unit, int stretch) const {
        const int n = feature_tiles(unit), product = tiles(unit) * tile_cost(unit);
        return n == 0 ? 0 : 2 * n + 8 + product / stretch * (16 * n) + product;
    }
    // How many of the unit's tiles begin in the first `cost` of it.
    __device__ int tiles_in(int unit, long long cost) const {
        const int n = tiles(unit), each = tile_cost(unit);
        const long long finishing = cost_begin[unit + 1] - cost_begin[unit] - n * each;
        return cost <= finishing ? 0 : int(min((long long)n, (cost - finishing + each - 1) / each));
    }

    // All threads of the thread block.
    __device__ void load(const BlockRows& rows, int num_blocks, int slabs) {
        for (int b = threadIdx.x; b <= num_blocks; b += blockDim.x) {
            tile_begin[b] = rows.tile_begin[b];
            if (b < num_blocks) dense[b] = rows.dense[b];
        }
        __syncthreads();
        if (threadIdx.x < 32) {
            int stretch = INT_MAX;
            for (int pass = 0; pass < 2; ++pass) {
                const int slab_cost =
                    sums_before(cost_begin, kMaxGroups * num_blocks, [&](int unit) { return cost(unit, stretch); });
                stretch = int(min((long long)INT_MAX, (long long)slab_cost * slabs / kWorkers + 1));
            }
        }
        __syncthreads();
    }
};

// Tiles lo … hi − 1 of a unit; hi is 0 behind the last piece.
struct UnitPiece {
    int slab, unit, lo, hi;
    int reference;    // the largest of the unit's exponents
    long long begin;  // of the unit, in the cost of everything
};

struct UnitCursor {
    // Measured: what two workers pay for sharing a unit, in what that much less even work would cost.
    static constexpr int kSharing = 60;

    const Units& units;
    const int num_units, slab_cost;
    const long long total;
    long long cost, end;

    __device__ UnitCursor(const Units& units_, int num_units_, int slabs, int worker)
        : units(units_),
          num_units(num_units_),
          slab_cost(units_.cost_begin[num_units_]),
          total((long long)slab_cost * slabs),
          cost(begin_of(worker)),
          end(begin_of(worker + 1)) {}

    __device__ long long begin_of(int worker) const {
        return stretch_begin(total * worker / kWorkers, total, units.cost_begin, num_units, kSharing);
    }

    __device__ bool next(UnitPiece& piece) {
        while (cost < end) {
            piece.slab = int(cost / slab_cost);
            const int rest = int(cost - (long long)piece.slab * slab_cost),
                      low = last_begun(units.cost_begin, num_units, rest);
            piece.unit = low;
            piece.begin = cost - rest + units.cost_begin[low];
            const long long take = min((long long)units.cost_begin[low + 1] - rest, end - cost);
            piece.lo = units.tiles_in(low, cost - piece.begin);
            piece.hi = units.tiles_in(low, cost + take - piece.begin);
            cost += take;
            if (piece.lo < piece.hi) return true;
        }
        piece.hi = 0;
        return false;
    }
};

// One bit of a word of the left operand becomes `one`. For two fp16 parts it is a power of two that depends on the
// tile, relative to the unit's largest: 2^15, down to 2^-21.
__device__ __forceinline__ uint32_t relative_one(int exponent, int reference) {
    const int e = exponent - reference + 15;
    return e >= -14 ? uint32_t(e + 15) << 10 : e >= -21 ? 1u << (e + 24) : 0;
}

// Adds the products of `count` tiles, for the first `my_tiles` of the warpgroup's tiles of 64 features.
template <int kParts>
__device__ __forceinline__ void multiply(float (&acc)[BackwardShape<kParts>::kFeatureTiles][64], int my_tiles,
                                         int count, uint32_t shared, int& stage, uint32_t& phase) {
    using Shape = BackwardShape<kParts>;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // Warpgroup 0 has the even tiles of the unit's features, 1 the odd ones.
    const uint32_t first_bits = shared + Shape::kBits + (warp / 4 * 64 + warp % 4 * 16 + lane / 4) * 8;
    // By every thread: none may still be reading what is overwritten.
    const auto release = [&](int stage) { barrier_arrive(shared + Shape::kEmpty + stage * 8); };
    my_tiles = __shfl_sync(~0u, my_tiles, 0), count = __shfl_sync(~0u, count, 0);  // uniform, as ptxas has to know
    for (int i = 0; i < count; ++i) {
        barrier_wait(shared + Shape::kFull + stage * 8, phase);
        const uint32_t operand = operand_descriptor(shared + stage * Shape::kOperandBytes, Shape::kAtomBytes);
        const uint32_t bits = first_bits + stage * Shape::kBitBytes;
        const uint32_t one = kParts == 1 ? kOneBf16 : load_shared_4(shared + Shape::kOnes + stage * 4);
        uint32_t a[2][2][4];
#pragma unroll
        for (int m = 0; m < Shape::kFeatureTiles; ++m) {
            if (m == my_tiles) break;
            const uint2 low = load_shared_8(bits + m * 1024), high = load_shared_8(bits + m * 1024 + 64);
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                wgmma_wait<1>();
                const int shift = 4 * (lane % 4);
                const uint32_t word_low = (part ? low.y : low.x) >> shift,
                               word_high = (part ? high.y : high.x) >> shift;
#pragma unroll
                for (int k = 0; k < 2; ++k) expand(a[part][k], word_low, word_high, k, one);
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < 2; ++k) wgmma_k16<kParts == 1>(acc[m], a[part][k], operand + (part * 2 + k) * 128);
                wgmma_commit();
            }
        }
        if (i > 0) release((stage == 0 ? Shape::kStages : stage) - 1);  // the last tile's products are done
        if (++stage == Shape::kStages) stage = 0, phase ^= 1;
    }
    wgmma_wait<0>();
    release((stage == 0 ? Shape::kStages : stage) - 1);
}

// Zeros for features that no row has; by warps that have nothing else to do while others multiply.
__device__ __forceinline__ void clear_unused(const BackwardProblem& p, int warp, int warps, int lane) {
    const int row_bytes = p.num_outputs * (p.weight_type == Float::kFloat32 ? 4 : 2);
    const int items = p.in.num_blocks * kBlockFeatures;
    for (int first = warp; first < items; first += warps * 32) {
        const int item = first + lane * warps;  // a lane looks at each of the warp's next items
        int feature = -1;
        if (item < items) {
            const int block = item / kBlockFeatures, local = ~__ldg(p.rows.ranked + item);
            // Ranks within the product are written there.
            if (local >= 0 && local < p.in.block_size && item % kBlockFeatures >= p.rows.dense[block])
                feature = block * p.in.block_size + local;
            if (feature >= p.in.num_features) feature = -1;
        }
        for (unsigned todo = __ballot_sync(~0u, feature >= 0); todo != 0; todo &= todo - 1) {
            char* row =
                static_cast<char*>(p.grad_weight) + size_t(__shfl_sync(~0u, feature, __ffs(todo) - 1)) * row_bytes;
            for (int i = lane * 16; i < row_bytes; i += 512) *reinterpret_cast<uint4*>(row + i) = {0, 0, 0, 0};
        }
    }
}

template <int kParts>
__global__ void __launch_bounds__(384, 1) weight_gradient_kernel(BackwardProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using Shape = BackwardShape<kParts>;
    constexpr int kRing = 12;  // pieces: more than stages
    static_assert(kRing > Shape::kStages);
    extern __shared__ char shared_raw[];
    __shared__ Units units;
    __shared__ UnitPiece pieces[kRing];
    const uint32_t shared = (shared_address(shared_raw) + 1023) & ~1023u;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // A worker waits for those after it: they start first.
    const int worker = kWorkers - 1 - blockIdx.x;
    if (threadIdx.x == 0) {
        for (int s = 0; s < Shape::kStages; ++s) {
            barrier_init(shared + Shape::kFull + s * 8, 1);
            barrier_init(shared + Shape::kEmpty + s * 8, Shape::kConsumers);
        }
        fence_barrier_init();
    }
    wait_for_kernels_before();
    let_next_kernel_start();
    const int num_units = kMaxGroups * p.in.num_blocks, slabs = Shape::slabs(p.num_outputs);
    units.load(p.rows, p.in.num_blocks, slabs);

    if (warp > Shape::kWarps) {
        give_registers<24>();
        clear_unused(p, worker * 3 + warp - Shape::kWarps - 1, kWorkers * 3, lane);
    } else if (warp == Shape::kWarps) {  // ---- copies
        give_registers<24>();
        const int max_tiles = p.max_tiles;
        UnitCursor cursor(units, num_units, slabs, worker);
        int stage = 0;
        uint32_t phase = 1;  // the first pass over the stages waits for nothing
        for (int number = 0;; ++number) {
            UnitPiece piece{};
            const bool more = cursor.next(piece);
            const int first_tile = units.tile_begin[piece.unit / kMaxGroups];
            const int* exponents = p.exponents + size_t(piece.slab) * max_tiles + first_tile;
            int exponent = 0;
            piece.reference = kNoExponent;
            if (kParts == 2 && more) {
                for (int i = lane; i < units.tiles(piece.unit); i += 32)
                    piece.reference = max(piece.reference, exponents[i]);
                piece.reference = __reduce_max_sync(~0u, piece.reference);
            }
            // Stages that the consumers have left say that they have left the ring's oldest piece, too.
            barrier_wait(shared + Shape::kEmpty + stage * 8, phase);
            if (lane == 0) pieces[number % kRing] = piece;
            __syncwarp();
            if (!more) {
                if (lane == 0) barrier_arrive(shared + Shape::kFull + stage * 8);
                break;
            }
            const char* source = static_cast<const char*>(p.grad_rows) +
                                 (size_t(piece.slab) * max_tiles + first_tile + piece.lo) * Shape::kOperandBytes;
            const uint2* bits = p.rows.feature_bits + size_t(first_tile + piece.lo) * kBlockFeatures +
                                piece.unit % kMaxGroups * kGroupFeatures;
            const uint32_t bit_bytes = units.feature_tiles(piece.unit) * 64 * sizeof(uint2);
            const int count = piece.hi - piece.lo;
#pragma unroll 1
            for (int i = 0; i < count; ++i) {
                if (kParts == 2 && i % 32 == 0 && i + lane < count) exponent = exponents[piece.lo + i + lane];
                const int now = __shfl_sync(~0u, exponent, i % 32);
                barrier_wait(shared + Shape::kEmpty + stage * 8, phase);
                if (lane == 0) {
                    const uint32_t full = shared + Shape::kFull + stage * 8;
                    if (kParts == 2)
                        store_shared_4(shared + Shape::kOnes + stage * 4, relative_one(now, piece.reference));
                    barrier_expect(full, Shape::kOperandBytes + bit_bytes);
                    copy_bulk(shared + stage * Shape::kOperandBytes, source, Shape::kOperandBytes, full);
                    copy_bulk(shared + Shape::kBits + stage * Shape::kBitBytes, bits, bit_bytes, full);
                }
                source += Shape::kOperandBytes;
                bits += kBlockFeatures;
                if (++stage == Shape::kStages) stage = 0, phase ^= 1;
            }
        }
    } else {  // ---- consumers
        take_registers<240>();
        int stage = 0;
        uint32_t phase = 0;
        for (int number = 0;; ++number) {
            float acc[Shape::kFeatureTiles][64];
#pragma unroll
            for (int m = 0; m < Shape::kFeatureTiles; ++m)
#pragma unroll
                for (float& x : acc[m]) x = 0;
            barrier_wait(shared + Shape::kFull + stage * 8, phase);
            const volatile UnitPiece& piece = pieces[number % kRing];  // volatile: registers are short
            if (piece.hi == 0) break;
            const int my_tiles = (units.feature_tiles(piece.unit) + 1 - warp / 4) / 2;
            const uint32_t my_features = shared + Shape::kFeatures + warp * (Shape::kFeatureTiles * 64);
            __syncwarp();
            if (piece.lo == 0 && lane < 4 * my_tiles)  // four features a lane, for the end
                copy_async_16(my_features + lane * 16,
                              p.rows.ranked + piece.unit / kMaxGroups * kBlockFeatures +
                                  piece.unit % kMaxGroups * kGroupFeatures + (lane / 4 * 2 + warp / 4) * 64 +
                                  warp % 4 * 16 + lane % 4 * 4,
                              true);
            copy_async_commit();
            multiply<kParts>(acc, my_tiles, piece.hi - piece.lo, shared, stage, phase);

            if (my_tiles == 0) continue;
            const auto partial = [&](int from) {
                return reinterpret_cast<float4*>(p.partial) + size_t(from) * (kGroupFeatures * 128 / 4) + threadIdx.x;
            };
            if (piece.lo > 0) {  // another worker's unit
                float4* target = partial(worker);
#pragma unroll
                for (int m = 0; m < Shape::kFeatureTiles; ++m) {
                    if (m == my_tiles) break;
#pragma unroll
                    for (int i = 0; i < 16; ++i)
                        target[(m * 16 + i) * Shape::kConsumers] = {acc[m][4 * i], acc[m][4 * i + 1], acc[m][4 * i + 2],
                                                                    acc[m][4 * i + 3]};
                }
                __threadfence();
                __syncwarp();
                if (lane == 0) flag_set(p.flags + worker * kFlags + warp);
                continue;
            }
            const int tiles = units.tiles(piece.unit);
            if (piece.hi < tiles) {
                const UnitCursor cursor(units, num_units, slabs, worker);
                int from = piece.hi;
                for (int other = worker + 1; from < tiles; ++other) {
                    const int to = units.tiles_in(piece.unit, cursor.begin_of(other + 1) - piece.begin);
                    if (from == to) continue;  // has no tile of it
                    from = to;
                    if (lane == 0) flag_wait(p.flags + other * kFlags + warp);
                    __syncwarp();
                    const float4* source = partial(other);
#pragma unroll
                    for (int m = 0; m < Shape::kFeatureTiles; ++m) {
                        if (m == my_tiles) break;
#pragma unroll
                        for (int i = 0; i < 16; ++i) {
                            const float4 v = __ldcg(source + (m * 16 + i) * Shape::kConsumers);
                            acc[m][4 * i] += v.x, acc[m][4 * i + 1] += v.y, acc[m][4 * i + 2] += v.z,
                                acc[m][4 * i + 3] += v.w;
                        }
                    }
                }
            }
            const float unscale = kParts == 2 ? ldexpf(1.0f, piece.reference - 15) : 1.0f;
            const uint32_t turn = shared + Shape::kTurn + warp * Shape::kTurnBytes;
            // A lane stores 16 bytes, of every second row: columns lane % 8 · kEach of a half.
            constexpr int kEach = 8 / kParts;
            const int half = p.num_outputs / 2, column = piece.slab * Shape::kSlab + lane % 8 * kEach;
            const int in_row = lane % 16 / 8 * half + column;
            copy_async_wait<0>();
#pragma unroll
            for (int m = 0; m < Shape::kFeatureTiles; ++m) {
                if (m == my_tiles) break;
                __syncwarp();
                if (kParts == 1 && p.weight_type == Float::kFloat32) {  // sums that others add up (loose_gradient.cuh)
#pragma unroll
                    for (int r = 0; r < 2; ++r) {
                        const int ranked = load_shared_4(my_features + (m * 16 + lane / 4 + 8 * r) * 4);
                        const int local = ranked ^ ranked >> 31,
                                  feature = piece.unit / kMaxGroups * p.in.block_size + local;
                        const bool write = local < p.in.block_size && feature < p.in.num_features;
#pragma unroll
                        for (int h = 0; h < 2; ++h)
#pragma unroll
                            for (int j = 0; j < 8; ++j) {
                                const int c = piece.slab * Shape::kSlab + j * 8 + lane % 4 * 2,
                                          index = h * 32 + 4 * j + 2 * r;
                                if (write && c < half)
                                    *reinterpret_cast<float2*>(static_cast<float*>(p.grad_weight) +
                                                               size_t(feature) * p.num_outputs + h * half +
                                                               c) = {acc[m][index], acc[m][index + 1]};
                            }
                    }
                    continue;
                }
                if constexpr (kParts == 1) {
                    const uint32_t to = turn + lane % 16 * Shape::kRowStride + lane / 16 * 16;
                    const auto store_all = [&](Float type) {
#pragma unroll
                        for (int j = 0; j < 16; j += 2)
                            store_matrices(to + j * 16, {pack(acc[m][4 * j], acc[m][4 * j + 1], type),
                                                         pack(acc[m][4 * j + 2], acc[m][4 * j + 3], type),
                                                         pack(acc[m][4 * j + 4], acc[m][4 * j + 5], type),
                                                         pack(acc[m][4 * j + 6], acc[m][4 * j + 7], type)});
                    };
                    if (p.weight_type == Float::kBFloat16)
                        store_all(Float::kBFloat16);
                    else
                        store_all(Float::kFloat16);
                } else {
#pragma unroll
                    for (int i = 0; i < 32; i += 2)
                        store_shared_8(
                            turn + (lane / 4 + i % 4 / 2 * 8) * Shape::kRowStride + i / 4 * 32 + lane % 4 * 8,
                            (acc[m][i] + acc[m][32 + i] * kLowScale) * unscale,
                            (acc[m][i + 1] + acc[m][33 + i] * kLowScale) * unscale);
                }
                __syncwarp();
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    const int row = 2 * i + lane / 16, ranked = load_shared_4(my_features + (m * 16 + row) * 4);
                    const int local = ranked ^ ranked >> 31,
                              feature = piece.unit / kMaxGroups * p.in.block_size + local;
                    const uint4 v = load_shared_16<true>(turn + row * Shape::kRowStride + lane % 16 * 16);
                    if (column < half && local < p.in.block_size && feature < p.in.num_features)
                        *reinterpret_cast<uint4*>(static_cast<char*>(p.grad_weight) +
                                                  (size_t(feature) * p.num_outputs + in_row) * (16 / kEach)) = v;
                }
            }
        }
    }
#endif
}

// What the product leaves out: a warp gathers the gradients of a rare feature's rows, 512 / kParts columns of them. The
// first thread blocks add up the bias gradient, 32 columns each. Measured: with many thread blocks the scheduler evens
// out what two parts cost; one part costs less than starting them.
constexpr int kRareThreads = 128, kRareList = 256;
template <int kParts>
constexpr int kRareBlocks = (kParts == 1 ? 6 : 24) * kWorkers;

// Adds eight columns of kRows row gradients, in kChunks places; of slots[0] … slots[count − 1] where there are fewer.
template <int kParts, int kChunks, int kRows>
__device__ __forceinline__ void add_rows(float (&sum)[kChunks][8], const BackwardProblem& p,
                                         const int (&operands)[kChunks], const uint32_t (&offsets)[kChunks],
                                         const int* slots, int count) {
    using Shape = GradientShape<kParts>;
    uint4 values[kRows][kChunks][kParts];
    float scales[kRows][kChunks];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        if (i >= count) break;
        const int tile = slots[i] / kTileRows, row = slots[i] % kTileRows;
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
            if (operands[c] < 0) break;
            if constexpr (kParts == 2) scales[i][c] = power_of_two(__ldcg(p.exponents + operands[c] + tile));
            const char* from = static_cast<const char*>(p.grad_rows) +
                               size_t(operands[c] + tile) * Shape::kOperandBytes +
                               ((offsets[c] ^ (row % 8) << 4) + row * 128);
#pragma unroll
            for (int part = 0; part < kParts; ++part)
                values[i][c][part] = __ldcg(reinterpret_cast<const uint4*>(from + part * Shape::kAtomBytes));
        }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        if (i >= count) break;
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
            if (operands[c] < 0) break;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float2 x = unpack((&values[i][c][0].x)[j], kParts == 1 ? Float::kBFloat16 : Float::kFloat16);
                if constexpr (kParts == 1) {
                    sum[c][2 * j] += x.x, sum[c][2 * j + 1] += x.y;
                } else {
                    const float2 y = unpack((&values[i][c][1].x)[j], Float::kFloat16);
                    sum[c][2 * j] += (x.x + y.x * kLowScale) * scales[i][c];
                    sum[c][2 * j + 1] += (x.y + y.y * kLowScale) * scales[i][c];
                }
            }
        }
    }
}

template <int kParts>
__global__ void __launch_bounds__(kRareThreads, 6) rare_feature_kernel(BackwardProblem p) {
    using Shape = GradientShape<kParts>;
    constexpr int kWarps = kRareThreads / 32, kChunks = 2 / kParts, kRows = 4, kColumns = kChunks * 256;
    constexpr int kRounds = 4;  // 32 tiles each, looked at together
    static_assert(kRareList >= kRounds * kTileRows);
    __shared__ float sums[kWarps][32];
    __shared__ int slots[kWarps][kRareList];
    __shared__ int begin[kMaxBlocks + 1];  // of each block's rare features
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int max_tiles = p.max_tiles, num_blocks = p.in.num_blocks;
    const int bias_blocks = (p.num_outputs + 31) / 32, half = p.num_outputs / 2;
    if (blockIdx.x < bias_blocks) {
        const int column = blockIdx.x * 32 + lane;
        const int parts = (p.rows.tile_begin[num_blocks] + stretch_tiles(max_tiles) - 1) / stretch_tiles(max_tiles);
        float sum = 0;
        if (column < p.num_outputs) {
#pragma unroll 8
            for (int part = warp; part < parts; part += kWarps)
                sum += __ldcg(p.bias_partial + size_t(part) * p.num_outputs + column);
        }
        sums[warp][lane] = sum;
        __syncthreads();
        if (warp == 0 && column < p.num_outputs) {
            sum = 0;
            for (int w = 0; w < kWarps; ++w) sum += sums[w][lane];
            p.grad_bias[column] = sum;
        }
    } else {
        if (warp == 0) sums_before(begin, num_blocks, [&](int b) { return max(p.rows.used[b] - p.rows.dense[b], 0); });
        __syncthreads();
        const int pieces = (p.num_outputs + kColumns - 1) / kColumns, items = begin[num_blocks] * pieces;
        for (int item = (blockIdx.x - bias_blocks) * kWarps + warp; item < items;
             item += kRareBlocks<kParts> * kWarps) {
            const int block = last_begun(begin, num_blocks, item / pieces);
            const int rank = p.rows.dense[block] + item / pieces - begin[block];
            const int local = __ldg(p.rows.ranked + block * kBlockFeatures + rank), end = p.rows.tile_begin[block + 1];
            int operands[kChunks];  // the first of the slab; −1: no such columns
            uint32_t offsets[kChunks];
#pragma unroll
            for (int c = 0; c < kChunks; ++c) {
                const int column = item % pieces * kColumns + c * 256 + lane * 8, h = column >= half;
                const int in_half = column - h * half;
                operands[c] = column >= p.num_outputs ? -1 : in_half / Shape::kSlab * max_tiles;
                offsets[c] = Shape::offset(h, 0, in_half % Shape::kSlab / 8);
            }
            float sum[kChunks][8] = {};
            for (int base = p.rows.tile_begin[block]; base < end; base += kRounds * 32) {
                uint2 bits[kRounds];
                int mine_has = 0;
#pragma unroll
                for (int j = 0; j < kRounds; ++j) {
                    const int tile = base + j * 32 + lane;
                    bits[j] = {0, 0};
                    if (tile < end) bits[j] = __ldg(p.rows.feature_bits + size_t(tile) * kBlockFeatures + rank);
                }
#pragma unroll
                for (int j = 0; j < kRounds; ++j) mine_has += __popc(bits[j].x) + __popc(bits[j].y);
                const int until = block_rows::warp_inclusive_sum(mine_has, lane);
                // As many lanes' rows at a time as surely fit into the list.
                const int width = __shfl_sync(~0u, until, 31) <= kRareList ? 32 : 1;
                for (int window = 0; window < 32; window += width) {
                    const int before = __shfl_sync(~0u, until - mine_has, window);
                    const int count = __shfl_sync(~0u, until, window + width - 1) - before;
                    if (count == 0) continue;
                    __syncwarp();
                    if (lane >= window && lane < window + width) {
                        int* to = slots[warp] + until - mine_has - before;
#pragma unroll
                        for (int j = 0; j < kRounds; ++j) {
                            const int slot = (base + j * 32 + lane) * kTileRows;
                            for (uint32_t b = bits[j].x; b != 0; b &= b - 1) *to++ = slot + index_of_bit(__ffs(b) - 1);
                            for (uint32_t b = bits[j].y; b != 0; b &= b - 1)
                                *to++ = slot + 32 + index_of_bit(__ffs(b) - 1);
                        }
                    }
                    __syncwarp();
                    for (int i = 0; i < count; i += kRows)
                        add_rows<kParts, kChunks, kRows>(sum, p, operands, offsets, slots[warp] + i, count - i);
                }
            }
#pragma unroll
            for (int c = 0; c < kChunks; ++c) {
                if (operands[c] < 0) break;
                const size_t at = size_t(block * p.in.block_size + local) * p.num_outputs + item % pieces * kColumns +
                                  c * 256 + lane * 8;
                const float(&v)[8] = sum[c];
                if constexpr (kParts == 2) {
                    float4* to = reinterpret_cast<float4*>(static_cast<float*>(p.grad_weight) + at);
                    to[0] = {v[0], v[1], v[2], v[3]};
                    to[1] = {v[4], v[5], v[6], v[7]};
                } else {
                    *reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.grad_weight) + at) = {
                        pack(v[0], v[1], p.weight_type), pack(v[2], v[3], p.weight_type),
                        pack(v[4], v[5], p.weight_type), pack(v[6], v[7], p.weight_type)};
                }
            }
        }
    }
    // It may have started while the product was still running, and must not be done before it.
    wait_for_kernels_before();
}

// The product alone, from row gradients that are there. p.flags is zero.
template <int kParts>
cudaError_t launch_weight_gradient(const BackwardProblem& p, cudaStream_t stream) {
    using Shape = BackwardShape<kParts>;
    const cudaError_t error = cudaFuncSetAttribute(weight_gradient_kernel<kParts>,
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes);
    if (error != cudaSuccess) return error;
    return hopper::launch_early(weight_gradient_kernel<kParts>, kWorkers, Shape::kThreads, Shape::kSharedBytes, stream,
                                p);
}

// `loose_gradient(p, stream)` adds what loose features need.
template <typename Weight, typename Grad, Activation kActivation, typename Loose>
cudaError_t backward(const BackwardProblem& p, cudaStream_t stream, const Loose& loose_gradient) {
    constexpr int kParts = sizeof(Weight) == 4 ? 2 : 1;
    static_assert(kParts == 1 || sizeof(Grad) == 4);
    using Shape = GradientShape<kParts>;
    const int half = p.num_outputs / 2;
    cudaError_t error = cudaSuccess;
    const auto launch = [&](void (*kernel)(BackwardProblem), dim3 grid, int threads, size_t shared) {
        if (error == cudaSuccess) error = hopper::launch_early(kernel, grid, threads, shared, stream, p);
    };
    launch(row_gradient_kernel<kParts, Grad, kActivation>, dim3(Shape::slabs(p.num_outputs), stretches(p.max_tiles)),
           Shape::kThreads, 0);
    if (error == cudaSuccess) error = launch_weight_gradient<kParts>(p, stream);
    launch(rare_feature_kernel<kParts>, (p.num_outputs + 31) / 32 + kRareBlocks<kParts>, kRareThreads, 0);
    if (error == cudaSuccess) error = loose_gradient(p, stream);
    launch(irregular_backward_kernel<Weight, Grad, kActivation>, (half + 63) / 64, 64, 0);
    return error;
}

// The scratch of a backward, p.in and p.num_outputs and p.weight_type given.
inline void carve_scratch(Carver& carver, BackwardProblem& p) {
    const bool two_parts = p.weight_type == Float::kFloat32;
    const int max_tiles = p.max_tiles = BlockRows::tiles(p.in.positions, p.in.num_blocks);
    const size_t operands =
        size_t(two_parts ? GradientShape<2>::slabs(p.num_outputs) : GradientShape<1>::slabs(p.num_outputs)) * max_tiles;
    p.grad_rows = carver.take<char>(operands * GradientShape<1>::kOperandBytes);
    p.exponents = carver.take<int32_t>(two_parts ? operands : 0);
    p.partial = carver.take<float>(size_t(kWorkers) * kGroupFeatures * 128);
    p.bias_partial = carver.take<float>(size_t(stretches(max_tiles)) * p.num_outputs);
    p.flags = carver.take<unsigned>(kWorkers * kFlags);
    const size_t dense = p.in.num_loose > 0 ? size_t(kDenseChunks) * kDenseFeatures : 0;
    p.dense_gradient = carver.take<float>(dense * p.num_outputs);
    p.tickets = carver.take<unsigned>(2);
}

}  // namespace nnue::block_product
