// What a thread block does for a tile of 64 positions of one stack: the layers behind the first, the loss, and the way
// back to the gradients of layer 0's outputs. All numbers of a tile are in shared memory, [number][position].
#pragma once

#include <algorithm>

#include "first_layer.cuh"

namespace nnue::cuda::stacks {

constexpr int round4(int n) {
    return (n + 3) / 4 * 4;
}

// Where a layer's parameters and numbers are in shared memory, in floats.
struct Places {
    int weight, bias;  // [round4(outputs)][round4(inputs)], rounded up with zeros; [round4(outputs)]
    int sums;          // y, later its gradient
    int values;        // what the next layer sees, later its gradient
};

struct TileLayout {
    Places at[kMostHidden + 1];
    int shares;  // of layer 0's sums, over what comes later
    int floats;
};

inline TileLayout tile_layout(const Layers& layers, int share_floats) {
    TileLayout t{};
    int place = 0;
    const auto take = [&place](int floats) {
        const int begin = place;
        place += round4(floats);
        return begin;
    };
    for (int l = 0; l < layers.count; ++l) {
        const Layer& layer = layers.at[l];
        t.at[l].bias = take(layer.outputs);
        if (l > 0) t.at[l].weight = take(round4(layer.outputs) * round4(layer.inputs));
    }
    t.at[0].sums = take(round4(layers.at[0].outputs) * kPitch);
    t.shares = place;
    for (int l = 0; l + 1 < layers.count; ++l) {
        if (l > 0) t.at[l].sums = take(round4(layers.at[l].outputs) * kPitch);
        t.at[l].values = take(round4(layers.at[l].values) * kPitch);
    }
    t.floats = std::max({place, t.shares + share_floats, 4 * kThreads});  // the last: of add_totals
    return t;
}

struct TileArguments {
    Layers layers;
    TileLayout places;
    const float* weights[kMostHidden + 1];
    const float* biases[kMostHidden + 1];
    const int* order;
    Order of_order;
    const float* sums_in;  // of layer 0, [B, O]; null: from x
    float* sums;           // [B, O] or null
    const float* psqt;     // [B] or null
    float* output;         // [B] or null
    // The way back. `grad_in`: the gradient of the output; else `loss`.
    bool backward;
    const float* grad_in;
    Loss loss;
    const int16_t* score;
    const int8_t* result;
    const float* lambda;
    float* tile_totals;  // [tiles, 2]
    float* totals;       // [3]
    int* counter;
    float* grad_output;  // [B]
    float* grad_sums;    // [B, O]
    float* partials;     // [tiles, pieces.tile]
    int of_weight[kMostHidden + 1], of_bias[kMostHidden + 1], tile_numbers;  // Pieces
};

// What all threads of a thread block know of their tile.
struct Tile {
    int positions[kTile];  // a left-over slot has the first position
    float gradient[kTile];
    float quarter[4][kTile];
    float totals[2][2];  // of either warp that has positions: Σ weight · loss and Σ weight
    int count, stack;
};

// Starts to copy the parameters of the stack; done at the next wait for copies.
__device__ inline void copy_parameters(const TileArguments& a, int stack, float* memory) {
    for (int l = 0; l < a.layers.count; ++l) {
        const Layer& layer = a.layers.at[l];
        const int wide = round4(layer.outputs), pitch = round4(layer.inputs);
        float* const bias = memory + a.places.at[l].bias;
        for (int o = threadIdx.x; o < wide; o += kThreads) {
            if (o < layer.outputs)
                hopper::copy_async_4(hopper::shared_address(bias + o), a.biases[l] + stack * layer.outputs + o);
            else
                bias[o] = 0.0f;
        }
        if (l == 0) continue;
        float* const weight = memory + a.places.at[l].weight;
        const float* const from = a.weights[l] + static_cast<int64_t>(stack) * layer.outputs * layer.inputs;
        for (int i = threadIdx.x; i < wide * pitch; i += kThreads) {
            const int o = i / pitch, input = i - o * pitch;
            if (o < layer.outputs && input < layer.inputs)
                hopper::copy_async_4(hopper::shared_address(weight + i), from + o * layer.inputs + input);
            else
                weight[i] = 0.0f;
        }
    }
    hopper::copy_async_commit();
}

// y[o] = bias[o] + Σ weight[o][i] · v[i]; a warp has four outputs at a time, a lane two positions.
__device__ inline void dense(const float* weight, const float* bias, int outputs, int inputs, const float* v,
                             float* y) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, pitch = round4(inputs);
    for (int o = warp * 4; o < outputs; o += kWarps * 4) {
        float sum[4][2];
#pragma unroll
        for (int k = 0; k < 4; ++k) sum[k][0] = sum[k][1] = bias[o + k];
        for (int i = 0; i < pitch; i += 4) {
            Pack<float, 4> w[4];
#pragma unroll
            for (int k = 0; k < 4; ++k) w[k] = load<4>(weight + (o + k) * pitch + i);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const Pack<float, 2> x = load<2>(v + (i + j) * kPitch + 2 * lane);
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    sum[k][0] += w[k].at[j] * x.at[0];
                    sum[k][1] += w[k].at[j] * x.at[1];
                }
            }
        }
