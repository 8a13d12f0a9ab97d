// The row gradients: those of the accumulators of each row, in the layout that the product of the backward reads.
#pragma once

#include "backward_schedule.cuh"

namespace nnue::one_hot_product {

// The layout of the row gradients, as the product reads them: for each slab and each tile of 64 slots one operand of 64
// rows × 128 columns, which is two swizzled atoms. With one term (bf16) these are the slab's 64 columns of either half.
// With two fp16 terms, one atom has the high terms of 32 columns of either half and the other one the low terms. Both
// are divided by a power of two; `exponents` has its exponent for each slab and tile.
template <int kTerms>
struct GradientShape {
    static constexpr int kSlab = 64 / kTerms;  // columns of each half
    static constexpr int kAtomBytes = kTileRows * 128, kOperandBytes = 2 * kAtomBytes;
    static constexpr int kColumns = 2 * kSlab;  // columns of a slab, in both halves
    static constexpr int kPartialFloats = kSectionFeatures * kColumns;
    static constexpr int kThreads = 256, kWarps = kThreads / 32, kHalfPieces = kSlab / 8,
                         kRows = kThreads / kHalfPieces;

    __host__ __device__ static int slabs(int num_outputs) { return (num_outputs / 2 + kSlab - 1) / kSlab; }
    // The offset of eight columns (piece `piece`) of half `h` in row `row` of an operand. The low terms are one atom
    // further on.
    __device__ static uint32_t offset(int h, int row, int piece) {
        return kTerms == 1 ? h * kAtomBytes + operand_offset(row, piece) : operand_offset(row, h * kHalfPieces + piece);
    }
    // A row of an operand has sixteen pieces: the first column of a piece within its half, and which half it is in.
    __device__ static int column(int slab, int piece) { return slab * kSlab + piece % kHalfPieces * 8; }
    __device__ static int half(int piece) { return kTerms == 1 ? piece / 8 : piece % 8 / 4; }
};

// A thread block of row_gradient_kernel takes a stretch of this many tiles. Its column sums are a part of the bias
// gradient.
__host__ __device__ inline int stretch_tiles(int max_tiles) {
    return max(4, (max_tiles + 1023) / 1024);
}
__host__ __device__ inline int stretches(int max_tiles) {
    return (max_tiles + stretch_tiles(max_tiles) - 1) / stretch_tiles(max_tiles);
}

constexpr int kNoExponent = -1000;  // of a tile of zeros

// The exponent of the power of two by which numbers of up to this magnitude (given as bits) are divided, so that they
// just fit the range of fp16.
__device__ __forceinline__ int tile_exponent(unsigned largest) {
    if (largest == 0) return kNoExponent;
    if (largest >= 0x7f800000u) return 0;  // it is not finite, and stays so
    return max(int(largest >> 23) - 127 - 14, -120);
}
// 2^exponent as a float, and 0 below the normal range.
__device__ __forceinline__ float power_of_two(int exponent) {
    return exponent < -126 ? 0.0f : __int_as_float((exponent + 127) << 23);
}

// Eight numbers as they are stored in memory.
template <typename T>
struct Eight {
    uint4 raw[sizeof(T) / 2] = {};

