// The feature transformer of king-bucketed sets as a product on Hopper's tensor cores.
//
// All rows of a feature block form a 0/1 matrix [rows, 768]; the forward is that matrix times the block's weights, the
// weight gradient its transpose times the row gradients. The 0/1 matrix is never stored: it lives as one bit per entry
// (block_rows.cuh) and becomes 16-bit floats in registers, the left operand of wgmma. Every product has a factor 0 or
// 1, so 16-bit weights are exact and sums are fp32. An fp32 factor x is cut into two fp16 parts, x = high + 2⁻¹¹ · low,
// which keeps 22 bits or more of it; each part has its own sums.
//
// Columns: a slab is `kSlab` columns of the first half of the outputs and the same columns of the second half, so that
// the pairwise product of clipped halves is local to a thread. A fixed number of thread blocks (workers) share the work
// evenly, in an order and with a partition that depend on the batch alone.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "../activation.h"
#include "block_rows.cuh"
#include "hopper.cuh"

namespace nnue {

enum class Float : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

struct ForwardProblem {
    IndexRows in;
    BlockRows rows;
    const void* weight;  // [num_features, num_outputs]
    const float* bias;   // [num_outputs]
    void* out;           // [2 · positions, width]: width num_outputs / 2 for pairwise, else num_outputs
    void* saved;         // [slots, num_outputs] for the backward (fp32 sums, or fp16: see encode), or null
    int num_outputs;     // a multiple of 16
    Activation activation;
    float bound;  // clip to [0, bound]
    float scale;  // of the activated outputs
    Float out_type;
};

struct BackwardProblem {
    IndexRows in;
    BlockRows rows;
    const void* grad_out;  // like out
    const void* saved;
    void* grad_weight;    // [num_features, num_outputs], all of it is written
    float* grad_bias;     // [num_outputs]
    void* grad_rows;      // scratch [parts, slots, num_outputs], 16-bit; parts 2 for fp32 weights, else 1
    float* partial;       // scratch [kWorkers, 384 · 128]
    float* bias_partial;  // scratch [kBiasParts, num_outputs]
    unsigned* flags;      // scratch [kWorkers, 8] and one more; zeroed by backward()
    int num_outputs;
    Activation activation;
    float bound, scale;
    Float grad_type, weight_type;  // grad_type fp32 where the weight is fp32
};

namespace block_product {

using namespace hopper;

// Thread blocks that share a product: the multiprocessors of an H100 or H200. A constant, so that the order of every
// sum is a function of the batch alone.
constexpr int kWorkers = 132;

constexpr float kLowScale = 1.0f / 2048;  // 2^-11
constexpr uint32_t kOneFp16 = 0x3c00, kOneBf16 = 0x3f80;

// ---- which part of the work a thread block does
// -------------------------------------------------------------------------

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

constexpr int kMaxBlocks = 255;

// All threads: the first tiles of the blocks to shared memory, where Pieces searches them.
__device__ __forceinline__ const int32_t* load_tile_begin(const BlockRows& rows, int num_blocks) {
    __shared__ int32_t tile_begin[kMaxBlocks + 1];
    for (int b = threadIdx.x; b <= num_blocks; b += blockDim.x) tile_begin[b] = rows.tile_begin[b];
    __syncthreads();
    return tile_begin;
}

// The same for a warp that keeps its pieces in shared memory.
__device__ __forceinline__ bool next_piece(Pieces& pieces, int lane) {
    __syncwarp();
    bool more = false;
    if (lane == 0) more = pieces.next();
    __syncwarp();
    return __shfl_sync(~0u, more, 0);
}

// ---- element-wise parts
// -------------------------------------------------------------------------------------------------

// To [0, bound]; NaN stays NaN.
__device__ __forceinline__ float clip(float x, float bound) {
    asm("max.NaN.f32 %0, %0, 0f00000000;\n\tmin.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(bound));
    return x;
}

// Sums are saved for the backward as they are in fp32. In fp16 they are rounded to nearest, but a sum above the bound
// is saved as well above it; a sum below 0 keeps its sign bit even where it rounds to 0, and no sum is −0 itself. So
// with `limit`, the bound rounded up to what was saved, `inside` is exact: the clamp's derivative is 1 on the closed
// interval [0, bound] and 0 outside, as torch.clamp has it.
__device__ __forceinline__ uint32_t encode(float x, float y, float bound) {
    const float above = 2 * bound + 1;
    const __half2 v = __floats2half2_rn(x > bound ? above : x, y > bound ? above : y);
    return reinterpret_cast<const uint32_t&>(v);
}
__device__ __forceinline__ bool inside(float x, float limit) {
    return __float_as_int(x) >= 0 && !(x > limit);
}

// Turns the gradients of two outputs (of the product, for pairwise: both the same) into those of the two sums.
template <Activation kActivation>
__device__ __forceinline__ void differentiate(float& ga, float& gb, float sa, float sb, float bound, float limit) {
    if constexpr (kActivation == Activation::kPairwise) ga *= clip(sb, bound), gb *= clip(sa, bound);
    if constexpr (kActivation == Activation::kSCReLU) ga *= 2 * sa, gb *= 2 * sb;
    if constexpr (kActivation != Activation::kIdentity) {
        ga = inside(sa, limit) ? ga : 0.0f;
        gb = inside(sb, limit) ? gb : 0.0f;
    }
}

__device__ __forceinline__ uint32_t pack(float x, float y, Float type) {
    if (type == Float::kBFloat16) {
        const __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
        return reinterpret_cast<const uint32_t&>(v);
    }
    const __half2 v = __floats2half2_rn(x, y);
    return reinterpret_cast<const uint32_t&>(v);
}

__device__ __forceinline__ float2 unpack(uint32_t v, Float type) {
    if (type == Float::kBFloat16) return {__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u)};
    return __half22float2(reinterpret_cast<const __half2&>(v));
}

// x = high + 2⁻¹¹ · low, for two x at a time.
__device__ __forceinline__ void split(float x, float y, uint32_t& high, uint32_t& low) {
    const __half2 h = __floats2half2_rn(x, y);
    const float2 back = __half22float2(h);
    const __half2 l = __floats2half2_rn((x - back.x) * 2048.0f, (y - back.y) * 2048.0f);
    high = reinterpret_cast<const uint32_t&>(h);
    low = reinterpret_cast<const uint32_t&>(l);
}

// Lane t of a quad gives v[0…3], and gets v[t] of lanes 0…3.
__device__ __forceinline__ void quad_transpose(uint32_t (&v)[4], int t) {
    uint32_t other = __shfl_xor_sync(~0u, (t & 1) ? v[0] : v[1], 1);
    if (t & 1)
        v[0] = other;
    else
        v[1] = other;
    other = __shfl_xor_sync(~0u, (t & 1) ? v[2] : v[3], 1);
    if (t & 1)
        v[2] = other;
    else
        v[3] = other;
    other = __shfl_xor_sync(~0u, (t & 2) ? v[0] : v[2], 2);
    if (t & 2)
        v[0] = other;
    else
        v[2] = other;
    other = __shfl_xor_sync(~0u, (t & 2) ? v[1] : v[3], 2);
    if (t & 2)
        v[1] = other;
    else
        v[3] = other;
}

// Four packed pairs of each lane of a quad to 32 16-bit columns of a row.
__device__ __forceinline__ void store_packed(void* base, size_t offset, uint32_t (&packed)[4], int t, int columns,
                                             bool write) {
    quad_transpose(packed, t);
    if (write && 8 * t < columns)
        *reinterpret_cast<uint4*>(static_cast<uint16_t*>(base) + offset + 8 * t) = {packed[0], packed[1], packed[2],
                                                                                    packed[3]};
}

// 8 · kPairs columns of one row, held by a quad as wgmma leaves them (lane t: columns 8 j + 2 t, + 1 for pair j), to
// memory. All lanes of the warp take part; `columns` of them exist (a multiple of 8), none if `write` is false.
template <int kPairs>
__device__ __forceinline__ void store_columns(void* base, size_t offset, const float (&v)[2 * kPairs], Float type,
                                              int t, int columns, bool write) {
    if (type == Float::kFloat32) {
        float* target = static_cast<float*>(base) + offset + 2 * t;
#pragma unroll
        for (int j = 0; j < kPairs; ++j)
            if (write && 8 * j < columns) *reinterpret_cast<float2*>(target + 8 * j) = {v[2 * j], v[2 * j + 1]};
    } else {
#pragma unroll
        for (int group = 0; group < kPairs / 4; ++group) {
            uint32_t packed[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) packed[j] = pack(v[8 * group + 2 * j], v[8 * group + 2 * j + 1], type);
            store_packed(base, offset + 32 * group, packed, t, columns - 32 * group, write);
        }
    }
}

// Left operand of wgmma from bitmap words of rows g and g + 8 (already shifted right by 4 · lane-in-quad): k16 step
// `s`.
__device__ __forceinline__ void expand(uint32_t (&a)[4], uint32_t low, uint32_t high, int s, uint32_t one) {
    const uint32_t mask = 0x00010001u;
    a[0] = (low & (mask << (2 * s))) * (one >> (2 * s));
    a[1] = (high & (mask << (2 * s))) * (one >> (2 * s));
    a[2] = (low & (mask << (2 * s + 1))) * (one >> (2 * s + 1));
    a[3] = (high & (mask << (2 * s + 1))) * (one >> (2 * s + 1));
}

// ---- forward
// ------------------------------------------------------------------------------------------------------------

// A thread block holds the weights of a unit in shared memory; its four warpgroups take the unit's tiles in turn, so
// that some multiply while others store results.
template <typename Weight>
struct ForwardShape {
    static constexpr bool kTwoParts = sizeof(Weight) == 4;
    static constexpr bool kBf16 = std::is_same_v<Weight, __nv_bfloat16>;
    static constexpr int kSlab = kTwoParts ? 32 : 64;
    static constexpr int kPairs = kSlab / 8;
    static constexpr int kThreads = 512, kGroups = kThreads / 128;
    static constexpr int kOverhead = kTwoParts ? 6 : 4;  // of starting a unit, in tiles; measured
    static constexpr int kAtomBytes = kBlockFeatures * 128, kWarpBits = 16 * kBlockWords * 4;
    static constexpr int kSharedBytes = 2 * kAtomBytes + kThreads / 32 * kWarpBits + 128 * sizeof(float) + 1024;
};

// The unit's weights to shared memory: the two column atoms are the slab's part of each half of the outputs; for fp32
// both halves' high parts and both halves' low parts.
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
    if constexpr (!Shape::kTwoParts) {
#pragma unroll 4
        for (int i = 0; i < kItems; ++i) {
            const int item = i * Shape::kThreads + threadIdx.x, k = item / kChunks, chunk = item % kChunks;
            bool valid;
            const Weight* from = source(k, chunk, valid);
            copy_async_16(shared_address(shared) + chunk / 8 * Shape::kAtomBytes + operand_offset(k, chunk % 8), from,
                          valid);
        }
    } else {
        constexpr int kBatch = 6;
        for (int i = 0; i < kItems; i += kBatch) {
            float4 x[kBatch][2];
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
                const int item = (i + j) * Shape::kThreads + threadIdx.x;
                bool valid;
                const float4* from = reinterpret_cast<const float4*>(source(item / kChunks, item % kChunks, valid));
                x[j][0] = x[j][1] = {0, 0, 0, 0};
                if (valid) x[j][0] = __ldg(from), x[j][1] = __ldg(from + 1);
            }
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
                const int item = (i + j) * Shape::kThreads + threadIdx.x, k = item / kChunks, chunk = item % kChunks;
                const float* v = reinterpret_cast<const float*>(x[j]);
                uint32_t high[4], low[4];
#pragma unroll
                for (int c = 0; c < 4; ++c) split(v[2 * c], v[2 * c + 1], high[c], low[c]);
                *reinterpret_cast<uint4*>(shared + operand_offset(k, chunk)) = {high[0], high[1], high[2], high[3]};
                *reinterpret_cast<uint4*>(shared + Shape::kAtomBytes + operand_offset(k, chunk)) = {low[0], low[1],
                                                                                                    low[2], low[3]};
            }
        }
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
                const float2 b = j < 2 * kPairs ? *reinterpret_cast<const float2*>(bias + 8 * j + 2 * t) : float2{0, 0};
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
                        if constexpr (Shape::kTwoParts) v[h][i] += acc[32 + index] * kLowScale;
                    }
                if (p.saved != nullptr) {
                    const size_t row = size_t(slot + 8 * r) * p.num_outputs + column;
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        if constexpr (Shape::kTwoParts) {
                            store_columns<kPairs>(p.saved, row + h * half, v[h], Float::kFloat32, t, columns, write);
                        } else {
#pragma unroll
                            for (int group = 0; group < kPairs / 4; ++group) {
                                uint32_t packed[4];
#pragma unroll
                                for (int j = 0; j < 4; ++j)
                                    packed[j] = encode(v[h][8 * group + 2 * j], v[h][8 * group + 2 * j + 1], p.bound);
                                store_packed(p.saved, row + h * half + 32 * group, packed, t, columns - 32 * group,
                                             write);
                            }
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

// ---- backward
// -----------------------------------------------------------------------------------------------------------

constexpr int kBiasParts = 528;
constexpr int kFlags = 8;  // of a worker: one for each consumer warp

// A power of two that brings the row gradients near the top of fp16's range.
__device__ __forceinline__ float gradient_scale(const BackwardProblem& p) {
    const unsigned bits = p.flags[kWorkers * kFlags];
    if (bits == 0 || bits >= 0x7f800000u) return 1.0f;
    const float largest = fminf(__uint_as_float(bits) * fabsf(p.scale) * fmaxf(1.0f, 2 * p.bound), 1e38f);
    if (largest == 0) return 1.0f;
    return ldexpf(1.0f, max(-120, min(120, 13 - ilogbf(largest))));
}

template <typename T>
__device__ __forceinline__ void load_eight(float (&x)[8], const T* from, Float type) {
    if constexpr (sizeof(T) == 4) {
        const float4 low = __ldg(reinterpret_cast<const float4*>(from)),
                     high = __ldg(reinterpret_cast<const float4*>(from) + 1);
        x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w, x[4] = high.x, x[5] = high.y, x[6] = high.z,
        x[7] = high.w;
    } else {
        const uint4 v = __ldg(reinterpret_cast<const uint4*>(from));
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float2 two = unpack(words[j], type);
            x[2 * j] = two.x, x[2 * j + 1] = two.y;
        }
    }
}

// Row gradients in slot order, 16-bit (bf16, or two fp16 parts, scaled), 0 in padding; and sums over each thread
// block's stretch of slots for the bias gradient. Thread (x, y): eight columns of each half, every blockDim.y-th slot.
template <int kParts, typename Grad, Activation kActivation>
__global__ void __launch_bounds__(256) row_gradient_kernel(BackwardProblem p) {
    using Saved = std::conditional_t<kParts == 1, uint16_t, float>;
    constexpr bool kPairwise = kActivation == Activation::kPairwise;
    const int half = p.num_outputs / 2, column = (blockIdx.y * blockDim.x + threadIdx.x) * 8;
    const int slots = p.rows.tile_begin[p.in.num_blocks] * kTileRows;
    const size_t part_stride = size_t(BlockRows::tiles(p.in.positions, p.in.num_blocks)) * kTileRows * p.num_outputs;
    const int first = int((long long)slots * blockIdx.x / gridDim.x),
              last = int((long long)slots * (blockIdx.x + 1) / gridDim.x);
    const float limit = kParts == 1 ? __half2float(__float2half_ru(p.bound)) : p.bound;
    const float scale = kParts == 2 ? gradient_scale(p) : 1.0f;
    float bias[2][8] = {};
    if (column < half) {
#pragma unroll 2
        for (int slot = first + threadIdx.y; slot < last; slot += blockDim.y) {
            const int target = p.rows.slot_target[slot];
            float g[2][8] = {}, s[2][8] = {};
            if (target >= 0) {
                const Grad* grad =
                    static_cast<const Grad*>(p.grad_out) + size_t(target) * (kPairwise ? half : p.num_outputs) + column;
                load_eight(g[0], grad, p.grad_type);
                if constexpr (!kPairwise) load_eight(g[1], grad + half, p.grad_type);
                if constexpr (kActivation != Activation::kIdentity) {
                    const Saved* saved = static_cast<const Saved*>(p.saved) + size_t(slot) * p.num_outputs + column;
                    load_eight(s[0], saved, Float::kFloat16);
                    load_eight(s[1], saved + half, Float::kFloat16);
                }
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    g[0][j] *= p.scale;
                    g[1][j] = kPairwise ? g[0][j] : g[1][j] * p.scale;
                    differentiate<kActivation>(g[0][j], g[1][j], s[0][j], s[1][j], p.bound, limit);
                    bias[0][j] += g[0][j];
                    bias[1][j] += g[1][j];
                }
            }
            uint16_t* rows = static_cast<uint16_t*>(p.grad_rows) + size_t(slot) * p.num_outputs + column;
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
                *reinterpret_cast<uint4*>(rows + h * half) = {high[0], high[1], high[2], high[3]};
                if constexpr (kParts == 2)
                    *reinterpret_cast<uint4*>(rows + part_stride + h * half) = {low[0], low[1], low[2], low[3]};
            }
        }
    }
    __shared__ float sums[256][17];
    const int thread = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
    for (int i = 0; i < 16; ++i) sums[thread][i] = bias[i / 8][i % 8];
    __syncthreads();
    if (column < half && threadIdx.y == 0) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            float sum = 0;
            for (int y = 0; y < blockDim.y; ++y) sum += sums[y * blockDim.x + threadIdx.x][i];
            p.bias_partial[size_t(blockIdx.x) * p.num_outputs + i / 8 * half + column + i % 8] = sum;
        }
    }
}

