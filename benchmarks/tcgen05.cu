// A design for compute capability 10.0, which compiles and was never run: the two products of the feature transformer
// with tcgen05. It belongs to no library; benchmarks/NOTEBOOK.md ("Compute capability 10.0") has what it would gain.
//
//     nvcc -std=c++20 -O3 -arch=sm_100a -Xptxas -v -cubin -o tcgen05.cubin benchmarks/tcgen05.cu
//
// Both are D[128, 128] = A · B over chunks of 64, and A is a matrix of bits, of which a chunk has 64 for each row:
//
//   forward          A: positions × features of their group   B: weights of these features    D: the sums
//   weight gradient  A: features × positions of a tile        B: row gradients of the tile    D: the gradient's rows
//
// On 9.0 the warps that multiply widen their bits in registers, and wait for wgmma with 64 sums each in registers. Here
// D and A lie in tensor memory: one thread launches products, so the warps that widen and those that finish a result
// need no registers for sums, and the product of the next item runs beside both.
#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>
#include <cuda/ptx>

namespace ptx = cuda::ptx;

constexpr int kRows = 128, kColumns = 128, kChunk = 64, kStages = 8, kResults = 2;
constexpr int kAtomBytes = kChunk * 128, kStageBytes = 2 * kAtomBytes;  // 64 columns of a chunk are an atom
// Columns of tensor memory, 32 bits wide: two results, then A of four stages. All 512 are allocated.
constexpr int kOfA = kChunk / 2, kStagesOfA = 4, kFirstOfA = kResults * kColumns, kAllocated = 512;
static_assert(kFirstOfA + kStagesOfA * kOfA <= kAllocated);
constexpr int kWidenWarps = 4, kFinishWarps = 4, kThreads = 32 * (1 + kWidenWarps + kFinishWarps);

// A and B bf16, D fp32, B with its columns one after the other, 128 × 128.
constexpr uint32_t kProduct = 1u << 4 | 1u << 7 | 1u << 10 | 1u << 16 | kColumns / 8 << 17 | kRows / 16 << 24;

struct Problem {
    const uint64_t* bits;    // [items, chunks, 128]
    const int* chunks;       // of each item, 1 or more
    int items, most_chunks;  // of an item
    float* out;              // [items, 128, 128]
};

// The rows of a chunk from anywhere: TMA copies four at a time. Weights: [features, columns], 64 columns of one row in
// a box, 128-byte swizzle.
struct Gathered {
    CUtensorMap rows;
    const int* features;  // [items, chunks, 64]
    int half;             // columns of the two atoms are this far apart

    __device__ void copy(void* to, const Problem& p, int item, int chunk, uint64_t* full) const {
        const int* of = features + (int64_t(item) * p.most_chunks + chunk) * kChunk;
        for (int atom = 0; atom < 2; ++atom)
            for (int i = 0; i < kChunk; i += 4) {
                const int4 four = *reinterpret_cast<const int4*>(of + i);
                const int32_t at[5] = {atom * half, four.x, four.y, four.z, four.w};
                ptx::cp_async_bulk_tensor_tile_gather4(ptx::space_shared, ptx::space_global,
                                                       static_cast<char*>(to) + atom * kAtomBytes + i * 128, &rows, at,
                                                       full);
            }
    }
};

// The rows of a chunk in one piece, as row_gradients.cuh writes them.
struct Stored {
    const char* pieces;  // [items, chunks, kStageBytes]

    __device__ void copy(void* to, const Problem& p, int item, int chunk, uint64_t* full) const {
        ptx::cp_async_bulk(ptx::space_shared, ptx::space_global, to,
                           pieces + (int64_t(item) * p.most_chunks + chunk) * kStageBytes, kStageBytes, full);
    }
};

__device__ void wait(uint64_t* barrier, uint32_t phase) {
    while (!ptx::mbarrier_try_wait_parity(barrier, phase)) {
    }
}
// The product waits for all that the warps wrote to tensor memory, and they for the product.
__device__ void arrive(uint64_t* barrier) {
    ptx::tcgen05_fence_before_thread_sync();
    ptx::mbarrier_arrive(barrier);
}

// B of a stage: atoms of 64 columns, 128-byte swizzle.
__device__ uint64_t descriptor(uint32_t shared) {
    return uint64_t(shared >> 4 & 0x3fff) | uint64_t(kAtomBytes >> 4) << 16 | uint64_t(1024 >> 4) << 32 | 1ull << 46 |
           2ull << 61;
}