    __device__ void load(const T* from) {
        for (int i = 0; i < int(sizeof(T) / 2); ++i) raw[i] = reinterpret_cast<const uint4*>(from)[i];
    }
    __device__ void unpack_to(float (&x)[8], Float type) const {
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

// Where the operand of a slab and tile begins.
template <int kTerms>
__device__ __forceinline__ char* operand_of(const BackwardProblem& p, int slab, int tile) {
    return static_cast<char*>(p.grad_rows) + (size_t(slab) * p.max_tiles + tile) * GradientShape<kTerms>::kOperandBytes;
}

// The gradient of a column of half h.
template <int kTerms>
__device__ __forceinline__ float row_gradient(const BackwardProblem& p, int slot, int h, int column) {
    using Shape = GradientShape<kTerms>;
    const int slab = column / Shape::kSlab, in_slab = column % Shape::kSlab, tile = slot / kTileRows;
    const char* const at =
        operand_of<kTerms>(p, slab, tile) + Shape::offset(h, slot % kTileRows, in_slab / 8) + in_slab % 8 * 2;
    if constexpr (kTerms == 1) return unpack(*reinterpret_cast<const uint16_t*>(at), Float::kBFloat16).x;
    const float high = unpack(*reinterpret_cast<const uint16_t*>(at), Float::kFloat16).x;
    const float low = unpack(*reinterpret_cast<const uint16_t*>(at + Shape::kAtomBytes), Float::kFloat16).x;
    return (high + kLowScale * low) * power_of_two(p.exponents[size_t(slab) * p.max_tiles + tile]);
}

// Places the results of the row-gradient kernels, which the other kernels read. p.in and p.num_outputs must be set.
template <int kTerms>
void carve_row_gradients(Carver& carver, BackwardProblem& p) {
    using Shape = GradientShape<kTerms>;
    p.max_tiles = BucketPlan::tiles(p.in.positions, p.in.num_buckets);
    const size_t operands = size_t(Shape::slabs(p.num_outputs)) * p.max_tiles;
    p.grad_rows = carver.take<char>("grad_rows", operands * Shape::kOperandBytes);
    p.exponents = carver.take<int32_t>("exponents", kTerms == 2 ? operands : 0);
    p.sync = carver.take<GradientSync>("sync", 1);
}
inline void carve_row_gradients(Carver& carver, BackwardProblem& p) {
    p.weight_type == Float::kFloat32 ? carve_row_gradients<2>(carver, p) : carve_row_gradients<1>(carver, p);
}

// Called by all threads of one thread block.
__device__ __forceinline__ void clear(GradientSync* sync) {
    for (int i = threadIdx.x; i < int(sizeof(GradientSync) / 4); i += blockDim.x)
        reinterpret_cast<unsigned*>(sync)[i] = 0;
}

// Called by all threads of a grid that writes row gradients position by position: zeros in padding, and `sync`.
template <int kTerms>
__device__ __forceinline__ void clear_padding(const BackwardProblem& p) {
    using Shape = GradientShape<kTerms>;
    const int of_block = int(blockDim.x) / 32, warps = int(gridDim.x) * of_block, slabs = Shape::slabs(p.num_outputs);
    if (blockIdx.x == 0) clear(p.sync);
    for (int row = int(blockIdx.x) * of_block + threadIdx.x / 32; row < p.in.num_buckets * kTileRows; row += warps) {
        const int bucket = row / kTileRows, in_tile = row % kTileRows, tile = p.plan.tile_begin[bucket + 1] - 1;
        if (tile < p.plan.tile_begin[bucket] || p.plan.slot_target[tile * kTileRows + in_tile] >= 0) continue;
        for (int i = threadIdx.x % 32; i < slabs * 16; i += 32)
            *reinterpret_cast<uint4*>(operand_of<kTerms>(p, i / 16, tile) + i / 8 % 2 * Shape::kAtomBytes +
                                      in_tile * 128 + i % 8 * 16) = uint4{0, 0, 0, 0};
    }
}

// The slots of a position's rows, that of the side to move first.
__device__ __forceinline__ int2 slots_of(const BackwardProblem& p, int position) {
    int white = p.plan.row_slot[position], black = p.plan.row_slot[p.in.positions + position];
    white = white < 0 ? ~white : white, black = black < 0 ? ~black : black;
    return p.plan.slot_target[white] % 2 != 0 ? int2{black, white} : int2{white, black};
}

// The bound of the clip, rounded up to fp16, twice.
__device__ __forceinline__ uint32_t bound_in_halves(float bound) {
    const __half2 both = __half2half2(__float2half_ru(bound));
    return reinterpret_cast<const uint32_t&>(both);
}

// Computes the row gradients in slot order, with 0 in padding, and their sums over each stretch of tiles. Thread blocks
// of the same stretch and different slabs are neighbours in the grid, since they read the same rows of memory.
template <int kTerms, typename Grad, Activation kActivation>
__global__ void __launch_bounds__(GradientShape<kTerms>::kThreads, 4) row_gradient_kernel(BackwardProblem p) {
    using Shape = GradientShape<kTerms>;
    using Saved = std::conditional_t<kTerms == 1, uint16_t, float>;
    constexpr bool kPairwise = kActivation == Activation::kPairwise;
    constexpr int kRows = Shape::kRows, kWarps = Shape::kWarps;
    __shared__ float sums[kRows][Shape::kHalfPieces][17];
    __shared__ unsigned largest[2][kWarps];
    const int piece = threadIdx.x % Shape::kHalfPieces, row = threadIdx.x / Shape::kHalfPieces;
    const int max_tiles = p.max_tiles, stretch = stretch_tiles(max_tiles), slabs = Shape::slabs(p.num_outputs);
    const int slab = int(blockIdx.x) % slabs, number = int(blockIdx.x) / slabs;
    const int half = p.num_outputs / 2, column = slab * Shape::kSlab + piece * 8;
    const float limit = kTerms == 1 ? __half2float(__float2half_ru(p.bound)) : p.bound;
    wait_for_kernels_before();
    let_next_kernel_start();
    if (blockIdx.x == 0) clear(p.sync);
    const int first = number * stretch, last = min(first + stretch, p.plan.tile_begin[p.in.num_buckets]);
    float bias[2][8] = {};
    constexpr int kPasses = kTileRows / kRows;
    for (int tile = first; tile < last; ++tile) {
        char* operand = static_cast<char*>(p.grad_rows) + (size_t(slab) * max_tiles + tile) * Shape::kOperandBytes;
        int targets[kPasses];
        float factors[kPasses];
        Eight<Grad> grads[kPasses][kPairwise ? 1 : 2];
        Eight<Saved> sums_saved[kPasses][2];
        for (int pass = 0; pass < kPasses; ++pass)
            targets[pass] = column < half ? p.plan.slot_target[tile * kTileRows + pass * kRows + row] : -1;
        for (int pass = 0; pass < kPasses; ++pass) {  // all loads first
            factors[pass] = p.scale;
            if (targets[pass] < 0) continue;
            const auto [grad, factor] = p.grad_out.template row<Grad>(targets[pass], kPairwise ? half : p.num_outputs);
            factors[pass] *= factor;
            for (int h = 0; h < 2; ++h) {
                if (h == 0 || !kPairwise) grads[pass][h].load(grad + column + h * half);
                if constexpr (kActivation != Activation::kIdentity)
                    sums_saved[pass][h].load(static_cast<const Saved*>(p.saved) +
                                             saved_at(tile * kTileRows + pass * kRows + row, h, column, p.num_outputs));
            }
        }
        for (int pass = 0; pass < kPasses; ++pass) {
            const int r = pass * kRows + row;
            float g[2][8], s[2][8];
            for (int h = 0; h < 2; ++h) {
                grads[pass][kPairwise ? 0 : h].unpack_to(g[h], p.grad_type);
                sums_saved[pass][h].unpack_to(s[h], Float::kFloat16);
            }
            for (int j = 0; j < 8; ++j) {  // all are zeros if there is no row
                g[0][j] *= factors[pass];
                g[1][j] *= factors[pass];
                differentiate<kActivation>(g[0][j], g[1][j], s[0][j], s[1][j], p.bound, limit);
                bias[0][j] += g[0][j];
                bias[1][j] += g[1][j];
            }
            float scale = 1;
            if constexpr (kTerms == 2) {
                static_assert(kRows == kTileRows);
                unsigned mine = 0;
                for (int j = 0; j < 8; ++j)
                    mine =
                        max(mine, max(__float_as_uint(g[0][j]) & 0x7fffffffu, __float_as_uint(g[1][j]) & 0x7fffffffu));
                mine = __reduce_max_sync(~0u, mine);
                if (threadIdx.x % 32 == 0) largest[tile % 2][threadIdx.x / 32] = mine;
                __syncthreads();
                for (int w = 0; w < kWarps; ++w) mine = max(mine, largest[tile % 2][w]);
                const int exponent = tile_exponent(mine);
                if (threadIdx.x == 0) p.exponents[size_t(slab) * max_tiles + tile] = exponent;
                scale = power_of_two(mine == 0 ? 0 : -exponent);
            }
            for (int h = 0; h < 2; ++h) {
                uint32_t high[4], low[4];
                for (int j = 0; j < 4; ++j) {
                    if constexpr (kTerms == 1) {
                        high[j] = pack(g[h][2 * j], g[h][2 * j + 1], Float::kBFloat16);
                    } else {
                        split(g[h][2 * j] * scale, g[h][2 * j + 1] * scale, high[j], low[j]);
                    }
                }
                char* to = operand + Shape::offset(h, r, piece);
                *reinterpret_cast<uint4*>(to) = {high[0], high[1], high[2], high[3]};
                if constexpr (kTerms == 2)
                    *reinterpret_cast<uint4*>(to + Shape::kAtomBytes) = {low[0], low[1], low[2], low[3]};
            }
        }
    }
    for (int i = 0; i < 16; ++i) sums[row][piece][i] = bias[i / 8][i % 8];
    __syncthreads();
    for (int i = threadIdx.x; i < Shape::kHalfPieces * 16; i += Shape::kThreads) {
        const int c = slab * Shape::kSlab + i / 16 * 8 + i % 8;
        float sum = 0;
#pragma unroll 8
        for (int y = 0; y < kRows; ++y) sum += sums[y][i / 16][i % 16];
        if (c < half) p.bias_partial[size_t(number) * p.num_outputs + i % 16 / 8 * half + c] = sum;
    }
}

}  // namespace nnue::one_hot_product
