// The forward for sets with loose features: every row adds up its features' weights, a slab of columns at a time.
//
// A slab is 128 bytes of each half of a weight row, so that the pairwise product stays within half a warp, which takes
// a row. The slab is the outermost order of work and rows come by block: what is read of the weights stays in the L2
// cache, and of a block's frequent features in L1. Rows are read as they are in the batch, so duplicates and features
// of other blocks need no care; their entries go to shared memory first, as shuffles would take a fifth of the time of
// the pipe that all loads share. Sums are fp32, in the order of the index row; those of 16-bit weights are made by the
// tensor cores, as products with the unit matrix, and each addition is rounded towards zero.
#pragma once

#include "block_product.cuh"

namespace nnue::slab_forward {

using namespace block_product;

template <typename Weight>
struct Shape {
    static constexpr int kPer = 16 / int(sizeof(Weight));  // columns of a lane
    static constexpr int kColumns = 8 * kPer;              // of each half in a slab
    static constexpr int kThreads = 256, kRows = kThreads / 16;
    static constexpr int kBlocks = 6;               // thread blocks a multiprocessor
    static constexpr int kAhead = 4;                // weight rows in flight
    static constexpr int kStaged = kCopiedEntries;  // entries of a row in shared memory at a time
};

template <typename Weight, int kPer>
__device__ __forceinline__ void add_piece(float (&sum)[kPer], const uint4& piece, uint32_t unit) {
    if constexpr (sizeof(Weight) == 4) {
        sum[0] += __uint_as_float(piece.x), sum[1] += __uint_as_float(piece.y);
        sum[2] += __uint_as_float(piece.z), sum[3] += __uint_as_float(piece.w);
    } else {
        add_16bit<std::is_same_v<Weight, __nv_bfloat16>>(sum, piece, unit);
    }
}

// kCount neighbouring values to memory; they are not read again soon.
template <int kCount>
__device__ __forceinline__ void store_values(void* base, size_t offset, const float (&v)[kCount], Float type) {
    static_assert(kCount == 2 || kCount == 4 || kCount == 8);
    if (type == Float::kFloat32) {
        float* target = static_cast<float*>(base) + offset;
        if constexpr (kCount == 2) __stcs(reinterpret_cast<float2*>(target), float2{v[0], v[1]});
#pragma unroll
        for (int i = 0; i + 4 <= kCount; i += 4)
            __stcs(reinterpret_cast<float4*>(target + i), float4{v[i], v[i + 1], v[i + 2], v[i + 3]});
        return;
    }
    uint32_t words[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) words[i] = pack(v[2 * i], v[2 * i + 1], type);
    uint16_t* target = static_cast<uint16_t*>(base) + offset;
    if constexpr (kCount == 8) __stcs(reinterpret_cast<uint4*>(target), uint4{words[0], words[1], words[2], words[3]});
    if constexpr (kCount == 4) __stcs(reinterpret_cast<uint2*>(target), uint2{words[0], words[1]});
    if constexpr (kCount == 2) __stcs(reinterpret_cast<uint32_t*>(target), words[0]);
}

// Two numbers, loaded where this stands: registers that would hold them meanwhile are short.
__device__ __forceinline__ int2 load_here(const int* from) {
    int2 v;
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from) : "memory");
    return v;
}

// Half a warp adds up a row's weights, `kPer` columns a lane.
template <typename Weight>
struct RowSum {
    using S = Shape<Weight>;
    static constexpr int kPer = S::kPer, kAhead = S::kAhead, kStaged = S::kStaged;
    const uint4* weight;  // of feature 0, the lane's columns
    uint32_t row_bytes, num_features, unit;

    // kAhead entries; those < 0 are none. Most often there are all of them.
    __device__ __forceinline__ void add(float (&sum)[kPer], const int* staged) const {
        uint4 pieces[kAhead];
        int features[kAhead], any = 0;
#pragma unroll
        for (int i = 0; i < kAhead; i += 4) {
            const int4 four = *reinterpret_cast<const int4*>(staged + i);
            features[i] = four.x, features[i + 1] = four.y, features[i + 2] = four.z, features[i + 3] = four.w;
            any |= four.x | four.y | four.z | four.w;
        }
        if (__all_sync(~0u, any >= 0)) {
#pragma unroll
            for (int i = 0; i < kAhead; ++i) pieces[i] = __ldg(row_of(weight, features[i], row_bytes));
        } else {
#pragma unroll
            for (int i = 0; i < kAhead; ++i)
                pieces[i] = load_global_16(row_of(weight, features[i], row_bytes), features[i] >= 0);
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) add_piece<Weight>(sum, pieces[i], unit);
    }