// Bias gradient: sums of the thread blocks above. Threads (column, part).
__global__ void __launch_bounds__(1024) bias_kernel(BackwardProblem p) {
    __shared__ float sums[32][33];
    const int column = blockIdx.x * 32 + threadIdx.x;
    float sum = 0;
    if (column < p.num_outputs) {
#pragma unroll 4
        for (int part = threadIdx.y; part < kBiasParts; part += 32)
            sum += p.bias_partial[size_t(part) * p.num_outputs + column];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < p.num_outputs) {
        sum = 0;
        for (int i = 0; i < 32; ++i) sum += sums[i][threadIdx.x];
        p.grad_bias[column] = sum;
    }
}

// Two warpgroups hold the sums of 384 features × 128 operand columns in registers and turn bitmaps into products; a
// third copies row gradients and bitmaps ahead of them. A unit shared by several workers is finished by the first of
// them, which adds what the others left in `partial`, in their order.
template <int kParts>
struct BackwardShape {
    static constexpr int kSlab = 128 / kParts;  // columns
    static constexpr int kFeatures = 384;
    static constexpr int kAtomBytes = kTileRows * 128, kOperandBytes = 2 * kAtomBytes;
    static constexpr int kBitBytes = kFeatures * 8;
    static constexpr int kStageBytes = kOperandBytes + kBitBytes;
    static constexpr int kStages = 8, kAhead = 6;
    static constexpr int kOverhead = 4;  // of finishing a unit, in tiles; measured
    static constexpr int kConsumers = 256, kProducers = 128, kThreads = kConsumers + kProducers;
    static constexpr int kWarps = kConsumers / 32;
    static constexpr int kFeatureTiles = kFeatures / 64 / (kConsumers / 128);  // of 64 features, per warpgroup
    static constexpr int kSharedBytes = kStages * kStageBytes + 2 * kStages * 8 + 1024;
    static_assert(kStageBytes % 1024 == 0 && kWarps == kFlags);
};

