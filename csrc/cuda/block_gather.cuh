// The fp32 forward of king-bucketed sets: every row adds up its features' weights from shared memory.
//
// A *slab* is 256 bytes of a weight row: 32 columns of the first half of the outputs and the same columns of the
// second, so that the pairwise product of clipped halves is local to a thread. A *unit* is a slab and a feature block:
// the slabs of the block's `kNearFeatures` most frequent features are brought to shared memory by four warps while the
// others work on the unit before. A quarter of a warp takes a row: its eight lanes read 128 bytes at a time, without a
// bank conflict, and add them in the order of the row's list. A rarer feature of a row comes to a place of its own
// while the others are added. So the sums are as exact as fp32 is, and which feature counts as rare changes no more
// than their order.
//
// 16-bit weights take the product of block_forward.cuh, which is faster for them.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "block_product.cuh"
#include "irregular_rows.cuh"

namespace nnue::block_gather {

using namespace block_product;

constexpr int kSlabBytes = 256, kUnitBytes = (kNearFeatures + 1) * kSlabBytes;  // the last is of zeros
constexpr int kUnitCost = 800;                           // of starting a unit, in features; measured
constexpr int kSlab = kSlabBytes / 2 / 4, kColumns = 4;  // columns of each half: of a slab, of a lane
constexpr int kProducers = 4, kConsumers = 24, kThreads = 32 * (kConsumers + kProducers);
constexpr int kSharedBytes = 2 * kUnitBytes + kConsumers * kGroupRows * kSlabBytes;

// A row's sums: a lane has 4 columns of either half.
struct Sums {
    float sum[2][kColumns];

    // Features at these addresses: 16 bytes a lane, of the other half 128 bytes further on.
    template <int kCount>
    __device__ __forceinline__ void add(const uint32_t (&from)[kCount]) {
        uint4 pieces[2 * kCount];
#pragma unroll
        for (int i = 0; i < 2 * kCount; ++i) pieces[i] = load_shared_16(from[i / 2] + i % 2 * 128);
#pragma unroll
        for (int i = 0; i < 2 * kCount; ++i) {
            float* to = sum[i % 2];
            to[0] += __uint_as_float(pieces[i].x), to[1] += __uint_as_float(pieces[i].y);
            to[2] += __uint_as_float(pieces[i].z), to[3] += __uint_as_float(pieces[i].w);
        }
    }
    // kWords words of a near list, two features a word; dp2a: base + 128 · one half of the word.
    template <int kWords>
    __device__ __forceinline__ void add_listed(const uint32_t (&words)[kWords], uint32_t base) {
#pragma unroll
        for (const uint32_t word : words) {
            const uint32_t from[2] = {__dp2a_lo(word, 0x0080u, base), __dp2a_lo(word, 0x8000u, base)};
            add(from);
        }
    }
};

// All threads: the first tiles of the blocks to shared memory.
__device__ __forceinline__ const int32_t* load_tile_begin(const BlockRows& rows, int num_blocks) {
    __shared__ int32_t tile_begin[kMaxBlocks + 1];
    for (int b = threadIdx.x; b <= num_blocks; b += blockDim.x) tile_begin[b] = rows.tile_begin[b];
    __syncthreads();
    return tile_begin;
}

// The stretch of units, or parts of them, that a worker takes, the slab outermost. A function of the batch alone.
struct Work {
    const int32_t* tile_begin;  // in shared memory, as `prefix`
    const long long* prefix;    // costs of a slab of the blocks before
    int num_blocks;
    long long cost, end;
    int column, block, lo, hi;  // the slab's first column; tiles lo … hi − 1 of the block

    __device__ Work(const int32_t* tile_begin_, const long long* prefix_, int num_blocks_, int slabs)
        : tile_begin(tile_begin_), prefix(prefix_), num_blocks(num_blocks_) {
        const long long total = prefix[num_blocks] * slabs;
        cost = total * blockIdx.x / gridDim.x;
        end = total * (blockIdx.x + 1) / gridDim.x;
    }