template <typename Source>
__global__ void __launch_bounds__(kThreads, 1)
    product_kernel(const __grid_constant__ Problem p, const __grid_constant__ Source source) {
    extern __shared__ __align__(1024) char stages[];  // 128 KB
    __shared__ uint64_t full[kStages], widened[kStagesOfA], used[kStages], done[kResults], finished[kResults];
    __shared__ uint32_t allocated;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < kStages; ++i) ptx::mbarrier_init(full + i, 1), ptx::mbarrier_init(used + i, 1);
        for (int i = 0; i < kStagesOfA; ++i) ptx::mbarrier_init(widened + i, 32 * kWidenWarps);
        for (int i = 0; i < kResults; ++i)
            ptx::mbarrier_init(done + i, 1), ptx::mbarrier_init(finished + i, 32 * kFinishWarps);
    }
    if (warp == 0) ptx::tcgen05_alloc(ptx::cta_group_1, &allocated, kAllocated);
    __syncthreads();
    ptx::tcgen05_fence_after_thread_sync();
    const uint32_t memory = allocated;
    uint32_t use = 0, result = 0;  // counted by each role for itself
    if (warp == 0) {
        if (lane == 0) {
            const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(stages));
            // Copies run kStages in front of products: an item's first chunks arrive while the one before is
            // multiplied.
            uint32_t copied = 0;
            int copy_item = blockIdx.x, copy_chunk = 0;
            const auto copy_ahead = [&](uint32_t until) {
                while (copied < until && copy_item < p.items) {
                    const uint32_t stage = copied % kStages;
                    wait(used + stage, copied / kStages % 2 ^ 1);
                    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, full + stage,
                                                   kStageBytes);
                    source.copy(stages + stage * kStageBytes, p, copy_item, copy_chunk, full + stage);
                    if (++copy_chunk == p.chunks[copy_item]) copy_chunk = 0, copy_item += int(gridDim.x);
                    ++copied;
                }
            };
            for (int item = blockIdx.x; item < p.items; item += int(gridDim.x), ++result) {
                const uint32_t at = result % kResults, sums = memory + at * kColumns;
                wait(finished + at, result / kResults % 2 ^ 1);
                ptx::tcgen05_fence_after_thread_sync();
                for (int c = 0; c < p.chunks[item]; ++c, ++use) {
                    copy_ahead(use + kStages - 1);
                    const uint32_t stage = use % kStages, of_a = use % kStagesOfA;
                    wait(full + stage, use / kStages % 2);
                    wait(widened + of_a, use / kStagesOfA % 2);
                    ptx::tcgen05_fence_after_thread_sync();
                    for (int k = 0; k < kChunk / 16; ++k)
                        ptx::tcgen05_mma_tmem_a(
                            ptx::kind_f16, ptx::cta_group_1, sums, memory + kFirstOfA + of_a * kOfA + k * 8,
                            descriptor(shared + stage * kStageBytes + k * 16 * 128), kProduct, c > 0 || k > 0);
                    ptx::tcgen05_commit(ptx::cta_group_1, used + stage);
                }
                ptx::tcgen05_commit(ptx::cta_group_1, done + at);
            }
        }
        __syncwarp();
    } else if (warp <= kWidenWarps) {
        // A warp has 32 of the 128 lanes of tensor memory: those of its number mod 4.
        const uint32_t lanes = warp % 4 * 32;
        for (int item = blockIdx.x; item < p.items; item += int(gridDim.x))
            for (int c = 0; c < p.chunks[item]; ++c, ++use) {
                const uint64_t own = p.bits[(int64_t(item) * p.most_chunks + c) * kRows + lanes + lane];
                uint32_t pairs[kOfA];
#pragma unroll
                for (int i = 0; i < kOfA; ++i) {
                    const uint32_t two = uint32_t(own >> (2 * i)) & 3;
                    pairs[i] = (two & 1) * 0x3f80u | (two >> 1) * 0x3f800000u;  // 1 in bf16
                }
                // A of this place was read when the stage of the chunk kStagesOfA before was.
                if (use >= kStagesOfA) wait(used + (use - kStagesOfA) % kStages, (use - kStagesOfA) / kStages % 2);
                ptx::tcgen05_fence_after_thread_sync();
                ptx::tcgen05_st_32x32b(memory + (lanes << 16) + kFirstOfA + use % kStagesOfA * kOfA, pairs);
                ptx::tcgen05_wait_st();
                arrive(widened + use % kStagesOfA);
            }
    } else {
        const uint32_t lanes = warp % 4 * 32;
        for (int item = blockIdx.x; item < p.items; item += int(gridDim.x), ++result) {
            const uint32_t at = result % kResults;
            wait(done + at, result / kResults % 2);
            ptx::tcgen05_fence_after_thread_sync();
            float* const row = p.out + (int64_t(item) * kRows + lanes + lane) * kColumns;
            // Here the forward adds the bias, saves, activates and packs; a thread has a whole row of its slab, so the
            // pairwise product of its halves, and the first layer's product, are its own.
#pragma unroll 1
            for (int first = 0; first < kColumns; first += 32) {
                uint32_t sums[32];
                ptx::tcgen05_ld_32x32b(sums, memory + (lanes << 16) + at * kColumns + first);
                ptx::tcgen05_wait_ld();
                for (int i = 0; i < 32; i += 4)
                    *reinterpret_cast<uint4*>(row + first + i) = {sums[i], sums[i + 1], sums[i + 2], sums[i + 3]};
            }
            arrive(finished + at);
        }
    }
    __syncthreads();
    if (warp == 0) ptx::tcgen05_dealloc(ptx::cta_group_1, memory, kAllocated);
}

template __global__ void product_kernel<Gathered>(const __grid_constant__ Problem, const __grid_constant__ Gathered);
template __global__ void product_kernel<Stored>(const __grid_constant__ Problem, const __grid_constant__ Stored);
