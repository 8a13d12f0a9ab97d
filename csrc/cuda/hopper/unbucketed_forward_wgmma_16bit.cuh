// The forward for 16-bit weights where there are unbucketed features: a product on tensor cores for each tile and slab.
//
// Four warps gather one slab of the weights of all features of the tile (tile_features.cuh), in chunks of 64 features,
// into a ring in shared memory; four others multiply and finish the tile. A multiprocessor has two thread blocks, so
// that one can multiply while the other begins or ends.
#pragma once

#include "forward_wgmma_16bit.cuh"
#include "tile_features.cuh"

namespace nnue::unbucketed_forward_product {

using namespace one_hot_product;

template <typename Weight>
struct Shape {
    static_assert(sizeof(Weight) == 2);
    static constexpr bool kBf16 = std::is_same_v<Weight, __nv_bfloat16>;
    static constexpr int kSlab = 64;      // of either half
    static constexpr int kMostSlabs = 2;  // per thread block: the next slab's weights arrive while one is finished
    static constexpr int kThreads = 256, kBlocksPerMultiprocessor = 2;
    static constexpr int kChunk = TileFeatures::kChunk, kAtomBytes = kChunk * 128, kChunkBytes = 2 * kAtomBytes;
    static constexpr int kStages = 4, kBitsBytes = kTileRows * int(sizeof(uint2)), kTurnBytes = 16 * 128;
    static constexpr int kTurn = kStages * kChunkBytes, kBits = kTurn + 4 * kTurnBytes,
                         kBias = kBits + kStages * kBitsBytes, kTargets = kBias + kMostSlabs * 512,
                         kFeatures = kTargets + kTileRows * 4;
    // Behind these follow the features of the tile, with room for most(in).
    static int shared_bytes(const IndexRows& in) {
        return kFeatures + TileFeatures::most(in) * int(sizeof(int32_t)) + 1024;
    }
    static constexpr int kMostBytes = kFeatures + TileFeatures::kMost * int(sizeof(int32_t)) + 1024;
};

constexpr int kLeftOutThreads = 256;

// The grid is (tiles, stretches of `slabs` slabs).
// long: the warps that copy and those that multiply share stages and barriers.
template <typename Weight>
__global__ void __launch_bounds__(Shape<Weight>::kThreads, Shape<Weight>::kBlocksPerMultiprocessor)
    forward_kernel(ForwardProblem p, int slabs) {
    using S = Shape<Weight>;
    constexpr uint32_t kOne = S::kBf16 ? kOneBf16 : kOneFp16;
    extern __shared__ char shared_raw[];
    __shared__ uint64_t barriers[2 * S::kStages];
    const uint32_t shared = (shared_address(shared_raw) + 1023) & ~1023u;
    const uint32_t full = shared_address(barriers), empty = full + 8 * S::kStages;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = p.num_outputs / 2;
    const int tile = blockIdx.x, first_column = blockIdx.y * slabs * S::kSlab,
              end_column = min(half, first_column + slabs * S::kSlab);
    if (threadIdx.x == 0) {
        for (int s = 0; s < S::kStages; ++s) {
            barrier_init(full + 8 * s, kArrivals);
            barrier_init(empty + 8 * s, kArrivals);
        }
    }
    __syncthreads();
    wait_for_kernels_before();
    let_next_kernel_start();
    const int tiles = __ldg(p.plan.tile_begin + p.in.num_buckets), most = TileFeatures::most(p.in),
              chunks = __shfl_sync(~0u, __ldg(p.tile_features.chunks + tile), 0);
    unsigned use = 0;  // of the ring's places
    if (warp >= 4) {   // ---- weights: each warp copies sixteen features of a chunk, each half warp eight of them
        const int thread = threadIdx.x - 128, producer = warp - 4, sixteenth = lane % 16;
        const int32_t* const features = p.tile_features.features + size_t(tile) * most;
        const auto copy_features = [&](int i) { copy_async_16(shared + S::kFeatures + i * 4, features + i, true); };
        // As many features as tiles usually have are copied before the number of this tile's features is known.
        constexpr int kFirst = 1024;
#pragma unroll
        for (int i = 0; i < kFirst; i += 512)
            if (i + thread * 4 < most) copy_features(i + thread * 4);
        const unsigned row_bytes = unsigned(p.num_outputs) * sizeof(Weight);
        const int own_column = first_column + sixteenth % 8 * 8;
        const char* from = reinterpret_cast<const char*>(static_cast<const Weight*>(p.weight) +
                                                         (sixteenth < 8 ? 0 : half) + own_column);
        const int first = producer * 16 + lane / 16 * 8;  // among a chunk's features
        const char* const bits =
            reinterpret_cast<const char*>(p.tile_features.bits + size_t(tile) * most) + (producer * 8 + lane) * 16;
        const uint32_t to_bits = shared + S::kBits + (producer * 8 + lane) * 16;
        const uint32_t swizzled = shared + (sixteenth < 8 ? 0 : S::kAtomBytes) + operand_offset(first, sixteenth % 8);
        const int count = tile < tiles ? chunks * S::kChunk : 0;
#pragma unroll 1
        for (int i = kFirst + thread * 4; i < count; i += 512) copy_features(i);
        copy_async_wait_all();
        if (tile >= tiles) return;
        warpgroup_barrier(1);
#pragma unroll 1
        for (int column = 0; column < end_column - first_column; column += S::kSlab) {
            const bool exists = own_column + column < half;
            uint32_t which = shared + S::kFeatures + first * 4;
            const char* own_bits = bits;
#pragma unroll 1
            for (int c = 0; c < chunks; ++c) {
                const uint4 low = load_shared_16<true>(which), high = load_shared_16<true>(which + 16);
                const unsigned eight[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
                which += S::kChunk * 4;
                const RingPlace<S::kStages> place(use++);
                barrier_wait(empty + 8 * place.stage, place.phase ^ 1);
                const uint32_t to = swizzled + place.stage * S::kChunkBytes;
                if (lane < 8) copy_async_16(to_bits + place.stage * S::kBitsBytes, own_bits, true);
                own_bits += S::kBitsBytes;
#pragma unroll
                for (int j = 0; j < 8; ++j)
                    copy_async_16((to + j * 128) ^ (j << 4), row_of(from, eight[j], row_bytes), exists);
                barrier_arrive_copied(full + 8 * place.stage);
            }
            from += S::kSlab * sizeof(Weight);
        }
        copy_async_wait_all();
    } else {  // ---- products
        if (tile >= tiles) return;
#pragma unroll
        for (int slab = 0; slab < S::kMostSlabs; ++slab) {  // columns of the first half, then of the second
            const int c = first_column + slab * S::kSlab + threadIdx.x % S::kSlab;
            store_shared_4(shared + S::kBias + slab * 512 + threadIdx.x * 4,  // + 0.0f, so that no sum is −0
                           c < half ? __float_as_uint(p.bias[c + (threadIdx.x < S::kSlab ? 0 : half)] + 0.0f) : 0);
        }
        if (threadIdx.x < kTileRows)
            store_shared_4(shared + S::kTargets + threadIdx.x * 4,
                           uint32_t(__ldg(p.plan.slot_target + tile * kTileRows + threadIdx.x)));
        warpgroup_barrier(0);
        const int t = lane % 4, shift = 4 * t, stored_row = warp * 16 + lane / 8;
        const uint32_t bits = shared + S::kBits + (warp * 16 + lane / 4) * 8,
                       turn = shared + S::kTurn + warp * S::kTurnBytes;
#pragma unroll 1
        for (int column = first_column; column < end_column; column += S::kSlab) {
            const uint32_t bias = shared + S::kBias + (column - first_column) * 8 + 8 * t;
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
                    const uint32_t word_low = (s ? low.y : low.x) >> shift, word_high = (s ? high.y : high.x) >> shift;
                    multiply_word<S::kBf16>(acc, a[s], word_low, word_high, kOne, operand + s * 256);
                }
                before = place.stage;
            }
            wgmma_wait<0>();
            fence_registers(acc);
            if (chunks > 0) barrier_arrive(empty + 8 * before);
            int targets[4];
#pragma unroll
            for (int k = 0; k < 4; ++k) targets[k] = int(load_shared_4(shared + S::kTargets + stored_row * 4 + k * 16));
            finish_tile<S>(p, acc, turn, tile * kTileRows + stored_row, column, targets);
        }
    }
}

