// Layer 0 of a tile of positions on tensor cores: sums[o][position] = Σ weight[o][i] · x[position][i].
//
// x is read once, from memory into the registers of the product: a lane's vector of 16 bytes holds the inputs that
// `mma` takes as four of one row, since the order of inputs is free as long as weights have the same.
#pragma once

#include "parts.cuh"

namespace nnue::cuda::stacks {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kPitch = 68;  // floats from one row of a tile's numbers to the next: 64 positions, and no bank twice

// Warps that share a tile share its inputs: each has MT · 16 positions and one of 2 · MT shares of the inputs. An
// output's sums of all shares take kShares · 8 · NT · kPitch floats.
template <int MT>
constexpr int kShares = kWarps * MT / 4;

// positions[64] in shared memory, all legal. NT · 8 ≥ outputs.
template <class T, int MT, int NT>
__device__ void first_layer_sums(const T* x, const float* weight, int inputs, int outputs, const int* positions,
                                 float* shares) {
    using In = Input<T>;
    constexpr int P = In::kParts, KS = In::kSteps, kColumns = 16 * KS;
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, row = lane / 4, mine = lane % 4 * 4 * KS;
    const int first = warp % (4 / MT) * MT * 16, share = warp / (4 / MT);
    const T* rows[MT][2];
#pragma unroll
    for (int m = 0; m < MT; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h)
            rows[m][h] = x + static_cast<int64_t>(positions[first + m * 16 + h * 8 + row]) * inputs + mine;
    }
    const float* weights[NT];
#pragma unroll
    for (int n = 0; n < NT; ++n) weights[n] = weight + static_cast<int64_t>(min(n * 8 + row, outputs - 1)) * inputs + mine;

    float sums[MT][NT][4] = {};
    uint4 raw[MT][2];
    float4 raw_weights[NT][KS];
    const auto load_weights = [&](int column) {
        const bool inside = column + mine < inputs;
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            const bool wanted = inside && n * 8 + row < outputs;
#pragma unroll
            for (int s = 0; s < KS; ++s) {
                raw_weights[n][s] = wanted ? __ldg(reinterpret_cast<const float4*>(weights[n] + column) + s)
                                           : float4{0.0f, 0.0f, 0.0f, 0.0f};
            }
        }
    };
    const auto load_inputs = [&](int m, int column) {
        const bool inside = column + mine < inputs;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            raw[m][h] =
                inside ? __ldg(reinterpret_cast<const uint4*>(rows[m][h] + column)) : uint4{0, 0, 0, 0};
        }
    };
    int column = share * kColumns;
    if (column < inputs) {
#pragma unroll
        for (int m = 0; m < MT; ++m) load_inputs(m, column);
        load_weights(column);
    }
    for (; column < inputs; column += kShares<MT> * kColumns) {
        const int next = column + kShares<MT> * kColumns;
        uint32_t right[NT][KS][kWeightParts][2];
#pragma unroll
        for (int n = 0; n < NT; ++n) {
#pragma unroll
            for (int s = 0; s < KS; ++s) {
                uint32_t low[kWeightParts], high[kWeightParts];
                split(raw_weights[n][s].x, raw_weights[n][s].y, low);
                split(raw_weights[n][s].z, raw_weights[n][s].w, high);
#pragma unroll
                for (int p = 0; p < kWeightParts; ++p) right[n][s][p][0] = low[p], right[n][s][p][1] = high[p];
            }
        }
        if (next < inputs) load_weights(next);
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            uint32_t left[KS][P][4];
#pragma unroll
            for (int s = 0; s < KS; ++s) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {  // rows `row` and `row` + 8, then their second halves
                    const float2 v = In::pair(raw[m][i % 2], s * 2 + i / 2);
                    uint32_t parts[P];
                    split(v.x, v.y, parts);
#pragma unroll
                    for (int p = 0; p < P; ++p) left[s][p][i] = parts[p];
                }
            }
            if (next < inputs) load_inputs(m, next);
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                // Tensor cores round towards zero, so each short sum is added with rounding to nearest.
#pragma unroll
                for (int s = 0; s < KS; ++s) {
                    float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                    multiply(d, left[s], right[n][s]);
#pragma unroll
                    for (int i = 0; i < 4; ++i) sums[m][n][i] += d[i];
                }
            }
        }
    }
#pragma unroll
    for (int m = 0; m < MT; ++m) {
#pragma unroll
        for (int n = 0; n < NT; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int output = n * 8 + lane % 4 * 2 + i % 2, position = first + m * 16 + i / 2 * 8 + row;
                shares[(share * NT * 8 + output) * kPitch + position] = sums[m][n][i];
            }
        }
    }
}

}  // namespace nnue::cuda::stacks
