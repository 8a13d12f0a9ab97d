// The forward for fp32 weights: every row adds up its features' weights, one slab of columns at a time. The forward for
// 16-bit weights is in forward_wgmma_16bit.cuh.
//
// A slab is 128 bytes of each half of a weight row, and half a warp takes a row. Rows come in the order of their
// buckets, for a few slabs at a time, so that these slabs of the weights stay in the L2 cache, and those of a bucket's
// frequent features in L1. Rows are read as they are in the batch, so duplicates and features of other buckets need no
// special care. The entries of a row are copied to shared memory first. Distributing them by shuffles instead would
// take a fifth of the time of the pipeline that all loads share.
#pragma once

#include "one_hot_product.cuh"

namespace nnue::forward_gather {

using namespace one_hot_product;

constexpr int kPer = 4;             // columns per lane
constexpr int kColumns = 8 * kPer;  // of each half in a slab
constexpr int kThreads = 256, kRows = kThreads / 16;
constexpr int kBlocksPerMultiprocessor = 6;  // thread blocks per multiprocessor
constexpr int kAhead = 4;                    // weight rows in flight
constexpr int kSlabs = 4;                    // of a thread block, one after the other: it reads entries once
constexpr int kStaged = 64;                  // entries per row in shared memory at a time

// Stores kCount neighbouring values that will not be read again soon.
template <int kCount>
__device__ __forceinline__ void store_values(void* base, size_t offset, const float (&v)[kCount], Float type) {
    static_assert(kCount == 2 || kCount == 4);
    if (type == Float::kFloat32) {
        float* target = static_cast<float*>(base) + offset;
        if constexpr (kCount == 2)
            __stcs(reinterpret_cast<float2*>(target), float2{v[0], v[1]});
        else
            __stcs(reinterpret_cast<float4*>(target), float4{v[0], v[1], v[2], v[3]});
        return;
    }
    uint16_t* target = static_cast<uint16_t*>(base) + offset;
    if constexpr (kCount == 2)
        __stcs(reinterpret_cast<uint32_t*>(target), pack(v[0], v[1], type));
    else
        __stcs(reinterpret_cast<uint2*>(target), uint2{pack(v[0], v[1], type), pack(v[2], v[3], type)});
}

// Loads two numbers exactly here in the program, because registers are too scarce to hold them earlier.
__device__ __forceinline__ int2 load_here(const int* from) {
    int2 v;
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from) : "memory");
    return v;
}

// Half a warp adds up the weights of a row, with `kPer` columns per lane.
struct RowSum {
    const uint4* weight;  // of feature 0, at the lane's columns
    uint32_t row_bytes, num_features;

    // Adds kAhead entries; those below 0 are absent. Usually all are present.
    __device__ __forceinline__ void add(float (&sum)[kPer], const int* staged) const {
        uint4 pieces[kAhead];
        int features[kAhead], any = 0;
        for (int i = 0; i < kAhead; i += 4) {
            const int4 four = *reinterpret_cast<const int4*>(staged + i);
            features[i] = four.x, features[i + 1] = four.y, features[i + 2] = four.z, features[i + 3] = four.w;
            any |= four.x | four.y | four.z | four.w;
        }
        if (__all_sync(~0u, any >= 0)) {
            for (int i = 0; i < kAhead; ++i) pieces[i] = __ldg(row_of(weight, features[i], row_bytes));
        } else {
            for (int i = 0; i < kAhead; ++i)
                pieces[i] = load_global_16(row_of(weight, features[i], row_bytes), features[i] >= 0);
        }
        for (int i = 0; i < kAhead; ++i) {
            sum[0] += __uint_as_float(pieces[i].x), sum[1] += __uint_as_float(pieces[i].y);
            sum[2] += __uint_as_float(pieces[i].z), sum[3] += __uint_as_float(pieces[i].w);
        }
    }

    // Adds all entries of a row. `staged` is room for kStaged of them in shared memory. If `are_staged`, it has those
    // of a row with no more than these.
    __device__ __forceinline__ void add_row(float (&sum)[kPer], const ForwardProblem& p, const RowOrder* order,
                                            int* staged, bool are_staged) const {
        static_assert(kStaged % 16 == 0 && kStaged % kAhead == 0 && kAhead % 4 == 0);
        int base = 0, most;
#pragma unroll 1
        do {
            const auto [row, count] = load_here(&order->row);
            const int32_t* const features = bucket_plan::row_pointer(p.in, row) + base;
            most = __reduce_max_sync(~0u, count) - base;
            __syncwarp();
            for (int i = threadIdx.x % 16; i < kStaged && (!are_staged || base + most > kStaged); i += 16) {
                const int feature = base + i < count ? __ldg(features + i) : -1;
                // Features that do not exist are skipped here; the index check reports them.
                staged[i] = uint32_t(feature) < num_features ? feature : -1;
            }
            __syncwarp();
            const int* const end = staged + min(most, kStaged);
#pragma unroll 1
            for (const int* at = staged; at < end; at += kAhead) add(sum, at);
            base += kStaged;
        } while (most > kStaged);
    }
};

