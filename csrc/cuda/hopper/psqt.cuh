// The PSQT columns of both perspectives, backward; the forward is in ../psqt_forward.cuh.
//
// Every entry adds the gradient of its position to one of F · P sums with an atomic. The sums are 64-bit integers, in
// multiples of a power of two that is taken from the largest gradient of the batch, so the order of the additions does
// not matter. Rows may have duplicates, or features of several king buckets. A gradient is rounded to 2^-b of the
// largest, where b is at most 45 and such that the sum of 2 B K gradients fits in 63 bits
// (41 for B = 16,384, K = 32). That is finer than sums in fp32 would be.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "../common.cuh"
#include "../psqt_forward.cuh"
#include "bucket_plan.cuh"

namespace nnue::psqt {

constexpr int kPrepareGrid = 132;
constexpr int kPrepareThreads = 1024;
constexpr int kNotFinite = INT32_MAX;
constexpr int kMaxBuckets = 255;

struct Problem {
    IndexRows in;
    BucketPlan plan;
    const int64_t* psqt_bucket;  // [positions]
    int num_features;            // bucketed and unbucketed ones
    int psqt_buckets;
};

// Whether Black is to move, by the target of White's row.
struct BlackFirst {
    BucketPlan plan;
    __device__ __forceinline__ bool operator()(int position) const {
        const int slot = plan.row_slot[position];
        return plan.slot_target[slot < 0 ? ~slot : slot] % 2 != 0;
    }
};

// Scratch of the backward.
struct Scratch {
    unsigned long long* sums;  // [F, P]
    unsigned* largest;         // [kPrepareGrid]: magnitudes, as bits
    int* exponent;             // [1]
};

__device__ __forceinline__ unsigned thread_block_max(unsigned mine, unsigned* shared) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
        mine = max(mine, __shfl_xor_sync(cuda::kAllLanes, mine, offset));
    }
    if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = mine;
    __syncthreads();
    unsigned most = 0;
    for (int w = 0; w < static_cast<int>(blockDim.x) / kWarp; ++w) most = max(most, shared[w]);
    return most;
}

// Clears the sums. Each thread block finds the largest magnitude of its share of the gradients.
__global__ void __launch_bounds__(kPrepareThreads)
    prepare_kernel(const float* __restrict__ grad, int positions, int64_t count, Scratch scratch) {
    __shared__ unsigned shared[kPrepareThreads / kWarp];
    const int64_t first = int64_t(blockIdx.x) * kPrepareThreads + threadIdx.x;
    const int64_t step = int64_t(kPrepareGrid) * kPrepareThreads;
    for (int64_t i = first; i < count; i += step) scratch.sums[i] = 0;
    unsigned most = 0;
    // Without the sign, numbers are ordered as their bits are, with infinities and NaN last.
    for (int64_t b = first; b < positions; b += step) most = max(most, __float_as_uint(grad[b]) & 0x7fffffffu);
    most = thread_block_max(most, shared);
    if (threadIdx.x == 0) scratch.largest[blockIdx.x] = most;
}

// A thread block of scatter_kernel takes the rows of some neighbouring tiles, two threads per row. What they add to the
// king bucket of the first tile goes to shared memory first, the rest to global memory. Usually all of its tiles are of
// one bucket.
constexpr int kTiles = 4, kScatterRows = kTiles * kTileRows, kScatterThreads = 2 * kScatterRows;
// The low part of an amount has this many bits; the rest is the high part. The sums of kTiles tiles of either fit in 31
// bits; a regular row adds to a cell at most once.
constexpr int kLowBits = 31 - std::bit_width(unsigned{kScatterRows - 1}), kMostHeadroom = 2 * kLowBits - 1;
constexpr int kSharedPsqtBuckets = 16;  // if there are more, everything is added in global memory
// Cells per PSQT bucket in shared memory. The padding puts four neighbouring features of eight PSQT buckets into
// different banks.
constexpr int kCells = kBucketFeatures + 4;
static_assert(kPrepareGrid <= kScatterThreads && kMaxBuckets <= kScatterThreads);

// A row, and what it adds to its features.
struct ScatteredRow {
    const int32_t* entries;  // null if there is no row
    long long amount;
    int psqt_bucket;
    bool regular;
};

