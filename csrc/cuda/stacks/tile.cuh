// The work of a thread block on a tile of 64 positions of one stack, from the sums of layer 0 on: the other layers, the
// loss, and the backward down to the gradients of these sums. The values of a tile are in shared memory. A *channel*
// there is one value of all 64 positions.
#pragma once

#include <algorithm>

#include "first_layer.cuh"

namespace nnue::cuda::stacks {

struct TileArguments {
    Layers layers;
    TileLayout places;
    const float* weights[kMostHidden + 1];
    const float* biases[kMostHidden + 1];
    const int* order;
    Order of_order;
    const float* sums;  // [B, O], of layer 0, for rest_kernel
    const float* psqt;  // [B] or null
    float* output;      // [B] or null
    // For the backward. The gradient of the output is grad_in, or that of `loss` if there are targets.
    bool backward;
    const float* grad_in;
    Loss loss;
    const int16_t* score;
    const int8_t* result;
    const float* lambda;
    bool lambda_by_position;
    float* tile_totals;  // [tiles, 2]
    float* totals;       // [3]; null if no loss is computed
    int* counter;
    float* grad_output;                                                      // [B]
    float* grad_sums;                                                        // [B, O]
    float* partials;                                                         // [tiles, tile_numbers]
    int of_weight[kMostHidden + 1], of_bias[kMostHidden + 1], tile_numbers;  // see GradientLayout

