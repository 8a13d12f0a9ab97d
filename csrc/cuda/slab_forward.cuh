// The forward for sets with loose features: every row adds up its features' weights, a slab of columns at a time.
//
// A slab is 128 bytes of each half of a weight row. Eight lanes take a row, so that the pairwise product is a lane's
// own. The slab is the outermost order of work and rows come by block: what is read of the weights stays in the L2
// cache, and of a block's frequent features in L1. Rows are read as they are in the batch, so duplicates and features
// of other blocks need no care. Sums are fp32, in the order of the index row, the bias last; those of 16-bit weights
// are made by the tensor cores, as products with the unit matrix.
#pragma once

#include "block_product.cuh"

namespace nnue::slab_forward {

using namespace block_product;

template <typename Weight>
struct Shape {
    static constexpr int kPer = 16 / int(sizeof(Weight));  // columns of a lane, in each half
    static constexpr int kColumns = 8 * kPer;              // of each half in a slab
    static constexpr int kThreads = 128, kWarps = kThreads / 32, kRows = kThreads / 8;
    static constexpr int kAhead = 4;  // entries whose weights are in flight, of both halves
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
    static_assert(kCount == 4 || kCount == 8);
    if (type == Float::kFloat32) {
        float* target = static_cast<float*>(base) + offset;
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
}

// Two words, loaded where this stands: registers that would hold them meanwhile are short.
__device__ __forceinline__ int2 read_again(const int2* from) {
    int2 v;
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from) : "memory");
    return v;
}

// Eight lanes add up a row's weights, `kPer` columns of each half a lane.
template <typename Weight>
struct RowSum {
    static constexpr int kPer = Shape<Weight>::kPer, kAhead = Shape<Weight>::kAhead;
    const uint4* weight;  // of feature 0, the lane's columns of the first half
    uint32_t row_bytes, num_features, unit;

    __device__ __forceinline__ const uint4* piece_of(const uint4* first, int h) const {
        return h == 0 ? first : reinterpret_cast<const uint4*>(reinterpret_cast<const char*>(first) + row_bytes / 2);
    }

    // Entries kFirst, … of the eight that the lanes hold; those < 0 are none. Most often there are all of them.
    template <int kFirst>
    __device__ __forceinline__ void add(float (&sum)[2][kPer], int mine, unsigned exist) const {
        constexpr unsigned kAll = ((1u << kAhead) - 1) * 0x01010101u << kFirst;
        if ((exist & kAll) == 0) return;
        uint4 pieces[kAhead][2];
        if ((exist & kAll) == kAll) {
#pragma unroll
            for (int i = 0; i < kAhead; ++i) {
                const uint4* const first = row_of(weight, __shfl_sync(~0u, mine, kFirst + i, 8), row_bytes);
#pragma unroll
                for (int h = 0; h < 2; ++h) pieces[i][h] = __ldg(piece_of(first, h));
            }
        } else {
#pragma unroll
            for (int i = 0; i < kAhead; ++i) {
                const int feature = __shfl_sync(~0u, mine, kFirst + i, 8);
                const uint4* const first = row_of(weight, feature, row_bytes);
#pragma unroll
                for (int h = 0; h < 2; ++h) pieces[i][h] = hopper::load_global_16(piece_of(first, h), feature >= 0);
            }
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) add_piece<Weight>(sum[h], pieces[i][h], unit);
    }

    __device__ __forceinline__ void add_row(float (&sum)[2][kPer], const int32_t* features, int left) const {
        static_assert(kAhead == 4);
        int steps = (__reduce_max_sync(~0u, left) + 7) / 8;
        features += threadIdx.x % 8, left -= int(threadIdx.x % 8);
        int next = left > 0 ? __ldg(features) : -1;
#pragma unroll 1
        for (; steps > 0; --steps) {
            // The index check speaks of features that are not there.
            const int mine = uint32_t(next) < num_features ? next : -1;
            features += 8, left -= 8;
            next = left > 0 ? __ldg(features) : -1;
            const unsigned exist = __ballot_sync(~0u, mine >= 0);
            add<0>(sum, mine, exist);
            add<4>(sum, mine, exist);
        }
    }
};

