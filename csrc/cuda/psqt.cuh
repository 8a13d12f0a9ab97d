// The PSQT columns of both perspectives: half the difference of the two sides' sums at each position's bucket.
//
// Eight columns of one of which every position reads one: no work for tensor cores. Forward: a warp a position gathers
// from a table that the L2 cache holds. Backward: every entry adds its position's gradient to one of F · P sums with an
// atomic. The sums are 64-bit integers, multiples of a power of two taken from the largest gradient of the batch, so
// that the order of the additions does not matter: equal bits, whatever the schedule. That needs no lists and no block
// structure, so any index row will do. A gradient is rounded to 2^-b of the largest, b = 61 - log2(2 B K) (41 for
// B = 16,384 and K = 32), finer than fp32 sums would be.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "common.cuh"
#include "index_check.cuh"

namespace nnue::psqt {

using cuda::FindingSink;
using cuda::kWarp;

constexpr int kThreads = 256;
constexpr int kPrepareBlocks = 132;
constexpr int kPrepareThreads = 1024;
constexpr int kNotFinite = INT32_MAX;

struct Problem {
    const int32_t* white;  // [positions, max_active]
    const int32_t* black;
    const int32_t* row_slot;     // [2 positions], of block_rows.cuh: where a row is, ~ in front of an irregular one
    const int32_t* slot_target;  // and whose it is
    const int64_t* bucket;       // [positions]
    int positions;
    int max_active;
    int num_features;
    int buckets;
};

__device__ __forceinline__ int position_of_warp() {
    return blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp;
}

// 1 where white is the side to move, else -1.
__device__ __forceinline__ int white_sign(const Problem& p, int position) {
    const int slot = p.row_slot[position];
    return p.slot_target[slot < 0 ? ~slot : slot] % 2 == 0 ? 1 : -1;
}

// Calls visit(index) for the legal entries of a row that are this lane's.
template <class Visit>
__device__ __forceinline__ void for_each_own_entry(const Problem& p, const int32_t* rows, int position, int lane,
                                                   const Visit& visit) {
    const int32_t* row = rows + int64_t(position) * p.max_active;
    for (int base = 0; base < p.max_active; base += kWarp) {
        const int32_t mine = base + lane < p.max_active ? row[base + lane] : -1;
        const unsigned ends = __ballot_sync(cuda::kAllLanes, mine == -1);
        const bool alive = (ends & ((2u << lane) - 1)) == 0;  // no -1 up to here
        if (alive && static_cast<unsigned>(mine) < static_cast<unsigned>(p.num_features)) visit(mine);
        if (ends != 0) return;
    }
}

__global__ void __launch_bounds__(kThreads)
    forward_kernel(Problem p, const float* __restrict__ psqt, float* __restrict__ out, FindingSink sink) {
    const int position = position_of_warp(), lane = threadIdx.x % kWarp;
    if (position >= p.positions) return;
    const int64_t bucket = p.bucket[position];
    if (bucket < 0 || bucket >= p.buckets) {
        if (lane == 0) {
            out[position] = 0;
            cuda::report(sink, position,
                         static_cast<int32_t>(max(min(bucket, int64_t(INT32_MAX)), -int64_t(INT32_MAX))));
        }
        return;
    }
    const float* column = psqt + bucket;
    float white = 0, black = 0;
    const auto value = [&](int32_t index) { return column[int64_t(index) * p.buckets]; };
    for_each_own_entry(p, p.white, position, lane, [&](int32_t index) { white += value(index); });
    for_each_own_entry(p, p.black, position, lane, [&](int32_t index) { black += value(index); });
    float difference = white - black;
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
        difference += __shfl_xor_sync(cuda::kAllLanes, difference, offset);
    }
    if (lane == 0) out[position] = 0.5f * static_cast<float>(white_sign(p, position)) * difference;
}

// Scratch of the backward.
struct Scratch {
    unsigned long long* sums;  // [F, P]
    unsigned* largest;         // [kPrepareBlocks]: magnitudes, as bits
    int* exponent;             // [1]
};

__device__ __forceinline__ unsigned block_max(unsigned mine, unsigned* shared) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
        mine = max(mine, __shfl_xor_sync(cuda::kAllLanes, mine, offset));
    }
    if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = mine;
    __syncthreads();
    unsigned most = 0;
    for (int w = 0; w < static_cast<int>(blockDim.x) / kWarp; ++w) most = max(most, shared[w]);
    return most;
}