    // Not by the targets: those of an empty batch are null.
    __device__ bool makes_loss() const { return totals != nullptr; }
};
// For one warp: starts to copy the weights that one output has for the values of a layer, and fills gaps with zeros. If
// `from` is null, all of them become zeros.
__device__ inline void copy_weights(const Layer& layer, const Places& at, const float* from, float* to) {
    for (int c = threadIdx.x % kWarp; c < at.width; c += kWarp) {
        const int second = c >= at.padded, a = c - second * at.padded;
        if (from != nullptr && a < layer.activated)
            ptx::copy_async_4(ptx::shared_address(to + c), from + second * layer.activated + a);
        else
            to[c] = 0.0f;
    }
}

// Starts to copy the stack's parameters, all but the weight of layer 0. They are there after copy_async_wait_all and a
// barrier.
__device__ inline void copy_parameters(const TileArguments& a, int stack, float* memory) {
    const int warp = threadIdx.x / kWarp, last = a.layers.count - 1;
    for (int l = 0; l <= last; ++l) {
        const Layer& layer = a.layers.at[l];
        const Places& at = a.places.at[l];
        for (int o = threadIdx.x; o < round4(layer.outputs); o += kThreads) {
            float* const bias = memory + at.bias + o;
            if (o < layer.outputs)
                ptx::copy_async_4(ptx::shared_address(bias), a.biases[l] + stack * layer.outputs + o);
            else
                *bias = 0.0f;
        }
        if (l == last) break;
        if (at.output_weight >= 0 && warp == l % kWarps) {
            const float* const from = a.weights[last] + static_cast<int64_t>(stack) * a.layers.at[last].inputs;
            copy_weights(layer, at, from + layer.output_offset, memory + at.output_weight);
        }
        if (l == 0) continue;
        const float* const from = a.weights[l] + static_cast<int64_t>(stack) * layer.outputs * layer.inputs;
        const Places& before = a.places.at[l - 1];
        for (int o = warp; o < round4(layer.outputs); o += kWarps) {
            copy_weights(a.layers.at[l - 1], before, o < layer.outputs ? from + o * layer.inputs : nullptr,
                         memory + at.weight + o * before.width);
        }
    }
    ptx::copy_async_commit();
}

__device__ __forceinline__ Pack<float, 2> load_pair(const float* channels, int channel) {
    return load<2>(channels + channel * kPitch + threadIdx.x % kWarp * 2);
}
__device__ __forceinline__ void store_pair(float* channels, int channel, float first, float second) {
    *reinterpret_cast<Pack<float, 2>*>(channels + channel * kPitch + threadIdx.x % kWarp * 2) = {first, second};
}

// NaN stays NaN, which fminf and fmaxf would replace by a bound.
__device__ __forceinline__ float clamped(float y, float low, float high) {
    return y < low ? low : y > high ? high : y;
}

__device__ __forceinline__ float lowest(const Layer& layer) {
    return layer.activation == kNone ? layer.low : 0.0f;
}

// floor(square · y²), exact for an integer y although y² may have more bits than a float. `square` is a power of two.
__device__ __forceinline__ float floored_square(float y, float square) {
    const float product = y * y, scaled = product * square, whole = floorf(scaled);
    // If y · y was rounded up, `scaled` may be an integer that square · y² does not reach.
    return scaled == whole && fmaf(y, y, -product) < 0.0f ? whole - 1.0f : whole;
}

// number · factor / divisor, rounded towards zero.
__device__ __forceinline__ double truncated(double number, double factor, double divisor) {
    return trunc(number * factor / divisor);
}

// y of layer 0 without its bias.
template <bool kRounds>
__device__ __forceinline__ float divided(const TileArguments& a, float sum) {
    return kRounds ? truncf(sum / a.layers.integers.divide) : sum;
}

// Stores a channel of y, for the lane's two positions, and the activated values that the next layer sees of it.
template <bool kRounds>
__device__ __forceinline__ void store_activated(const Layer& layer, const Places& at, int channel, const float (&y)[2],
                                                float* memory) {
    store_pair(memory + at.sums, channel, y[0], y[1]);
    if (channel >= at.padded) return;
    const bool exists = channel < layer.activated;
    float first[2], second[2];
    for (int i = 0; i < 2; ++i) {
        const float clipped = clamped(y[i], lowest(layer), layer.largest);
        if constexpr (kRounds) {
            const bool is_dual = layer.activation == kDual;
            const float largest = layer.step * layer.largest;
            second[i] = floorf(layer.step * clipped);
            first[i] = second[i];
            if (is_dual || layer.activation == kScrelu)
                first[i] = floored_square(is_dual ? y[i] : clipped, layer.square);
            if (is_dual && first[i] > largest) first[i] = largest;
            if (!exists) second[i] = 0.0f;
        } else {
            const float square = layer.square * (y[i] * y[i]);
            second[i] = exists ? clipped : 0.0f;
            first[i] = layer.activation == kDual     ? (square > layer.largest ? layer.largest : square)
                       : layer.activation == kScrelu ? clipped * clipped
                                                     : clipped;
        }
        if (!exists) first[i] = 0.0f;
    }
    store_pair(memory + at.values, channel, first[0], first[1]);
    if (layer.activation == kDual) store_pair(memory + at.values, at.padded + channel, second[0], second[1]);
}

// Writes the channel of ones after the activated values.
__device__ __forceinline__ void store_ones(const Places& at, float* memory) {
    if (threadIdx.x < kTile) memory[at.values + at.width * kPitch + threadIdx.x] = 1.0f;
}

// Layer l > 0 and its activation. A warp takes four outputs at a time, a lane two positions.
template <bool kRounds>
__device__ inline void dense(const TileArguments& a, int l, float* memory) {
    const int warp = threadIdx.x / kWarp, pitch = a.places.at[l - 1].width;
    const Layer& layer = a.layers.at[l];
    const Places& at = a.places.at[l];
    const float *const weight = memory + at.weight, *const bias = memory + at.bias;
    const float* const v = memory + a.places.at[l - 1].values;
    for (int o = warp * 4; o < layer.outputs; o += kWarps * 4) {
        float sum[4][2];
        for (int k = 0; k < 4; ++k) sum[k][0] = sum[k][1] = bias[o + k];
#pragma unroll 2
        for (int i = 0; i < pitch; i += 4) {
            Pack<float, 4> w[4];
            for (int k = 0; k < 4; ++k) w[k] = load<4>(weight + (o + k) * pitch + i);
            for (int j = 0; j < 4; ++j) {
                const Pack<float, 2> x = load_pair(v, i + j);
                for (int k = 0; k < 4; ++k) {
                    sum[k][0] += w[k].at[j] * x.at[0];
                    sum[k][1] += w[k].at[j] * x.at[1];
                }
            }
        }
        for (int k = 0; k < 4; ++k) store_activated<kRounds>(layer, at, o + k, sum[k], memory);
    }
    store_ones(at, memory);
}

// Overwrites y of hidden layer l with its gradient. This has three sources: the gradient of the next hidden layer's y,
// and that of the output, both through the last layer's weights and straight through the skip connections.
template <bool kRounds>
__device__ inline void sum_gradients(const TileArguments& a, int l, const float* grad_output, float* memory) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const Layer& layer = a.layers.at[l];
    const Places &at = a.places.at[l], &behind = a.places.at[l + 1];
    const bool is_dual = layer.activation == kDual;
    const int outputs = l + 2 < a.layers.count ? a.layers.at[l + 1].outputs : 0;  // of the next hidden layer
    const float *const weight = memory + behind.weight, *const grad_next = memory + behind.sums;
    float* const y = memory + at.sums;
    const Pack<float, 2> of_output = load<2>(grad_output + 2 * lane);
    for (int channel = warp * 4; channel < layer.outputs; channel += kWarps * 4) {
        float first[4][2] = {}, second[4][2] = {};
        if (channel < at.padded) {
#pragma unroll 4
            for (int o = 0; o < outputs; ++o) {
                const Pack<float, 2> g = load_pair(grad_next, o);
                const Pack<float, 4> w = load<4>(weight + o * at.width + channel);
                for (int k = 0; k < 4; ++k) {
                    first[k][0] += w.at[k] * g.at[0];
                    first[k][1] += w.at[k] * g.at[1];
                }
                if (!is_dual) continue;
                const Pack<float, 4> u = load<4>(weight + o * at.width + at.padded + channel);
                for (int k = 0; k < 4; ++k) {
                    second[k][0] += u.at[k] * g.at[0];
                    second[k][1] += u.at[k] * g.at[1];
                }
            }
            if (at.output_weight >= 0) {
                const float* const from = memory + at.output_weight + channel;
                const float g[2] = {of_output.at[0] * layer.output_scale, of_output.at[1] * layer.output_scale};
                for (int k = 0; k < 4; ++k) {
                    first[k][0] += from[k] * g[0];
                    first[k][1] += from[k] * g[1];
                    if (!is_dual) continue;
                    second[k][0] += from[at.padded + k] * g[0];
                    second[k][1] += from[at.padded + k] * g[1];
                }
            }
        }
        for (int k = 0; k < 4; ++k) {
            const Pack<float, 2> sums = load_pair(y, channel + k);
            float gradient[2];
            for (int i = 0; i < 2; ++i) {
                const float value = sums.at[i];
                const bool is_inside = value >= lowest(layer) && value <= layer.largest;
                const float step = kRounds ? layer.step : 1.0f;
                const float skipped = kRounds ? of_output.at[i] * layer.skip_slope : of_output.at[i];
                float g = 0.0f;
                if (is_dual) {
                    if (is_inside) g = kRounds ? second[k][i] * step : second[k][i];
                    if (layer.square * (value * value) <= (kRounds ? step * layer.largest : layer.largest))
                        g += first[k][i] * (2.0f * layer.square * value);
                } else if (is_inside) {
                    const float slope = !kRounds                      ? 2.0f * value
                                        : layer.activation == kScrelu ? 2.0f * layer.square * value
                                                                      : step;
                    g = kRounds || layer.activation == kScrelu ? first[k][i] * slope : first[k][i];
                }
                if (channel + k >= layer.activated) g = 0.0f;
                if (channel + k == layer.plus) g += skipped;
                if (channel + k == layer.minus) g -= skipped;
                gradient[i] = g;
            }
            store_pair(y, channel + k, gradient[0], gradient[1]);
        }
    }
}

