// The optimizer step on CUDA: two kernels that stream through memory.
//
// `begin` adds up the squares of the gradients that the guard checks. Its last thread block to finish decides whether
// the step is made, and with which numbers. `update` reads every byte of gradients, weights and moments once and writes
// weights and moments once. A thread block takes 32 lanes' columns of up to kWarps * kRows rows of a part, and starts
// all of its loads before it waits for the first one. If the rows share virtual rows, the threads add up the gradients
// of the rows in shared memory, the first threads update the virtual elements, and all threads add the change to their
// own elements. A part without virtual rows is treated in the same way, as rows that follow each other in memory, but
// without the sum.
#pragma once

#include "../../optimizer.h"
#include "../common.cuh"
#include "../hopper.cuh"

namespace nnue::cuda::optimizer_step {

using namespace nnue::optimizer;

// The most parts per launch: all arguments of a kernel together have at most 4 KB.
constexpr int kMostParts = 20;

struct PlacedPart {
    Part part;
    unsigned first_block;
};

struct UpdateArguments {
    PlacedPart parts[kMostParts];
    int count;
    Factors factors;
    const double* numbers;
    float* failed;
};

constexpr int kBeginThreads = 256;
// How many times 16 bytes a thread of `begin` reads, in a part without virtual rows.
constexpr int kBeginTurns = 4;

struct PlacedSummand {
    Summand summand;
    bool wide;
    unsigned first_block;
};

struct BeginArguments {
    PlacedSummand summands[kMostParts];
    int count;
    double* partial;    // [thread blocks of this launch]
    const double* all;  // [thread blocks of all launches]
    unsigned blocks;    // thread blocks of all launches
    bool last;          // whether this is the last launch
    const void *loss, *lr;
    bool loss_is_double, lr_is_double;
    int64_t* step;
    float* failed;
    double* numbers;
    Hyperparameters hyperparameters;
    double max_norm;
};

// The item that a thread block works for.
template <class Placed>
__device__ inline int item_of(const Placed* items, int count, unsigned block) {
    int i = 0;
    while (i + 1 < count && block >= items[i + 1].first_block) ++i;
    return i;
}

template <class T>
__device__ inline double sum_of_squares(const T* from, int64_t columns, int64_t rows, bool shares, int64_t block,
                                        bool wide) {
    using S = sum_t<T>;
    double total = 0;
    const auto add = [&](auto width) {
        constexpr int V = decltype(width)::value;
        constexpr int64_t kTurn = int64_t(kBeginThreads) * V;
        if (!shares) {
#pragma unroll
            for (int turn = 0; turn < kBeginTurns; ++turn) {
                const int64_t column = (block * kBeginTurns + turn) * kTurn + int64_t(threadIdx.x) * V;
                if (column >= columns) break;
                S x[V];
                load_sums<V>(from + column, x);
#pragma unroll
                for (int i = 0; i < V; ++i) total += double(x[i]) * double(x[i]);
            }
            return;
        }
        const int64_t column = block * kTurn + int64_t(threadIdx.x) * V;
        if (column >= columns) return;
        S sums[V] = {};
#pragma unroll 4
        for (int64_t row = 0; row < rows; ++row) {
            S x[V];
            load_sums<V>(from + row * columns + column, x);
#pragma unroll
            for (int i = 0; i < V; ++i) {
                total += double(x[i]) * double(x[i]);
                sums[i] += x[i];
            }
        }
#pragma unroll
        for (int i = 0; i < V; ++i) total += double(sums[i]) * double(sums[i]);
    };
    if (wide) {
        add(std::integral_constant<int, kWide<T>>());
    } else {
        add(std::integral_constant<int, 1>());
    }
    return total;
}

// The sum over all threads, in thread 0.
__device__ inline double sum_of_block(double x) {
    __shared__ double sums[kBeginThreads / kWarp];
    for (int by = kWarp / 2; by > 0; by /= 2) x += __shfl_xor_sync(kAllLanes, x, by);
    if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = x;
    __syncthreads();
    double total = 0;
    if (threadIdx.x == 0) {
        for (int warp = 0; warp < kBeginThreads / kWarp; ++warp) total += sums[warp];
    }
    __syncthreads();
    return total;
}

__device__ inline double scalar(const void* from, bool is_double) {
    return is_double ? *static_cast<const double*>(from) : double(*static_cast<const float*>(from));
}

__global__ void __launch_bounds__(kBeginThreads) begin(const BeginArguments a) {
    hopper::let_next_kernel_start();
    double mine = 0;
    if (a.count > 0) {
        const PlacedSummand& placed = a.summands[item_of(a.summands, a.count, blockIdx.x)];
        const Summand& from = placed.summand;
        const int64_t block = blockIdx.x - placed.first_block;
        const auto add = [&](auto* type) {
            using T = std::remove_pointer_t<decltype(type)>;
            mine = sum_of_squares(static_cast<const T*>(from.gradient), from.columns, from.rows, from.shares, block,
                                  placed.wide);
        };
        if (from.kind == Kind::kFloat32) add(static_cast<float*>(nullptr));
        if (from.kind == Kind::kFloat64) add(static_cast<double*>(nullptr));
        if (from.kind == Kind::kFloat16) add(static_cast<__half*>(nullptr));
        if (from.kind == Kind::kBFloat16) add(static_cast<__nv_bfloat16*>(nullptr));
    }
    const double total = sum_of_block(mine);
    __shared__ bool is_last;
    if (threadIdx.x == 0) {
        a.partial[blockIdx.x] = total;
        __threadfence();
        // All thread blocks of earlier launches are done.
        auto* const ticket = reinterpret_cast<unsigned*>(a.numbers + kTicket);
        is_last = a.last && atomicAdd(ticket, 1u) == gridDim.x - 1;
        if (is_last) *ticket = 0;
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    double sum = 0;
    for (unsigned i = threadIdx.x; i < a.blocks; i += kBeginThreads) sum += __ldcg(a.all + i);
    sum = sum_of_block(sum);
    if (threadIdx.x != 0) return;
    if (*a.failed != 0 || !is_number(scalar(a.loss, a.loss_is_double)) || !is_number(sum)) {
        *a.failed = 1;
        a.numbers[kGo] = 0;
        return;
    }
    make_numbers(a.hyperparameters, *a.step += 1, scalar(a.lr, a.lr_is_double), sqrt(sum), a.max_norm, a.numbers);
}

template <class T, int V>
__device__ inline Pack<T, V> load_pack(const void* from, int64_t at) {
    return load<V>(static_cast<const T*>(from) + at);
}
template <class T, int V>
__device__ inline void store_pack(void* to, int64_t at, const Pack<T, V>& from) {
    *reinterpret_cast<Pack<T, V>*>(static_cast<T*>(to) + at) = from;
}

// V gradients as they are stored. With k16 they are fp16 or bf16, which is known at run time.
template <class T, bool k16, int V>
struct Gradients {
    using Bits = std::conditional_t<k16, uint16_t, T>;
    Pack<Bits, V> bits;

    __device__ void load_from(const Part& part, int64_t at) { bits = load_pack<Bits, V>(part.gradient, at); }
    __device__ T value(int i, Kind kind) const {
        if constexpr (k16) {
            if (kind == Kind::kFloat16) return __half2float(__ushort_as_half(bits.at[i]));
            return __uint_as_float(uint32_t(bits.at[i]) << 16);
        } else {
            return bits.at[i];
        }
    }
};

// V weights with their moments, in registers.
template <class R, class T, int V>
struct State {
    Pack<T, V> weight, average, square, other;

    __device__ void load_from(const Part& part, int turn, int64_t at) {
        weight = load_pack<T, V>(part.weight, at);
        average = load_pack<T, V>(part.averages[turn], at);
        if constexpr (R::kAverages == 2) other = load_pack<T, V>(part.averages[1 - turn], at);
        if constexpr (R::kSquares) square = load_pack<T, V>(part.square, at);
    }

    // Makes one step and stores the results. Returns whether all gradients were finite.
    template <bool k16>
    __device__ bool move(const Part& part, const Common<T>& c, int turn, int64_t at,
                         const Gradients<T, k16, V>& gradients, const T (&changes)[V]) {
        bool good = true;
#pragma unroll
        for (int i = 0; i < V; ++i) {
            const T before = R::kAverages == 2 ? other.at[i] : T(0);
            T none = 0, &s = R::kSquares ? square.at[i] : none;
            good &= optimizer::move<R>(c, gradients.value(i, part.gradient_kind), changes[i], weight.at[i],
                                       average.at[i], before, s);
        }
        store_pack(part.averages[turn], at, average);
        if constexpr (R::kSquares) store_pack(part.square, at, square);
        if (part.slow != nullptr && c.lookahead != 0) {
            Pack<T, V> slow = load_pack<T, V>(part.slow, at);
#pragma unroll
            for (int i = 0; i < V; ++i) weight.at[i] = slow.at[i] = look_ahead(c, slow.at[i], weight.at[i]);
            store_pack(part.slow, at, slow);
        }
        store_pack(part.weight, at, weight);
        if (part.copy != nullptr) store_copy(part, at, weight);
        return good;
    }

  private:
    __device__ static void store_copy(const Part& part, int64_t at, const Pack<T, V>& from) {
        float rounded[V];
        const T steps = static_cast<T>(part.steps);
#pragma unroll
        for (int i = 0; i < V; ++i)
            rounded[i] = static_cast<float>(steps == 0 ? from.at[i] : optimizer::nearest(from.at[i] * steps));
        if (part.copy_kind == Kind::kFloat16) {
            store_sums<V>(static_cast<__half*>(part.copy) + at, rounded);
        } else {
            store_sums<V>(static_cast<__nv_bfloat16*>(part.copy) + at, rounded);
        }
    }
};

// A thread block takes 32 * V columns of all rows that share them, or kWarps * kRows rows of as many columns that
// follow each other. Gradients of kRows rows per warp stay in registers; of their states kStates rows are loaded at a
// time.
template <class R, class T, bool k16, int V, int kWarps, int kRows, int kStates>
__global__ void __launch_bounds__(kWarps* kWarp) update(const UpdateArguments a) {
    hopper::let_next_kernel_start();
    constexpr int kColumns = kWarp * V, kRowsAtOnce = kWarps * kRows;
    static_assert(kWarps * kWarp >= kColumns && kRows % kStates == 0);
    __shared__ T sums[kWarps][kColumns];
    __shared__ T changes[kColumns];

    const PlacedPart& placed = a.parts[item_of(a.parts, a.count, blockIdx.x)];
    const Part& part = placed.part;
    const int64_t block = blockIdx.x - placed.first_block;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const bool shares = part.shares;
    const int64_t begin = (shares ? block : block * kRowsAtOnce) * kColumns, stride = shares ? part.columns : kColumns;
    const int64_t column = begin + lane * V;
    const auto exists = [&](int64_t row) {
        return shares ? row < part.rows && column < part.columns : column + row * stride < part.columns;
    };
    // The place of a row in its tensors; for a row that does not exist, one that may be read.
    const auto place = [&](int64_t row) { return exists(row) ? column + row * stride : 0; };

    // First start all loads that do not depend on the numbers of `begin`.
    Gradients<T, k16, V> gradients[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) gradients[k].load_from(part, place(warp + k * kWarps));
    State<R, T, V> states[kStates];
    int turn = 0;
    if constexpr (R::kAverages == 2) {
        hopper::wait_for_kernels_before();
        turn = optimizer::turn_of(a.numbers);
    }
#pragma unroll
    for (int k = 0; k < kStates; ++k) states[k].load_from(part, turn, place(warp + k * kWarps));
    const int64_t my_column = begin + threadIdx.x;
    const bool makes = shares && threadIdx.x < kColumns && my_column < part.columns;
    T average = 0, other = 0, square = 0;
    if (makes) {
        average = static_cast<const T*>(part.shared_averages[turn])[my_column];
        if constexpr (R::kAverages == 2) other = static_cast<const T*>(part.shared_averages[1 - turn])[my_column];
        if constexpr (R::kSquares) square = static_cast<const T*>(part.shared_square)[my_column];
    }
    hopper::wait_for_kernels_before();
    if (a.numbers[kGo] == 0) return;
    const Common<T> c = common<T>(a.factors, a.numbers, part.rate, part.decay, part.low, part.high);
    bool good = true;

    T change[V] = {};
    if (shares) {
        T sum[V] = {};
#pragma unroll
        for (int k = 0; k < kRows; ++k) {
            if (!exists(warp + k * kWarps)) continue;
#pragma unroll
            for (int i = 0; i < V; ++i) sum[i] += gradients[k].value(i, part.gradient_kind);
        }
        for (int64_t row = kRowsAtOnce + warp; exists(row); row += kWarps) {
            Gradients<T, k16, V> more;
            more.load_from(part, column + row * stride);
#pragma unroll
            for (int i = 0; i < V; ++i) sum[i] += more.value(i, part.gradient_kind);
        }
        store_sums<V>(&sums[warp][lane * V], sum);
        __syncthreads();
        if (makes) {
            T total = 0;
#pragma unroll
            for (int w = 0; w < kWarps; ++w) total += sums[w][threadIdx.x];
            bool finite = true;
            changes[threadIdx.x] = move_shared<R>(c, total, average, other, square, finite);
            good &= finite;
            static_cast<T*>(part.shared_averages[turn])[my_column] = average;
            if constexpr (R::kSquares) static_cast<T*>(part.shared_square)[my_column] = square;
        }
        __syncthreads();
        load_sums<V>(&changes[lane * V], change);
    }
#pragma unroll
    for (int k = 0; k < kRows; k += kStates) {
#pragma unroll
        for (int j = 0; j < kStates; ++j) {
            if (k > 0) states[j].load_from(part, turn, place(warp + (k + j) * kWarps));
        }
#pragma unroll
        for (int j = 0; j < kStates; ++j) {
            const int64_t row = warp + (k + j) * kWarps;
            if (exists(row)) good &= states[j].move(part, c, turn, column + row * stride, gradients[k + j], change);
        }
    }
    if (shares) {
        for (int64_t row = kRowsAtOnce + warp; exists(row); row += kWarps) {
            const int64_t at = column + row * stride;
            gradients[0].load_from(part, at);
            states[0].load_from(part, turn, at);
            good &= states[0].move(part, c, turn, at, gradients[0], change);
        }
    }
    if (!good) *a.failed = 1;
}

}  // namespace nnue::cuda::optimizer_step
