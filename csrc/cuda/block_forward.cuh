// The forward for 16-bit weights of king-bucketed sets: a product on tensor cores (block_product.cuh).
#pragma once

#include "block_product.cuh"
#include "irregular_rows.cuh"

namespace nnue::block_product {

// A unit is (slab, feature block); it costs its tiles and `overhead` more. Worker i of W takes an equal stretch of the
// units in order, so a unit may be cut into pieces that belong to consecutive workers.
struct Pieces {
    const int32_t* tile_begin;  // in shared memory: see load_tile_begin
    int num_blocks, overhead;
    int slab_cost, cost, end;
    int slab, block, lo, hi, tiles;  // the piece: tiles lo … hi − 1 of the block's `tiles`

    Pieces() = default;
    __device__ Pieces(const int32_t* tile_begin_, int num_blocks_, int overhead_, int slabs, int worker, int workers)
        : tile_begin(tile_begin_),
          num_blocks(num_blocks_),
          overhead(overhead_),
          slab_cost(tile_begin_[num_blocks_] + num_blocks_ * overhead_) {
        const long long total = (long long)slab_cost * slabs;
        cost = int(total * worker / workers);
        end = int(total * (worker + 1) / workers);
    }

    __device__ int prefix(int b) const { return tile_begin[b] + b * overhead; }

