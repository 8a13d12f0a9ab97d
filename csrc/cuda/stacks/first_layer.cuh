// Layer 0 of a tile of positions on tensor cores: sums[o][position] = Σ weight[o][i] · x[position][i].
//
// x is read once, from global memory straight into the operand registers of `mma`. It does not matter which input has
// which place in the product's depth, as long as the weights have the same order. So a lane loads 16 neighbouring bytes
// of a row and uses them as its operands for that row: four inputs in each step.
#pragma once

#include "../../tile_memory.h"
#include "parts.cuh"

namespace nnue::cuda::stacks {

constexpr int kThreads = kTileThreads, kWarps = kTileWarps;

// Loads the thread block's tile. Returns false if there is no tile for it.
__device__ inline bool load_tile(const int* order, const Order& of_order, TilePositions& tile) {
    const int stack = order[of_order.stack_of_tile() + blockIdx.x];
    if (stack < 0) return false;
    const int* const slots = order + of_order.slots() + static_cast<int64_t>(blockIdx.x) * kTile;
    const int slot = threadIdx.x < kTile ? slots[threadIdx.x] : -1;
    if (threadIdx.x < kTile) tile.positions[threadIdx.x] = slot >= 0 ? slot : slots[0];
    const int count = __syncthreads_count(slot >= 0);
    if (threadIdx.x == 0) tile.count = count, tile.stack = stack;
    __syncthreads();
    return true;
}

using ptx::keep;

// Writes the sums of each share of the inputs to shares[share][output][position]; the caller adds the shares up.
// `positions` are the 64 of the tile, in shared memory; all of them must exist. NT · 8 ≥ outputs.
template <class T, int NT>
__device__ void first_layer_sums(const T* x, const float* weight, int inputs, int outputs, const int* positions,
                                 float* shares) {
    using In = Input<T>;
    constexpr int P = In::kParts, W = In::kFactorParts, KS = In::kSteps, MT = kPositionBlocks, kColumns = 16 * KS;
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, row = lane / 4, mine = lane % 4 * 4 * KS;
    const int first = warp % (4 / MT) * MT * 16, share = warp / (4 / MT);
    const T* rows[MT][2];
    for (int m = 0; m < MT; ++m) {
        for (int h = 0; h < 2; ++h)
            rows[m][h] = keep(x + static_cast<int64_t>(positions[first + m * 16 + h * 8 + row]) * inputs + mine);
    }
    int column = share * kColumns;  // of what is loaded next
    const int columns = inputs - mine;
    const float* weights = keep(weight + static_cast<int64_t>(row) * inputs + mine) + column;

    float sums[MT][NT][4] = {};
    uint4 raw[MT][2];
    float4 raw_weights[NT];  // of one step
    const auto load_weights = [&](int n, int step) {
        const float* const from = weights + static_cast<int64_t>(inputs) * (n * 8);
        const uint4 v = ptx::load_global_16(reinterpret_cast<const float4*>(from) + step,
                                            column < columns && n * 8 + row < outputs);
        raw_weights[n] = {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
    };
    const auto load_inputs = [&](int m) {
        for (int h = 0; h < 2; ++h) raw[m][h] = ptx::load_once_16(rows[m][h] + column, column < columns);
    };
    for (int m = 0; m < MT; ++m) load_inputs(m);
    for (int n = 0; n < NT; ++n) load_weights(n, 0);
    while (column < inputs) {
#pragma unroll
        for (int s = 0; s < KS; ++s) {
            if (s + 1 == KS) column += kShares * kColumns, weights = keep(weights + kShares * kColumns);
            uint32_t left[MT][P][4];
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                for (int i = 0; i < 4; ++i) {  // i % 2: row `row` or `row` + 8; i / 2: half of the depth
                    const float2 v = In::pair(raw[m][i % 2], s * 2 + i / 2);
                    uint32_t parts[P];
                    split(v.x, v.y, parts);
                    for (int p = 0; p < P; ++p) left[m][p][i] = parts[p];
                }
                if (s + 1 == KS) load_inputs(m);
            }
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                uint32_t right[W][2], low[W], high[W];
                split(raw_weights[n].x, raw_weights[n].y, low);
                split(raw_weights[n].z, raw_weights[n].w, high);
                for (int p = 0; p < W; ++p) right[p][0] = low[p], right[p][1] = high[p];
#pragma unroll
                for (int m = 0; m < MT; ++m) {
                    // Tensor cores round towards zero. So a step makes a separate sum, which is added with rounding
                    // to nearest.
                    float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                    multiply(d, left[m], right);
                    for (int i = 0; i < 4; ++i) sums[m][n][i] += d[i];
                }
                load_weights(n, (s + 1) % KS);
            }
        }
    }
#pragma unroll
    for (int m = 0; m < MT; ++m) {
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            for (int i = 0; i < 4; ++i) {
                const int output = n * 8 + lane % 4 * 2 + i % 2, position = first + m * 16 + i / 2 * 8 + row;
                shares[(share * NT * 8 + output) * kPitch + position] = sums[m][n][i];
            }
        }
    }
}

// Thread blocks per multiprocessor: three are not faster, although their registers are enough.
constexpr int kFirstTogether = 2;

struct FirstForward {
    const int* order;
    Order of_order;
    const float* weight;  // [S, O, N]
    float* sums;          // [B, O]
    int inputs, outputs;
};

template <class T, int NT>
__global__ void __launch_bounds__(kThreads, kFirstTogether) first_layer_forward(const T* x, const FirstForward a) {
    extern __shared__ __align__(16) float shares[];
    __shared__ TilePositions tile;
    ptx::wait_for_kernels_before();
    ptx::let_next_kernel_start();
    if (!load_tile(a.order, a.of_order, tile)) return;
    const float* const weight = a.weight + static_cast<int64_t>(tile.stack) * a.outputs * a.inputs;
    first_layer_sums<T, NT>(x, weight, a.inputs, a.outputs, tile.positions, shares);
    __syncthreads();
    for (int i = threadIdx.x; i < tile.count * a.outputs; i += kThreads) {
        const int p = i / a.outputs, o = i - p * a.outputs;
        float sum = 0.0f;
        for (int q = 0; q < kShares; ++q) sum += shares[(q * NT * 8 + o) * kPitch + p];
        a.sums[static_cast<int64_t>(tile.positions[p]) * a.outputs + o] = sum;
    }
}

}  // namespace nnue::cuda::stacks