template <int kParts>
__global__ void __launch_bounds__(384, 1) weight_gradient_kernel(BackwardProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using Shape = BackwardShape<kParts>;
    constexpr int kSlab = Shape::kSlab, kStages = Shape::kStages;
    extern __shared__ char shared_raw[];
    __shared__ Pieces pieces[Shape::kWarps + Shape::kProducers / 32];  // in shared memory: registers are short
    char* shared = shared_raw + ((1024 - (shared_address(shared_raw) & 1023)) & 1023);
    const uint32_t shared_base = shared_address(shared);
    uint64_t* full = reinterpret_cast<uint64_t*>(shared + kStages * Shape::kStageBytes);
    uint64_t* empty = full + kStages;
    // A unit is (slab, part of the block's features, block).
    const int feature_parts = (p.in.block_size + Shape::kFeatures - 1) / Shape::kFeatures;
    const int slabs = (p.num_outputs + kSlab - 1) / kSlab * feature_parts;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // A worker waits for those after it: they start first.
    const int worker = kWorkers - 1 - blockIdx.x;
    const int32_t* tile_begin = load_tile_begin(p.rows, p.in.num_blocks);
    if (threadIdx.x < Shape::kWarps + Shape::kProducers / 32)
        pieces[threadIdx.x] = Pieces(tile_begin, p.in.num_blocks, Shape::kOverhead, slabs, worker, kWorkers);
    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; ++s) {
            barrier_init(full + s, Shape::kProducers);
            barrier_init(empty + s, Shape::kWarps);
        }
        asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
    }
    __syncthreads();
    Pieces& mine = pieces[warp];

    if (warp >= Shape::kWarps) {  // ---- producers
        give_registers<24>();
        const int thread = threadIdx.x - Shape::kConsumers;
        int stage = 0, arrive_stage = 0, pending = 0;
        uint32_t phase = 1;  // the first pass over the stages waits for nothing
        const auto arrive = [&] {
            fence_shared_for_wgmma();
            barrier_arrive(full + arrive_stage);
            if (++arrive_stage == kStages) arrive_stage = 0;
        };
        while (next_piece(mine, lane)) {
            const int first_tile = tile_begin[mine.block], feature_part = mine.slab % feature_parts;
            const int chunk = thread % 16, row = thread / 16;  // 16 bytes of every eighth row
            // Chunks 0…7 and 8…15: the two atoms, of 64 columns each or of two parts.
            const int column = mine.slab / feature_parts * kSlab + (kParts == 1 ? chunk : chunk % 8) * 8;
            const bool valid = column < p.num_outputs;
            const size_t part =
                kParts == 2 && chunk >= 8 ? size_t(BlockRows::tiles(p.in.positions, p.in.num_blocks)) * kTileRows : 0;
            const uint16_t* source = static_cast<const uint16_t*>(p.grad_rows) +
                                     (part + size_t(first_tile + mine.lo) * kTileRows + row) * p.num_outputs +
                                     (valid ? column : 0);
            const uint2* bits = p.rows.feature_bits + size_t(first_tile + mine.lo) * kBlockFeatures +
                                feature_part * Shape::kFeatures + thread * 2;
            for (int count = mine.hi - mine.lo; count > 0; --count) {
                barrier_wait(empty + stage, phase);
                const uint32_t base = shared_base + stage * Shape::kStageBytes;
                const uint32_t to = base + chunk / 8 * Shape::kAtomBytes + operand_offset(row, chunk % 8);
#pragma unroll
                for (int i = 0; i < 8; ++i) copy_async_16(to + i * 1024, source + size_t(i) * 8 * p.num_outputs, valid);
                copy_async_16(base + Shape::kOperandBytes + thread * 16, bits, true);
                if (thread < 64) copy_async_16(base + Shape::kOperandBytes + (thread + 128) * 16, bits + 256, true);
                copy_async_commit();
                source += size_t(kTileRows) * p.num_outputs;
                bits += kBlockFeatures;
                if (++stage == kStages) stage = 0, phase ^= 1;
                if (++pending > Shape::kAhead) {
                    copy_async_wait<Shape::kAhead>();
                    arrive();
                    --pending;
                }
            }
        }
        copy_async_wait<0>();
        for (; pending > 0; --pending) arrive();
    } else {  // ---- consumers
        take_registers<240>();
        const int g = lane / 4, t = lane % 4;
        const int first_feature = warp / 4 * Shape::kFeatureTiles * 64 + warp % 4 * 16 + g;
        int stage = 0;
        uint32_t phase = 0;
        while (next_piece(mine, lane)) {
            float acc[Shape::kFeatureTiles][64];
#pragma unroll
            for (int m = 0; m < Shape::kFeatureTiles; ++m)
#pragma unroll
                for (float& x : acc[m]) x = 0;
            const int count = mine.hi - mine.lo;
            for (int i = 0; i < count; ++i) {
                barrier_wait(full + stage, phase);
                const uint32_t base = shared_base + stage * Shape::kStageBytes;
                const uint32_t bits = base + Shape::kOperandBytes + first_feature * 8;
                const uint32_t operand = operand_descriptor(base, Shape::kAtomBytes);
                uint32_t a[2][2][4];
#pragma unroll
                for (int m = 0; m < Shape::kFeatureTiles; ++m) {
                    const uint2 low = load_shared_8(bits + m * 512), high = load_shared_8(bits + m * 512 + 64);
#pragma unroll
                    for (int part = 0; part < 2; ++part) {
                        wgmma_wait<1>();
                        if (m == 0 && part == 1 && i > 0 && lane == 0)  // the last tile's products are done
                            barrier_arrive(empty + (stage == 0 ? kStages : stage) - 1);
                        const uint32_t word_low = (part ? low.y : low.x) >> (4 * t),
                                       word_high = (part ? high.y : high.x) >> (4 * t);
#pragma unroll
                        for (int k = 0; k < 2; ++k)
                            expand(a[part][k], word_low, word_high, k, kParts == 1 ? kOneBf16 : kOneFp16);
                        wgmma_fence();
#pragma unroll
                        for (int k = 0; k < 2; ++k)
                            wgmma_k16<kParts == 1>(acc[m], a[part][k], operand + (part * 2 + k) * 128);
                        wgmma_commit();
                    }
                }
                if (++stage == kStages) stage = 0, phase ^= 1;
            }
            wgmma_wait<0>();
            if (count > 0 && lane == 0) barrier_arrive(empty + (stage == 0 ? kStages : stage) - 1);

            const auto partial = [&](int from) {
                return reinterpret_cast<float4*>(p.partial) + size_t(from) * (Shape::kFeatures * 128 / 4) + threadIdx.x;
            };
            if (mine.lo > 0) {  // another worker's unit
                float4* target = partial(worker);
#pragma unroll
                for (int m = 0; m < Shape::kFeatureTiles; ++m)
#pragma unroll
                    for (int i = 0; i < 16; ++i)
                        target[(m * 16 + i) * Shape::kConsumers] = {acc[m][4 * i], acc[m][4 * i + 1], acc[m][4 * i + 2],
                                                                    acc[m][4 * i + 3]};
                __threadfence();
                __syncwarp();
                if (lane == 0) flag_set(p.flags + worker * kFlags + warp);
                continue;
            }
            if (mine.hi < mine.tiles) {
                const long long unit_end = (long long)mine.slab * mine.slab_cost + mine.prefix(mine.block) + mine.tiles;
                const long long total = (long long)mine.slab_cost * slabs;
                for (int other = worker + 1; other < kWorkers && total * other / kWorkers < unit_end; ++other) {
                    if (total * other / kWorkers == total * (other + 1) / kWorkers) continue;  // has no work
                    if (lane == 0) flag_wait(p.flags + other * kFlags + warp);
                    __syncwarp();
                    const float4* source = partial(other);
#pragma unroll
                    for (int m = 0; m < Shape::kFeatureTiles; ++m)
#pragma unroll
                        for (int i = 0; i < 16; ++i) {
                            const float4 v = __ldcg(source + (m * 16 + i) * Shape::kConsumers);
                            acc[m][4 * i] += v.x, acc[m][4 * i + 1] += v.y, acc[m][4 * i + 2] += v.z,
                                acc[m][4 * i + 3] += v.w;
                        }
                }
            }
            const float unscale = kParts == 2 ? 1.0f / gradient_scale(p) : 1.0f;
            const int column = mine.slab / feature_parts * kSlab, columns = min(p.num_outputs - column, kSlab);
#pragma unroll
            for (int m = 0; m < Shape::kFeatureTiles; ++m)
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const int local = mine.slab % feature_parts * Shape::kFeatures + first_feature + m * 64 + 8 * r;
                    const int feature = mine.block * p.in.block_size + local;
                    const bool write = local < p.in.block_size && feature < p.in.num_features;
                    float v[kSlab / 4];
#pragma unroll
                    for (int i = 0; i < kSlab / 4; ++i) {
                        const int index = 4 * (i / 2) + 2 * r + i % 2;
                        v[i] = kParts == 1 ? acc[m][index]
                                           : (acc[m][index] + acc[m][(32 + index) % 64] * kLowScale) * unscale;
                    }
                    store_columns<kSlab / 8>(p.grad_weight, size_t(write ? feature : 0) * p.num_outputs + column, v,
                                             p.weight_type, t, columns, write);
                }
        }
    }
