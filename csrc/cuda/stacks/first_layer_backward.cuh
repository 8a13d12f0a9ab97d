// The backward of layer 0: grad_x[b] = grad_sums[b] · weight[stack of b], and the gradient of the weight, which is for
// each stack the sum of grad_sums[b]ᵀ · x[b] over its positions.
//
// A *source* defines where x comes from and where its gradient goes. This is the plain one, InputRows: two tensors.
// hopper/first_layer_through.cuh has one that reads what the feature transformer has saved, and continues to its own
// gradients.
//
// A *unit* is a tile of 64 positions × a *slab* of 256 inputs. Units are listed slab by slab, and in each slab tile by
// tile. Each thread block is a *worker* and takes an equal stretch of this list, in *steps* of 16 positions. Whole
// units would not be equal enough: with 1,088 units for 264 workers, a few workers would have 5 and the others 4. A
// warp takes 32 inputs of the slab. Its sums of the weight's gradient stay in registers until the stack or the slab
// changes. Then they are written as a *segment*, and finish.cuh adds up the segments in order.
#pragma once

#include "tile.cuh"

namespace nnue::cuda::stacks {

constexpr int kSlab = 32 * kWarps;
constexpr int kUnitsAhead = 8;  // units whose stacks and positions are loaded together
constexpr int kSteps = kTile / 16;

// How workers divide the steps of all units: worker w takes steps begin(w) … begin(w + 1) − 1. There are never more
// workers than units, so each has at least kSteps steps.
struct Division {
    int64_t steps;
    int workers;
    __device__ Division(int64_t units, int most_workers)
        : steps(units * kSteps), workers(static_cast<int>(min(units, static_cast<int64_t>(most_workers)))) {}
    __device__ int64_t begin(int worker) const { return steps * worker / workers; }
    __device__ int worker_of_step(int64_t step) const { return static_cast<int>(((step + 1) * workers - 1) / steps); }
    // The workers that have steps of units first … last − 1.
    __device__ int first_worker(int64_t first) const { return worker_of_step(first * kSteps); }
    __device__ int last_worker(int64_t last) const { return worker_of_step(last * kSteps - 1); }
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

struct FirstBackward {
    const int* order;
    Order of_order;
    const float* weight;     // [S, O, N]
    const float* grad_sums;  // [B, O]
    float* segments;         // [workers + slabs · S, KO · 16, kSlab]
    int inputs, outputs, slabs;
    Scale scale;
};

// The source of a kernel that is given x and makes grad_x.
template <class T>
struct InputRows {
    const T* x;    // [B, N]
    void* grad_x;  // [B, N]; null if it is not needed
    Float grad_type;
    float factor;  // of grad_x
    int inputs;

    using Number = T;
    using Type = Input<T>;
    static constexpr int kRows = 1;  // that belong to the inputs of a position
    template <int KO>
    static constexpr int kStages = KO == 1 ? 4 : 3;
    template <int KO>
    static constexpr int kTogether = KO == 1 || sizeof(T) == 2 ? 2 : 1;  // workers per multiprocessor
    // Data for the source: of a thread block in shared memory, and of a thread in registers.
    struct Memory {};
    struct Sums {};