// Adds up the rows that the product leaves out, divided evenly among the thread blocks. Usually there are none.
template <typename Weight>
__global__ void __launch_bounds__(kLeftOutThreads) left_out_kernel(ForwardProblem p) {
    __shared__ uint64_t left_out[kLeftOutThreads];
    __shared__ unsigned tiles_with_any[kLeftOutThreads / 32];
    wait_for_kernels_before();
    const int tiles = p.plan.tile_begin[p.in.num_buckets];
    unsigned number = 0;
    for (int first = 0; first < tiles; first += kLeftOutThreads) {
        const int own = first + int(threadIdx.x);
        const uint64_t own_rows = own < tiles ? p.tile_features.left_out[own] : 0;
        left_out[threadIdx.x] = own_rows;
        const unsigned any = __ballot_sync(~0u, own_rows != 0);
        if (threadIdx.x % 32 == 0) tiles_with_any[threadIdx.x / 32] = any;
        __syncthreads();
        for (int w = 0; w < kLeftOutThreads / 32; ++w)
            for (unsigned which = tiles_with_any[w]; which != 0; which &= which - 1) {
                const int i = 32 * w + __ffs(int(which)) - 1;
                for (uint64_t rows = left_out[i]; rows != 0; rows &= rows - 1) {
                    if (number++ % gridDim.x != blockIdx.x) continue;
                    const RowOrder row = p.order[(first + i) * kTileRows + __ffsll((long long)rows) - 1];
                    if (row.target >= 0) sum_row<Weight>(p, row.row, row.slot, row.target);
                }
            }
        __syncthreads();
    }
}

template <typename Weight>
void forward(const ForwardProblem& p, cudaStream_t stream) {
    using S = Shape<Weight>;
    constexpr int kFull = 3168;  // thread blocks that fill the device twelve times
    const int tiles = BucketPlan::tiles(p.in.positions, p.in.num_buckets),
              all_slabs = (p.num_outputs / 2 + S::kSlab - 1) / S::kSlab;
    const int slabs = (long long)tiles * all_slabs >= kFull ? S::kMostSlabs : 1;
    const dim3 grid(tiles, (all_slabs + slabs - 1) / slabs);
    start("forward_kernel", forward_kernel<Weight>, S::kMostBytes, grid, S::kThreads, S::shared_bytes(p.in), stream, p,
          slabs);
    start("left_out_kernel", left_out_kernel<Weight>, -1, kIrregularGrid, kLeftOutThreads, 0, stream, p);
}

}  // namespace nnue::unbucketed_forward_product
