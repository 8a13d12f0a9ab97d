// Orders positions by stack, with a stable counting sort in two kernels. Each thread block takes a chunk of kChunk
// positions.
#pragma once

#include "parts.cuh"

namespace nnue::cuda::stacks {

constexpr int kOrderThreads = 256, kOrderWarps = kOrderThreads / kWarp;
// Positions of a thread block and of each of its threads. In place_positions a warp takes kTurns · 32 consecutive ones.
constexpr int kChunk = 1024, kTurns = kChunk / kOrderThreads;

__device__ inline int stack_of(const int64_t* bucket, int64_t position, int stacks) {
    const int64_t found = bucket[position];
    return found < 0 ? 0 : found >= stacks ? stacks - 1 : static_cast<int>(found);
}

// Counts the positions of each stack in each chunk, to counts[chunk][stack].
__global__ void __launch_bounds__(kOrderThreads)
    count_stacks(const int64_t* bucket, int* counts, int64_t positions, int stacks) {
    __shared__ int count[kMostStacks];
    for (int s = threadIdx.x; s < stacks; s += kOrderThreads) count[s] = 0;
    __syncthreads();
    for (int i = 0; i < kTurns; ++i) {
        const int64_t position = static_cast<int64_t>(blockIdx.x) * kChunk + i * kOrderThreads + threadIdx.x;
        const int stack = position < positions ? stack_of(bucket, position, stacks) : -1;
        const unsigned same = __match_any_sync(kAllLanes, stack);
        if (stack >= 0 && (same & ((1u << threadIdx.x % kWarp) - 1)) == 0) atomicAdd(&count[stack], __popc(same));
    }
    __syncthreads();
    for (int s = threadIdx.x; s < stacks; s += kOrderThreads) counts[blockIdx.x * stacks + s] = count[s];
}

// Writes `order` (Order). Each thread block adds up the counts of all chunks itself, so none waits for another.
__global__ void __launch_bounds__(kOrderThreads)
    place_positions(const int64_t* bucket, const int* counts, int* order, Order o) {
    __shared__ int total[kMostStacks], before[kMostStacks], first_tile[kMostStacks + 1];
    __shared__ int of_warp[kOrderWarps][kMostStacks];
    const int stacks = static_cast<int>(o.stacks), chunks = static_cast<int>(gridDim.x);
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    for (int s = warp; s < stacks; s += kOrderWarps) {
        int all = 0, mine = 0;
        for (int c = lane; c < chunks; c += kWarp) {
            const int n = counts[c * stacks + s];
            all += n;
            if (c < static_cast<int>(blockIdx.x)) mine += n;
        }
        all = ptx::sum_over_warp(all);
        mine = ptx::sum_over_warp(mine);
        if (lane == 0) total[s] = all, before[s] = mine;
    }
    for (int s = lane; s < stacks; s += kWarp) of_warp[warp][s] = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        first_tile[0] = 0;
        for (int s = 0; s < stacks; ++s) first_tile[s + 1] = first_tile[s] + (total[s] + kTile - 1) / kTile;
    }

    int stack[kTurns], rank[kTurns];
    for (int i = 0; i < kTurns; ++i) {
        const int64_t position = static_cast<int64_t>(blockIdx.x) * kChunk + (warp * kTurns + i) * kWarp + lane;
        stack[i] = position < o.positions ? stack_of(bucket, position, stacks) : -1;
        const unsigned same = __match_any_sync(kAllLanes, stack[i]), lower = same & ((1u << lane) - 1);
        rank[i] = stack[i] < 0 ? 0 : of_warp[warp][stack[i]] + __popc(lower);
        __syncwarp();
        if (stack[i] >= 0 && lower == 0) of_warp[warp][stack[i]] += __popc(same);
        __syncwarp();
    }
    __syncthreads();
    int* const slots = order + o.slots();
    for (int i = 0; i < kTurns; ++i) {
        const int s = stack[i];
        if (s < 0) continue;
        int place = before[s] + rank[i];
        for (int w = 0; w < warp; ++w) place += of_warp[w][s];
        slots[first_tile[s] * kTile + place] =
            static_cast<int>(blockIdx.x) * kChunk + (warp * kTurns + i) * kWarp + lane;
    }

    // The rest of `order`, which every thread block could write: they share the stacks of the tiles, and the first one
    // writes the number of tiles, first_tile and the −1 of unused slots.
    const int most = static_cast<int>(o.most_tiles()), tiles = first_tile[stacks];
    for (int t = blockIdx.x * kOrderThreads + threadIdx.x; t < most; t += gridDim.x * kOrderThreads) {
        int s = 0;
        while (s < stacks && t >= first_tile[s + 1]) ++s;
        order[o.stack_of_tile() + t] = s < stacks ? s : -1;
    }
    if (blockIdx.x != 0) return;
    for (int s = threadIdx.x; s <= stacks; s += kOrderThreads) order[Order::first_tile + s] = first_tile[s];
    if (threadIdx.x == 0) order[Order::tiles] = tiles, order[Order::counter] = 0;
    for (int s = 0; s < stacks; ++s) {
        for (int i = first_tile[s] * kTile + total[s] + threadIdx.x; i < first_tile[s + 1] * kTile; i += kOrderThreads)
            slots[i] = -1;
    }
    for (int i = tiles * kTile + threadIdx.x; i < most * kTile; i += kOrderThreads) slots[i] = -1;
}

}  // namespace nnue::cuda::stacks