// The gradients of weight and bias of hidden layer l > 0, summed over the tile's positions. A thread takes two outputs
// × two inputs. Input number `layer.inputs` is the channel of ones; its gradients are those of the bias.
__device__ inline void weight_gradients(const TileArguments& a, int l, const float* memory, float* partials) {
    const Layer &layer = a.layers.at[l], &before = a.layers.at[l - 1];
    const Places& from = a.places.at[l - 1];
    const float *const grad_y = memory + a.places.at[l].sums, *const v = memory + from.values;
    float *const to = partials + a.of_weight[l], *const to_bias = partials + a.of_bias[l];
    const int half_o = (layer.outputs + 1) / 2, half_i = layer.inputs / 2 + 1;
    const auto channel_of = [&](int i) {
        return i >= layer.inputs ? from.width : i < before.activated ? i : i - before.activated + from.padded;
    };
    for (int item = threadIdx.x; item < half_o * half_i; item += kThreads) {
        const int o = item / half_i, i = item - o * half_i, o1 = o + half_o, i1 = i + half_i;
        const float *const g0 = grad_y + o * kPitch, *const g1 = grad_y + min(o1, layer.outputs - 1) * kPitch;
        const float *const x0 = v + channel_of(i) * kPitch, *const x1 = v + channel_of(i1) * kPitch;
        float sum[2][2] = {};
#pragma unroll 4
        for (int p = 0; p < kTile; p += 4) {
            const Pack<float, 4> g[2] = {load<4>(g0 + p), load<4>(g1 + p)};
            const Pack<float, 4> x[2] = {load<4>(x0 + p), load<4>(x1 + p)};
            for (int q = 0; q < 4; ++q) {
                for (int k = 0; k < 4; ++k) sum[k / 2][k % 2] += g[k / 2].at[q] * x[k % 2].at[q];
            }
        }
        for (int k = 0; k < 4; ++k) {
            const int output = k / 2 == 0 ? o : o1, input = k % 2 == 0 ? i : i1;
            if (output >= layer.outputs || input > layer.inputs) continue;
            *(input == layer.inputs ? to_bias + output : to + output * layer.inputs + input) = sum[k / 2][k % 2];
        }
    }
}