// Fills in everything but the amount, and sets `signed_grad` to the gradient that the amount is made of.
__device__ __forceinline__ ScatteredRow scattered_row(const Problem& p, const float* grad, int slot,
                                                      float& signed_grad) {
    ScatteredRow row{};
    const int target = p.plan.slot_target[slot];
    if (target < 0) return row;
    const int position = target / 2, white_slot = p.plan.row_slot[position];
    const bool white = white_slot == slot || white_slot == ~slot;
    const int black_slot = p.plan.row_slot[p.in.positions + position];
    const int64_t psqt_bucket = p.psqt_bucket[position];
    signed_grad = target % 2 == 0 ? grad[position] : -grad[position];
    row.psqt_bucket = static_cast<int>(psqt_bucket);
    row.regular = (white ? white_slot : black_slot) >= 0;
    if (psqt_bucket < 0 || psqt_bucket >= p.psqt_buckets) return row;
    row.entries = (white ? p.in.white : p.in.black) + int64_t(position) * p.in.max_active;
    return row;
}

__global__ void __launch_bounds__(kScatterThreads)
    scatter_kernel(Problem p, const float* __restrict__ grad, int headroom, Scratch scratch) {
    constexpr int kThreads = kScatterThreads, kRows = kScatterRows;
    extern __shared__ int4 memory[];
    // [2, P, kCells]: of low bits, then of high bits. Not used where P > kSharedPsqtBuckets.
    int* sums = reinterpret_cast<int*>(memory);
    __shared__ unsigned of_warps[kThreads / kWarp];
    __shared__ ScatteredRow rows[kRows];
    const int first_tile = blockIdx.x * kTiles, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const bool has_sums = p.psqt_buckets <= kSharedPsqtBuckets;
    const int cells = has_sums ? p.psqt_buckets * kCells : 0;
    // All loads from global memory come first, so that their latencies overlap.
    const unsigned largest = threadIdx.x < kPrepareGrid ? scratch.largest[threadIdx.x] : 0;
    const int tiles = p.plan.tile_begin[p.in.num_buckets];
    const bool begun = threadIdx.x < p.in.num_buckets && p.plan.tile_begin[threadIdx.x] <= first_tile;
    ScatteredRow own{};
    float own_grad = 0;
    if (static_cast<int>(threadIdx.x) < (tiles - first_tile) * kTileRows && threadIdx.x < kRows)
        own = scattered_row(p, grad, first_tile * kTileRows + threadIdx.x, own_grad);
    for (int i = threadIdx.x; i < cells / 2; i += kThreads) memory[i] = {0, 0, 0, 0};
    const unsigned most = thread_block_max(largest, of_warps);
    // 2^exponent is larger than every magnitude.
    const int exponent = most >= 0x7f800000u ? kNotFinite : ilogbf(fmaxf(__uint_as_float(most), 1e-45f)) + 1;
    if (blockIdx.x == 0 && threadIdx.x == 0) *scratch.exponent = exponent;
    if (first_tile >= tiles || exponent == kNotFinite) return;
    if (threadIdx.x < kRows) {
        own.amount = __double2ll_rn(scalbn(static_cast<double>(own_grad), headroom - exponent));
        rows[threadIdx.x] = own;
    }
    // The first feature of the first tile's king bucket, and the end of this bucket.
    const int first = (__syncthreads_count(begun) - 1) * p.in.bucket_size;
    const int end = has_sums ? min(first + p.in.bucket_size, p.in.num_bucketed) : first;

    constexpr int kTogether = 8, kWarpRows = kRows / (kThreads / kWarp);
    for (int first_row = 0; first_row < kWarpRows; first_row += kTogether) {
        ScatteredRow* const warp_rows = rows + warp * kWarpRows + first_row;
        for (int base = 0; base < p.in.max_active; base += kWarp) {
            int32_t indices[kTogether];
            for (int r = 0; r < kTogether; ++r) {  // all loads in flight
                const int32_t* entries = warp_rows[r].entries;
                indices[r] = entries != nullptr && base + lane < p.in.max_active ? entries[base + lane] : -1;
            }
            for (int r = 0; r < kTogether; ++r) {
                ScatteredRow& row = warp_rows[r];
                const int32_t index = indices[r];
                const unsigned ends = __ballot_sync(cuda::kAllLanes, index == -1);
                const bool alive = is_before_end(ends, lane);
                if (alive && row.regular && index >= first && index < end) {
                    int* cell = sums + row.psqt_bucket * kCells + (index - first);
                    atomicAdd(cell, static_cast<int>(row.amount & ((1 << kLowBits) - 1)));
                    atomicAdd(cell + cells, static_cast<int>(row.amount >> kLowBits));
                } else if (alive && static_cast<unsigned>(index) < static_cast<unsigned>(p.num_features)) {
                    atomicAdd(scratch.sums + int64_t(index) * p.psqt_buckets + row.psqt_bucket,
                              static_cast<unsigned long long>(row.amount));
                }
                __syncwarp();
                if (ends != 0 && lane == 0) row.entries = nullptr;
            }
            __syncwarp();
        }
    }
    __syncthreads();
    // Neighbouring threads take the PSQT buckets of a feature, which are neighbours in `sums`.
    for (int i = threadIdx.x; i < (end - first) * p.psqt_buckets; i += kThreads) {
        const int cell = i % p.psqt_buckets * kCells + i / p.psqt_buckets;
        const long long sum = (static_cast<long long>(sums[cells + cell]) << kLowBits) + sums[cell];
        if (sum == 0) continue;
        atomicAdd(scratch.sums + int64_t(first) * p.psqt_buckets + i, static_cast<unsigned long long>(sum));
    }
}

