// Sums of rows of a matrix, for both directions of the feature transformer: the forward adds up the weights of a row's
// features, the backward the gradients of a feature's rows.
//
// A *slab* is 16 lanes' columns of the first half of the outputs and the same columns of the second half, 16 bytes per
// lane of each; so the pairwise product is local to a thread. A warp takes one sum in one slab: one half of its lanes
// adds up the even entries of the list, the other half the odd ones, four entries of each at a time.
//
// Work is items (slots or tasks) in an order in which neighbours read the same rows. Each thread block takes one
// stretch of them, of equal work, through one slab after the other. One thread block fills a multiprocessor. So its
// L1 cache holds one slab of the rows that its stretch reads, and L2 one slab of the whole matrix. The sums do not
// depend on the division of the work.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "../common.cuh"

namespace nnue::portable {

using cuda::load_sums, cuda::store_sums;

constexpr int kGatherThreads = 1024;
constexpr int kGatherWarps = kGatherThreads / cuda::kWarp;
constexpr int kSlabLanes = 16;
static_assert(2 * kSlabLanes == cuda::kWarp, "the halves of a warp sum different entries of the same slab");
constexpr int kEntriesAhead = 4;  // of each half of a warp
static_assert(kEntriesAhead <= 8 && cuda::kWarp % (2 * kEntriesAhead) == 0, "a warp reads 32 entries in whole turns");

template <class T>
constexpr int kColumns = cuda::kWide<T>;  // of a lane, in either half

template <class T>
__host__ __device__ constexpr int slabs_of(int num_outputs) {
    constexpr int kSlab = kSlabLanes * kColumns<T>;
    return (num_outputs / 2 + kSlab - 1) / kSlab;
}

// The grid of a kernel: thread block (x, y) takes stretch x of the items in slabs y, y + gridDim.y, …
inline dim3 divide(int64_t items, int slabs, int multiprocessors) {
    const int64_t full = divide_up(items, kGatherWarps);
    const int stretches = static_cast<int>(std::clamp<int64_t>(full, 1, multiprocessors));
    return dim3(stretches, std::clamp(multiprocessors / stretches, 1, slabs));
}

// The first i in [0, count] with `numbers[i] >= wanted`, for ascending numbers; for a whole warp.
__device__ inline int first_at_least(const int64_t* __restrict__ numbers, int count, int64_t wanted) {
    const int lane = threadIdx.x % cuda::kWarp;
    int low = 0, high = count;
    while (low < high) {
        const int step = (high - low + cuda::kWarp - 1) / cuda::kWarp, at = low + (lane + 1) * step - 1;
        const int below = __popc(__ballot_sync(cuda::kAllLanes, at < high && numbers[at] < wanted));
        high = min(high, low + (below + 1) * step - 1);
        low = min(high, low + below * step);
    }
    return low;
}

// Calls visit(item, column, active) for the items of this warp in its slabs, with the columns of this lane in the first
// half of `num_outputs`; lanes that are not active have none. `cost_before` has count + 1 numbers.
template <class T, class Visit>
__device__ __forceinline__ void for_each_item(const int64_t* __restrict__ cost_before, int count, int num_outputs,
                                              const Visit& visit) {
    const int64_t total = cost_before[count], stretches = gridDim.x;
    const int begin = first_at_least(cost_before, count, (total * blockIdx.x + stretches - 1) / stretches);
    const int end = first_at_least(cost_before, count, (total * (blockIdx.x + 1) + stretches - 1) / stretches);
    if (begin == end) return;
    int item = begin + static_cast<int>(threadIdx.x) / cuda::kWarp, slab = blockIdx.y;
    for (;; item += kGatherWarps) {
        while (item >= end) item -= end - begin, slab += gridDim.y;
        if (slab >= slabs_of<T>(num_outputs)) return;
        const int column = (slab * kSlabLanes + threadIdx.x % kSlabLanes) * kColumns<T>;
        const bool active = column < num_outputs / 2;
        visit(item, active ? column : 0, active);
    }
}

template <class T>
__device__ __forceinline__ void add(float (&sum)[kColumns<T>], const uint4& packed) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
        const unsigned words[4] = {packed.x, packed.y, packed.z, packed.w};
        for (int i = 0; i < 4; ++i) {
            sum[2 * i] += __uint_as_float(words[i] << 16);
            sum[2 * i + 1] += __uint_as_float(words[i] & 0xffff0000u);
        }
    } else {
        const auto& values = reinterpret_cast<const cuda::Pack<T, kColumns<T>>&>(packed);
        for (int i = 0; i < kColumns<T>; ++i) sum[i] += cuda::to_sum(values.at[i]);
    }
}

// sum += rows list[0 … count − 1] of `source` [num_rows, num_outputs], at `column` of either half; entries that are no
// row are left out. For a whole warp; both halves of it end up with the same sums.
template <class T>
__device__ __forceinline__ void gather(const T* __restrict__ source, int num_rows, int num_outputs, int column,
                                       const int32_t* __restrict__ list, int count, float (&sum)[2][kColumns<T>]) {
    constexpr int kTogether = 2 * kEntriesAhead;
    const int lane = threadIdx.x % cuda::kWarp, half_warp = lane / kSlabLanes;
    const char* const first = reinterpret_cast<const char*>(source + column);
    const unsigned row_bytes = num_outputs * sizeof(T), half_bytes = row_bytes / 2;
    // In this form the kernels fit into 64 registers on every GPU (tools/check_spills.py).
    for (; count > 0; list += cuda::kWarp) {
        int mine = lane < count ? __ldg(list + lane) : -1;
        if (mine >= num_rows) mine = -1;
#pragma unroll 1
        for (int e = 0; e < cuda::kWarp && count > 0; e += kTogether, count -= kTogether) {
            uint4 read[kEntriesAhead][2];
            for (int i = 0; i < kEntriesAhead; ++i) {
                const int row = __shfl_sync(cuda::kAllLanes, mine, e + 2 * i + half_warp);
                const char* const from = first + uint64_t(static_cast<unsigned>(row)) * row_bytes;
                read[i][0] = read[i][1] = uint4{0, 0, 0, 0};
                if (row >= 0) {
                    read[i][0] = __ldg(reinterpret_cast<const uint4*>(from));
                    read[i][1] = __ldg(reinterpret_cast<const uint4*>(from + half_bytes));
                }
            }
            for (int i = 0; i < kEntriesAhead; ++i) {
                add<T>(sum[0], read[i][0]);
                add<T>(sum[1], read[i][1]);
            }
        }
    }
    for (int h = 0; h < 2; ++h)
        for (int i = 0; i < kColumns<T>; ++i) sum[h][i] += __shfl_xor_sync(cuda::kAllLanes, sum[h][i], kSlabLanes);
}

// V columns of a lane, of any of the three types.
template <int V>
__device__ __forceinline__ void store_sums(void* to, size_t at, const float (&from)[V], Float type) {
    if (type == Float::kFloat32) store_sums<V>(static_cast<float*>(to) + at, from);
    if (type == Float::kFloat16) store_sums<V>(static_cast<__half*>(to) + at, from);
    if (type == Float::kBFloat16) store_sums<V>(static_cast<__nv_bfloat16*>(to) + at, from);
}

}  // namespace nnue::portable