// to[r] = scale · Σ channels[channel_of(r)] · factor, summed over positions. A lane has the factors of its two
// positions, and a warp takes four channels at a time.
template <class ChannelOf>
__device__ inline void channel_sums(const float* channels, int count, const Pack<float, 2>& factor, float scale,
                                    const ChannelOf& channel_of, float* to) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    for (int r = warp; r < count; r += 4 * kWarps) {
        float sum[4];
        for (int k = 0; k < 4; ++k) {
            const int channel = r + k * kWarps;
            const Pack<float, 2> v =
                channel < count ? load_pair(channels, channel_of(channel)) : Pack<float, 2>{0.0f, 0.0f};
            sum[k] = v.at[0] * factor.at[0] + v.at[1] * factor.at[1];
        }
        for (int by = kWarp / 2; by > 0; by /= 2) {
            for (int k = 0; k < 4; ++k) sum[k] += __shfl_xor_sync(kAllLanes, sum[k], by);
        }
        for (int k = 0; k < 4; ++k) {
            if (lane == 0 && r + k * kWarps < count) to[r + k * kWarps] = sum[k] * scale;
        }
    }
}

// Called by one thread: stores the tile's totals and counts the thread block as done. Returns true if it is the last
// one.
__device__ inline bool report_totals(const TileArguments& a, float weighted, float weight) {
    a.tile_totals[2 * blockIdx.x] = weighted;
    a.tile_totals[2 * blockIdx.x + 1] = weight;
    __threadfence();
    return atomicAdd(a.counter, 1) == static_cast<int>(gridDim.x) - 1;
}

// Adds up the totals of all tiles, in a fixed order. The last thread block calls this; `memory` is free by then.
__device__ inline void add_totals(const TileArguments& a, float* memory) {
    __threadfence();
    double* const sums = reinterpret_cast<double*>(memory);  // [2][kThreads]
    double mine[2] = {0, 0};
    for (int t = threadIdx.x; t < static_cast<int>(gridDim.x); t += kThreads) {
        for (int i = 0; i < 2; ++i) mine[i] += __ldcg(a.tile_totals + 2 * t + i);
    }
    for (int i = 0; i < 2; ++i) sums[i * kThreads + threadIdx.x] = mine[i];
    for (int half = kThreads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            for (int i = 0; i < 2; ++i) sums[i * kThreads + threadIdx.x] += sums[i * kThreads + threadIdx.x + half];
        }
    }
    if (threadIdx.x == 0) {
        const double weighted = sums[0], weights = sums[kThreads];
        a.totals[0] = static_cast<float>(weighted);
        a.totals[1] = static_cast<float>(weights);
        a.totals[2] = static_cast<float>(weights == 0 ? weighted : weighted / weights);
        *a.counter = 0;
    }
}

// The values of one position that the caller gives.
struct Target {
    float psqt = 0, grad = 0, lambda = 0;
    int score = 0, result = 0;
};

__device__ inline Target load_target(const TileArguments& a, const Tile& tile) {
    Target target;
    if (threadIdx.x >= tile.count) return target;
    const int position = tile.positions[threadIdx.x];
    if (a.psqt != nullptr) target.psqt = a.psqt[position];
    if (a.grad_in != nullptr) target.grad = a.grad_in[position];
    if (a.makes_loss()) {
        target.score = a.score[position];
        target.result = a.result[position];
        target.lambda = a.lambda[a.lambda_by_position ? position : 0];
    }
    return target;
}