// Adds the bias, saves, activates and stores the sums of a lane's columns of a row.
template <typename Weight, Activation kActivation, int kPer>
__device__ __forceinline__ void finish_row(const ForwardProblem& p, float (&sum)[2][kPer], int slot, int target,
                                           int column) {
    const int half = p.num_outputs / 2;
    const float* const first_bias = p.bias + block_rows::keep(uint32_t(column));  // not to be kept over rows
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int i = 0; i < kPer; i += 4) {
            const float4 bias = __ldg(reinterpret_cast<const float4*>(first_bias + h * half + i));
            sum[h][i] += bias.x, sum[h][i + 1] += bias.y, sum[h][i + 2] += bias.z, sum[h][i + 3] += bias.w;
        }
    if (p.saved != nullptr) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const size_t to = saved_at(slot, h, column, p.num_outputs);
            if constexpr (sizeof(Weight) == 4) {
                store_values(p.saved, to, sum[h], Float::kFloat32);
            } else {
                __stcs(reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.saved) + to),
                       uint4{encode(sum[h][0], sum[h][1], p.bound), encode(sum[h][2], sum[h][3], p.bound),
                             encode(sum[h][4], sum[h][5], p.bound), encode(sum[h][6], sum[h][7], p.bound)});
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (float& x : sum[h]) {
            if constexpr (kActivation != Activation::kIdentity) x = clip(x, p.bound);
            if constexpr (kActivation == Activation::kSCReLU) x *= x;
            if (kActivation != Activation::kPairwise || h == 1) x *= p.scale;
        }
    if constexpr (kActivation == Activation::kPairwise) {
#pragma unroll
        for (int i = 0; i < kPer; ++i) sum[0][i] *= sum[1][i];
        store_values(p.out, size_t(target) * half + column, sum[0], p.out_type);
    } else {
#pragma unroll
        for (int h = 0; h < 2; ++h)
            store_values(p.out, size_t(target) * p.num_outputs + h * half + column, sum[h], p.out_type);
    }
}

// Thread blocks (tile, slab); eight lanes a row.
template <typename Weight, Activation kActivation>
__global__ void __launch_bounds__(Shape<Weight>::kThreads, 8) slab_kernel(ForwardProblem p) {
    using S = Shape<Weight>;
    if (int(blockIdx.x) >= p.rows.tile_begin[p.in.num_blocks]) return;
    const int warp = threadIdx.x / 32, column = blockIdx.y * S::kColumns + int(threadIdx.x % 8) * S::kPer;
    const bool valid = column < p.num_outputs / 2;
    const RowSum<Weight> adder{
        reinterpret_cast<const uint4*>(static_cast<const Weight*>(p.weight) + (valid ? column : 0)),
        uint32_t(p.num_outputs * sizeof(Weight)), uint32_t(p.in.num_features + p.in.num_loose),
        hopper::unit_operand<std::is_same_v<Weight, __nv_bfloat16>>()};
    // Rows come longest first: a warp that has had long ones gets short ones then.
#pragma unroll 1
    for (int round = 0; round < kTileRows / S::kRows; ++round) {
        const int four = round * S::kWarps + (round % 2 == 0 ? warp : S::kWarps - 1 - warp);
        const RowOrder* const order = p.order + (blockIdx.x * kTileRows + four * 4 + threadIdx.x % 32 / 8);
        const int2 row = __ldg(reinterpret_cast<const int2*>(order) + 1);
        float sum[2][S::kPer] = {};
        adder.add_row(sum, block_rows::row_pointer(p.in, row.x), row.y);
        const int2 place = read_again(reinterpret_cast<const int2*>(order));
        if (place.y >= 0 && valid) finish_row<Weight, kActivation>(p, sum, place.x, place.y, column);
    }
}

template <typename Weight>
cudaError_t forward(const ForwardProblem& p, cudaStream_t stream) {
    using S = Shape<Weight>;
    const auto kernel = p.activation == Activation::kIdentity ? slab_kernel<Weight, Activation::kIdentity>
                        : p.activation == Activation::kCReLU  ? slab_kernel<Weight, Activation::kCReLU>
                        : p.activation == Activation::kSCReLU ? slab_kernel<Weight, Activation::kSCReLU>
                                                              : slab_kernel<Weight, Activation::kPairwise>;
    const dim3 grid(BlockRows::tiles(p.in.positions, p.in.num_blocks),
                    (p.num_outputs / 2 + S::kColumns - 1) / S::kColumns);
    kernel<<<grid, S::kThreads, 0, stream>>>(p);
    return cudaGetLastError();
}

}  // namespace nnue::slab_forward
