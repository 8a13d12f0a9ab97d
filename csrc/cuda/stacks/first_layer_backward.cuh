// The backward of layer 0: grad_x[b] = grad_sums[b] · weight[stack of b], and the gradient of the weight, which is for
// each stack the sum of grad_sums[b]ᵀ · x[b] over its positions.
//
// A *unit* is a tile of 64 positions × a *slab* of 256 inputs. Units are listed slab by slab, and in each slab tile by
// tile. Each thread block is a *worker* and takes an equal stretch of this list. A warp takes 32 inputs of the slab.
// Its sums of the weight's gradient stay in registers until the stack or the slab changes. Then they are written as a
// *segment*, and finish.cuh adds up the segments in order.
#pragma once

#include "tile.cuh"

namespace nnue::cuda::stacks {

constexpr int kSlab = 32 * kWarps;
constexpr int kUnitsAhead = 8;  // units whose stacks and positions are loaded together

// How workers divide the units: worker w takes units begin(w) … begin(w + 1) − 1. There are never more workers than
// units, so each has at least one.
struct Division {
    int64_t units;
    int workers;
    __device__ Division(int64_t units_, int most_workers)
        : units(units_), workers(static_cast<int>(min(units_, static_cast<int64_t>(most_workers)))) {}
    __device__ int64_t begin(int worker) const { return units * worker / workers; }
    __device__ int worker_of(int64_t unit) const { return static_cast<int>(((unit + 1) * workers - 1) / units); }
};
// The number of a segment: it grows in the order of the units, and some numbers are unused.
__device__ inline int64_t segment_of(int worker, int slab, int stack, int stacks) {
    return worker + static_cast<int64_t>(slab) * stacks + stack;
}

// The factor of all gradients: factor / totals[1], where totals[1] is the loss's Σ weight.
struct Scale {
    const float* factor;  // null: 1
    const float* totals;  // null, or totals[1] = 0: no division
    __device__ float read() const {
        const float f = factor == nullptr ? 1.0f : *factor;
        if (totals == nullptr || totals[1] == 0.0f) return f;
        return f / totals[1];
    }
};

enum class GradType : int { float32, float16, bfloat16 };

struct FirstBackward {
    const int* order;
    Order of_order;
    const float* weight;     // [S, O, N]
    const float* grad_sums;  // [B, O]
    void* grad_x;            // [B, N]; null if it is not needed
    GradType grad_type;
    float* segments;  // [workers + slabs · S, KO · 16, kSlab]
    int inputs, outputs, slabs;
    Scale scale;
    float x_scale;  // where the layers round: one more factor of grad_x
};

// The left operands of a unit in shared memory, in the register layout of `mma`: at[product][group of 16
// positions][group of 16 outputs][part][lane]. Product 0 is grad_x, product 1 the gradient of the weight.
template <class T, int KO>
struct Operands {
    uint4 at[2][4][KO][Input<T>::kFactorParts][kWarp];
};
template <class T, int KO>
struct BackwardMemory {
    // A ring of stages that cp.async fills, each with a warp's inputs of 16 positions: [warp][stage][row of the
    // lane][input_place].
    static constexpr int kStages = KO == 1 ? 4 : 3;
    Operands<T, KO> operands[2];
    Pack<T, 4> inputs[kWarps][kStages][4][kWarp];
    int positions[kUnitsAhead + 1][kTile], stacks[kUnitsAhead + 1];
};

// The place, in a warp's stage, of the inputs that lane (g, t) reads. Another lane copies them: eight neighbouring
// lanes copy one row, so that a request to the L2 cache is for 128 bytes (64 in 16 bits). Neither copying nor reading
// has bank conflicts.
__device__ __forceinline__ int input_place(int g, int t) {
    return t * 8 + (g + 2 * t) % 8;
}

__device__ __forceinline__ uint4 words(float a, float b, float c, float d) {
    return {__float_as_uint(a), __float_as_uint(b), __float_as_uint(c), __float_as_uint(d)};
}

// Workers per multiprocessor.
template <class T, int KO>
constexpr int kWorkers = KO == 1 || sizeof(T) == 2 ? 2 : 1;

// T is the type of x. KO · 16 ≥ outputs. kRounds: x is rounded down.
template <class T, int KO, bool kRounds>
__global__ void __launch_bounds__(kThreads, kWorkers<T, KO>) first_layer_backward(const T* x, const FirstBackward a) {
    using In = Input<T>;
    constexpr int P = In::kParts, W = In::kFactorParts;
    extern __shared__ __align__(16) char bytes[];
    hopper::wait_for_kernels_before();
    hopper::let_next_kernel_start();
    using Memory = BackwardMemory<T, KO>;
    constexpr int kStages = Memory::kStages;
    Memory& memory = *reinterpret_cast<Memory*>(bytes);
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    const int tiles = a.order[Order::tiles], stacks = static_cast<int>(a.of_order.stacks);
    const Division division{static_cast<int64_t>(tiles) * a.slabs, static_cast<int>(gridDim.x)};
    if (static_cast<int>(blockIdx.x) >= division.workers) return;
    const int64_t begin = division.begin(blockIdx.x);
    const int units = static_cast<int>(division.begin(blockIdx.x + 1) - begin);

    // Each warp makes one of the eight left operands of the next unit: that of product `kind` for 16 positions. In the
    // product for grad_x, rows are positions and depth is outputs; in that for the gradient of the weight it is the
    // other way round.
    const int kind = warp / 4, group = warp % 4;
    const float scale = a.scale.read() * (kRounds && kind == 0 ? a.x_scale : 1.0f);
    float next_sums[KO][8];
    const auto load_sums = [&](int place) {
        const int* const positions = memory.positions[place] + group * 16;
#pragma unroll
        for (int k = 0; k < KO; ++k) {
#pragma unroll
            for (int i = 0; i < 8; ++i) {  // number i % 2 of operand word i / 2; the two are neighbours in depth
                const int row = i / 2 % 2 * 8 + g, depth = i / 4 * 8 + 2 * t + i % 2;
                const int position = positions[kind == 0 ? row : depth];
                const int output = k * 16 + (kind == 0 ? depth : row);
                next_sums[k][i] = position >= 0 && output < a.outputs
                                      ? __ldg(a.grad_sums + static_cast<int64_t>(position) * a.outputs + output)
                                      : 0.0f;
            }
        }
    };
    const auto store_operands = [&](int buffer) {
#pragma unroll
        for (int k = 0; k < KO; ++k) {
            uint32_t words[4][W];
#pragma unroll
            for (int i = 0; i < 4; ++i) split(next_sums[k][2 * i] * scale, next_sums[k][2 * i + 1] * scale, words[i]);
#pragma unroll
            for (int p = 0; p < W; ++p) {
                memory.operands[buffer].at[kind][group][k][p][lane] = {words[0][p], words[1][p], words[2][p],
                                                                       words[3][p]};
            }
        }
    };
    // Loads stacks and positions of kUnitsAhead of the units that are left, from that of tile `first` on, and of the
    // unit after them: its inputs and operands are prepared before the next such load.
    const auto load_units = [&](int first, int left) {
        const int count = min(left, kUnitsAhead + 1);
        const int* const slots = a.order + a.of_order.slots();
        for (int i = threadIdx.x; i < count * kTile; i += kThreads) {
            const int tile = (first + i / kTile) % tiles;
            memory.positions[i / kTile][i % kTile] = slots[static_cast<int64_t>(tile) * kTile + i % kTile];
        }
        if (static_cast<int>(threadIdx.x) < count)
            memory.stacks[threadIdx.x] = a.order[a.of_order.stack_of_tile() + (first + threadIdx.x) % tiles];
    };

    // Starts to copy a warp's inputs of 16 positions. This lane copies what lane (to_g, to_t) will read, and lane (g,
    // t) gets four neighbouring columns of rows 2 t, 2 t + 1, 2 t + 8 and 2 t + 9, which are what it has of a right
    // operand of `mma`. Column 4 n + j of the warp's 32 columns becomes column n of product j.
    int stage = 0;  // the one that is filled next
    const auto copy_inputs = [&](int place, int step, int column) {
        const int to_g = lane % 8, to_t = lane / 8;
        const bool is_inside = column + 4 * to_g < a.inputs;
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const int position = memory.positions[place][step * 16 + r / 2 * 8 + 2 * to_t + r % 2];
            const bool wanted = is_inside && position >= 0;
            const T* const from = wanted ? x + static_cast<int64_t>(position) * a.inputs + column + 4 * to_g : x;
            const uint32_t to = hopper::shared_address(&memory.inputs[warp][stage][r][input_place(to_g, to_t)]);
            if constexpr (sizeof(T) == 4)
                hopper::copy_async_16(to, from, wanted);
            else
                hopper::copy_async_8(to, from, wanted);
        }
        hopper::copy_async_commit();
        stage = stage + 1 == kStages ? 0 : stage + 1;
    };