// The output where the layers round: the last layer's sum with the skip connections, and psqt, each multiplied, divided
// and truncated as an engine does it, then in units of the output.
__device__ inline float integer_score(const TileArguments& a, int position, double output, double psqt,
                                      const float* memory) {
    const Integers& of = a.layers.integers;
    for (int l = 0; l + 1 < a.layers.count; ++l) {
        const Layer& layer = a.layers.at[l];
        const float* const y = memory + a.places.at[l].sums + position;
        if (layer.plus < 0 && layer.minus < 0) continue;
        const double plus = layer.plus >= 0 ? y[layer.plus * kPitch] : 0.0f;
        const double minus = layer.minus >= 0 ? y[layer.minus * kPitch] : 0.0f;
        output += truncated(plus - minus, layer.skip_multiply, layer.skip_divide);
    }
    const double layers = truncated(output, of.multiply, of.by), whole_psqt = trunc(psqt);
    const auto score = [&](double part) { return truncated(part, of.score_multiply, of.score_divide); };
    return static_cast<float>((of.apart ? score(whole_psqt) + score(layers) : score(whole_psqt + layers)) / of.unit);
}

// The net's output for each position, and its gradient. Four threads share a position; each adds up a quarter of the
// inputs.
template <bool kRounds>
__device__ inline void output_and_loss(const TileArguments& a, Tile& tile, const Target& target, const float* memory) {
    const Layers& layers = a.layers;
    const int last = layers.count - 1, position = threadIdx.x % kTile, quarter = threadIdx.x / kTile;
    float sum = 0.0f;
    for (int l = 0; l < last; ++l) {
        const Places& at = a.places.at[l];
        if (at.output_weight < 0) continue;
        const float *const weight = memory + at.output_weight, *const v = memory + at.values + position;
        float part = 0.0f;
        for (int i = quarter * 4; i < at.width; i += 16) {
            const Pack<float, 4> w = load<4>(weight + i);
            for (int k = 0; k < 4; ++k) part += w.at[k] * v[(i + k) * kPitch];
        }
        sum += part * layers.at[l].output_scale;
    }
    tile.quarter[quarter][position] = sum;
    __syncthreads();
    if (threadIdx.x >= kTile) return;
    // Without hidden layers, layer 0 is the last layer, and its bias is in its sums already.
    float output = last == 0
                       ? memory[a.places.at[0].sums + position]
                       : (tile.quarter[0][position] + tile.quarter[1][position]) +
                             (tile.quarter[2][position] + tile.quarter[3][position]) + memory[a.places.at[last].bias];
    if constexpr (kRounds) {
        output = integer_score(a, position, output, target.psqt, memory);
    } else {
        for (int l = 0; l < last; ++l) {
            const float* const y = memory + a.places.at[l].sums + position;
            if (layers.at[l].plus >= 0) output += y[layers.at[l].plus * kPitch];
            if (layers.at[l].minus >= 0) output -= y[layers.at[l].minus * kPitch];
        }
        output += target.psqt;
    }
    const bool exists = position < tile.count;
    const int64_t place = tile.positions[position];
    if (exists && a.output != nullptr) a.output[place] = output;
    float gradient = target.grad;
    if (a.makes_loss()) {
        PositionLoss of_position{0.0f, 0.0f, 0.0f};
        if (exists) of_position = position_loss(a.loss, output, target.score, target.result, target.lambda);
        gradient = of_position.gradient;
        if (exists) a.grad_output[place] = gradient;
        for (int by = kWarp / 2; by > 0; by /= 2) {
            of_position.weighted += __shfl_xor_sync(kAllLanes, of_position.weighted, by);
            of_position.weight += __shfl_xor_sync(kAllLanes, of_position.weight, by);
        }
        if (position % kWarp == 0) {
            tile.totals[position / kWarp][0] = of_position.weighted;
            tile.totals[position / kWarp][1] = of_position.weight;
        }
    }
    if constexpr (kRounds) gradient *= layers.integers.layers_slope;
    tile.gradient[position] = exists ? gradient : 0.0f;
}