#endif
}

__global__ void largest_kernel(const float4* values, size_t count, unsigned* largest) {
    unsigned mine = 0;
#pragma unroll 4
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x) {
        const float4 v = __ldg(values + i);
        mine = max(max(mine, __float_as_uint(v.x) & 0x7fffffffu), __float_as_uint(v.y) & 0x7fffffffu);
        mine = max(max(mine, __float_as_uint(v.z) & 0x7fffffffu), __float_as_uint(v.w) & 0x7fffffffu);
    }
    mine = __reduce_max_sync(~0u, mine);
    if (threadIdx.x % 32 == 0) atomicMax(largest, mine);
}

// ---- irregular rows
// -----------------------------------------------------------------------------------------------------

// Rows whose bitmap is empty because they break the blocks' rule, one after another. Rare; as a rule there are none.
constexpr int kIrregularBlocks = 264;

__device__ __forceinline__ float to_float(float x) {
    return x;
}
__device__ __forceinline__ float to_float(__half x) {
    return __half2float(x);
}
__device__ __forceinline__ float to_float(__nv_bfloat16 x) {
    return __bfloat162float(x);
}

__device__ __forceinline__ void store(void* base, size_t offset, float x, Float type) {
    if (type == Float::kFloat32) static_cast<float*>(base)[offset] = x;
    if (type == Float::kFloat16) static_cast<__half*>(base)[offset] = __float2half_rn(x);
    if (type == Float::kBFloat16) static_cast<__nv_bfloat16*>(base)[offset] = __float2bfloat16_rn(x);
}