    // Called once, by all threads. Gives factors of the gradients of x and of the weight.
    __device__ __forceinline__ float2 begin(const FirstBackward&, Sums&) const { return {factor, 1.0f}; }
    __device__ __forceinline__ bool wants_gradient() const { return grad_x != nullptr; }
    // Remembers position `position` at this place.
    __device__ __forceinline__ void load_position(Memory&, int, int, int) const {}
    // Where four numbers of the position's first row begin, those of inputs `column` … `column` + 3. Those of the next
    // row are `row_stride` numbers further on. Not read if there is no position.
    __device__ __forceinline__ const T* numbers(const Memory&, int, int, int position, int column) const {
        const uint64_t row_bytes = static_cast<unsigned>(inputs) * sizeof(T);
        return reinterpret_cast<const T*>(reinterpret_cast<const char*>(keep(x + column)) +
                                          static_cast<unsigned>(max(position, 0)) * row_bytes);
    }
    __device__ __forceinline__ int row_stride() const { return 0; }
    // Four inputs of a position, and the parts of input i of two positions, as words of an operand.
    using Four = Pack<T, 4>;
    __device__ __forceinline__ Four four(const Four (&rows)[1]) const { return rows[0]; }
    __device__ __forceinline__ static void split_two(const Four& a, const Four& b, int i,
                                                     uint32_t (&words)[Type::kParts]) {
        split(to_sum(a.at[i]), to_sum(b.at[i]), words);
    }
    // Takes `g`, the gradients of inputs `first` + 4 · lane_g … + 3 of `position`, the one at [place][i] in the memory.
    // The inputs themselves are still at [of_lane][at] in each row of the stage. Called by whole warps.
    __device__ __forceinline__ void take(const Memory&, Sums&, int /*place*/, int /*i*/, int position, int first,
                                         int lane_g, const Pack<T, 4> (&)[1][4][kWarp], int /*of_lane*/, int /*at*/,
                                         const float (&g)[4]) const {
        const int column = first + 4 * lane_g;
        const size_t at = static_cast<int64_t>(position) * inputs + column;
        const bool exists = position >= 0 && column < inputs;
        // Inline assembly, because the compiler would split plain stores.
        if (grad_type == Float::kFloat32) {
            ptx::store_global_16(
                static_cast<float*>(grad_x) + at,
                {__float_as_uint(g[0]), __float_as_uint(g[1]), __float_as_uint(g[2]), __float_as_uint(g[3])}, exists);
        } else {
            const bool half = grad_type == Float::kFloat16;
            const auto pair = [&](float a, float b) {
                return half ? bits_of(__floats2half2_rn(a, b)) : bits_of(__floats2bfloat162_rn(a, b));
            };
            ptx::store_global_8(static_cast<uint16_t*>(grad_x) + at, {pair(g[0], g[1]), pair(g[2], g[3])}, exists);
        }
    }
    // Called when the worker leaves a slab.
    __device__ __forceinline__ void end_slab(Sums&, int) const {}
};

// The operands of a unit in shared memory, in the register layout of `mma`: at[product][group of 16 positions][group of
// 16 outputs][part][lane]. Product 0 is grad_x, whose right operands they are; product 1 is the gradient of the weight,
// whose left operands they are.
template <int kParts, int KO>
struct Operands {
    uint4 at[2][4][KO][kParts][kWarp];
};
// kIsSmall: it fits the 64 KB of 7.5, whose copies do not run ahead.
template <class Source, int KO, bool kIsSmall = false>
struct BackwardMemory {
    // A ring of stages that cp.async fills, each with a warp's inputs of 16 positions: [warp][stage][row][position of
    // the lane][input_place].
    static constexpr int kStages = kIsSmall ? 2 : Source::template kStages<KO>, kBuffers = kIsSmall ? 1 : 2;
    Operands<Source::Type::kFactorParts, KO> operands[kBuffers];
    Pack<typename Source::Number, 4> inputs[kWarps][kStages][Source::kRows][4][kWarp];
    int positions[kUnitsAhead + 1][kTile], stacks[kUnitsAhead + 1];
    typename Source::Memory source;
};

// The place, in a warp's stage, of the inputs that lane (g, t) reads. Another lane copies them: eight neighbouring
// lanes copy one row, so that a request to the L2 cache is for 128 bytes (64 in 16 bits). Neither copying nor reading
// has bank conflicts.
__device__ __forceinline__ int input_place(int g, int t) {
    return t * 8 + (g + 2 * t) % 8;
}

// Workers per multiprocessor.
template <class Source, int KO>
constexpr int kWorkers = Source::template kTogether<KO>;
// For how many of them there are registers. The 64 KB of 7.5 hold two only of the smallest.
template <class Source, int KO>
constexpr int kResident = ptx::kTuring&& KO * sizeof(typename Source::Number) > 2 ? 1 : kWorkers<Source, KO>;

// KO · 16 ≥ outputs.
// long: its steps share operands, sums and pointers in registers, and copies run ahead of them.
template <class Source, int KO>
__global__ void __launch_bounds__(kThreads, kResident<Source, KO>)
    first_layer_backward(const Source source, const FirstBackward a) {
    using Memory = BackwardMemory<Source, KO, ptx::kTuring>;
    using Number = typename Source::Number;
    constexpr int P = Source::Type::kParts, W = Source::Type::kFactorParts, R = Source::kRows,
                  kStages = Memory::kStages;
    // Whether the sums of the next unit are loaded before the steps of this one. Without registers for them, they would
    // be stored in local memory as soon as they arrive.
    constexpr bool kSumsAhead = KO == 1 || kResident<Source, KO> == 1;
    static_assert(kStages <= kSteps + 1, "copies run ahead of the first step by less than a unit");
    extern __shared__ __align__(16) char bytes[];
    ptx::wait_for_kernels_before();
    ptx::let_next_kernel_start();
    Memory& memory = *reinterpret_cast<Memory*>(bytes);
    typename Source::Sums of_source{};
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    const int tiles = a.order[Order::tiles], stacks = static_cast<int>(a.of_order.stacks);
    const Division division{static_cast<int64_t>(tiles) * a.slabs, static_cast<int>(gridDim.x)};
    const float2 factors = source.begin(a, of_source);
    if (static_cast<int>(blockIdx.x) >= division.workers) return;
    const int64_t begin = division.begin(blockIdx.x) / kSteps;
    // The first step of a unit, and how many steps are left from the beginning of the unit on.
    int first = static_cast<int>(division.begin(blockIdx.x) % kSteps);
    int steps_left = static_cast<int>(division.begin(blockIdx.x + 1) - begin * kSteps);

    // Each warp makes one of the eight operands of the next unit: that of product `kind` for 16 positions. Its rows and
    // its depth are positions and outputs for product 0, and the other way round for product 1.
    const int kind = warp / 4, group = warp % 4;
    const float scale = a.scale.read() * (kind == 0 ? factors.x : factors.y);
    float next_sums[KO][8];
    const auto load_sums = [&](int place) {
        const int* const positions = memory.positions[place] + group * 16;
        for (int k = 0; k < KO; ++k) {
            for (int i = 0; i < 8; ++i) {  // number i % 2 of operand word i / 2; the two are neighbours in depth
                const int row = i / 2 % 2 * 8 + g, depth = i / 4 * 8 + 2 * t + i % 2;
                const int position = positions[kind == 0 ? row : depth];
                const int output = k * 16 + (kind == 0 ? depth : row);
                next_sums[k][i] = position >= 0 && output < a.outputs
                                      ? a.grad_sums[static_cast<int64_t>(position) * a.outputs + output]
                                      : 0.0f;
            }
        }
    };
    const auto store_operands = [&](int buffer) {
#pragma unroll
        for (int k = 0; k < KO; ++k) {
            uint32_t words[4][W];
            for (int i = 0; i < 4; ++i) split(next_sums[k][2 * i] * scale, next_sums[k][2 * i + 1] * scale, words[i]);
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
        // thread_number: the places of a thread would otherwise stay in registers from unit to unit.
        for (int i = ptx::thread_number(); i < count * kTile; i += kThreads) {
            const int tile = (first + i / kTile) % tiles;
            const int position = slots[static_cast<int64_t>(tile) * kTile + i % kTile];
            memory.positions[i / kTile][i % kTile] = position;
            source.load_position(memory.source, i / kTile, i % kTile, position);
        }
        if (static_cast<int>(threadIdx.x) < count)
            memory.stacks[threadIdx.x] = a.order[a.of_order.stack_of_tile() + (first + threadIdx.x) % tiles];
    };

    // A lane (g, t) has four neighbouring columns of four positions: of a warp's 32 columns those from 4 g on, of 16
    // positions 2 t, 2 t + 1, 2 t + 8 and 2 t + 9. In the gradient of the weight, column 4 n + j is column n of product
    // j, and the lane has it as part of a right operand. In grad_x, which is computed as [columns, positions], columns
    // 4 n + 2 m and 4 n + 2 m + 1 are rows n and n + 8 of product m.
    //
    // Starts to copy a warp's inputs of 16 positions. Steps from kSteps on are those of the next unit, which begins at
    // `next_column`. This lane copies what lane (to_g, to_t) will read.
    int stage = 0;  // the one that is filled next
    const auto copy_inputs = [&](int place, int step, int column, int next_column) {
        if (step >= kSteps) step -= kSteps, ++place, column = next_column;
        const int to_g = lane % 8, to_t = lane / 8;
        const bool is_inside = column + 4 * to_g < a.inputs;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = step * 16 + i / 2 * 8 + 2 * to_t + i % 2, position = memory.positions[place][at];
            const Number* const from = source.numbers(memory.source, place, at, position, column + 4 * to_g);
            const bool wanted = is_inside && position >= 0;
            for (int r = 0; r < R; ++r) {
                const uint32_t to = ptx::shared_address(&memory.inputs[warp][stage][r][i][input_place(to_g, to_t)]);
                if constexpr (sizeof(Number) == 4)
                    ptx::copy_async_16(to, from + r * source.row_stride(), wanted);
                else
                    ptx::copy_async_8(to, from + r * source.row_stride(), wanted);
            }
        }
        ptx::copy_async_commit();
        stage = stage + 1 == kStages ? 0 : stage + 1;
    };

    uint32_t weights[2][KO][W][4];
    float sums[KO][4][4];
    const auto begin_segment = [&](int stack, int column) {
#pragma unroll
        for (int k = 0; k < KO; ++k) {
            Pack<float, 4> w[4];  // of outputs 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of this group of 16
            for (int i = 0; i < 4; ++i) {
                const int output = k * 16 + i / 2 * 8 + 2 * t + i % 2;
                w[i] = {};
                if (source.wants_gradient() && output < a.outputs && column + 4 * g < a.inputs)
                    w[i] = load<4>(a.weight + (static_cast<int64_t>(stack) * a.outputs + output) * a.inputs + column +
                                   4 * g);
            }
            for (int j = 0; j < 4; ++j) {
                for (int i = 0; i < 4; ++i) sums[k][j][i] = 0.0f;
                uint32_t low[W], high[W];
                split(w[0].at[j], w[1].at[j], low);
                split(w[2].at[j], w[3].at[j], high);
                for (int p = 0; p < W; ++p)
                    weights[j / 2][k][p][j % 2] = low[p], weights[j / 2][k][p][2 + j % 2] = high[p];
            }
        }
    };
    const auto end_segment = [&](int slab, int stack) {
        float* const to = a.segments + segment_of(blockIdx.x, slab, stack, stacks) * KO * 16 * kSlab;
        for (int k = 0; k < KO; ++k) {
            for (int i = 0; i < 4; ++i) {
                const int output = k * 16 + i / 2 * 8 + g, column = warp * 32 + (2 * t + i % 2) * 4;
                *reinterpret_cast<float4*>(to + output * kSlab + column) = {sums[k][0][i], sums[k][1][i], sums[k][2][i],
                                                                            sums[k][3][i]};
            }
        }
    };

    const int first_slab = static_cast<int>(begin / tiles);
    int tile = static_cast<int>(begin - static_cast<int64_t>(first_slab) * tiles);
    int column = first_slab * kSlab + warp * 32;  // the warp's first one
    load_units(tile, divide_up(steps_left, kSteps));
    __syncthreads();
    load_sums(0);
    store_operands(0);
    begin_segment(memory.stacks[0], column);
    for (int i = first; i + 1 < first + kStages; ++i)
        copy_inputs(0, i, column, tile + 1 == tiles ? column + kSlab : column);
    __syncthreads();
    for (int unit = 0; steps_left > 0; ++unit, steps_left -= kSteps, first = 0) {
        const int place = unit % kUnitsAhead, buffer = unit % Memory::kBuffers;
        const bool more = steps_left > kSteps;
        const int last = min(steps_left, kSteps);
        const int next_tile = tile + 1 == tiles ? 0 : tile + 1, next_column = next_tile == 0 ? column + kSlab : column;
        if (more && kSumsAhead) load_sums(place + 1);
        if (column < a.inputs) {
#pragma unroll 1
            for (int step = first; step < last; ++step) {
                // The oldest copies are in the stage after the one that is filled next. After the barrier every lane
                // sees all of them, and no lane still reads the stage that is filled next.
                ptx::copy_async_wait<kStages - 2>();
                __syncwarp();
                const int oldest = stage + 1 == kStages ? 0 : stage + 1, next_step = step + kStages - 1;
                if (next_step < steps_left)
                    copy_inputs(place, next_step, column, next_column);
                else
                    ptx::copy_async_commit(), stage = oldest;  // an empty group keeps the count for copy_async_wait
                typename Source::Four x[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    Pack<Number, 4> rows[R];
                    for (int r = 0; r < R; ++r)
                        rows[r] = load<4>(memory.inputs[warp][oldest][r][i][input_place(g, t)].at);
                    x[i] = source.four(rows);
                }
                const auto operand = [&](int product, int k, int p) {
                    return memory.operands[buffer].at[product][step][k][p][lane];
                };
                uint32_t left[KO][W][4];
#pragma unroll
                for (int k = 0; k < KO; ++k) {
                    for (int p = 0; p < W; ++p) {
                        const uint4 v = operand(1, k, p);
                        left[k][p][0] = v.x, left[k][p][1] = v.y, left[k][p][2] = v.z, left[k][p][3] = v.w;
                    }
                }
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    uint32_t right[P][2];
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        uint32_t parts[P];
                        source.split_two(x[2 * h], x[2 * h + 1], j, parts);
                        for (int p = 0; p < P; ++p) right[p][h] = parts[p];
                    }
#pragma unroll
                    for (int k = 0; k < KO; ++k) {
                        float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                        multiply(d, left[k], right);
                        for (int i = 0; i < 4; ++i) sums[k][j][i] += d[i];
                    }
                }
                if (!source.wants_gradient()) continue;
                float d[2][2][4] = {};  // [product][eight positions]
#pragma unroll
                for (int k = 0; k < KO; ++k) {
                    uint32_t right[2][W][2];
                    for (int p = 0; p < W; ++p) {
                        const uint4 v = operand(0, k, p);
                        right[0][p][0] = v.x, right[0][p][1] = v.z, right[1][p][0] = v.y, right[1][p][1] = v.w;
                    }
#pragma unroll
                    for (int m = 0; m < 2; ++m) {
#pragma unroll
                        for (int n = 0; n < 2; ++n) {
                            if constexpr (KO == 1) {
                                multiply(d[m][n], weights[m][k], right[n]);
                            } else {
                                float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                                multiply(part, weights[m][k], right[n]);
                                for (int i = 0; i < 4; ++i) d[m][n][i] += part[i];
                            }
                        }
                    }
                }
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int n = i / 2, at = step * 16 + n * 8 + 2 * t + i % 2;
                    const float gradient[4] = {d[0][n][i % 2], d[0][n][2 + i % 2], d[1][n][i % 2], d[1][n][2 + i % 2]};
                    source.take(memory.source, of_source, place, at, memory.positions[place][at], column, g,
                                memory.inputs[warp][oldest], i, input_place(g, t), gradient);
                }
            }
        } else if (more) {  // the warp's columns are past the last input
            ptx::copy_async_wait<0>();
            for (int step = 0; step + 1 < kStages; ++step) copy_inputs(place + 1, step, next_column, next_column);
        }
        const int stack = memory.stacks[place], next_stack = more ? memory.stacks[place + 1] : -1;
        if (next_stack != stack || next_column != column) {
            end_segment(column / kSlab, stack);
            if (more) begin_segment(next_stack, next_column);
        }
        if (!more || next_column != column) source.end_slab(of_source, column / kSlab);
        if (more && !kSumsAhead) load_sums(place + 1);
        if (Memory::kBuffers == 1) __syncthreads();  // all warps have read the operands
        if (more) store_operands(Memory::kBuffers - 1 - buffer);
        __syncthreads();
        if (more && place + 1 == kUnitsAhead) {
            load_units(next_tile, divide_up(steps_left, kSteps) - 1);
            __syncthreads();
        }
        tile = next_tile, column = next_column;
    }
    ptx::copy_async_wait<0>();
}

}  // namespace nnue::cuda::stacks
