// The forward for sets with loose features: every row adds up its features' weights, a slab of columns at a time.
//
// A slab is 128 bytes of each half of a weight row. Eight lanes take a row, or two side by side, so that the pairwise
// product is a lane's own. The slab is the outermost order of work and rows come by block: what is read of the weights
// stays in the L2 cache. A multiprocessor has one thread block, whose warps take rows of one tile after the other: of
// what these neighbours share, L1 serves most. Rows are read as they are in the batch, so duplicates and features of
// other blocks need no care. Sums are fp32, in the order of the index row, the bias last; those of 16-bit weights are
// made by the tensor cores, as products with the unit matrix.
#pragma once

#include "block_product.cuh"

namespace nnue::slab_forward {

using namespace block_product;

template <typename Weight>
struct Shape {
    static constexpr int kPer = 16 / int(sizeof(Weight));  // columns of a lane, in each half
    static constexpr int kColumns = 8 * kPer;              // of each half in a slab
    static constexpr int kThreads = 1024;
    // Rows that eight lanes add up at a time, and of how many entries of each the weights of both halves are in flight.
    static constexpr int kRows = sizeof(Weight) == 4 ? 2 : 1, kAhead = 4 / kRows;
    static constexpr int kUnitRows = 4 * kRows, kUnits = kTileRows / kUnitRows;  // of a warp; of a tile
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

__device__ __forceinline__ uint32_t read_shared_word(const uint32_t* from) {
    uint32_t v;
    asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(v) : "r"(hopper::shared_address(from)) : "memory");
    return v;
}

// The units of work of a thread block: groups of rows of a tile and slab, the next of which a warp takes when it is
// free. Thread blocks take tiles as they need them, so that the rows that a multiprocessor works on are neighbours.
class Units {
  public:
    struct Shared {
        uint32_t current;  // the tile's number << 6 | units that have been taken; beyond kUnits: nobody's
        uint32_t next;     // the next tile's number, or kUnknown
    };
    static constexpr uint32_t kMost = (1u << 26) - 1;

    __device__ Units(Shared& shared, unsigned* ticket)
        : current_(&shared.current), next_(&shared.next), ticket_(ticket) {
        if (threadIdx.x == 0) {
            shared.current = atomicAdd(ticket_, 1u) << 6;
            shared.next = atomicAdd(ticket_, 1u);
        }
        __syncthreads();
    }

    // A warp: the number of a tile, and which of its kUnits.
    template <int kUnits>
    __device__ __forceinline__ uint2 take() const {
        uint32_t taken = 0;
        if (threadIdx.x % 32 == 0) {
            taken = atomicAdd(current_, 1u);
            while (taken % 64 > kUnits) {  // another warp brings the next tile
                while (read(current_) % 64 > kUnits) {
                }
                taken = atomicAdd(current_, 1u);
            }
            if (taken % 64 == kUnits) {
                uint32_t tile;
                while ((tile = read(next_)) == kUnknown) {
                }
                atomicExch(next_, kUnknown);
                __threadfence_block();
                atomicExch(current_, tile << 6 | 1);
                taken = tile << 6;
                atomicExch(next_, min(atomicAdd(ticket_, 1u), kMost));
            }
        }
        taken = __shfl_sync(~0u, taken, 0);
        return {taken >> 6, taken % 64};
    }

  private:
    static constexpr uint32_t kUnknown = ~0u;

    __device__ static uint32_t read(uint32_t* from) { return read_shared_word(from); }

    uint32_t *const current_, *const next_;
    unsigned* const ticket_;
};

// Two words, loaded where this stands: registers that would hold them meanwhile are short.
__device__ __forceinline__ int2 read_again(const int2* from) {
    int2 v;
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from) : "memory");
    return v;
}

// Eight lanes add up kRows rows' weights, `kPer` columns of each half a lane.
template <typename Weight>
struct RowSum {
    using S = Shape<Weight>;
    static constexpr int kPer = S::kPer, kRows = S::kRows, kAhead = S::kAhead;
    const uint4* weight;  // of feature 0, the lane's columns of the first half
    uint32_t row_bytes, num_features, unit;

    __device__ __forceinline__ const uint4* piece_of(const uint4* first, int h) const {
        return h == 0 ? first : reinterpret_cast<const uint4*>(reinterpret_cast<const char*>(first) + row_bytes / 2);
    }

    // Entries kFirst … kFirst + kAhead − 1 of the eight that the lanes hold; those < 0 are none. Most often there are
    // all of them.
    template <int kFirst>
    __device__ __forceinline__ void add(float (&sum)[kRows][2][kPer], const int (&mine)[kRows],
                                        const unsigned (&exist)[kRows]) const {
        constexpr unsigned kAll = ((1u << kAhead) - 1) * 0x01010101u << kFirst;
        unsigned any = 0, all = kAll;
#pragma unroll
        for (int r = 0; r < kRows; ++r) any |= exist[r], all &= exist[r];
        if ((any & kAll) == 0) return;
        uint4 pieces[kRows][kAhead][2];
        if (all == kAll) {
#pragma unroll
            for (int r = 0; r < kRows; ++r)
#pragma unroll
                for (int i = 0; i < kAhead; ++i) {
                    const int feature = __shfl_sync(~0u, mine[r], kFirst + i, 8);
                    const uint4* const first = row_of(weight, feature, row_bytes);
#pragma unroll
                    for (int h = 0; h < 2; ++h) pieces[r][i][h] = __ldg(piece_of(first, h));
                }
        } else {
#pragma unroll
            for (int r = 0; r < kRows; ++r)
#pragma unroll
                for (int i = 0; i < kAhead; ++i) {
                    const int feature = __shfl_sync(~0u, mine[r], kFirst + i, 8);
                    const uint4* const first = row_of(weight, feature, row_bytes);
#pragma unroll
                    for (int h = 0; h < 2; ++h)
                        pieces[r][i][h] = hopper::load_global_16(piece_of(first, h), feature >= 0);
                }
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r)
#pragma unroll
            for (int i = 0; i < kAhead; ++i)
#pragma unroll
                for (int h = 0; h < 2; ++h) add_piece<Weight>(sum[r][h], pieces[r][i][h], unit);
    }

