// Rows that break the rule of king-bucketed sets (bucket_plan.cuh), or have an unbucketed feature twice, in the
// backward: the products leave them out, and the kernel here adds them one by one. Usually there are none.
#pragma once

#include "../common.cuh"
#include "row_gradients.cuh"

namespace nnue::one_hot_product {

__device__ __forceinline__ void store(void* base, size_t offset, float x, Float type) {
    if (type == Float::kFloat32) static_cast<float*>(base)[offset] = x;
    if (type == Float::kFloat16) static_cast<__half*>(base)[offset] = __float2half_rn(x);
    if (type == Float::kBFloat16) static_cast<__nv_bfloat16*>(base)[offset] = __float2bfloat16_rn(x);
}

template <typename Visit>
__device__ __forceinline__ void for_each_feature(const IndexRows& in, int row, const Visit& visit) {
    const int32_t* features = bucket_plan::row_pointer(in, row);
    for (int k = 0; k < in.max_active && features[k] >= 0; ++k)
        if (features[k] < in.num_bucketed + in.num_unbucketed) visit(features[k]);
}

// Adds the irregular rows to the weight gradient that the products have written. Each thread has one column of either
// half and takes the rows in order; every addition is rounded to the type of the gradient. The bias gradient and the
// lists of unbucketed features include these rows already. A regular row that has a dense unbucketed feature twice is
// missing only from the product of unbucketed features. As the last kernel of a backward it also clears what the others
// have left in `sync`, so that row gradients can be used again.
template <typename Weight>
__global__ void irregular_backward_kernel(BackwardProblem p) {
    wait_for_kernels_before();
    if (blockIdx.x == 0) clear(p.sync);
    const bool any_left_out = p.in.num_unbucketed > 0 && *p.unbucketed.left_out_rows > 0;
    if (*p.plan.irregular == 0 && !any_left_out) return;
    const int half = p.num_outputs / 2, c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= half) return;
    for (int row = 0; row < 2 * p.in.positions; ++row) {
        const bool irregular = p.plan.row_slot[row] < 0;
        if (!irregular && !(any_left_out && p.unbucketed.left_out[row])) continue;
        const int slot = irregular ? ~p.plan.row_slot[row] : p.plan.row_slot[row];
        constexpr int kTerms = sizeof(Weight) == 4 ? 2 : 1;
        const float g[2] = {row_gradient<kTerms>(p, slot, 0, c), row_gradient<kTerms>(p, slot, 1, c)};
        for_each_feature(p.in, row, [&](int feature) {
            if (feature < p.in.num_bucketed) {
                if (!irregular) return;
            } else if (p.unbucketed.rank[feature - p.in.num_bucketed] >= p.unbucketed.summary->dense) {
                return;
            }
            Weight* target_row = static_cast<Weight*>(p.grad_weight) + size_t(feature) * p.num_outputs + c;
            for (int h = 0; h < 2; ++h)
                store(target_row + h * half, 0, cuda::to_sum(target_row[h * half]) + g[h], p.weight_type);
        });
    }
}

}  // namespace nnue::one_hot_product
