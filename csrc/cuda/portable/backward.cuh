// The backward of the portable path.
//
// 1. `row_gradient_kernel` multiplies the gradients of the outputs by the slopes, which gives the gradient of every
// sum, ordered by slot, in fp32 for fp32 weights and in bf16 for 16-bit ones. For the bias it also adds these up over
// parts of the slots.
// 2. `sum_kernel` adds up the row gradients of each task. The sum of a list of one piece is the gradient of its
// feature; those of the pieces of longer lists are stored as partial sums. 3. `combine_kernel` adds these up, and the
// parts of the bias. Every element of the gradient is written once and every sum has one order, so nothing is cleared
// before and equal inputs give equal bits.
#pragma once

#include <algorithm>
#include <type_traits>

#include "../../activation.h"
#include "../output_gradient.cuh"
#include "forward.cuh"
#include "gather.cuh"
#include "plan.cuh"

namespace nnue::portable {

struct Backward {
    Plan plan;
    OutputGradient grad_out;
    const void* slopes;   // as of the forward; null for the identity
    void* row_gradients;  // scratch [rows, num_outputs], by slot
    float* partials;      // scratch [lists().partials, num_outputs]
    float* bias_parts;    // scratch [bias_parts(rows), num_outputs]
    void* grad_weight;    // [num_features, num_outputs]
    float* grad_bias;     // [num_outputs]; null if it is not needed
    int rows, max_tasks, max_long_lists;
    int num_outputs;
    Activation activation;
    float slope_scale;
};

constexpr int kPartRows = 8, kPartThreads = kPartRows * cuda::kWarp;
constexpr int kMostBiasParts = 256, kFewestPartSlots = 64;

inline int part_slots(int64_t rows) {
    return static_cast<int>(std::max<int64_t>(kFewestPartSlots, divide_up(rows, kMostBiasParts)));
}
inline int bias_parts(int64_t rows) {
    return static_cast<int>(divide_up(rows, part_slots(rows)));
}

template <class Weight>
using row_gradient_t = std::conditional_t<sizeof(Weight) == 4, float, __nv_bfloat16>;

// Thread block (x, y) takes part x of the slots in 32 lanes' columns; each of its warps takes every eighth slot.
template <class Weight, class Grad>
__global__ void __launch_bounds__(kPartThreads) row_gradient_kernel(Backward p, int slots_of_part) {
    constexpr int V = kColumns<Weight>;
    __shared__ float shared[kPartRows][2 * V][cuda::kWarp];
    const int lane = threadIdx.x % cuda::kWarp, warp = threadIdx.x / cuda::kWarp, half = p.num_outputs / 2;
    const int column = (blockIdx.y * cuda::kWarp + lane) * V;
    const bool active = column < half, pairwise = p.activation == Activation::kPairwise;
    const int begin = blockIdx.x * slots_of_part, end = min(begin + slots_of_part, p.rows);
    float bias[2][V] = {};
    if (active) {
#pragma unroll 2
        for (int slot = begin + warp; slot < end; slot += kPartRows) {
            const auto [grad, factor] =
                p.grad_out.template row<Grad>(p.plan.slots[slot].target, pairwise ? half : p.num_outputs);
            const float scale = p.slope_scale * factor;
            const size_t row = size_t(slot) * p.num_outputs + column;
            float gradient[2][V];
            load_sums<V>(grad + column, gradient[0]);
            if (pairwise) {
                for (int i = 0; i < V; ++i) gradient[1][i] = gradient[0][i];
            } else {
                load_sums<V>(grad + column + half, gradient[1]);
            }
            for (int h = 0; h < 2; ++h) {
                float slope[V];
                if (p.slopes != nullptr)
                    load_sums<V>(static_cast<const slope_t<Weight>*>(p.slopes) + row + h * half, slope);
                for (int i = 0; i < V; ++i) {
                    gradient[h][i] *= scale;
                    if (p.slopes != nullptr) gradient[h][i] *= slope[i];
                    bias[h][i] += gradient[h][i];
                }
                store_sums<V>(static_cast<row_gradient_t<Weight>*>(p.row_gradients) + row + h * half, gradient[h]);
            }
        }
    }
    for (int i = 0; i < 2 * V; ++i) shared[warp][i][lane] = bias[i / V][i % V];
    __syncthreads();
    if (!active) return;
    for (int i = warp; i < 2 * V; i += kPartRows) {
        float sum = 0;
        for (int w = 0; w < kPartRows; ++w) sum += shared[w][i][lane];
        p.bias_parts[size_t(blockIdx.x) * p.num_outputs + i / V * half + column + i % V] = sum;
    }
}

template <class Weight>
__global__ void __launch_bounds__(kGatherThreads) sum_kernel(Backward p) {
    using Row = row_gradient_t<Weight>;
    constexpr int V = kColumns<Row>;
    const int half_warp = threadIdx.x % cuda::kWarp / kSlabLanes, half = p.num_outputs / 2;
    for_each_item<Row>(p.plan.task_cost, p.max_tasks, p.num_outputs, [&](int item, int column, bool active) {
        const Task& task = p.plan.tasks[item];  // read where it is used, because registers are scarce
        float sum[2][V] = {};
        gather(static_cast<const Row*>(p.row_gradients), p.rows, p.num_outputs, column, p.plan.list + task.begin,
               task.count, sum);
        if (!active) return;
        float own[V];
        for (int i = 0; i < V; ++i) own[i] = half_warp == 0 ? sum[0][i] : sum[1][i];
        const int own_half = half_warp * half + column;
        if (task.partial < 0) {
            store_sums<V>(static_cast<Weight*>(p.grad_weight) + size_t(task.feature) * p.num_outputs + own_half, own);
        } else {
            store_sums<V>(p.partials + size_t(task.partial) * p.num_outputs + own_half, own);
        }
    });
}

// Item 0 is the bias, the others are the long lists. Thread block (x, y) takes items x, x + gridDim.x, … in 128
// columns; its warps take the partial sums in turn.
constexpr int kCombineWarps = 8, kCombineColumns = 4;

template <class Weight>
__global__ void __launch_bounds__(kCombineWarps* cuda::kWarp) combine_kernel(Backward p, int num_bias_parts) {
    constexpr int V = kCombineColumns;
    __shared__ float shared[kCombineWarps][V][cuda::kWarp];
    const int lane = threadIdx.x % cuda::kWarp, warp = threadIdx.x / cuda::kWarp;
    const int column = (blockIdx.y * cuda::kWarp + lane) * V, items = 1 + p.plan.counts->long_lists;
    const bool active = column < p.num_outputs;
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        const bool is_bias = item == 0;
        const LongList list = is_bias ? LongList{0, 0, num_bias_parts, 0} : p.plan.long_lists[item - 1];
        const float* const from =
            (is_bias ? p.bias_parts : p.partials + size_t(list.first_partial) * p.num_outputs) + column;
        float sum[V] = {};
        if (active) {
#pragma unroll 4
            for (int i = warp; i < list.partials; i += kCombineWarps) {
                const auto pack = cuda::load<V>(from + size_t(i) * p.num_outputs);
                for (int k = 0; k < V; ++k) sum[k] += pack.at[k];
            }
        }
        for (int k = 0; k < V; ++k) shared[warp][k][lane] = sum[k];
        __syncthreads();
        if (warp == 0 && active) {
            for (int k = 0; k < V; ++k)
                for (int w = 1; w < kCombineWarps; ++w) sum[k] += shared[w][k][lane];
            if (is_bias) {
                if (p.grad_bias != nullptr) store_sums<V>(p.grad_bias + column, sum);
            } else {
                store_sums<V>(static_cast<Weight*>(p.grad_weight) + size_t(list.feature) * p.num_outputs + column, sum);
            }
        }
        __syncthreads();
    }
}