__global__ void __launch_bounds__(kThreads)
    round_kernel(int64_t count, int headroom, Scratch scratch, float* __restrict__ grad_psqt) {
    const int exponent = *scratch.exponent;
    for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < count; i += int64_t(gridDim.x) * kThreads) {
        const double sum = static_cast<double>(static_cast<long long>(scratch.sums[i]));
        // If any gradient is not finite, every element becomes NaN, since integers cannot hold it.
        grad_psqt[i] = exponent == kNotFinite
                           ? __int_as_float(0x7fffffff)
                           : static_cast<float>(scalbn(sum, exponent - headroom - 1));  // the last − 1 halves it
    }
}

inline Scratch carve_scratch(Carver& carver, int64_t count) {
    return {carver.take<unsigned long long>("sums", count), carver.take<unsigned>("largest", kPrepareGrid),
            carver.take<int>("exponent", 1)};
}

// All of grad_psqt [F, P] is written. `grad` is [positions].
inline void launch_backward(const Problem& p, const float* grad, float* grad_psqt, const Scratch& scratch,
                            cudaStream_t stream) {
    const int64_t count = int64_t(p.num_features) * p.psqt_buckets;
    // There is always at least one thread block, which writes the exponent.
    const int most_tiles = BucketPlan::tiles(p.in.positions, p.in.num_buckets);
    // No sum has more terms than this, so every sum fits in 63 bits.
    const uint64_t terms = 2 * uint64_t(std::max(p.in.positions, 1)) * uint64_t(std::max(p.in.max_active, 1));
    const int headroom = std::min(kMostHeadroom, 62 - static_cast<int>(std::bit_width(terms)));
    cuda::launch("psqt prepare", prepare_kernel, kPrepareGrid, kPrepareThreads, 0, stream, grad, p.in.positions, count,
                 scratch);
    const int shared_bytes = p.psqt_buckets <= kSharedPsqtBuckets ? 2 * p.psqt_buckets * kCells * int(sizeof(int)) : 0;
    // The attribute belongs to the kernel and holds for all its launches, so it must not depend on this call.
    constexpr int kMostBytes = 2 * kSharedPsqtBuckets * kCells * int(sizeof(int));
    cuda::check_cuda(cudaFuncSetAttribute(scatter_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostBytes),
                     "psqt scatter");
    cuda::launch("psqt scatter", scatter_kernel, (most_tiles + kTiles - 1) / kTiles, kScatterThreads, shared_bytes,
                 stream, p, grad, headroom, scratch);
    cuda::launch("psqt round", round_kernel, std::min(cuda::thread_blocks_for(count, kThreads), 4096u), kThreads, 0,
                 stream, count, headroom, scratch, grad_psqt);
}

}  // namespace nnue::psqt