template <typename Visit>
__device__ __forceinline__ void for_each_feature(const IndexRows& in, int row, const Visit& visit) {
    const int32_t* features = block_rows::row_pointer(in, row);
    for (int k = 0; k < in.max_active && features[k] >= 0; ++k)
        if (features[k] < in.num_features) visit(features[k]);
}

template <typename Weight>
__global__ void irregular_forward_kernel(ForwardProblem p) {
    if (*p.rows.irregular == 0) return;
    const int half = p.num_outputs / 2;
    for (int row = blockIdx.x; row < 2 * p.in.positions; row += gridDim.x) {
        if (p.rows.row_slot[row] >= 0) continue;
        const int slot = ~p.rows.row_slot[row], target = p.rows.slot_target[slot];
        for (int c = threadIdx.x; c < half; c += blockDim.x) {
            float v[2] = {p.bias[c], p.bias[half + c]};
            for_each_feature(p.in, row, [&](int feature) {
                const Weight* weight = static_cast<const Weight*>(p.weight) + size_t(feature) * p.num_outputs + c;
                v[0] += to_float(weight[0]);
                v[1] += to_float(weight[half]);
            });
            if (p.saved != nullptr) {
                const size_t at = size_t(slot) * p.num_outputs + c;
                const uint32_t encoded = encode(v[0], v[1], p.bound);
                for (int h = 0; h < 2; ++h) {
                    if (sizeof(Weight) == 4)
                        static_cast<float*>(p.saved)[at + h * half] = v[h];
                    else
                        static_cast<uint16_t*>(p.saved)[at + h * half] = uint16_t(encoded >> (16 * h));
                }
            }
            if (p.activation != Activation::kIdentity) v[0] = clip(v[0], p.bound), v[1] = clip(v[1], p.bound);
            if (p.activation == Activation::kPairwise) {
                store(p.out, size_t(target) * half + c, v[0] * (v[1] * p.scale), p.out_type);
                continue;
            }
            for (int h = 0; h < 2; ++h)
                store(p.out, size_t(target) * p.num_outputs + h * half + c,
                      v[h] * (p.activation == Activation::kSCReLU ? v[h] * p.scale : p.scale), p.out_type);
        }
    }
}