    __device__ __forceinline__ void add_rows(float (&sum)[kRows][2][kPer], const int32_t* (&features)[kRows],
                                             int (&left)[kRows]) const {
        int steps = 0, next[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            steps = max(steps, left[r]);
            left[r] -= int(threadIdx.x % 8);
            features[r] += threadIdx.x % 8;
            next[r] = left[r] > 0 ? __ldg(features[r]) : -1;
        }
        steps = (__reduce_max_sync(~0u, steps) + 7) / 8;
#pragma unroll 1
        for (; steps > 0; --steps) {
            int mine[kRows];
            unsigned exist[kRows];
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                // The index check speaks of features that are not there.
                mine[r] = uint32_t(next[r]) < num_features ? next[r] : -1;
                features[r] += 8, left[r] -= 8;
                next[r] = left[r] > 0 ? __ldg(features[r]) : -1;
                exist[r] = __ballot_sync(~0u, mine[r] >= 0);
            }
            add<0>(sum, mine, exist);
            if constexpr (kAhead == 2) add<2>(sum, mine, exist);
            add<4>(sum, mine, exist);
            if constexpr (kAhead == 2) add<6>(sum, mine, exist);
        }
    }
};

// Adds the bias, saves, activates and stores the sums of a lane's columns of a row.
template <typename Weight, Activation kActivation, int kPer>
__device__ __forceinline__ void finish_row(const ForwardProblem& p, float (&sum)[2][kPer], int slot, int target,
                                           int column) {
    const int half = p.num_outputs / 2;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int i = 0; i < kPer; i += 4) {
            const float4 bias = __ldg(reinterpret_cast<const float4*>(p.bias + (h * half + column + i)));
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

// A thread block a multiprocessor; tiles of slabs first_slab … first_slab + num_slabs − 1, the slab outermost.
template <typename Weight, Activation kActivation>
__global__ void __launch_bounds__(Shape<Weight>::kThreads, 1)
    slab_kernel(ForwardProblem p, int first_slab, int num_slabs) {
    using S = Shape<Weight>;
    constexpr int kPer = S::kPer, kRows = S::kRows;
    __shared__ Units::Shared shared;
    const Units units(shared, p.ticket);
    const unsigned tiles = p.rows.tile_begin[p.in.num_blocks];
    for (;;) {
        const uint2 taken = units.take<S::kUnits>();
        const unsigned slab = taken.x / tiles;
        if (slab >= unsigned(num_slabs)) return;
        const int column = (first_slab + int(slab)) * S::kColumns + int(threadIdx.x % 8) * kPer;
        const int half = p.num_outputs / 2;
        const bool valid = column < half;
        const RowSum<Weight> adder{
            reinterpret_cast<const uint4*>(static_cast<const Weight*>(p.weight) + (valid ? column : 0)),
            uint32_t(p.num_outputs * sizeof(Weight)), uint32_t(p.in.num_features + p.in.num_loose),
            hopper::unit_operand<std::is_same_v<Weight, __nv_bfloat16>>()};
        const RowOrder* const order =
            p.order + ((taken.x - slab * tiles) * kTileRows + taken.y * S::kUnitRows + threadIdx.x % 32 / 8);
        float sum[kRows][2][kPer] = {};
        {
            const int32_t* features[kRows];
            int counts[kRows];
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                const int2 row = __ldg(reinterpret_cast<const int2*>(order + 4 * r) + 1);
                features[r] = block_rows::row_pointer(p.in, row.x), counts[r] = row.y;
            }
            adder.add_rows(sum, features, counts);
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const int2 place = read_again(reinterpret_cast<const int2*>(order + 4 * r));
            if (place.y >= 0 && valid) finish_row<Weight, kActivation>(p, sum[r], place.x, place.y, column);
        }
    }
}

template <typename Weight>
cudaError_t forward(const ForwardProblem& p, cudaStream_t stream) {
    using S = Shape<Weight>;
    const auto kernel = p.activation == Activation::kIdentity ? slab_kernel<Weight, Activation::kIdentity>
                        : p.activation == Activation::kCReLU  ? slab_kernel<Weight, Activation::kCReLU>
                        : p.activation == Activation::kSCReLU ? slab_kernel<Weight, Activation::kSCReLU>
                                                              : slab_kernel<Weight, Activation::kPairwise>;
    const int tiles = BlockRows::tiles(p.in.positions, p.in.num_blocks);
    const int slabs = (p.num_outputs / 2 + S::kColumns - 1) / S::kColumns;
    const int most = std::max(1, int(Units::kMost) / 2 / tiles);  // slabs in one go
    for (int first = 0; first < slabs; first += most) {
        const cudaError_t error = cudaMemsetAsync(p.ticket, 0, sizeof(unsigned), stream);
        if (error != cudaSuccess) return error;
        const int count = std::min(most, slabs - first);
        kernel<<<std::min(kWorkers, tiles * count), S::kThreads, 0, stream>>>(p, first, count);
    }
    return cudaGetLastError();
}

}  // namespace nnue::slab_forward