#pragma unroll
        for (int k = 0; k < 4; ++k)
            *reinterpret_cast<Pack<float, 2>*>(y + (o + k) * kPitch + 2 * lane) = {sum[k][0], sum[k][1]};
    }
}

// gradient[i] = Σ weight[o][i] · grad_y[o] + output_weight[i] · scale · grad_output. Null: without either part.
__device__ inline void input_gradients(const float* weight, int outputs, int inputs, const float* grad_y,
                                       const float* output_weight, float scale, const float* grad_output,
                                       float* gradient) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, pitch = round4(inputs);
    for (int i = warp * 4; i < inputs; i += kWarps * 4) {
        float sum[4][2] = {};
        for (int o = 0; weight != nullptr && o < outputs; ++o) {
            const Pack<float, 4> w = load<4>(weight + o * pitch + i);
            const Pack<float, 2> g = load<2>(grad_y + o * kPitch + 2 * lane);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                sum[k][0] += w.at[k] * g.at[0];
                sum[k][1] += w.at[k] * g.at[1];
            }
        }
        if (output_weight != nullptr) {
            const Pack<float, 2> g = load<2>(grad_output + 2 * lane);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                const float w = i + k < inputs ? output_weight[i + k] * scale : 0.0f;
                sum[k][0] += w * g.at[0];
                sum[k][1] += w * g.at[1];
            }
        }
#pragma unroll
        for (int k = 0; k < 4; ++k)
            *reinterpret_cast<Pack<float, 2>*>(gradient + (i + k) * kPitch + 2 * lane) = {sum[k][0], sum[k][1]};
    }
}

// to[o][i] = Σ grad_y[o] · v[i] over positions; a thread has two outputs and two inputs.
__device__ inline void weight_gradients(const float* grad_y, int outputs, const float* v, int inputs, float* to) {
    const int half_o = (outputs + 1) / 2, half_i = (inputs + 1) / 2;
    for (int item = threadIdx.x; item < half_o * half_i; item += kThreads) {
        const int o = item / half_i, i = item - o * half_i;
        const int o1 = min(o + half_o, outputs - 1), i1 = min(i + half_i, inputs - 1);
        float sum[2][2] = {};
#pragma unroll 4
        for (int p = 0; p < kTile; p += 4) {
            const Pack<float, 4> g[2] = {load<4>(grad_y + o * kPitch + p), load<4>(grad_y + o1 * kPitch + p)};
            const Pack<float, 4> x[2] = {load<4>(v + i * kPitch + p), load<4>(v + i1 * kPitch + p)};
#pragma unroll
            for (int q = 0; q < 4; ++q) {
#pragma unroll
                for (int k = 0; k < 4; ++k) sum[k / 2][k % 2] += g[k / 2].at[q] * x[k % 2].at[q];
            }
        }
        to[o * inputs + i] = sum[0][0];
        if (i + half_i < inputs) to[o * inputs + i1] = sum[0][1];
        if (o + half_o < outputs) to[o1 * inputs + i] = sum[1][0];
        if (o + half_o < outputs && i + half_i < inputs) to[o1 * inputs + i1] = sum[1][1];
    }
}