    uint32_t weights[4][KO][W][2];
    float sums[KO][4][4];
    const bool wide_store = a.grad_type == GradType::float32;
    const auto begin_segment = [&](int stack, int column) {
#pragma unroll
        for (int k = 0; k < KO; ++k) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
#pragma unroll
                for (int i = 0; i < 4; ++i) sums[k][j][i] = 0.0f;
                // Columns are assigned to the products so that a lane stores neighbouring ones: four in float32, twice,
                // or eight in 16 bits.
                const int at =
                    column + (wide_store ? j / 2 * 16 + g / 2 * 4 + j % 2 * 2 + g % 2 : g / 2 * 8 + j * 2 + g % 2);
                float w[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int output = k * 16 + i / 2 * 8 + 2 * t + i % 2;
                    w[i] = a.grad_x != nullptr && output < a.outputs && at < a.inputs
                               ? __ldg(a.weight + (static_cast<int64_t>(stack) * a.outputs + output) * a.inputs + at)
                               : 0.0f;
                }
                uint32_t low[W], high[W];
                split(w[0], w[1], low);
                split(w[2], w[3], high);
#pragma unroll
                for (int p = 0; p < W; ++p) weights[j][k][p][0] = low[p], weights[j][k][p][1] = high[p];
            }
        }
    };
    const auto end_segment = [&](int slab, int stack) {
        float* const to = a.segments + segment_of(blockIdx.x, slab, stack, stacks) * KO * 16 * kSlab;
#pragma unroll
        for (int k = 0; k < KO; ++k) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int output = k * 16 + i / 2 * 8 + g, column = warp * 32 + (2 * t + i % 2) * 4;
                *reinterpret_cast<float4*>(to + output * kSlab + column) = {sums[k][0][i], sums[k][1][i], sums[k][2][i],
                                                                            sums[k][3][i]};
            }
        }
    };

    int slab = static_cast<int>(begin / tiles), tile = static_cast<int>(begin - static_cast<int64_t>(slab) * tiles);
    load_units(tile, units);
    __syncthreads();
    load_sums(0);
    store_operands(0);
    int stack = memory.stacks[0], column = slab * kSlab + warp * 32;
    begin_segment(stack, column);
    for (int step = 0; step + 1 < kStages; ++step) copy_inputs(0, step, column);
    __syncthreads();
    for (int unit = 0; unit < units; ++unit) {
        const int place = unit % kUnitsAhead, buffer = unit % 2;
        const bool more = unit + 1 < units;
        int next_tile = tile + 1, next_slab = slab;
        if (next_tile == tiles) next_tile = 0, ++next_slab;
        const int next_stack = more ? memory.stacks[place + 1] : -1, next_column = next_slab * kSlab + warp * 32;
        if (more) load_sums(place + 1);
        if (column < a.inputs) {
#pragma unroll 1
            for (int step = 0; step < 4; ++step) {
                // The oldest copies are in the stage behind the one that is filled next. After the barrier every lane
                // sees all of them, and no lane still reads the stage that is filled next.
                hopper::copy_async_wait<kStages - 2>();
                __syncwarp();
                const int oldest = stage + 1 == kStages ? 0 : stage + 1;
                Pack<T, 4> raw[4];
#pragma unroll
                for (int r = 0; r < 4; ++r) raw[r] = load<4>(memory.inputs[warp][oldest][r][input_place(g, t)].at);
                uint32_t right[4][P][2];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        uint32_t parts[P];
                        split(floored<kRounds>(In::number(raw[2 * h], j)),
                              floored<kRounds>(In::number(raw[2 * h + 1], j)), parts);
#pragma unroll
                        for (int p = 0; p < P; ++p) right[j][p][h] = parts[p];
                    }
                }
                const int next_step = step + kStages - 1;
                if (next_step < 4)
                    copy_inputs(place, next_step, column);
                else if (more)
                    copy_inputs(place + 1, next_step - 4, next_column);
                else
                    hopper::copy_async_commit(), stage = oldest;  // an empty group keeps the count for copy_async_wait
                const auto& operands = memory.operands[buffer];
#pragma unroll
                for (int k = 0; k < KO; ++k) {
                    uint32_t left[W][4];
#pragma unroll
                    for (int p = 0; p < W; ++p) {
                        const uint4 v = operands.at[1][step][k][p][lane];
                        left[p][0] = v.x, left[p][1] = v.y, left[p][2] = v.z, left[p][3] = v.w;
                    }
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                        multiply(d, left, right[j]);
#pragma unroll
                        for (int i = 0; i < 4; ++i) sums[k][j][i] += d[i];
                    }
                }
                if (a.grad_x == nullptr) continue;
                float d[4][4] = {};