    __device__ bool next() {
        while (cost < end) {
            slab = cost / slab_cost;
            const int rest = cost - slab * slab_cost;
            int low = 0, high = num_blocks - 1;
            while (low < high) {
                const int middle = (low + high + 1) / 2;
                if (prefix(middle) <= rest)
                    low = middle;
                else
                    high = middle - 1;
            }
            block = low;
            tiles = tile_begin[block + 1] - tile_begin[block];
            lo = rest - prefix(block);
            const int take = min(tiles + overhead - lo, end - cost);
            hi = min(lo + take, tiles);
            cost += take;
            if (lo < hi || (tiles == 0 && lo == 0)) return true;
        }
        return false;
    }
};

// For 16-bit weights; block_gather.cuh has the forward for fp32. A thread block holds the weights of a unit in shared
// memory; its four warpgroups take the unit's tiles in turn, so that some multiply while others store results.
template <typename Weight>
struct ForwardShape {
    static_assert(sizeof(Weight) == 2);
    static constexpr bool kBf16 = std::is_same_v<Weight, __nv_bfloat16>;
    static constexpr int kSlab = 64, kPairs = kSlab / 8;
    static constexpr int kThreads = 512, kGroups = kThreads / 128;
    static constexpr int kOverhead = 4;  // of starting a unit, in tiles; measured
    static constexpr int kAtomBytes = kBlockFeatures * 128, kWarpBits = 16 * kBlockWords * 4;
    static constexpr int kSharedBytes = 2 * kAtomBytes + kThreads / 32 * kWarpBits + 128 * sizeof(float) + 1024;
};

// The unit's weights to shared memory: the two column atoms are the slab's part of each half of the outputs.
template <typename Weight>
__device__ __forceinline__ void load_weights(const ForwardProblem& p, int slab, int block, char* shared) {
    using Shape = ForwardShape<Weight>;
    constexpr int kChunks = 2 * Shape::kSlab / 8, kItems = kBlockFeatures * kChunks / Shape::kThreads;
    const int half = p.num_outputs / 2;
    const auto source = [&](int k, int chunk, bool& valid) {
        const int c = slab * Shape::kSlab + chunk % (kChunks / 2) * 8, feature = block * p.in.block_size + k;
        valid = c < half && feature < p.in.num_features && k < p.in.block_size;
        return static_cast<const Weight*>(p.weight) +
               (valid ? size_t(feature) * p.num_outputs + (chunk < kChunks / 2 ? 0 : half) + c : 0);
    };
#pragma unroll 4
    for (int i = 0; i < kItems; ++i) {
        const int item = i * Shape::kThreads + threadIdx.x, k = item / kChunks, chunk = item % kChunks;
        bool valid;
        const Weight* from = source(k, chunk, valid);
        copy_async_16(shared_address(shared) + chunk / 8 * Shape::kAtomBytes + operand_offset(k, chunk % 8), from,
                      valid);
    }
}

template <typename Weight>
__global__ void __launch_bounds__(ForwardShape<Weight>::kThreads, 1) forward_kernel(ForwardProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using Shape = ForwardShape<Weight>;
    constexpr int kSlab = Shape::kSlab, kPairs = Shape::kPairs;
    constexpr uint32_t kOne = Shape::kBf16 ? kOneBf16 : kOneFp16;
    extern __shared__ char shared_raw[];
    char* shared = shared_raw + ((1024 - (shared_address(shared_raw) & 1023)) & 1023);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    char* bits = shared + 2 * Shape::kAtomBytes + warp * Shape::kWarpBits;  // the warp's 16 rows
    float* bias = reinterpret_cast<float*>(shared + 2 * Shape::kAtomBytes + Shape::kThreads / 32 * Shape::kWarpBits);
    const uint4* bits_low = reinterpret_cast<const uint4*>(bits) + g * (kBlockWords / 4);
    const uint4* bits_high = bits_low + 8 * (kBlockWords / 4);
    const int half = p.num_outputs / 2, slabs = (half + kSlab - 1) / kSlab;
    const uint32_t operand = operand_descriptor(shared_address(shared), Shape::kAtomBytes);
    const auto load_bits = [&](int tile) {
        const char* from = reinterpret_cast<const char*>(p.rows.row_bits) +
                           (size_t(tile) * kTileRows + warp % 4 * 16) * (kBlockWords * 4);
#pragma unroll
        for (int i = 0; i < Shape::kWarpBits / 512; ++i)
            copy_async_16(shared_address(bits) + (i * 32 + lane) * 16, from + (i * 32 + lane) * 16, true);
        copy_async_commit();
    };

    const int32_t* tile_begin = load_tile_begin(p.rows, p.in.num_blocks);
    Pieces piece(tile_begin, p.in.num_blocks, Shape::kOverhead, slabs, blockIdx.x, kWorkers);
    while (piece.next()) {
        if (piece.tiles == 0) continue;
        const int column = piece.slab * kSlab, columns = min(half - column, kSlab);
        const int end = tile_begin[piece.block] + piece.hi;
        int tile = tile_begin[piece.block] + piece.lo + warp / 4;
        __syncthreads();  // the last piece's products are done
        if (tile < end) load_bits(tile);
        load_weights<Weight>(p, piece.slab, piece.block, shared);
        if (threadIdx.x < 2 * kSlab) {
            const int c = column + threadIdx.x % kSlab;
            bias[threadIdx.x] = c < half ? p.bias[c + (threadIdx.x < kSlab ? 0 : half)] : 0.0f;
        }
        copy_async_commit();
        copy_async_wait<0>();
        fence_shared_for_wgmma();
        __syncthreads();

        int next_targets[2];
        const auto load_targets = [&](int of_tile) {
            const int32_t* from = p.rows.slot_target + of_tile * kTileRows + warp % 4 * 16 + g;
            next_targets[0] = from[0];
            next_targets[1] = from[8];
        };
        if (tile < end) load_targets(tile);
        for (; tile < end; tile += Shape::kGroups) {
            const int slot = tile * kTileRows + warp % 4 * 16 + g;
            const int targets[2] = {next_targets[0], next_targets[1]};
            float acc[64];
#pragma unroll
            for (int j = 0; j < 16; ++j) {
                const float2 b = *reinterpret_cast<const float2*>(bias + 8 * j + 2 * t);
                acc[4 * j] = acc[4 * j + 2] = b.x;
                acc[4 * j + 1] = acc[4 * j + 3] = b.y;
            }
            copy_async_wait<0>();
            __syncwarp();
            uint32_t a[2][4][4];
#pragma unroll
            for (int step = 0; step < kBlockFeatures / 128; ++step) {
                const uint4 low = bits_low[step], high = bits_high[step];
                const uint32_t words_low[4] = {low.x >> (4 * t), low.y >> (4 * t), low.z >> (4 * t), low.w >> (4 * t)};
                const uint32_t words_high[4] = {high.x >> (4 * t), high.y >> (4 * t), high.z >> (4 * t),
                                                high.w >> (4 * t)};
                if (step == kBlockFeatures / 128 - 1) {
                    __syncwarp();
                    if (tile + Shape::kGroups < end) {
                        load_bits(tile + Shape::kGroups);
                        load_targets(tile + Shape::kGroups);
                    }
                }
#pragma unroll
                for (int part = 0; part < 2; ++part) {
                    wgmma_wait<1>();  // the products that read a[part] are done
#pragma unroll
                    for (int k = 0; k < 4; ++k)
                        expand(a[part][k], words_low[2 * part + k / 2], words_high[2 * part + k / 2], k % 2, kOne);
                    wgmma_fence();
#pragma unroll
                    for (int k = 0; k < 4; ++k)
                        wgmma_k16<Shape::kBf16>(acc, a[part][k], operand + (step * 8 + part * 4 + k) * 128);
                    wgmma_commit();
                }
            }
            wgmma_wait<0>();

#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int target = targets[r];
                const bool write = target >= 0;
                float v[2][2 * kPairs];
#pragma unroll
                for (int h = 0; h < 2; ++h)
#pragma unroll
                    for (int i = 0; i < 2 * kPairs; ++i) {
                        const int index = 4 * kPairs * h + 4 * (i / 2) + 2 * r + i % 2;
                        v[h][i] = acc[index];
                    }
                if (p.saved != nullptr) {
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const size_t at = saved_at(slot + 8 * r, h, column, p.num_outputs);
#pragma unroll
                        for (int group = 0; group < kPairs / 4; ++group) {
                            uint32_t packed[4];
#pragma unroll
                            for (int j = 0; j < 4; ++j)
                                packed[j] = encode(v[h][8 * group + 2 * j], v[h][8 * group + 2 * j + 1], p.bound);
                            store_packed(p.saved, at + 32 * group, packed, t, columns - 32 * group, write);
                        }
                    }
                }
                if (p.activation != Activation::kIdentity) {
#pragma unroll
                    for (int i = 0; i < 2 * kPairs; ++i)
                        v[0][i] = clip(v[0][i], p.bound), v[1][i] = clip(v[1][i], p.bound);
                }
                if (p.activation == Activation::kPairwise) {
#pragma unroll
                    for (int i = 0; i < 2 * kPairs; ++i) v[0][i] *= v[1][i] * p.scale;
                    store_columns<kPairs>(p.out, size_t(write ? target : 0) * half + column, v[0], p.out_type, t,
                                          columns, write);
                } else {
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
#pragma unroll
                        for (int i = 0; i < 2 * kPairs; ++i)
                            v[h][i] *= p.activation == Activation::kSCReLU ? v[h][i] * p.scale : p.scale;
                        store_columns<kPairs>(p.out, size_t(write ? target : 0) * p.num_outputs + h * half + column,
                                              v[h], p.out_type, t, columns, write);
                    }
                }
            }
        }
    }
#endif
}

template <typename Weight>
cudaError_t forward(const ForwardProblem& p, cudaStream_t stream) {
    using Shape = ForwardShape<Weight>;
    const cudaError_t error =
        cudaFuncSetAttribute(forward_kernel<Weight>, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes);
    if (error != cudaSuccess) return error;
    forward_kernel<Weight><<<kWorkers, Shape::kThreads, Shape::kSharedBytes, stream>>>(p);
    irregular_forward_kernel<Weight><<<kIrregularBlocks, 256, 0, stream>>>(p);
    return cudaGetLastError();
}

}  // namespace nnue::block_product