// to[r] = scale · Σ rows[r] · factor over positions; null: factor 1. A warp has a row at a time.
__device__ inline void row_sums(const float* rows, int count, const float* factor, float scale, float* to) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const Pack<float, 2> f = factor == nullptr ? Pack<float, 2>{1.0f, 1.0f} : load<2>(factor + 2 * lane);
    for (int r = warp; r < count; r += kWarps) {
        const Pack<float, 2> v = load<2>(rows + r * kPitch + 2 * lane);
        float sum = v.at[0] * f.at[0] + v.at[1] * f.at[1];
#pragma unroll
        for (int by = kWarp / 2; by > 0; by /= 2) sum += __shfl_xor_sync(kAllLanes, sum, by);
        if (lane == 0) to[r] = sum * scale;
    }
}

// Not min and max, which lose what is not a number.
__device__ __forceinline__ float clamped(float y, float low, float high) {
    return y < low ? low : y > high ? high : y;
}

__device__ inline void activate(const Layer& layer, const float* y, float* v) {
    for (int i = threadIdx.x; i < layer.activated * kTile; i += kThreads) {
        const int at = i / kTile * kPitch + i % kTile;
        const float value = y[at];
        const float low = layer.activation == kNone ? layer.low : 0.0f;
        const float clipped = clamped(value, low, layer.largest);
        if (layer.activation == kDual) {
            const float square = layer.square * (value * value);
            v[at] = square > layer.largest ? layer.largest : square;
            v[at + layer.activated * kPitch] = clipped;
        } else {
            v[at] = layer.activation == kScrelu ? clipped * clipped : clipped;
        }
    }
    for (int i = threadIdx.x; i < (round4(layer.values) - layer.values) * kTile; i += kThreads)
        v[(layer.values + i / kTile) * kPitch + i % kTile] = 0.0f;
}

// The gradient of v becomes that of y, in its place; `grad_output` goes to the outputs of the skip connection.
__device__ inline void activation_gradients(const Layer& layer, const float* grad_v, const float* grad_output,
                                            float* y) {
    for (int i = threadIdx.x; i < layer.outputs * kTile; i += kThreads) {
        const int o = i / kTile, position = i % kTile, at = o * kPitch + position;
        float gradient = 0.0f;
        if (o < layer.activated) {
            const float value = y[at];
            const float low = layer.activation == kNone ? layer.low : 0.0f;
            const bool inside = value >= low && value <= layer.largest;
            if (layer.activation == kDual) {
                if (inside) gradient = grad_v[at + layer.activated * kPitch];
                if (layer.square * (value * value) <= layer.largest)
                    gradient += grad_v[at] * (2.0f * layer.square * value);
            } else if (inside) {
                gradient = layer.activation == kScrelu ? grad_v[at] * (2.0f * value) : grad_v[at];
            }
        }
        if (o == layer.plus) gradient += grad_output[position];
        if (o == layer.minus) gradient -= grad_output[position];
        y[at] = gradient;
    }
}

// The tile's positions; false if there is no such tile.
__device__ inline bool load_tile(const TileArguments& a, Tile& tile) {
    const int stack = a.order[a.of_order.stack_of_tile() + blockIdx.x];
    if (stack < 0) return false;
    const int* const slots = a.order + a.of_order.slots() + static_cast<int64_t>(blockIdx.x) * kTile;
    const int slot = threadIdx.x < kTile ? slots[threadIdx.x] : -1;
    if (threadIdx.x < kTile) tile.positions[threadIdx.x] = slot >= 0 ? slot : slots[0];
    const int count = __syncthreads_count(slot >= 0);
    if (threadIdx.x == 0) tile.count = count, tile.stack = stack;
    __syncthreads();
    return true;
}

// All tiles' totals, by the thread block that is done last.
__device__ inline void add_totals(const TileArguments& a, float* memory) {
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(a.counter, 1) == static_cast<int>(gridDim.x) - 1;
    __syncthreads();
    if (!is_last) return;
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

// The numbers of a position that come from outside.
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
    if (a.score != nullptr) {
        target.score = a.score[position];
        target.result = a.result[position];
        target.lambda = *a.lambda;
    }
    return target;
}

