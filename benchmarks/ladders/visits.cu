// A ladder of kernels: how often random walks visit each node of a graph. Node v starts coupons[v] walks; popular nodes
// start many. A walk follows random edges, and ends with probability `restart` after each step, or where no edge leads
// on. All rungs make the same walks, since their random numbers depend on the walk and the step only (csrc/philox.h),
// so the visits are equal. ../ladders.py builds, checks and times them; docs/learning-cuda.md explains them.
#include <cuda_runtime.h>

#include <cstdint>

#include "../../csrc/philox.h"

namespace {

constexpr int kThreads = 128;

struct Graph {
    const int32_t *offsets, *targets;  // the edges of node v: targets[offsets[v]] ... targets[offsets[v + 1] - 1]
    const int64_t* first;              // the walks of node v: first[v] ... first[v + 1] - 1
    int nodes;
    uint32_t restart;  // probability times 2^32
    uint64_t seed;
};

// One walk. Returns the number of its visits.
__device__ int walk(const Graph& g, int node, int64_t number, unsigned* visits) {
    for (int step = 1;; ++step) {
        atomicAdd(visits + node, 1u);
        const nnue::random::Words w = nnue::random::philox(g.seed, uint64_t(number), uint64_t(step));
        const int begin = g.offsets[node], degree = g.offsets[node + 1] - begin;
        if (degree == 0 || w.at[0] < g.restart) return step;
        node = g.targets[begin + int(uint64_t(w.at[1]) * degree >> 32)];
    }
}

// 1: a thread makes all walks of a node. The threads of a warp wait for the one whose node has most of them. 2: the
// same, with nodes sorted by their number of walks (`order`), so that neighbours have about as many.
__global__ void thread_per_node(Graph g, const int32_t* order, unsigned* visits, unsigned* steps) {
    const int thread = blockIdx.x * blockDim.x + threadIdx.x;
    if (thread >= g.nodes) return;
    const int node = order == nullptr ? thread : order[thread];
    unsigned made = 0;
    for (int64_t number = g.first[node]; number < g.first[node + 1]; ++number) made += walk(g, node, number, visits);
    steps[thread] = made;
}

// 3: the threads of a block take the walks of the block's sorted nodes in turn, so that they end together.
__global__ void walks_in_turn(Graph g, const int32_t* order, unsigned* visits, unsigned* steps) {
    __shared__ int64_t begin[kThreads + 1];
    __shared__ unsigned next;
    const int thread = blockIdx.x * blockDim.x + threadIdx.x,
              count = min(kThreads, g.nodes - int(blockIdx.x) * kThreads);
    if (thread < g.nodes) begin[threadIdx.x + 1] = g.first[order[thread] + 1] - g.first[order[thread]];
    __syncthreads();
    if (threadIdx.x == 0) {
        begin[0] = next = 0;
        for (int i = 0; i < count; ++i) begin[i + 1] += begin[i];
    }
    __syncthreads();
    unsigned made = 0;
    for (unsigned mine; (mine = atomicAdd(&next, 1u)) < begin[count];) {
        int low = 0, high = count;  // begin[low] <= mine < begin[high]
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            (begin[middle] <= mine ? low : high) = middle;
        }
        const int node = order[blockIdx.x * kThreads + low];
        made += walk(g, node, g.first[node] + mine - begin[low], visits);
    }
    steps[thread] = made;
}

// 4: no thread belongs to a node: the walks are dealt to all threads of the GPU.
__global__ void walks_of_all(Graph g, unsigned* visits, unsigned* steps) {
    const int64_t threads = int64_t(gridDim.x) * blockDim.x, thread = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    unsigned made = 0;
    for (int64_t number = thread; number < g.first[g.nodes]; number += threads) {
        int low = 0, high = g.nodes;
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            (g.first[middle] <= number ? low : high) = middle;
        }
        made += walk(g, low, number, visits);
    }
    steps[thread] = made;
}

}  // namespace

// visits [nodes] must be 0; steps [nodes rounded up to 128] receives the visits that each thread counted.
extern "C" __attribute__((visibility("default"))) int visits(int rung, const int32_t* offsets, const int32_t* targets,
                                                             const int64_t* first, const int32_t* order, int nodes,
                                                             double restart, uint64_t seed, unsigned* visits,
                                                             unsigned* steps, void* stream) {
    const Graph g{offsets, targets, first, nodes, uint32_t(restart * 0x1p32), seed};
    const unsigned grid = unsigned((nodes + kThreads - 1) / kThreads);
    const auto s = static_cast<cudaStream_t>(stream);
    if (rung == 1) thread_per_node<<<grid, kThreads, 0, s>>>(g, nullptr, visits, steps);
    if (rung == 2) thread_per_node<<<grid, kThreads, 0, s>>>(g, order, visits, steps);
    if (rung == 3) walks_in_turn<<<grid, kThreads, 0, s>>>(g, order, visits, steps);
    if (rung == 4) walks_of_all<<<grid, kThreads, 0, s>>>(g, visits, steps);
    return cudaGetLastError();
}