// Adds to the weight gradient that the product has written, a thread per column, rows in order: each row's share is
// rounded to the gradient's type as it is added. The bias gradient has these rows already.
template <typename Weight, typename Grad, Activation kActivation>
__global__ void irregular_backward_kernel(BackwardProblem p) {
    if (*p.rows.irregular == 0) return;
    using Saved = std::conditional_t<sizeof(Weight) == 2, __half, float>;
    const int half = p.num_outputs / 2, c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= half) return;
    const float limit = sizeof(Weight) == 2 ? __half2float(__float2half_ru(p.bound)) : p.bound;
    const auto gradient = [&](size_t at) {
        if constexpr (sizeof(Grad) == 4)
            return static_cast<const float*>(p.grad_out)[at];
        else
            return unpack(static_cast<const uint16_t*>(p.grad_out)[at], p.grad_type).x;
    };
    for (int row = 0; row < 2 * p.in.positions; ++row) {
        if (p.rows.row_slot[row] >= 0) continue;
        const int slot = ~p.rows.row_slot[row], target = p.rows.slot_target[slot];
        constexpr bool kPairwise = kActivation == Activation::kPairwise;
        const size_t at = size_t(target) * (kPairwise ? half : p.num_outputs) + c;
        float g[2] = {gradient(at) * p.scale, gradient(kPairwise ? at : at + half) * p.scale}, s[2] = {0, 0};
        if constexpr (kActivation != Activation::kIdentity) {
            const Saved* saved = static_cast<const Saved*>(p.saved) + size_t(slot) * p.num_outputs + c;
            s[0] = to_float(saved[0]), s[1] = to_float(saved[half]);
        }
        differentiate<kActivation>(g[0], g[1], s[0], s[1], p.bound, limit);
        for_each_feature(p.in, row, [&](int feature) {
            Weight* target_row = static_cast<Weight*>(p.grad_weight) + size_t(feature) * p.num_outputs + c;
            for (int h = 0; h < 2; ++h)
                store(target_row + h * half, 0, to_float(target_row[h * half]) + g[h], p.weight_type);
        });
    }
}