#pragma unroll
                for (int k = 0; k < KO; ++k) {
                    uint32_t left[W][4];
#pragma unroll
                    for (int p = 0; p < W; ++p) {
                        const uint4 v = operands.at[0][step][k][p][lane];
                        left[p][0] = v.x, left[p][1] = v.y, left[p][2] = v.z, left[p][3] = v.w;
                    }
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        if constexpr (KO == 1) {
                            multiply(d[j], left, weights[j][k]);
                        } else {
                            float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                            multiply(part, left, weights[j][k]);
#pragma unroll
                            for (int i = 0; i < 4; ++i) d[j][i] += part[i];
                        }
                    }
                }
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int position = memory.positions[place][step * 16 + h * 8 + g];
                    if (position < 0) continue;
                    const int64_t row = static_cast<int64_t>(position) * a.inputs;
                    // Inline assembly, because the compiler would split plain 16-byte stores.
                    if (wide_store) {
                        float* const to = static_cast<float*>(a.grad_x) + row + column + 4 * t;
                        hopper::store_global_16(to, words(d[0][2 * h], d[0][2 * h + 1], d[1][2 * h], d[1][2 * h + 1]),
                                                column < a.inputs);
                        hopper::store_global_16(to + 16,
                                                words(d[2][2 * h], d[2][2 * h + 1], d[3][2 * h], d[3][2 * h + 1]),
                                                column + 16 < a.inputs);
                    } else {
                        uint32_t pairs[4];
#pragma unroll
                        for (int j = 0; j < 4; ++j) {
                            const float low = d[j][2 * h], high = d[j][2 * h + 1];
                            pairs[j] = a.grad_type == GradType::float16 ? bits_of(__floats2half2_rn(low, high))
                                                                        : bits_of(__floats2bfloat162_rn(low, high));
                        }
                        hopper::store_global_16(static_cast<uint16_t*>(a.grad_x) + row + column + 8 * t,
                                                {pairs[0], pairs[1], pairs[2], pairs[3]}, column + 8 * t < a.inputs);
                    }
                }
            }
        } else if (more) {  // the warp's columns are behind the last input
            hopper::copy_async_wait<0>();
            for (int step = 0; step + 1 < kStages; ++step) copy_inputs(place + 1, step, next_column);
        }
        if (next_stack != stack || next_slab != slab) {
            end_segment(slab, stack);
            if (more) begin_segment(next_stack, next_column);
        }
        if (more) store_operands(1 - buffer);
        __syncthreads();
        if (more && place + 1 == kUnitsAhead) {
            load_units(next_tile, units - unit - 1);
            __syncthreads();
        }
        tile = next_tile, slab = next_slab, stack = next_stack, column = next_column;
    }
}

}  // namespace nnue::cuda::stacks