    __device__ bool next() {
        while (cost < end) {
            const long long slab = cost / prefix[num_blocks], at = cost - slab * prefix[num_blocks];
            column = int(slab) * kSlab;
            block = last_begun(prefix, num_blocks, at);
            const long long unit = prefix[block + 1] - prefix[block], from = at - prefix[block];
            const long long take = min(unit - from, end - cost);
            const int tiles = tile_begin[block + 1] - tile_begin[block];
            lo = int((from * tiles + unit - 1) / unit);
            hi = int(((from + take) * tiles + unit - 1) / unit);
            cost += take;
            if (lo < hi) return true;
        }
        return false;
    }
    __device__ int groups() const { return (hi - lo) * (kTileRows / kGroupRows); }
};

// Four columns to memory.
__device__ __forceinline__ void store_four(void* base, size_t offset, const float (&v)[kColumns], Float type) {
    if (type == Float::kFloat32)
        *reinterpret_cast<float4*>(static_cast<float*>(base) + offset) = {v[0], v[1], v[2], v[3]};
    else
        *reinterpret_cast<uint2*>(static_cast<uint16_t*>(base) + offset) = {pack(v[0], v[1], type),
                                                                            pack(v[2], v[3], type)};
}

__device__ __forceinline__ void finish_row(const ForwardProblem& p, float (&first)[kColumns], float (&second)[kColumns],
                                           int column, int slot, int target) {
    const int half = p.num_outputs / 2;
    if (p.saved != nullptr) {
        store_four(p.saved, saved_at(slot, 0, column, p.num_outputs), first, Float::kFloat32);
        store_four(p.saved, saved_at(slot, 1, column, p.num_outputs), second, Float::kFloat32);
    }
    if (p.activation != Activation::kIdentity) {
#pragma unroll
        for (int i = 0; i < kColumns; ++i) first[i] = clip(first[i], p.bound), second[i] = clip(second[i], p.bound);
    }
    if (p.activation == Activation::kPairwise) {
#pragma unroll
        for (int i = 0; i < kColumns; ++i) first[i] *= second[i] * p.scale;
        store_four(p.out, size_t(target) * half + column, first, p.out_type);
        return;
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
        first[i] *= p.activation == Activation::kSCReLU ? first[i] * p.scale : p.scale;
        second[i] *= p.activation == Activation::kSCReLU ? second[i] * p.scale : p.scale;
    }
    const size_t at = size_t(target) * p.num_outputs + column;
    store_four(p.out, at, first, p.out_type);
    store_four(p.out, at + half, second, p.out_type);
}

__global__ void __launch_bounds__(kThreads, 1) gather_kernel(ForwardProblem p) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char shared[];
    __shared__ uint64_t barriers[4];
    __shared__ int next_ticket;
    __shared__ long long prefix[kMaxBlocks + 1];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = p.num_outputs / 2;
    const uint32_t full = shared_address(barriers), empty = full + 16;  // two each, 8 bytes apart
    if (threadIdx.x < 2 * kSlabBytes / 16)
        *reinterpret_cast<uint4*>(shared + threadIdx.x / 16 * kUnitBytes + kNearFeatures * kSlabBytes +
                                  threadIdx.x % 16 * 16) = {0, 0, 0, 0};
    if (threadIdx.x == 0) {
        next_ticket = 0;
        for (int i = 0; i < 2; ++i) {
            barrier_init(full + 8 * i, kProducers * 32);
            barrier_init(empty + 8 * i, kConsumers * 32);
        }
    }
    wait_for_kernels_before();
    if (warp == 0) {
        sums_before(prefix, p.in.num_blocks, [&](int block) {
            const long long cost = (long long)p.rows.block_cost[block];
            return cost > 0 ? cost + kUnitCost : 0;
        });
    }
    const int32_t* tile_begin = load_tile_begin(p.rows, p.in.num_blocks);
    const float* weights = static_cast<const float*>(p.weight);
    Work work(tile_begin, prefix, p.in.num_blocks, (half + kSlab - 1) / kSlab);
    int buffer = 0;
    uint32_t phase = 0;

    if (warp >= kConsumers) {  // brings weights: 16 lanes a feature, of each half eight
        const int producer = warp - kConsumers, part = lane % 16;
        int features[3], next_features[3] = {-1, -1, -1}, of_block = -1;  // places 4 (32 i + lane) + producer
        const auto look_ahead = [&] {
            const bool more = work.next();
            if (more && work.block != of_block) {
                of_block = work.block;
#pragma unroll
                for (int i = 0; i < 3; ++i)
                    next_features[i] =
                        __ldg(p.rows.ranked + of_block * kBlockFeatures + (32 * i + lane) * kProducers + producer);
            }
            return more;
        };
        bool more = look_ahead();
        while (more) {
            const int column = work.column + part % 8 * kColumns;
            const float* from =
                weights + size_t(work.block) * p.in.block_size * p.num_outputs + column + (part < 8 ? 0 : half);
#pragma unroll
            for (int i = 0; i < 3; ++i) features[i] = next_features[i];
            more = look_ahead();
            barrier_wait(empty + 8 * buffer, phase ^ 1);  // a new barrier passes for the phase before its first
            const uint32_t to = shared_address(shared) + buffer * kUnitBytes + part * 16;
#pragma unroll
            for (int i = 0; i < 3; ++i) {
                if (!__any_sync(~0u, features[i] >= 0)) break;
#pragma unroll 8
                for (int j = 0; j < 16; ++j) {
                    const int feature = __shfl_sync(~0u, features[i], 2 * j + lane / 16);
                    const int place = (32 * i + 2 * j + lane / 16) * kProducers + producer;
                    if (feature >= 0 && column < half)
                        copy_async_16(to + place * kSlabBytes, from + size_t(feature) * p.num_outputs, true);
                }
            }
            barrier_arrive_copied(full + 8 * buffer);
            buffer ^= 1;
            if (buffer == 0) phase ^= 1;
        }
        copy_async_wait_all();
        return;
    }

