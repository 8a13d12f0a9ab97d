// The last kernels of the backward. finish_kernel adds up, in a fixed order, the partial sums of parameter gradients
// that the thread blocks of the other kernels have left, and it multiplies the gradient of psqt by its factors.
// shares_kernel adds up the gradients of several processes.
#pragma once

#include "first_layer_backward.cuh"

namespace nnue::cuda::stacks {

// Numbers per thread block, and threads per number, which share the tiles.
constexpr int kColumns = 32, kStrips = kThreads / kColumns;

struct Finish {
    const int* order;
    Order of_order;
    Scale scale;
    // How many thread blocks do each kind of work. They follow one another in the grid, in this order.
    int of_weight, of_bias, of_partials, of_psqt;
    // For the weight of layer 0.
    const float* segments;
    float* grad_weight;  // [S, O, N]
    int inputs, outputs, padded_outputs, slabs, workers;
    // For the bias of a feature transformer whose output is x, two halves of pairs (hopper/first_layer_through.cuh).
    const float* bias_segments;
    float* grad_bias;  // [N]
    // For the other parameters.
    const float* partials;
    float* gradients;
    GradientLayout layout;
    int tile_numbers;    // of a tile in `partials`
    int weight_numbers;  // how many of these, from the first on, are the gradient of weight_0; 0 if it is not there
    int blocks_per_stack;
    int row_numbers;  // the width of the transformer whose row gradients the tiles have sums of, of either side; or 0
    // For psqt.
    const float* grad_output;
    float* grad_psqt;
    float psqt_slope;
};

// The gradient of weight_0: adds up the segments of a stack and slab, which are scaled already. A thread takes four
// columns.
__device__ inline void finish_weight(const Finish& a, int block) {
    const int stacks = static_cast<int>(a.of_order.stacks), quads = a.inputs / 4;
    const int64_t item = static_cast<int64_t>(block) * kThreads + threadIdx.x;
    if (item >= static_cast<int64_t>(stacks) * a.outputs * quads) return;
    const int column = static_cast<int>(item % quads) * 4;
    const int output = static_cast<int>(item / quads % a.outputs), stack = static_cast<int>(item / quads / a.outputs);
    const int* const first_tile = a.order + Order::first_tile + stack;
    const int tiles = a.order[Order::tiles], slab = column / kSlab;
    float sum[4] = {};
    if (first_tile[0] < first_tile[1]) {
        const Division division{static_cast<int64_t>(tiles) * a.slabs, a.workers};
        const int64_t base = static_cast<int64_t>(slab) * tiles;
        const int first = division.first_worker(base + first_tile[0]),
                  last = division.last_worker(base + first_tile[1]);
        const float* from =
            a.segments + (segment_of(first, slab, stack, stacks) * a.padded_outputs + output) * kSlab + column % kSlab;
#pragma unroll 4
        for (int w = first; w <= last; ++w) {
            const float4 v = __ldcg(reinterpret_cast<const float4*>(from));
            sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
            from += static_cast<int64_t>(a.padded_outputs) * kSlab;
        }
    }
    *reinterpret_cast<float4*>(a.grad_weight + item * 4) = {sum[0], sum[1], sum[2], sum[3]};
}

// The gradient of the bias of column c of a half: adds up what the workers have for inputs c and N / 2 + c, those of
// the side to move and of the other side.
__device__ inline void finish_bias(const Finish& a, int block) {
    const int item = block * kThreads + static_cast<int>(threadIdx.x), half = a.inputs / 2;
    if (item >= a.inputs) return;
    const int of_half = item / half, tiles = a.order[Order::tiles];
    const Division division{static_cast<int64_t>(tiles) * a.slabs, a.workers};
    float sum = 0.0f;
    for (int side = 0; side < 2; ++side) {
        const int input = side * half + item % half, slab = input / kSlab;
        const int first = division.first_worker(static_cast<int64_t>(slab) * tiles),
                  last = division.last_worker(static_cast<int64_t>(slab + 1) * tiles);
        const float* from =
            a.bias_segments + (static_cast<int64_t>(first + slab) * 2 + of_half) * kSlab + input % kSlab;
#pragma unroll 8
        for (int w = first; w <= last; ++w, from += 2 * kSlab) sum += __ldcg(from);
    }
    a.grad_bias[item] = sum;
}

// The gradients that tiles have in `partials`. A thread block takes kColumns numbers of a stack, or behind these of the
// sums of row gradients, of all stacks and both sides. Each of its kStrips warps adds up an equal share of the tiles;
// then the shares are added in order.
__device__ inline void finish_partials(const Finish& a, int block) {
    __shared__ float shares[kStrips][kColumns];
    const int rows = block - a.blocks_per_stack * static_cast<int>(a.of_order.stacks);
    const bool of_rows = rows >= 0;
    const int stack = of_rows ? 0 : block / a.blocks_per_stack, strip = threadIdx.x / kColumns;
    const int in_block = of_rows ? rows : block % a.blocks_per_stack;
    const int column = in_block * kColumns + threadIdx.x % kColumns;
    const int number = of_rows ? a.tile_numbers - 2 * a.row_numbers + column : column;
    const int* const first_tile = a.order + Order::first_tile + stack;
    const int first = of_rows ? 0 : first_tile[0], count = (of_rows ? a.order[Order::tiles] : first_tile[1]) - first;
    float sum = 0.0f;
    if (of_rows ? column < a.row_numbers : number < a.weight_numbers + a.layout.tile) {
        const int begin = first + static_cast<int>(static_cast<int64_t>(count) * strip / kStrips);
        const int end = first + static_cast<int>(static_cast<int64_t>(count) * (strip + 1) / kStrips);
        const float* const from = a.partials + number;
#pragma unroll 8
        for (int t = begin; t < end; ++t) {
            sum += __ldcg(from + static_cast<int64_t>(t) * a.tile_numbers);
            if (of_rows) sum += __ldcg(from + static_cast<int64_t>(t) * a.tile_numbers + a.row_numbers);
        }
    }
    shares[strip][threadIdx.x % kColumns] = sum;
    __syncthreads();
    if (strip != 0) return;
    for (int s = 1; s < kStrips; ++s) sum += shares[s][threadIdx.x];
    if (of_rows) {
        if (column < a.row_numbers) a.grad_bias[column] = sum;  // scaled already
        return;
    }
    if (number < a.weight_numbers) {
        a.grad_weight[static_cast<int64_t>(stack) * a.weight_numbers + number] = sum * a.scale.read();
        return;
    }
    const int other = number - a.weight_numbers;
    if (other >= a.layout.tile) return;
    int parameter = 0;
    while (parameter + 1 < a.layout.count && other >= a.layout.in_tile[parameter + 1]) ++parameter;
    a.gradients[a.layout.in_result[parameter] + static_cast<int64_t>(stack) * a.layout.size[parameter] + other -
                a.layout.in_tile[parameter]] = sum * a.scale.read();
}

__global__ void __launch_bounds__(kThreads) finish_kernel(const Finish a) {
    ptx::wait_for_kernels_before();
    int block = blockIdx.x;
    if (block < a.of_weight) return finish_weight(a, block);
    block -= a.of_weight;
    if (block < a.of_bias) return finish_bias(a, block);
    block -= a.of_bias;
    if (block < a.of_partials) return finish_partials(a, block);
    block -= a.of_partials;
    const int64_t position = static_cast<int64_t>(block) * kThreads + threadIdx.x;
    if (position < a.of_order.positions)
        a.grad_psqt[position] = a.grad_output[position] * a.scale.read() * a.psqt_slope;
}

// `shares` [processes, numbers + 3]: the gradients of each process's positions, then its totals.
__global__ void __launch_bounds__(kThreads)
    shares_kernel(const float* shares, int64_t processes, int64_t numbers, float* totals, float* gradients) {
    const auto sum = [&](int64_t number) {
        float sum = shares[number];
        for (int64_t p = 1; p < processes; ++p) sum += shares[p * (numbers + 3) + number];
        return sum;
    };
    const int64_t number = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    const float weights = sum(numbers + 1), scale = weights == 0.0f ? 1.0f : 1.0f / weights;
    if (number < numbers) gradients[number] = sum(number) * scale;
    if (number != 0) return;
    totals[0] = sum(numbers);
    totals[1] = weights;
    totals[2] = weights == 0.0f ? 0.0f : totals[0] / weights;
}

}  // namespace nnue::cuda::stacks