// ---- launches
// -----------------------------------------------------------------------------------------------------------

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

template <typename Weight, typename Grad, Activation kActivation>
cudaError_t backward(const BackwardProblem& p, cudaStream_t stream) {
    constexpr int kParts = sizeof(Weight) == 4 ? 2 : 1;
    static_assert(kParts == 1 || sizeof(Grad) == 4);
    using Shape = BackwardShape<kParts>;
    cudaError_t error = cudaFuncSetAttribute(weight_gradient_kernel<kParts>,
                                             cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes);
    if (error == cudaSuccess) error = cudaMemsetAsync(p.flags, 0, (kWorkers * kFlags + 1) * sizeof(unsigned), stream);
    if (error != cudaSuccess) return error;
    const int half = p.num_outputs / 2;
    if constexpr (kParts == 2) {
        const size_t values =
            2 * size_t(p.in.positions) * (kActivation == Activation::kPairwise ? half : p.num_outputs);
        largest_kernel<<<1056, 256, 0, stream>>>(static_cast<const float4*>(p.grad_out), values / 4,
                                                 p.flags + kWorkers * kFlags);
    }
    int lanes = 32;
    while (lanes < 128 && lanes * 8 < half) lanes *= 2;
    row_gradient_kernel<kParts, Grad, kActivation>
        <<<dim3(kBiasParts, (half + lanes * 8 - 1) / (lanes * 8)), dim3(lanes, 256 / lanes), 0, stream>>>(p);
    weight_gradient_kernel<kParts><<<kWorkers, Shape::kThreads, Shape::kSharedBytes, stream>>>(p);
    bias_kernel<<<(p.num_outputs + 31) / 32, dim3(32, 32), 0, stream>>>(p);
    irregular_backward_kernel<Weight, Grad, kActivation><<<(half + 63) / 64, 64, 0, stream>>>(p);
    return cudaGetLastError();
}

// The scratch of a backward, p.in and p.num_outputs and p.weight_type given.
inline void carve_scratch(Carver& carver, BackwardProblem& p) {
    const size_t slots = size_t(BlockRows::tiles(p.in.positions, p.in.num_blocks)) * kTileRows;
    p.grad_rows = carver.take<uint16_t>(slots * p.num_outputs * (p.weight_type == Float::kFloat32 ? 2 : 1));
    p.partial = carver.take<float>(size_t(kWorkers) * 384 * 128);
    p.bias_partial = carver.take<float>(size_t(kBiasParts) * p.num_outputs);
    p.flags = carver.take<unsigned>(kWorkers * kFlags + 1);
}

}  // namespace block_product
}  // namespace nnue