// Zeroes the sums; each thread block finds the largest magnitude of its part of the gradients.
__global__ void __launch_bounds__(kPrepareThreads)
    prepare_kernel(const float* __restrict__ grad, int positions, int64_t count, Scratch scratch) {
    __shared__ unsigned shared[kPrepareThreads / kWarp];
    const int64_t first = int64_t(blockIdx.x) * kPrepareThreads + threadIdx.x;
    const int64_t step = int64_t(kPrepareBlocks) * kPrepareThreads;
    for (int64_t i = first; i < count; i += step) scratch.sums[i] = 0;
    unsigned most = 0;
    // Without its sign a number's order is that of its bits; infinities and NaN come last.
    for (int64_t b = first; b < positions; b += step) most = max(most, __float_as_uint(grad[b]) & 0x7fffffffu);
    most = block_max(most, shared);
    if (threadIdx.x == 0) scratch.largest[blockIdx.x] = most;
}

__global__ void __launch_bounds__(kThreads)
    scatter_kernel(Problem p, const float* __restrict__ grad, int headroom, Scratch scratch) {
    __shared__ unsigned shared[kThreads / kWarp];
    static_assert(kPrepareBlocks <= kThreads);
    const unsigned most = block_max(threadIdx.x < kPrepareBlocks ? scratch.largest[threadIdx.x] : 0, shared);
    // 2^exponent > every magnitude.
    const int exponent = most >= 0x7f800000u ? kNotFinite : ilogbf(fmaxf(__uint_as_float(most), 1e-45f)) + 1;
    if (blockIdx.x == 0 && threadIdx.x == 0) *scratch.exponent = exponent;
    const int position = position_of_warp(), lane = threadIdx.x % kWarp;
    if (position >= p.positions || exponent == kNotFinite) return;
    const int64_t bucket = p.bucket[position];
    if (bucket < 0 || bucket >= p.buckets) return;
    const double scaled = scalbn(static_cast<double>(grad[position]), headroom - exponent);
    const long long mine = white_sign(p, position) * __double2ll_rn(scaled);
    unsigned long long* column = scratch.sums + bucket;
    const auto add = [&](const int32_t* rows, long long amount) {
        for_each_own_entry(p, rows, position, lane, [&](int32_t index) {
            atomicAdd(column + int64_t(index) * p.buckets, static_cast<unsigned long long>(amount));
        });
    };
    add(p.white, mine);
    add(p.black, -mine);
}

__global__ void __launch_bounds__(kThreads)
    round_kernel(int64_t count, int headroom, Scratch scratch, float* __restrict__ grad_psqt) {
    const int exponent = *scratch.exponent;
    for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < count; i += int64_t(gridDim.x) * kThreads) {
        const double sum = static_cast<double>(static_cast<long long>(scratch.sums[i]));
        // A gradient that is not finite shows in every element: it has no place among integers.
        grad_psqt[i] = exponent == kNotFinite ? __int_as_float(0x7fffffff)
                                              : static_cast<float>(scalbn(sum, exponent - headroom - 1));  // and half
    }
}

inline void launch_forward(const Problem& p, const float* psqt, float* out, const FindingSink& sink,
                           cudaStream_t stream) {
    cuda::launch("psqt forward", forward_kernel, cuda::blocks_for(p.positions, kThreads / kWarp), kThreads, 0, stream,
                 p, psqt, out, sink);
}

// Bytes of scratch; with a base also its parts.
inline size_t carve_scratch(char* base, int64_t count, Scratch* scratch) {
    const size_t sums = size_t(count) * sizeof(unsigned long long), largest = kPrepareBlocks * sizeof(unsigned);
    if (base != nullptr) {
        *scratch = {reinterpret_cast<unsigned long long*>(base), reinterpret_cast<unsigned*>(base + sums),
                    reinterpret_cast<int*>(base + sums + largest)};
    }
    return sums + largest + sizeof(int);
}

// grad_psqt [F, P], all of it is written. `grad` [positions].
inline void launch_backward(const Problem& p, const float* grad, float* grad_psqt, const Scratch& scratch,
                            cudaStream_t stream) {
    const int64_t count = int64_t(p.num_features) * p.buckets;
    // No sum has more terms than this, so none leaves 63 bits.
    const uint64_t terms = 2 * uint64_t(std::max(p.positions, 1)) * uint64_t(std::max(p.max_active, 1));
    const int headroom = 62 - std::bit_width(terms);
    cuda::launch("psqt prepare", prepare_kernel, kPrepareBlocks, kPrepareThreads, 0, stream, grad, p.positions, count,
                 scratch);
    // At least one thread block: it says the exponent.
    cuda::launch("psqt scatter", scatter_kernel, std::max(1u, cuda::blocks_for(p.positions, kThreads / kWarp)),
                 kThreads, 0, stream, p, grad, headroom, scratch);
    cuda::launch("psqt round", round_kernel, std::min(cuda::blocks_for(count, kThreads), 4096u), kThreads, 0, stream,
                 count, headroom, scratch, grad_psqt);
}

}  // namespace nnue::psqt
