// The PSQT columns of the portable path. Their gradient is made as that of the weights (backward.cuh), from row
// gradients with one number that is not zero.
#pragma once

#include "../psqt_forward.cuh"
#include "plan.cuh"

namespace nnue::portable {

struct BlackFirst {
    const uint8_t* black_first;
    __device__ bool operator()(int position) const { return black_first[position] != 0; }
};

// Writes rows[slot][column]. A position with a bucket outside its range adds nothing.
__global__ void __launch_bounds__(kPlanThreads)
    psqt_row_kernel(Plan plan, const int64_t* __restrict__ psqt_bucket, const float* __restrict__ grad, int64_t numbers,
                    int columns, int psqt_buckets, float* __restrict__ rows) {
    const int64_t i = int64_t(blockIdx.x) * kPlanThreads + threadIdx.x;
    if (i >= numbers) return;
    const int target = plan.slots[i / columns].target, column = static_cast<int>(i % columns);
    const bool has = column < psqt_buckets && psqt_bucket[target / 2] == column;
    rows[i] = has ? (target % 2 == 0 ? 0.5f : -0.5f) * grad[target / 2] : 0.0f;
}

}  // namespace nnue::portable