    // `number`: of the row in p.order; `staged`: room for entries of it.
    __device__ __forceinline__ void add_row(float (&sum)[kPer], const ForwardProblem& p, int number,
                                            int* staged) const {
        static_assert(kStaged % 16 == 0 && kStaged % kAhead == 0 && kAhead % 4 == 0);
        int base = 0, most;
#pragma unroll 1
        do {
            const auto [row, count] = load_here(&p.order.rows[number].row);
            static_assert(kStaged == 16 * 4);
            const int lane = threadIdx.x % 16;
            __syncwarp();
            if (base == 0) {
                reinterpret_cast<int4*>(staged)[lane] =
                    __ldg(reinterpret_cast<const int4*>(p.order.entries + size_t(number) * kCopiedEntries) + lane);
            } else {
                const int32_t* const features = block_rows::row_pointer(p.in, row) + base;
#pragma unroll
                for (int i = lane; i < kStaged; i += 16) {
                    const int feature = base + i < count ? __ldg(features + i) : -1;
                    // The index check speaks of features that are not there.
                    staged[i] = uint32_t(feature) < num_features ? feature : -1;
                }
            }
            most = __reduce_max_sync(~0u, count) - base;
            __syncwarp();
            const int* const end = staged + min(most, kStaged);
#pragma unroll 1
            for (const int* at = staged; at < end; at += kAhead) add(sum, at);
            base += kStaged;
        } while (most > kStaged);
    }
};

// Thread blocks (rows, slab); half a warp a row.
template <typename Weight, Activation kActivation>
__global__ void __launch_bounds__(Shape<Weight>::kThreads, Shape<Weight>::kBlocks) slab_kernel(ForwardProblem p) {
    using S = Shape<Weight>;
    constexpr int kPer = S::kPer;
    const int half = p.num_outputs / 2, lane = threadIdx.x % 16, h = lane / 8;
    if (int(blockIdx.x) * S::kRows >= p.rows.tile_begin[p.in.num_blocks] * kTileRows) return;
    // The two rows of a warp are read from different banks. More room would take L1 from six thread blocks.
    __align__(16) __shared__ int staged[S::kRows][S::kStaged + 4];
    const int number = blockIdx.x * S::kRows + threadIdx.x / 16;
    const int column = blockIdx.y * S::kColumns + lane % 8 * kPer;
    const bool valid = column < half;
    const size_t at = h * half + (valid ? column : 0);
    float sum[kPer];
#pragma unroll
    for (int i = 0; i < kPer; i += 4) {
        const float4 bias = __ldg(reinterpret_cast<const float4*>(p.bias + at + i));
        sum[i] = bias.x + 0.0f, sum[i + 1] = bias.y + 0.0f;  // no sum is −0
        sum[i + 2] = bias.z + 0.0f, sum[i + 3] = bias.w + 0.0f;
    }
    const RowSum<Weight> adder{reinterpret_cast<const uint4*>(static_cast<const Weight*>(p.weight) + at),
                               uint32_t(p.num_outputs * sizeof(Weight)), uint32_t(p.in.num_features + p.in.num_loose),
                               unit_operand<std::is_same_v<Weight, __nv_bfloat16>>()};
    adder.add_row(sum, p, number, staged[threadIdx.x / 16]);

    const auto [slot, target] = load_here(&p.order.rows[number].slot);
    const bool write = target >= 0 && valid;
    if (p.saved != nullptr && write) {
        const size_t to = saved_at(slot, h, column, p.num_outputs);
        if constexpr (sizeof(Weight) == 4) {
            store_values(p.saved, to, sum, Float::kFloat32);
        } else {
            __stcs(reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.saved) + to),
                   uint4{encode(sum[0], sum[1], p.bound), encode(sum[2], sum[3], p.bound),
                         encode(sum[4], sum[5], p.bound), encode(sum[6], sum[7], p.bound)});
        }
    }
    if constexpr (kActivation != Activation::kIdentity) {
#pragma unroll
        for (float& x : sum) x = clip(x, p.bound);
    }
    if constexpr (kActivation == Activation::kPairwise) {
        // The two lanes that hold the same columns of both halves share the products.
        float product[kPer / 2];
#pragma unroll
        for (int i = 0; i < kPer / 2; ++i) {
            const float other = __shfl_xor_sync(~0u, h ? sum[i] : sum[kPer / 2 + i], 8);
            product[i] = h ? other * (sum[kPer / 2 + i] * p.scale) : sum[i] * (other * p.scale);
        }
        if (write) store_values(p.out, size_t(target) * half + column + h * (kPer / 2), product, p.out_type);
    } else {
#pragma unroll
        for (float& x : sum) x *= kActivation == Activation::kSCReLU ? x * p.scale : p.scale;
        if (write) store_values(p.out, size_t(target) * p.num_outputs + at, sum, p.out_type);
    }
}

template <typename Weight>
cudaError_t forward(const ForwardProblem& p, cudaStream_t stream) {
    using S = Shape<Weight>;
    const auto kernel = p.activation == Activation::kIdentity ? slab_kernel<Weight, Activation::kIdentity>
                        : p.activation == Activation::kCReLU  ? slab_kernel<Weight, Activation::kCReLU>
                        : p.activation == Activation::kSCReLU ? slab_kernel<Weight, Activation::kSCReLU>
                                                              : slab_kernel<Weight, Activation::kPairwise>;
    // 64 of 228 KB: the lists' kernels, which run beside, find room without waiting for an empty multiprocessor.
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 64 * 100 / 228);
    if (error != cudaSuccess) return error;
    const dim3 grid(BlockRows::tiles(p.in.positions, p.in.num_blocks) * (kTileRows / S::kRows),
                    (p.num_outputs / 2 + S::kColumns - 1) / S::kColumns);
    kernel<<<grid, S::kThreads, 0, stream>>>(p);
    return cudaGetLastError();
}

}  // namespace nnue::slab_forward
