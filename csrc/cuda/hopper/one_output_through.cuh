// The loss of a net whose only layer has one output, and the backward of the feature transformer's activation, in one
// pass over the sums that the forward saved in 16 bits: the kernel of ../stacks/one_output.cuh, with SavedOutputs as
// the source. Instead of the gradient of x it writes the row gradients that follow from it. So x is not stored at all.
// It reads and writes rows in any order of slots, at least 128 bytes of each at a time.
//
// Row gradients are divided by Σ weight when they are written. This sum is known before the loss, as it depends on the
// targets alone: weigh_positions adds it up in shares.
#pragma once

#include "../stacks/one_output.cuh"
#include "row_gradients.cuh"

namespace nnue::one_output_through {

using namespace one_hot_product;
using cuda::stacks::TileArguments;

constexpr int kShares = 32;

__global__ void __launch_bounds__(cuda::stacks::kThreads) weigh_positions(TileArguments a, float* shares) {
    __shared__ float of_warp[cuda::stacks::kWarps];
    wait_for_kernels_before();
    let_next_kernel_start();
    float sum = 0.0f;
    const int64_t positions = a.of_order.positions, step = int64_t(kShares) * cuda::stacks::kThreads;
    for (int64_t i = int64_t(blockIdx.x) * cuda::stacks::kThreads + threadIdx.x; i < positions; i += step)
        sum += position_loss(a.loss, 0.0f, a.score[i], a.result[i], a.lambda[a.lambda_by_position ? i : 0]).weight;
    for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < cuda::stacks::kWarps; ++w) sum += of_warp[w];
    shares[blockIdx.x] = sum;
}

// kSquares: the activation is SCReLU. kRounds: x is rounded down; if layer 0 reads squares, the
// kernel squares x.
template <bool kSquares, bool kRounds>
struct SavedOutputs {
    BackwardProblem p;    // p.scale: what the gradient of x is multiplied by
    float x_scale;        // the factor of x
    const float* shares;  // [kShares], of weigh_positions

    using Number = __half;
    static constexpr uint32_t kTwoOnes = kOneFp16 << 16 | kOneFp16;
    static constexpr bool kMakesRows = true;
    template <int kPacks>
    static constexpr int kTogether = 8 / kPacks;
    struct Memory {
        int slots[2][cuda::stacks::kTile];  // of the side to move, of the other side
    };

    __device__ __forceinline__ void begin() const {
        wait_for_kernels_before();
        let_next_kernel_start();
        clear_padding<1>(p);
    }
    // Gives what the gradients of outputs are multiplied by.
    __device__ __forceinline__ float begin_tile(const TileArguments& a, const cuda::stacks::Tile& tile,
                                                Memory& memory) const {
        if (threadIdx.x < cuda::stacks::kTile) {
            const int2 slots = slots_of(p, tile.positions[threadIdx.x]);
            memory.slots[0][threadIdx.x] = slots.x, memory.slots[1][threadIdx.x] = slots.y;
        }
        float sum = shares[threadIdx.x % kShares];
        for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
        __syncthreads();
        const float slope = (kSquares ? 2.0f : 1.0f) * a.layers.integers.psqt_slope;
        return p.scale * slope / (sum == 0.0f ? 1.0f : sum);
    }
    __device__ __forceinline__ uint4 load(const Memory& memory, const cuda::stacks::Tile&, int place,
                                          int column) const {
        const int side = column >= p.num_outputs;
        const auto* const row = static_cast<const __half*>(p.saved) + (column - side * p.num_outputs);
        return __ldcs(reinterpret_cast<const uint4*>(
            row_of(row, memory.slots[side][place], p.num_outputs * unsigned(sizeof(__half)))));
    }
    __device__ __forceinline__ float x_unit() const { return kRounds ? 1.0f : x_scale; }
    __device__ __forceinline__ float2 pair(const uint4& bytes, int i) const {
        const float2 two = unpack(clip_halves(word(bytes, i), largest_half()), Float::kFloat16);
        if (kRounds) return {floorf(two.x * x_scale), floorf(two.y * x_scale)};
        return kSquares ? float2{two.x * two.x, two.y * two.y} : two;
    }
    // `weights`: of these eight inputs. `factor`: the gradient of x is this times the weights. Adds what the row
    // gradients have besides the weights to `sums`.
    __device__ __forceinline__ void take(const Memory& memory, int place, int column, const uint4& bytes,
                                         const float* weights, float factor, float* sums) const {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t raw = word(bytes, i), inside = halves_inside(raw, largest_half());
            // The derivative of the activation, half of it for SCReLU: `factor` has the rest.
            const float2 slope = unpack(inside & (kSquares ? raw : kTwoOnes), Float::kFloat16);
            const float of[2] = {factor * slope.x, factor * slope.y};
            sums[2 * i] += of[0], sums[2 * i + 1] += of[1];
            words[i] = pack(of[0] * weights[2 * i], of[1] * weights[2 * i + 1], Float::kBFloat16);
        }
        using Shape = GradientShape<1>;
        const int half = p.num_outputs / 2, side = column >= p.num_outputs, in_row = column - side * p.num_outputs;
        const int h = in_row >= half, in_half = in_row - h * half, slot = memory.slots[side][place];
        char* const to = operand_of<1>(p, in_half / Shape::kSlab, slot / kTileRows) +
                         Shape::offset(h, slot % kTileRows, in_half % Shape::kSlab / 8);
        *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
    }

    __device__ __forceinline__ static uint32_t word(const uint4& bytes, int i) {
        return i == 0 ? bytes.x : i == 1 ? bytes.y : i == 2 ? bytes.z : bytes.w;
    }
    __device__ __forceinline__ uint32_t largest_half() const {
        return bound_in_halves(p.bound);
    }
};

}  // namespace nnue::one_output_through
