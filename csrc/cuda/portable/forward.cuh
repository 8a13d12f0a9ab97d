// The forward of the portable path: sums, activation and joining in one kernel, and for the backward the *slope* of
// each sum.
//
// The gradient of a sum is that of an output times its slope, times a constant (`slope_scale`): 1 where a sum lies in
// [0, bound], for "screlu" the sum itself, for "pairwise" the clipped sum of the other half; 0 elsewhere. Both ends
// belong to the range, as in torch.clamp. Slopes are at most as large as `bound`, so fp16 holds them for 16-bit
// weights.
#pragma once

#include <type_traits>

#include "../../activation.h"
#include "gather.cuh"
#include "plan.cuh"

namespace nnue::portable {

struct Forward {
    IndexRows in;
    Plan plan;
    const void* weight;  // [num_features, num_outputs]
    const float* bias;   // [num_outputs]
    void* out;           // [2 · positions, width]: width num_outputs / 2 for pairwise, else num_outputs
    void* slopes;        // [rows, num_outputs] by slot: fp32 for fp32 weights, else fp16; or null
    int num_outputs;     // a multiple of 16
    Activation activation;
    float bound, scale;
    bool rounds_down;  // the activated outputs
    Float out_type;
};

template <class Weight>
using slope_t = std::conditional_t<sizeof(Weight) == 4, float, __half>;

inline float slope_scale(Activation activation, float scale) {
    return activation == Activation::kSCReLU ? 2 * scale : scale;
}

// Clips to [0, bound]. NaN stays NaN. As for torch.clamp, the gradient passes inside of [0, bound], and NaN is outside.
__device__ __forceinline__ float clipped(float x, float bound) {
    return x < 0 ? 0.0f : x > bound ? bound : x;
}
__device__ __forceinline__ bool is_inside(float x, float bound) {
    return x >= 0 && x <= bound;
}

template <class Weight>
__global__ void __launch_bounds__(kGatherThreads) forward_kernel(Forward p) {
    constexpr int V = kColumns<Weight>;
    const int half_warp = threadIdx.x % cuda::kWarp / kSlabLanes, half = p.num_outputs / 2;
    for_each_item<Weight>(p.plan.slot_cost, 2 * p.in.positions, p.num_outputs, [&](int item, int column, bool active) {
        const Slot& slot = p.plan.slots[item];  // read where it is used, because registers are scarce
        float sum[2][V] = {};
        gather(static_cast<const Weight*>(p.weight), p.in.num_features, p.num_outputs, column,
               row_pointer(p.in, slot.row), slot.count, sum);
        if (!active) return;
        // Each half of the warp finishes one half of the outputs.
        float value[V], slope[V], bias[2][V];
        load_sums<V>(p.bias + column, bias[0]);
        load_sums<V>(p.bias + half + column, bias[1]);
        const int own_half = half_warp * half + column;
#pragma unroll
        for (int i = 0; i < V; ++i) {
            const float a = bias[0][i] + sum[0][i], b = bias[1][i] + sum[1][i];
            const float own = half_warp == 0 ? a : b, other = half_warp == 0 ? b : a;
            const float c = clipped(own, p.bound);
            const float factor = p.activation == Activation::kPairwise ? clipped(other, p.bound)
                                 : p.activation == Activation::kSCReLU ? c
                                                                       : 1.0f;
            value[i] = (p.activation == Activation::kIdentity ? own : c) * (factor * p.scale);
            if (p.rounds_down) value[i] = floorf(value[i]);
            slope[i] = is_inside(own, p.bound) ? factor : 0.0f;
        }
        if (p.slopes != nullptr) {
            store_sums<V>(static_cast<slope_t<Weight>*>(p.slopes) + size_t(item) * p.num_outputs + own_half, slope);
        }
        if (p.activation != Activation::kPairwise) {
            store_sums<V>(p.out, size_t(slot.target) * p.num_outputs + own_half, value, p.out_type);
        } else if (half_warp == 0) {
            store_sums<V>(p.out, size_t(slot.target) * half + column, value, p.out_type);
        }
    });
}

template <class Weight>
void launch_forward(const Forward& p, int multiprocessors, cudaStream_t stream) {
    const dim3 grid = divide(p.in.rows(), slabs_of<Weight>(p.num_outputs), multiprocessors);
    cuda::launch("portable forward", forward_kernel<Weight>, grid, kGatherThreads, 0, stream, p);
}

}  // namespace nnue::portable