// The grid is (thread blocks of kRows rows, rounded up to a multiple of `workers`; kSlabs slabs).
template <Activation kActivation>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor) gather_kernel(ForwardProblem p, int workers) {
    const int half = p.num_outputs / 2, lane = threadIdx.x % 16, h = lane / 8;
    // Thread blocks `workers` apart are usually on one multiprocessor. They take neighbouring rows, whose features are
    // in its L1 cache.
    const int block = int(blockIdx.x) % workers * (int(gridDim.x) / workers) + int(blockIdx.x) / workers;
    if (block * kRows >= p.plan.tile_begin[p.in.num_buckets] * kTileRows) return;
    // The four extra elements let a warp read its two rows from different banks. More shared memory would leave too
    // little L1 for six thread blocks.
    __align__(16) __shared__ int staged[kRows][kStaged + 4];
    const RowOrder* const order = p.plan.order + block * kRows + threadIdx.x / 16;
    const int first_column = blockIdx.y * kSlabs * kColumns, end_column = min(half, first_column + kSlabs * kColumns);
#pragma unroll 1
    for (int slab_column = first_column; slab_column < end_column; slab_column += kColumns) {
        const int column = slab_column + lane % 8 * kPer;
        const bool valid = column < half;
        const size_t at = h * half + (valid ? column : 0);
        const float4 bias = __ldg(reinterpret_cast<const float4*>(p.bias + at));
        float sum[kPer] = {bias.x + 0.0f, bias.y + 0.0f, bias.z + 0.0f, bias.w + 0.0f};  // + 0.0f, so that no sum is −0
        const RowSum adder{reinterpret_cast<const uint4*>(static_cast<const float*>(p.weight) + at),
                           uint32_t(p.num_outputs * sizeof(float)), uint32_t(p.in.num_bucketed + p.in.num_unbucketed)};
        adder.add_row(sum, p, order, staged[threadIdx.x / 16], slab_column > first_column);

        const auto [slot, target] = load_here(&order->slot);
        const bool write = target >= 0 && valid;
        if (p.saved != nullptr && write)
            store_values(p.saved, saved_at(slot, h, column, p.num_outputs), sum, Float::kFloat32);
        if constexpr (kActivation != Activation::kIdentity) {
            for (float& x : sum) x = clip(x, p.bound);
        }
        if constexpr (kActivation == Activation::kPairwise) {
            // The two lanes that hold the same columns of both halves share the products.
            float product[kPer / 2];
            for (int i = 0; i < kPer / 2; ++i) {
                const float other = __shfl_xor_sync(~0u, h ? sum[i] : sum[kPer / 2 + i], 8);
                product[i] = finished(p, h ? other * (sum[kPer / 2 + i] * p.scale) : sum[i] * (other * p.scale));
            }
            if (write) store_values(p.out, size_t(target) * half + column + h * (kPer / 2), product, p.out_type);
        } else {
            for (float& x : sum) x = finished(p, x * (kActivation == Activation::kSCReLU ? x * p.scale : p.scale));
            if (write) store_values(p.out, size_t(target) * p.num_outputs + at, sum, p.out_type);
        }
    }
}

inline void forward(const ForwardProblem& p, int workers, cudaStream_t stream) {
    const auto kernel = p.activation == Activation::kIdentity ? gather_kernel<Activation::kIdentity>
                        : p.activation == Activation::kCReLU  ? gather_kernel<Activation::kCReLU>
                        : p.activation == Activation::kSCReLU ? gather_kernel<Activation::kSCReLU>
                                                              : gather_kernel<Activation::kPairwise>;
    const int64_t blocks = BucketPlan::tiles(p.in.positions, p.in.num_buckets) * (kTileRows / kRows);
    const dim3 grid(divide_up(blocks, workers) * workers, divide_up(p.num_outputs / 2, kSlabs * kColumns));
    cuda::launch("gather_kernel", kernel, grid, kThreads, 0, stream, p, workers);
}

}  // namespace nnue::forward_gather
