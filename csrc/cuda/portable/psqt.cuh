// The PSQT columns of the portable path, over the lists of its plan: a warp adds up a task, a lane per PSQT bucket.
#pragma once

#include "../psqt_forward.cuh"
#include "plan.cuh"

namespace nnue::portable {

struct BlackFirst {
    const uint8_t* black_first;
    __device__ bool operator()(int position) const { return black_first[position] != 0; }
};

struct PsqtBackward {
    Plan plan;
    const int64_t* psqt_bucket;  // [positions]
    const float* grad;           // [positions]
    float* partials;             // scratch [lists().partials, psqt_buckets]
    float* grad_psqt;            // [num_features, psqt_buckets]; all of it is written
    int psqt_buckets;
};

// A position with a bucket outside its range adds nothing.
__global__ void __launch_bounds__(kPlanThreads) psqt_sum_kernel(PsqtBackward p) {
    const int lane = threadIdx.x % cuda::kWarp, warps = gridDim.x * kPlanWarps, tasks = p.plan.counts->tasks;
    for (int t = blockIdx.x * kPlanWarps + threadIdx.x / cuda::kWarp; t < tasks; t += warps) {
        const Task task = p.plan.tasks[t];
        for (int first = 0; first < p.psqt_buckets; first += cuda::kWarp) {
            float sum = 0;
            for (int base = 0; base < task.count; base += cuda::kWarp) {
                const int here = min(task.count - base, cuda::kWarp);
                int64_t bucket = -1;
                float amount = 0;
                if (lane < here) {
                    const int target = p.plan.slots[p.plan.list[task.begin + base + lane]].target;
                    bucket = p.psqt_bucket[target / 2] - first;
                    amount = (target % 2 == 0 ? 0.5f : -0.5f) * p.grad[target / 2];
                }
                const int place = bucket >= 0 && bucket < cuda::kWarp ? static_cast<int>(bucket) : -1;
                for (int e = 0; e < here; ++e) {
                    const int target = __shfl_sync(cuda::kAllLanes, place, e);
                    const float next = __shfl_sync(cuda::kAllLanes, amount, e);
                    if (target == lane) sum += next;
                }
            }
            const int column = first + lane;
            if (column >= p.psqt_buckets) continue;
            if (task.partial < 0) {
                p.grad_psqt[size_t(task.feature) * p.psqt_buckets + column] = sum;
            } else {
                p.partials[size_t(task.partial) * p.psqt_buckets + column] = sum;
            }
        }
    }
}

// One warp per long list.
__global__ void __launch_bounds__(kPlanThreads) psqt_combine_kernel(PsqtBackward p) {
    const int lane = threadIdx.x % cuda::kWarp, warps = gridDim.x * kPlanWarps, lists = p.plan.counts->long_lists;
    for (int l = blockIdx.x * kPlanWarps + threadIdx.x / cuda::kWarp; l < lists; l += warps) {
        const LongList list = p.plan.long_lists[l];
        for (int column = lane; column < p.psqt_buckets; column += cuda::kWarp) {
            float sum = 0;
            for (int i = 0; i < list.partials; ++i)
                sum += p.partials[size_t(list.first_partial + i) * p.psqt_buckets + column];
            p.grad_psqt[size_t(list.feature) * p.psqt_buckets + column] = sum;
        }
    }
}

inline void launch_psqt_backward(const PsqtBackward& p, const IndexRows& in, cudaStream_t stream) {
    cuda::launch("psqt sums", psqt_sum_kernel, cuda::thread_blocks_for(in.lists().tasks(), kPlanWarps), kPlanThreads, 0,
                 stream, p);
    cuda::launch("psqt partial sums", psqt_combine_kernel, cuda::thread_blocks_for(in.lists().long_lists(), kPlanWarps),
                 kPlanThreads, 0, stream, p);
}

}  // namespace nnue::portable