    // A group of rows is taken by ticket: `ticket` counts all groups of this thread block's units.
    const int pitch = p.rows.pitch, eighth = lane % 8;
    const uint32_t place = shared_address(shared) + 2 * kUnitBytes + (warp * kGroupRows + lane / 8) * kSlabBytes +
                           eighth * 16;  // where this row's rarer features come
    const auto take = [&] {
        int ticket = 0;
        if (lane == 0) ticket = atomicAdd(&next_ticket, 1);
        return __shfl_sync(~0u, ticket, 0);
    };
    int ticket = take(), first_ticket = 0;
    while (work.next()) {
        const int end_ticket = first_ticket + work.groups(), first_feature = work.block * p.in.block_size;
        const size_t first_slot = size_t(tile_begin[work.block] + work.lo) * kTileRows;
        const uint32_t base = shared_address(shared) + buffer * kUnitBytes + eighth * 16;
        const int column = work.column + eighth * kColumns;
        const bool exists = column < half;
        float bias[2][kColumns];
#pragma unroll
        for (int i = 0; i < 2 * kColumns; ++i)  // no sum is −0
            bias[i / kColumns][i % kColumns] =
                exists ? __ldg(p.bias + i / kColumns * half + column + i % kColumns) + 0.0f : 0.0f;
        const auto bring = [&](int feature) {
            if (!exists) return;
            const float* from = weights + size_t(first_feature + feature) * p.num_outputs + column;
            copy_async_16(place, from, true);
            copy_async_16(place + 128, from + half, true);
        };
        RowEntry next_entry;
        uint4 next_list;
        const auto prepare = [&] {  // for the next group; where there is none, for any
            const size_t at = first_slot + size_t(min(ticket, end_ticket - 1) - first_ticket) * kGroupRows + lane / 8;
            const int4 entry = __ldg(reinterpret_cast<const int4*>(p.rows.entries + at));
            next_entry = {entry.x, entry.y, entry.z, entry.w};
            next_list = __ldg(reinterpret_cast<const uint4*>(p.rows.near + at * pitch));
        };
        prepare();
        barrier_wait(full + 8 * buffer, phase);
        while (ticket < end_ticket) {
            const size_t at = first_slot + size_t(ticket - first_ticket) * kGroupRows + lane / 8;
            const RowEntry entry = next_entry;
            uint4 eight = next_list;
            ticket = take();
            prepare();
            int longest = __shfl_sync(~0u, entry.counts, 0);  // they come in order
            if (longest < 0) continue;
            longest &= 511;
            const uint4* near = reinterpret_cast<const uint4*>(p.rows.near + at * pitch);
            const uint16_t* far = p.rows.far + size_t(entry.slot / kTileRows) * kTileRows * pitch + entry.far_begin;
            const int rare = entry.counts < 0 ? 0 : entry.counts >> 9 & 511;
            int next_far = entry.counts >> 18;
            if (rare > 0) bring(next_far);
            if (rare > 1) next_far = __ldg(far + 1);

            Sums sums;
#pragma unroll
            for (int i = 0; i < 2 * kColumns; ++i)
                sums.sum[i / kColumns][i % kColumns] = bias[i / kColumns][i % kColumns];
            for (int k = 8; k <= longest; k += 8) {
                const uint4 now = eight;
                if (k < longest) eight = __ldg(near + k / 8);
                sums.add_listed<4>({now.x, now.y, now.z, now.w}, base);
            }
            if (longest & 4) {
                sums.add_listed<2>({eight.x, eight.y}, base);
                eight.x = eight.z, eight.y = eight.w;
            }
            if (longest & 2) {
                sums.add_listed<1>({eight.x}, base);
                eight.x = eight.y;
            }
            if (longest & 1) sums.add<1>({__dp2a_lo(eight.x, 0x0080u, base)});
            for (int i = 0; __any_sync(~0u, i < rare); ++i) {
                if (i > 0 && i < rare) {
                    bring(next_far);
                    if (i + 1 < rare) next_far = __ldg(far + i + 1);
                }
                copy_async_wait_all();
                __syncwarp();
                sums.add<1>({i < rare ? place : base + kNoFeature * 128});
                __syncwarp();
            }
            if (exists && entry.target >= 0) finish_row(p, sums.sum[0], sums.sum[1], column, entry.slot, entry.target);
        }
        barrier_arrive(empty + 8 * buffer);
        buffer ^= 1;
        if (buffer == 0) phase ^= 1;
        first_ticket = end_ticket;
    }
#endif
}

inline cudaError_t forward(const ForwardProblem& p, cudaStream_t stream) {
    cudaError_t error = cudaFuncSetAttribute(gather_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
    if (error != cudaSuccess) return error;
    error = launch_early(gather_kernel, kWorkers, kThreads, kSharedBytes, stream, p);
    if (error != cudaSuccess) return error;
    irregular_forward_kernel<float><<<kIrregularBlocks, 256, 0, stream>>>(p);
    return cudaGetLastError();
}

}  // namespace nnue::block_gather