// From the sums of layer 0 in their place to all that the tile gives.
__device__ inline void rest_of_tile(const TileArguments& a, Tile& tile, const Target& target, float* memory) {
    const Layers& layers = a.layers;
    const int last = layers.count - 1, position = threadIdx.x % kTile;
    const auto of = [memory](int place) { return memory + place; };
    const Places* const places = a.places.at;

    for (int l = 0; l < last; ++l) {
        activate(layers.at[l], of(places[l].sums), of(places[l].values));
        __syncthreads();
        if (l + 1 == last) break;
        dense(of(places[l + 1].weight), of(places[l + 1].bias), layers.at[l + 1].outputs, layers.at[l + 1].inputs,
              of(places[l].values), of(places[l + 1].sums));
        __syncthreads();
    }
    {  // The last layer: a quarter of the threads has a quarter of the inputs.
        const int quarter = threadIdx.x / kTile;
        float sum = 0.0f;
        for (int l = 0; l < last; ++l) {
            const Layer& layer = layers.at[l];
            if (layer.output_offset < 0) continue;
            const float* const weight = of(places[last].weight) + layer.output_offset;
            const float* const v = of(places[l].values) + position;
            float part = 0.0f;
            for (int i = quarter; i < layer.values; i += 4) part += weight[i] * v[i * kPitch];
            sum += part * layer.output_scale;
        }
        tile.quarter[quarter][position] = sum;
    }
    __syncthreads();
    if (threadIdx.x < kTile) {
        // Without hidden layers, the sums of layer 0 are the last layer's, with its bias.
        float output = last == 0 ? memory[places[0].sums + position]
                                 : (tile.quarter[0][position] + tile.quarter[1][position]) +
                                       (tile.quarter[2][position] + tile.quarter[3][position]) +
                                       memory[places[last].bias];
        for (int l = 0; l < last; ++l) {
            const float* const y = of(places[l].sums) + position;
            if (layers.at[l].plus >= 0) output += y[layers.at[l].plus * kPitch];
            if (layers.at[l].minus >= 0) output -= y[layers.at[l].minus * kPitch];
        }
        output += target.psqt;
        const bool exists = position < tile.count;
        const int64_t place = tile.positions[position];
        if (exists && a.output != nullptr) a.output[place] = output;
        float gradient = target.grad;
        if (a.score != nullptr) {
            PositionLoss of_position{0.0f, 0.0f, 0.0f};
            if (exists)
                of_position =
                    position_loss(a.loss, output, target.score, target.result, target.lambda);
            gradient = of_position.gradient;
            if (exists) a.grad_output[place] = gradient;
#pragma unroll
            for (int by = kWarp / 2; by > 0; by /= 2) {
                of_position.weighted += __shfl_xor_sync(kAllLanes, of_position.weighted, by);
                of_position.weight += __shfl_xor_sync(kAllLanes, of_position.weight, by);
            }
            if (position % kWarp == 0) {
                tile.totals[position / kWarp][0] = of_position.weighted;
                tile.totals[position / kWarp][1] = of_position.weight;
            }
        }
        tile.gradient[position] = exists ? gradient : 0.0f;
    }
    if (!a.backward) return;
    __syncthreads();
    if (a.score != nullptr && threadIdx.x < 2)
        a.tile_totals[2 * blockIdx.x + threadIdx.x] = tile.totals[0][threadIdx.x] + tile.totals[1][threadIdx.x];

    float* const partials = a.partials + static_cast<int64_t>(blockIdx.x) * a.tile_numbers;
    if (last > 0) {
        row_sums(tile.gradient, 1, nullptr, 1.0f, partials + a.of_bias[last]);
        for (int l = 0; l < last; ++l) {
            const Layer& layer = layers.at[l];
            if (layer.output_offset >= 0)
                row_sums(of(places[l].values), layer.values, tile.gradient, layer.output_scale,
                         partials + a.of_weight[last] + layer.output_offset);
        }
        __syncthreads();
    }
    for (int l = last - 1; l >= 0; --l) {
        const Layer &layer = layers.at[l], &next = layers.at[l + 1];
        const bool has_next = l + 1 < last;
        if (has_next) {
            weight_gradients(of(places[l + 1].sums), next.outputs, of(places[l].values), next.inputs,
                             partials + a.of_weight[l + 1]);
            __syncthreads();
        }
        input_gradients(has_next ? of(places[l + 1].weight) : nullptr, next.outputs, layer.values,
                        of(places[l + 1].sums),
                        layer.output_offset < 0 ? nullptr : of(places[last].weight) + layer.output_offset,
                        layer.output_scale, tile.gradient, of(places[l].values));
        __syncthreads();
        activation_gradients(layer, of(places[l].values), tile.gradient, of(places[l].sums));
        __syncthreads();
        row_sums(of(places[l].sums), layer.outputs, nullptr, 1.0f, partials + a.of_bias[l]);
    }
    if (last == 0) row_sums(tile.gradient, 1, nullptr, 1.0f, partials + a.of_bias[0]);
    const float* const first = last == 0 ? tile.gradient : of(places[0].sums);
    const int outputs = layers.at[0].outputs;
    for (int i = threadIdx.x; i < tile.count * outputs; i += kThreads) {
        const int p = i / outputs, o = i - p * outputs;
        a.grad_sums[static_cast<int64_t>(tile.positions[p]) * outputs + o] = first[o * kPitch + p];
    }
}