// Everything after layer 0 and its activation: the other layers, output and loss, and the backward.
template <bool kRounds>
__device__ inline void rest_of_tile(const TileArguments& a, Tile& tile, const Target& target, float* memory) {
    const int last = a.layers.count - 1, lane = threadIdx.x % kWarp;
    for (int l = 1; l < last; ++l) {
        dense<kRounds>(a, l, memory);
        __syncthreads();
    }
    output_and_loss<kRounds>(a, tile, target, memory);
    if (!a.backward) return;
    __syncthreads();
    // The last thread reports, because it has the least other work. It waits for the atomic while the others go on.
    if (a.makes_loss() && threadIdx.x == kThreads - 1) {
        tile.is_last = report_totals(a, tile.totals[0][0] + tile.totals[1][0], tile.totals[0][1] + tile.totals[1][1]);
    }
    float* const partials = a.partials + static_cast<int64_t>(blockIdx.x) * a.tile_numbers;
    for (int l = last - 1; l >= 0; --l) {
        sum_gradients<kRounds>(a, l, tile.gradient, memory);
        if (l + 1 < last) weight_gradients(a, l + 1, memory, partials);
        __syncthreads();
    }
    // The remaining parameters: the gradients of the last layer's weight and of the biases of layer 0 and the
    // last layer.
    const Pack<float, 2> gradient = load<2>(tile.gradient + 2 * lane), one{1.0f, 1.0f};
    for (int l = 0; l < last; ++l) {
        const Layer& layer = a.layers.at[l];
        const Places& at = a.places.at[l];
        if (at.output_weight < 0) continue;
        const auto channel_of = [&](int i) { return i < layer.activated ? i : i - layer.activated + at.padded; };
        channel_sums(memory + at.values, layer.values, gradient, layer.output_scale, channel_of,
                     partials + a.of_weight[last] + layer.output_offset);
    }
    const auto same = [](int i) { return i; };
    const float* const first = last == 0 ? tile.gradient : memory + a.places.at[0].sums;
    const int outputs = a.layers.at[0].outputs;
    channel_sums(first, outputs, one, 1.0f, same, partials + a.of_bias[0]);
    if (last > 0) channel_sums(tile.gradient, 1, one, 1.0f, same, partials + a.of_bias[last]);
    for (int i = threadIdx.x; i < tile.count * outputs; i += kThreads) {
        const int p = i / outputs, o = i - p * outputs;
        const float gradient = first[o * kPitch + p];
        a.grad_sums[static_cast<int64_t>(tile.positions[p]) * outputs + o] =
            kRounds ? gradient / a.layers.integers.divide : gradient;
    }
}

__device__ inline void finish_tile(const TileArguments& a, const Tile& tile, float* memory) {
    if (!a.makes_loss()) return;
    __syncthreads();
    if (tile.is_last) add_totals(a, memory);
}

// A thread block without a tile reports zeros, because the last thread block is found by counting all of them.
__device__ inline void finish_without_tile(const TileArguments& a, Tile& tile, float* memory) {
    if (!a.makes_loss()) return;
    if (threadIdx.x == 0) tile.is_last = report_totals(a, 0.0f, 0.0f);
    finish_tile(a, tile, memory);
}

// Thread blocks per multiprocessor. There are no products on tensor cores; a thread block mostly waits for its own
// threads.
constexpr int kRestsTogether = 4;

// The rest of a tile, from sums of layer 0 that are given.
template <bool kRounds>
__global__ void __launch_bounds__(kThreads, kRestsTogether) rest_kernel(const TileArguments a) {
    extern __shared__ __align__(16) float memory[];
    __shared__ Tile tile;
    ptx::wait_for_kernels_before();
    ptx::let_next_kernel_start();
    if (!load_tile(a.order, a.of_order, tile)) {
        finish_without_tile(a, tile, memory);
        return;
    }
    copy_parameters(a, tile.stack, memory);
    const Target target = load_target(a, tile);
    const int outputs = a.layers.at[0].outputs, lane = threadIdx.x % kWarp;
    ptx::copy_async_wait_all();
    __syncthreads();
    for (int o = threadIdx.x / kWarp; o < round4(outputs); o += kWarps) {
        float y[2] = {0.0f, 0.0f};
        for (int i = 0; i < 2 && o < outputs; ++i)
            y[i] = divided<kRounds>(a, a.sums[static_cast<int64_t>(tile.positions[2 * lane + i]) * outputs + o]) +
                   memory[a.places.at[0].bias + o];
        if (a.layers.count > 1)
            store_activated<kRounds>(a.layers.at[0], a.places.at[0], o, y, memory);
        else  // it is the net's output
            store_pair(memory + a.places.at[0].sums, o, y[0], y[1]);
    }
    if (a.layers.count > 1) store_ones(a.places.at[0], memory);
    __syncthreads();
    rest_of_tile<kRounds>(a, tile, target, memory);
    finish_tile(a, tile, memory);
}

}  // namespace nnue::cuda::stacks