// From row gradients on.
template <class Weight>
void launch_sums(const Backward& p, int bias_parts, int multiprocessors, cudaStream_t stream) {
    const dim3 grid = divide(p.max_tasks, slabs_of<row_gradient_t<Weight>>(p.num_outputs), multiprocessors);
    cuda::launch("portable weight gradient", sum_kernel<Weight>, grid, kGatherThreads, 0, stream, p);
    cuda::launch("partial sums", combine_kernel<Weight>,
                 dim3(std::min(1 + p.max_long_lists, 4 * multiprocessors),
                      static_cast<unsigned>(divide_up(p.num_outputs, cuda::kWarp * kCombineColumns))),
                 kCombineWarps * cuda::kWarp, 0, stream, p, bias_parts);
}

template <class Weight, class Grad>
void launch_backward(const Backward& p, int multiprocessors, cudaStream_t stream) {
    const int slots_of_part = part_slots(p.rows), parts = bias_parts(p.rows);
    const int lanes = p.num_outputs / 2 / kColumns<Weight>;
    cuda::launch("row gradients", row_gradient_kernel<Weight, Grad>,
                 dim3(parts, static_cast<unsigned>(divide_up(lanes, cuda::kWarp))), kPartThreads, 0, stream, p,
                 slots_of_part);
    launch_sums<Weight>(p, parts, multiprocessors, stream);
}

}  // namespace nnue::portable