// Layer 0 of a tile, then the rest; or layer 0 alone, where there are no other layers to be told of.
template <class T, int MT, int NT>
__global__ void __launch_bounds__(kThreads, 2) tile_kernel(const T* x, bool only_first, const TileArguments a) {
    extern __shared__ __align__(16) float memory[];
    __shared__ Tile tile;
    if (load_tile(a, tile)) {
        const Layer& first = a.layers.at[0];
        Target target;
        if (!only_first) {
            copy_parameters(a, tile.stack, memory);
            target = load_target(a, tile);
        }
        float* const shares = memory + a.places.shares;
        first_layer_sums<T, MT, NT>(x, a.weights[0] + static_cast<int64_t>(tile.stack) * first.outputs * first.inputs,
                                    first.inputs, first.outputs, tile.positions, shares);
        if (!only_first) hopper::copy_async_wait_all();
        __syncthreads();
        float* const y = memory + a.places.at[0].sums;
        const float* const bias = memory + a.places.at[0].bias;
        for (int i = threadIdx.x; i < first.outputs * kTile; i += kThreads) {
            const int o = i / kTile, p = i % kTile;
            float sum = 0.0f;
            for (int q = 0; q < kShares<MT>; ++q) sum += shares[(q * NT * 8 + o) * kPitch + p];
            if (a.sums != nullptr && p < tile.count)
                a.sums[static_cast<int64_t>(tile.positions[p]) * first.outputs + o] = sum;
            if (!only_first) y[o * kPitch + p] = sum + bias[o];
        }
        if (only_first) return;
        __syncthreads();
        rest_of_tile(a, tile, target, memory);
    } else if (a.score != nullptr && threadIdx.x < 2) {
        a.tile_totals[2 * blockIdx.x + threadIdx.x] = 0.0f;
    }
    if (a.score != nullptr) add_totals(a, memory);
}

// The rest of a tile, from the sums of layer 0 in memory.
__global__ void __launch_bounds__(kThreads, 2) rest_kernel(const TileArguments a) {
    extern __shared__ __align__(16) float memory[];
    __shared__ Tile tile;
    if (load_tile(a, tile)) {
        copy_parameters(a, tile.stack, memory);
        const Target target = load_target(a, tile);
        const int outputs = a.layers.at[0].outputs;
        hopper::copy_async_wait_all();
        __syncthreads();
        for (int i = threadIdx.x; i < kTile * outputs; i += kThreads) {
            const int p = i / outputs, o = i - p * outputs;
            memory[a.places.at[0].sums + o * kPitch + p] =
                a.sums_in[static_cast<int64_t>(tile.positions[p]) * outputs + o] + memory[a.places.at[0].bias + o];
        }
        __syncthreads();
        rest_of_tile(a, tile, target, memory);
    } else if (a.score != nullptr && threadIdx.x < 2) {
        a.tile_totals[2 * blockIdx.x + threadIdx.x] = 0.0f;
    }
    if (a.score != nullptr) add_totals(a, memory);
}

}  // namespace nnue::cuda::stacks
