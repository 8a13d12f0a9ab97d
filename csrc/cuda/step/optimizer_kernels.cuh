// The optimizer step on CUDA: kernels that stream through memory.
//
// `begin` adds up the squares of the gradients that the guard checks. Its last thread block to finish decides whether
// the step is made, and with which numbers; the first one has prepared those that do not depend on gradients. `update`
// reads every byte of gradients, weights and moments once and writes weights and moments once. A thread block takes 32
// lanes' columns of up to kWarps * kRows rows of a part, and starts all of its loads before it waits for the first one.
// If the rows share virtual rows, the threads add up the gradients of the rows in shared memory, the first threads
// update the virtual elements, and all threads add the change to their own elements. A part without virtual rows is
// treated in the same way, as rows that follow each other in memory, but without the sum.
#pragma once

#include "../../optimizer.h"
#include "../common.cuh"
#include "../ptx.cuh"

namespace nnue::cuda::optimizer_step {

using namespace nnue::optimizer;

// The most parts per launch: all arguments of a kernel together have at most 4 KB.
constexpr int kMostParts = 20;

struct UpdateArguments {
    Placed<Part> parts[kMostParts];
    int count;
    Factors factors;
    const double* numbers;
    float* failed;
};

constexpr int kBeginThreads = 256;
// Loads of V elements that a thread has in flight, for summands that are not by rows.
constexpr int kBeginTurns = 4;

struct PlacedSummand {
    Summand summand;
    bool wide;
    unsigned first_block;
};

// For a summand by rows. A row has pieces of `width` columns per lane. A warp takes one piece of a group of rows: of
// all rows that share a virtual row or, without virtual rows, of a few neighbouring rows.
constexpr int kNeighbours = 16;
__host__ __device__ inline int64_t pieces_of(const Summand& summand, int64_t width) {
    return divide_up(summand.row, kWarp * width);
}
__host__ __device__ inline int64_t groups_of(const Summand& summand) {
    return summand.shares ? summand.columns / summand.row
                          : divide_up(summand.columns / summand.row, int64_t(kNeighbours));
}

struct BeginArguments {
    PlacedSummand summands[kMostParts];
    int count;
    double* partial;    // [thread blocks of this launch]
    const double* all;  // [thread blocks of all launches]
    unsigned blocks;    // thread blocks of all launches
    bool last;          // whether this is the last launch; its first thread block prepares numbers and adds nothing
    double* next;       // [kNumbers]
    const void *loss, *lr;
    bool loss_is_double, lr_is_double;
    int64_t* step;
    float* failed;
    double* numbers;
    Hyperparameters hyperparameters;
    double max_norm;
};

// a / b without a division of 64 bits, where that is possible.
__device__ inline int64_t quotient(int64_t a, int64_t b) {
    return (a | b) >> 32 == 0 ? int64_t(unsigned(a) / unsigned(b)) : a / b;
}

// A thread's share of the sum of squares. It reads all elements: rows that are not marked are zeros.
template <int V, class T>
__device__ inline double sum_over_elements(const Summand& from, int64_t block) {
    double total = 0;
    sum_t<T> x[kBeginTurns][V] = {};
#pragma unroll
    for (int turn = 0; turn < kBeginTurns; ++turn) {
        const int64_t column = ((block * kBeginTurns + turn) * kBeginThreads + threadIdx.x) * V;
        if (column < from.columns) load_sums<V>(static_cast<const T*>(from.gradient) + column, x[turn]);
    }
#pragma unroll
    for (int turn = 0; turn < kBeginTurns; ++turn) {
#pragma unroll
        for (int i = 0; i < V; ++i) total += double(x[turn][i]) * double(x[turn][i]);
    }
    return total;
}

// The same by rows, so that a warp reads the marks of up to 32 rows at once and then the marked ones alone.
template <int V, class T>
__device__ inline double sum_over_rows(const Summand& from, int64_t block) {
    constexpr int kAtOnce = V == 8 ? 4 : 8;  // rows; more rows of 8 columns would not fit into registers
    const int lane = threadIdx.x % kWarp;
    const int64_t warp = block * (kBeginThreads / kWarp) + threadIdx.x / kWarp, pieces = pieces_of(from, V);
    const int64_t group = quotient(warp, pieces), column = ((warp - group * pieces) * kWarp + lane) * V;
    if (group >= groups_of(from)) return 0;
    const int64_t all_rows = quotient(from.columns, from.row), stride = from.shares ? all_rows : 1;
    const int64_t first = from.shares ? group : group * kNeighbours;
    const int64_t rows = from.shares ? from.rows : min(int64_t(kNeighbours), all_rows - first);
    double total = 0;
    sum_t<T> sums[V] = {};
    for (int64_t begin = 0; begin < rows; begin += kWarp) {
        const int64_t mine = first + (begin + lane) * stride;
        unsigned left =
            __ballot_sync(kAllLanes, begin + lane < rows && (from.marked == nullptr || from.marked[mine] != 0));
        while (left != 0) {
            sum_t<T> x[kAtOnce][V] = {};
#pragma unroll
            for (int turn = 0; turn < kAtOnce; ++turn) {
                const int64_t row = first + (begin + __ffs(left) - 1) * stride;
                if (left != 0 && column < from.row)
                    load_sums<V>(static_cast<const T*>(from.gradient) + row * from.row + column, x[turn]);
                left &= left - 1;
            }
#pragma unroll
            for (int turn = 0; turn < kAtOnce; ++turn) {
#pragma unroll
                for (int i = 0; i < V; ++i) {
                    total += double(x[turn][i]) * double(x[turn][i]);
                    sums[i] += x[turn][i];
                }
            }
        }
    }
    if (from.shares) {
#pragma unroll
        for (int i = 0; i < V; ++i) total += double(sums[i]) * double(sums[i]);
    }
    return total;
}

template <class T>
__device__ inline double sum_of_squares(const PlacedSummand& placed, int64_t block) {
    const auto add = [&](auto width) {
        constexpr int V = decltype(width)::value;
        return placed.summand.by_rows ? sum_over_rows<V, T>(placed.summand, block)
                                      : sum_over_elements<V, T>(placed.summand, block);
    };
    return placed.wide ? add(std::integral_constant<int, kWide<T>>()) : add(std::integral_constant<int, 1>());
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
    ptx::let_next_kernel_start();
    double mine = 0;
    if (a.last && blockIdx.x == 0) {
        // One thread takes microseconds for powers in double precision, while the other thread blocks read gradients.
        if (threadIdx.x == 0) {
            prepare_numbers(a.hyperparameters, *a.step + 1, scalar(a.lr, a.lr_is_double), a.numbers, a.next);
        }
    } else {
        const PlacedSummand& placed = item_of_block(a.summands, a.count);
        const Summand& from = placed.summand;
        const int64_t block = blockIdx.x - placed.first_block;
        const auto add = [&](auto* type) {
            using T = std::remove_pointer_t<decltype(type)>;
            mine = sum_of_squares<T>(placed, block);
        };
        if (from.type == Float::kFloat32) add(static_cast<float*>(nullptr));
        if (from.type == Float::kFloat64) add(static_cast<double*>(nullptr));
        if (from.type == Float::kFloat16) add(static_cast<__half*>(nullptr));
        if (from.type == Float::kBFloat16) add(static_cast<__nv_bfloat16*>(nullptr));
    }
    const double total = sum_of_block(mine);
    __shared__ bool is_last;
    if (threadIdx.x == 0) {
        a.partial[blockIdx.x] = total;
        __threadfence();
        // All thread blocks of earlier launches are done.
        auto* const ticket = reinterpret_cast<unsigned*>(a.numbers + kTicket);
        is_last = a.last && atomicAdd(ticket, 1u) == gridDim.x - 1;
        if (is_last) {
            __threadfence();  // behind the tickets of all other thread blocks
            *ticket = 0;
        }
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
    *a.step += 1;
    for (int i = 0; i < kTicket; ++i) a.numbers[i] = a.next[i];
    complete_numbers(a.hyperparameters, sqrt(sum), a.max_norm, a.numbers);
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
    __device__ T value(int i, Float type) const {
        if constexpr (k16) {
            if (type == Float::kFloat16) return __half2float(__ushort_as_half(bits.at[i]));
            return __uint_as_float(uint32_t(bits.at[i]) << 16);
        } else {
            return bits.at[i];
        }
    }
};

// V weights with their moments, in registers.
template <class R, class T, int V>
struct State {
    using Average = average_t<R, T>;
    Pack<T, V> weight, square;
    Pack<Average, V> average, other;

    __device__ void load_from(const Part& part, int turn, int64_t at) {
        weight = load_pack<T, V>(part.weight, at);
        average = load_pack<Average, V>(part.averages[turn], at);
        if constexpr (R::kAverages == 2) other = load_pack<Average, V>(part.averages[1 - turn], at);
        if constexpr (R::kSquares) square = load_pack<T, V>(part.square, at);
    }

    // One step of an element, without its slow weight. Returns whether its gradient was finite.
    __device__ bool move_element(const Common<T>& c, int i, T gradient, T shared) {
        const T before = R::kAverages == 2 ? other.at[i] : T(0);
        T none = 0, &own_square = R::kSquares ? square.at[i] : none, own = average_of(average.at[i]);
        const bool good = optimizer::move<R>(c, gradient, shared, weight.at[i], own, before, own_square);
        keep_average(own, average.at[i]);
        return good;
    }

    // Makes one step and stores the results. Returns whether all gradients were finite.
    template <bool k16>
    __device__ bool move(const Part& part, const Common<T>& c, int turn, int64_t at,
                         const Gradients<T, k16, V>& gradients, const T (&changes)[V]) {
        bool good = true;
        for (int i = 0; i < V; ++i) good &= move_element(c, i, gradients.value(i, part.gradient_type), changes[i]);
        if (part.slow != nullptr && c.lookahead != 0) {
            Pack<T, V> slow = load_pack<T, V>(part.slow, at);
            for (int i = 0; i < V; ++i) weight.at[i] = slow.at[i] = look_ahead(c, slow.at[i], weight.at[i]);
            store_pack(part.slow, at, slow);
        }
        store(part, turn, at);
        return good;
    }

    // All but the other average and the slow weights.
    __device__ void store(const Part& part, int turn, int64_t at) const {
        store_pack(part.averages[turn], at, average);
        if constexpr (R::kSquares) store_pack(part.square, at, square);
        store_pack(part.weight, at, weight);
        if (part.copy != nullptr) store_copy(part, at, weight);
    }

  private:
    __device__ static void store_copy(const Part& part, int64_t at, const Pack<T, V>& from) {
        float rounded[V];
        const T steps = static_cast<T>(part.steps);
        for (int i = 0; i < V; ++i)
            rounded[i] = static_cast<float>(steps == 0 ? from.at[i] : optimizer::nearest(from.at[i] * steps));
        if (part.copy_type == Float::kFloat16) {
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
    ptx::let_next_kernel_start();
    constexpr int kColumns = kWarp * V, kRowsAtOnce = kWarps * kRows;
    static_assert(kWarps * kWarp >= kColumns && kRows % kStates == 0);
    __align__(16) __shared__ T sums[kWarps][kColumns];
    __align__(16) __shared__ T changes[kColumns];

    const Placed<Part>& placed = item_of_block(a.parts, a.count);
    const Part& part = placed.of;
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
        ptx::wait_for_kernels_before();
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
    ptx::wait_for_kernels_before();
    if (a.numbers[kGo] == 0) return;
    const Common<T> c = common<T>(a.factors, a.numbers, part.rate, part.decay, part.low, part.high);
    bool good = true;

    T change[V] = {};
    if (shares) {
        T sum[V] = {};
#pragma unroll
        for (int k = 0; k < kRows; ++k) {
            if (!exists(warp + k * kWarps)) continue;
            for (int i = 0; i < V; ++i) sum[i] += gradients[k].value(i, part.gradient_type);
        }
        for (int64_t row = kRowsAtOnce + warp; exists(row); row += kWarps) {
            Gradients<T, k16, V> more;
            more.load_from(part, column + row * stride);
            for (int i = 0; i < V; ++i) sum[i] += more.value(i, part.gradient_type);
        }
        store_sums<V>(&sums[warp][lane * V], sum);
        __syncthreads();
        if (makes) {
            T total = 0;
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

// ---- rows updated late ----------------------------------------------------------------------------------------------

constexpr int kLateThreads = 256, kLateWarps = kLateThreads / kWarp;
// Rows that a thread block of `update_rows` looks after. The marked ones are divided among its warps, so that warps
// have equal work where few of the rows are in a batch.
constexpr int kLateRows = 16;
static_assert(kLateRows <= kWarp, "one warp lists them");

struct LateArguments : Late {
    const int64_t* step;
    const double* numbers;
    float* failed;
    Factors factors;
};

// A row that has steps to make.
struct LateRow {
    int row, missed;
};

// How many pieces of a row a warp takes, V columns for each lane.
template <int V>
__device__ inline int late_pieces(int64_t columns) {
    return static_cast<int>(divide_up(columns, int64_t(kWarp) * V));
}

// The values that all elements of a part share in a step. `fixed`, shared by all steps, is an argument of the kernel,
// which instructions read directly. If it were converted from double here, the compiler would repeat the conversions
// for each element to save registers, and they would take as long as the roots.
template <class T>
__device__ inline Common<T> in_step(const Common<T>& fixed, const double* numbers, const Part& part) {
    Common<T> c = fixed;
    set_numbers(c, numbers, part.rate, part.decay);
    return c;
}

// Keeps the numbers of a step.
__device__ inline void keep_numbers(const LateArguments& a, unsigned block, int64_t step) {
    if (block == 0 && threadIdx.x <= kLastKept) {  // what comes after is LateCounts in the first row
        a.history[(step - 1) % a.window * kNumbers + threadIdx.x] = a.numbers[threadIdx.x];
    }
}

// The step that `begin` has counted, for the marked rows.
template <class R, class T, bool k16, int V>
__device__ __forceinline__ void update_rows(const LateArguments& a, const Common<T>& fixed, unsigned block) {
    constexpr int kAtOnce = 2;
    __shared__ int64_t rows[kLateRows];
    __shared__ int count;
    const int64_t step = *a.step;
    if (a.numbers[kGo] == 0 || step < 1) return;
    keep_numbers(a, block, step);
    if (threadIdx.x < kWarp) {
        const int64_t row = int64_t(block) * kLateRows + threadIdx.x;
        const bool moves = threadIdx.x < kLateRows && row < a.rows && (a.marked == nullptr || a.marked[row] != 0) &&
                           a.made[row] == step - 1;
        const unsigned all = __ballot_sync(kAllLanes, moves);
        if (moves) {
            rows[__popc(all & ((1u << threadIdx.x) - 1))] = row;
            a.made[row] = step;
        }
        if (threadIdx.x == 0) count = __popc(all);
    }
    __syncthreads();
    const Common<T> c = in_step(fixed, a.numbers, a.part);
    const int turn = R::kAverages == 2 ? optimizer::turn_of(a.numbers) : 0;
    const int lane = threadIdx.x % kWarp, pieces = late_pieces<V>(a.columns);
    const T nothing[V] = {};
    bool good = true;
    for (int first = threadIdx.x / kWarp; first < count * pieces; first += kAtOnce * kLateWarps) {
        Gradients<T, k16, V> gradients[kAtOnce];
        State<R, T, V> states[kAtOnce];
        int64_t at[kAtOnce];  // -1: there is nothing
        for (int j = 0; j < kAtOnce; ++j) {
            const int item = first + j * kLateWarps;
            const int64_t column = (item % pieces * int64_t(kWarp) + lane) * V;
            const bool exists = item < count * pieces && column < a.columns;
            at[j] = exists ? rows[item / pieces] * a.columns + column : -1;
            gradients[j].load_from(a.part, exists ? at[j] : 0);
            states[j].load_from(a.part, turn, exists ? at[j] : 0);
        }
        for (int j = 0; j < kAtOnce; ++j) {
            if (at[j] >= 0) good &= states[j].move(a.part, c, turn, at[j], gradients[j], nothing);
        }
    }
    if (!good) *a.failed = 1;
}

// The same for rows that share virtual rows, and for these. A thread block takes 32 * V columns of all rows of one
// virtual row, lists the marked ones and divides them among its warps. Gradients are added up in the order of `update`,
// where a row that is not marked adds zeros.
// long: list, sums and update of a virtual row share their places in registers.
template <class R, class T, bool k16, int V>
__device__ __forceinline__ void update_sharing_rows(const LateArguments& a, const Common<T>& fixed, unsigned block) {
    constexpr int kColumns = kWarp * V, kAtOnce = 2, kSumsAtOnce = 4;
    static_assert(kLateThreads >= kColumns);
    __align__(16) __shared__ T sums[kLateWarps][kColumns];
    __align__(16) __shared__ T changes[kColumns];
    __shared__ int64_t listed[kLateThreads];  // the first element of each row
    __shared__ int counts[kLateWarps];
    const int64_t step = *a.step;
    if (a.numbers[kGo] == 0 || step < 1) return;
    keep_numbers(a, block, step);
    const Part& part = a.part;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const unsigned pieces = late_pieces<V>(a.columns);
    const int64_t group = block / pieces, begin = int64_t(block % pieces) * kColumns;
    const int64_t column = begin + lane * V;
    const bool exists = column < a.columns;
    const int turn = R::kAverages == 2 ? optimizer::turn_of(a.numbers) : 0;
    const int64_t my_column = group * a.columns + begin + threadIdx.x;
    const bool makes = threadIdx.x < kColumns && begin + threadIdx.x < a.columns;
    T average = 0, other = 0, square = 0;
    if (makes) {
        average = static_cast<const T*>(part.shared_averages[turn])[my_column];
        if constexpr (R::kAverages == 2) other = static_cast<const T*>(part.shared_averages[1 - turn])[my_column];
        if constexpr (R::kSquares) square = static_cast<const T*>(part.shared_square)[my_column];
    }
    const auto row_of = [&](int64_t first, int of_lane) {
        return group + (first + of_lane * kLateWarps + warp) * a.virtual_rows;
    };
    // Lists the marked rows of kLateThreads rows, each warp those that it adds up. Returns which lanes have one.
    const auto list = [&](int64_t first) {
        const int64_t row = row_of(first, lane);
        bool moves = row < a.rows && (a.marked == nullptr || a.marked[row] != 0);
        if (moves) {
            // A thread block with other columns of the row may have counted the step.
            const int64_t missed = step - a.made[row];
            moves = missed == 0 || missed == 1;
            if (moves && begin == 0) a.made[row] = step;
        }
        const unsigned mine = __ballot_sync(kAllLanes, moves);
        if (lane == 0) counts[warp] = __popc(mine);
        __syncthreads();
        int place = __popc(mine & ((1u << lane) - 1));
        for (int w = 0; w < warp; ++w) place += counts[w];
        if (moves) listed[place] = row * a.columns;
        return mine;
    };

    Gradients<T, k16, V> gradients[kAtOnce];
    State<R, T, V> states[kAtOnce];
    int64_t at[kAtOnce];  // -1: there is nothing
    int count = 0;
    const auto load_items = [&](int item) {
        for (int j = 0; j < kAtOnce; ++j) {
            const int mine = item + j * kLateWarps;
            at[j] = exists && mine < count ? listed[mine] + column : -1;
            gradients[j].load_from(part, at[j] >= 0 ? at[j] : 0);
            states[j].load_from(part, turn, at[j] >= 0 ? at[j] : 0);
        }
    };
    const auto count_all = [&] {
        count = 0;
        for (int w = 0; w < kLateWarps; ++w) count += counts[w];
    };
    const bool all_listed = part.rows <= kLateThreads;
    T sum[V] = {};
    for (int64_t first = 0; first < part.rows; first += kLateThreads) {
        if (first > 0) __syncthreads();
        unsigned left = list(first);
        if (all_listed) {  // these are on their way while gradients are added up
            __syncthreads();
            count_all();
            load_items(warp);
        }
        while (left != 0) {
            Gradients<T, k16, V> summands[kSumsAtOnce];
            bool has[kSumsAtOnce];
            for (int j = 0; j < kSumsAtOnce; ++j) {
                has[j] = left != 0 && exists;
                const int64_t from = has[j] ? row_of(first, __ffs(left) - 1) * a.columns + column : 0;
                summands[j].load_from(part, from);
                left &= left - 1;
            }
            for (int j = 0; j < kSumsAtOnce; ++j) {
                if (!has[j]) continue;
                for (int i = 0; i < V; ++i) sum[i] += summands[j].value(i, part.gradient_type);
            }
        }
    }
    store_sums<V>(&sums[warp][lane * V], sum);
    __syncthreads();
    const Common<T> c = in_step(fixed, a.numbers, part);
    bool good = true;
    if (makes) {
        T total = 0;
        for (int w = 0; w < kLateWarps; ++w) total += sums[w][threadIdx.x];
        const T change = move_shared<R>(c, total, average, other, square, good);
        changes[threadIdx.x] = change;
        static_cast<T*>(a.changes)[(step - 1) % a.window * a.virtual_rows * a.columns + my_column] = change;
        static_cast<T*>(part.shared_averages[turn])[my_column] = average;
        if constexpr (R::kSquares) static_cast<T*>(part.shared_square)[my_column] = square;
    }
    __syncthreads();
    T change[V];
    load_sums<V>(&changes[lane * V], change);
    for (int64_t first = 0; first < part.rows; first += kLateThreads) {
        if (!all_listed) {
            __syncthreads();
            list(first);
            __syncthreads();
            count_all();
            load_items(warp);
        }
        for (int item = warp; item < count; item += kAtOnce * kLateWarps) {
            if (item != warp) load_items(item);
            for (int j = 0; j < kAtOnce; ++j) {
                if (at[j] >= 0) good &= states[j].move(part, c, turn, at[j], gradients[j], change);
            }
        }
    }
    if (!good) *a.failed = 1;
}

constexpr int kLateBlocks = 3;  // per multiprocessor

// Both, for a part of each kind. Their thread blocks take turns in the grid, so that a multiprocessor has some of each:
// those of rows that share virtual rows wait for sums of gradients, and the others use the memory meanwhile.
template <class R, class T, bool k16, int V>
__global__ void __launch_bounds__(kLateThreads, sizeof(T) == 4 ? kLateBlocks : 1)
    update_late_rows(const LateArguments sharing, const Common<T> of_sharing, unsigned sharing_blocks,
                     const LateArguments own, const Common<T> of_own) {
    const uint64_t before = blockIdx.x * uint64_t(sharing_blocks) / gridDim.x;
    if ((blockIdx.x + 1) * uint64_t(sharing_blocks) / gridDim.x != before) {
        update_sharing_rows<R, T, k16, V>(sharing, of_sharing, static_cast<unsigned>(before));
    } else {
        update_rows<R, T, k16, V>(own, of_own, static_cast<unsigned>(blockIdx.x - before));
    }
}

constexpr int kListThreads = 512;

// How many rows are listed, how many tickets have been taken for their pieces, and how many thread blocks are done. All
// are 0 between calls. They are in the first row of the history, in two numbers that no step uses.
struct LateCounts {
    int rows, tickets, done, unused;
};
static_assert(kLastKept < kNumbers - 2 && sizeof(LateCounts) == 2 * sizeof(double));
__device__ inline LateCounts& counts_of(const LateArguments& a) {
    return *reinterpret_cast<LateCounts*>(a.history + kNumbers - 2);
}

// Lists the rows that have missed steps: the marked ones, and those that have missed as many as the window has. Counts
// their steps as made. The order of the list is another one each time; nothing depends on it. Rows that share a virtual
// row are close to each other, so that they find its changes in L2.
__global__ void __launch_bounds__(kListThreads) list_late(const LateArguments a, LateRow* list) {
    __shared__ int mine, begin;
    if (threadIdx.x == 0) mine = 0;
    __syncthreads();
    const int64_t step = *a.step, item = int64_t(blockIdx.x) * kListThreads + threadIdx.x;
    const int64_t group = quotient(item, a.part.rows), row = group + (item - group * a.part.rows) * a.virtual_rows;
    const int64_t missed = item < a.rows ? step - a.made[row] : 0;
    const bool listed = missed > 0 && missed <= min(a.window, step) &&
                        (a.marked == nullptr || a.marked[row] != 0 || missed == a.window);
    int place = 0;
    if (listed) {
        place = atomicAdd(&mine, 1);
        a.made[row] = step;
    }
    __syncthreads();
    if (threadIdx.x == 0 && mine > 0) begin = atomicAdd(&counts_of(a).rows, mine);
    __syncthreads();
    if (listed) list[begin + place] = {static_cast<int>(row), static_cast<int>(missed)};
}

// Whether no average is anything but +0: then the element does not move by them, without a root and a quotient. -0 is
// not among these: the next step makes it 0.
template <class T, int V>
__device__ inline bool all_zero(const Pack<T, V>& from) {
    using Word = std::conditional_t<sizeof from % sizeof(unsigned) == 0, unsigned, uint16_t>;
    const auto* const words = reinterpret_cast<const Word*>(from.at);
    unsigned bits = 0;
    for (int i = 0; i < int(sizeof from / sizeof(Word)); ++i) bits |= words[i];
    return bits == 0;
}

constexpr int kCatchUpBlocks = 3;  // per multiprocessor

// The numbers of a part that differ from step to step.
template <class T>
struct alignas(16) StepNumbers {
    T decay, scale, root, eps, lookahead, mix, pull;
    int turn;
};

// The steps that the listed rows have missed, whose gradients were zeros. The grid is as large as the device can hold.
// Some rows have missed one step and others as many as the window has, and kernels of other streams keep some thread
// blocks waiting. So a warp takes its next piece of a row by ticket. kShares: whether there are virtual rows.
// long: the next row is loaded while this one catches up, in the same registers.
template <class R, class T, int V, bool kShares>
__global__ void __launch_bounds__(kLateThreads, sizeof(T) == 4 ? kCatchUpBlocks : 1)
    catch_up(const LateArguments a, const Common<T> fixed, const LateRow* list, bool first, bool last) {
    __shared__ StepNumbers<T> steps[kMostWindow];     // of the window, the last one at its end
    __shared__ const T* shared_changes[kMostWindow];  // of these steps
    // All lists are made before the first of these kernels, and none of the others begins before that one has waited.
    if (first) ptx::wait_for_kernels_before();
    if (!last) ptx::let_next_kernel_start();
    LateCounts& counts = counts_of(a);
    const int64_t step = *a.step;
    const int window = static_cast<int>(min(a.window, step)), lane = threadIdx.x % kWarp;
    const int pieces = late_pieces<V>(a.columns), items = counts.rows * pieces;
    int item = blockIdx.x * kLateWarps + threadIdx.x / kWarp, ticket = 0;
    if (int(threadIdx.x) < window) {
        const double* const numbers = a.history + (step - window + threadIdx.x) % a.window * kNumbers;
        const Common<T> c = in_step(fixed, numbers, a.part);
        steps[threadIdx.x] = {c.decay,     c.scale, c.root, c.eps,
                              c.lookahead, c.mix,   c.pull, R::kAverages == 2 ? optimizer::turn_of(numbers) : 0};
        if constexpr (kShares) {
            const int64_t place = (step - window + threadIdx.x) % a.window;
            shared_changes[threadIdx.x] = static_cast<const T*>(a.changes) + place * a.virtual_rows * a.columns;
        }
    }
    Common<T> c = fixed;
    // So that the compiler drops all products with a gradient of zero.
    c.gradient = 1, c.most = std::numeric_limits<T>::infinity(), c.take1 = c.take2 = 0;
    __syncthreads();
    // Which of two averages is a step's takes turns: `average` is always that of the step to come.
    struct Item {
        int64_t at;
        int first, turn;  // its first step in the window, and whose turn that is
        bool exists;
        int shared_at;  // in the changes of a step
        State<R, T, V> state;
    };
    const auto load_item = [&](int number) {
        Item it;
        const int64_t column = (number % pieces * int64_t(kWarp) + lane) * V;
        it.exists = number < items && column < a.columns;
        const LateRow row = number < items ? list[number / pieces] : LateRow{0, 0};
        it.at = it.exists ? row.row * a.columns + column : 0;
        it.first = window - row.missed;
        it.turn = it.first < window ? steps[it.first].turn : 0;  // without any step there are no numbers either
        it.state.load_from(a.part, it.turn, it.at);
        if constexpr (kShares) {
            it.shared_at = it.exists ? row.row % int(a.virtual_rows) * int(a.columns) + int(column) : 0;
        }
        return it;
    };
    const auto take_ticket = [&] {
        if (lane == 0) ticket = atomicAdd(&counts.tickets, 1);
    };
    Item next = load_item(item);
    take_ticket();
    while (item < items) {
        Item now = next;
        item = gridDim.x * kLateWarps + __shfl_sync(kAllLanes, ticket, 0);
        next = load_item(item);
        take_ticket();
        if (!now.exists) continue;
        Pack<T, V> next_change{};  // of its virtual row
        if constexpr (kShares) next_change = load<V>(shared_changes[now.first] + now.shared_at);
        State<R, T, V>& state = now.state;
        Pack<T, V> slow{};
        bool looks_ahead = false, rests = R::kRests && all_zero(state.average);
        if constexpr (R::kAverages == 2) rests = rests && all_zero(state.other);
        if (a.part.slow != nullptr) {
            for (int t = now.first; t < window; ++t) looks_ahead |= steps[t].lookahead != 0;
        }
        if (looks_ahead) slow = load_pack<T, V>(a.part.slow, now.at);
        for (int t = now.first; t < window; ++t) {
            const StepNumbers<T> own = steps[t];
            c.decay = own.decay, c.scale = own.scale, c.root = own.root, c.eps = own.eps;
            c.lookahead = own.lookahead, c.mix = own.mix, c.pull = own.pull;
            const Pack<T, V> change = next_change;
            if constexpr (kShares) {
                if (t + 1 < window) next_change = load<V>(shared_changes[t + 1] + now.shared_at);
            }
            if constexpr (R::kAverages == 2) {
                if (own.turn != now.turn) {
                    const Pack<T, V> other = state.average;
                    state.average = state.other;
                    state.other = other;
                    now.turn = own.turn;
                }
            }
            if (rests && c.eps > 0) {
                for (int i = 0; i < V; ++i) {
                    T moved = multiply_add(-c.decay, state.weight.at[i], state.weight.at[i]);
                    if constexpr (kShares) moved -= change.at[i];
                    state.weight.at[i] = clipped(moved, c.low, c.high);
                    if constexpr (R::kSquares) state.square.at[i] = multiply_add(c.keep2, state.square.at[i], T(0));
                }
            } else {
                for (int i = 0; i < V; ++i) state.move_element(c, i, T(0), kShares ? change.at[i] : T(0));
            }
            if (looks_ahead && c.lookahead != 0) {
                for (int i = 0; i < V; ++i) {
                    state.weight.at[i] = slow.at[i] = look_ahead(c, slow.at[i], state.weight.at[i]);
                }
            }
        }
        if (looks_ahead) store_pack(a.part.slow, now.at, slow);
        if constexpr (R::kAverages == 2) store_pack(a.part.averages[1 - now.turn], now.at, state.other);
        state.store(a.part, now.turn, now.at);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();  // before this, the thread block has read the counts and taken its tickets
        if (atomicAdd(&counts.done, 1) == int(gridDim.x) - 1) {
            __threadfence();  // behind all of this in every other thread block
            counts = {};
        }
    }
    // Later kernels wait only for the last of these, so each waits for the one before it.
    if (!first) ptx::wait_for_kernels_before();
}

constexpr int kMarkThreads = 1024, kMarkRows = 4;
constexpr int kMarkBits = 12288 * 32;  // features that a thread block has bits for, in static shared memory

// Each warp takes kMarkRows index rows at a time, 32 entries of each. A thread block collects marks of one range of
// features in shared memory and adds them to the others' at its end.
__global__ void __launch_bounds__(kMarkThreads)
    mark_rows(const int32_t* white, const int32_t* black, int64_t white_rows, int64_t all_rows, int white_length,
              int black_length, uint8_t* marked, int64_t num_marked) {
    __shared__ uint32_t bits[kMarkBits / 32];
    const int64_t first_feature = int64_t(blockIdx.y) * kMarkBits;
    const int features = static_cast<int>(min(num_marked - first_feature, int64_t(kMarkBits)));
    const int words = (features + 31) / 32, lane = threadIdx.x % kWarp;
    for (int i = threadIdx.x; i < words; i += kMarkThreads) bits[i] = 0;
    __syncthreads();
    const int64_t warps = int64_t(gridDim.x) * (kMarkThreads / kWarp),
                  warp = (int64_t(blockIdx.x) * kMarkThreads + threadIdx.x) / kWarp;
    for (int64_t r = warp * kMarkRows; r < all_rows; r += warps * kMarkRows) {
        const int32_t* rows[kMarkRows];
        int left[kMarkRows];  // entries from here to the end of the row
        for (int i = 0; i < kMarkRows; ++i) {
            const bool is_white = r + i < white_rows;
            const int length = is_white ? white_length : black_length;
            rows[i] = is_white ? white + (r + i) * length : black + (r + i - white_rows) * length;
            left[i] = r + i < all_rows ? length : 0;
        }
        bool any = true;
        while (any) {
            int32_t found[kMarkRows];
            for (int i = 0; i < kMarkRows; ++i) found[i] = lane < left[i] ? rows[i][lane] : -1;
            any = false;
            for (int i = 0; i < kMarkRows; ++i) {
                const unsigned ends = __ballot_sync(kAllLanes, found[i] < 0);
                const int64_t feature = found[i] - first_feature;
                if ((ends & ((2u << lane) - 1)) == 0 && feature >= 0 && feature < features) {
                    const uint32_t bit = 1u << feature % 32;
                    if ((bits[feature / 32] & bit) == 0) atomicOr(&bits[feature / 32], bit);
                }
                rows[i] += kWarp;
                left[i] = ends == 0 ? left[i] - kWarp : 0;
                any |= left[i] > 0;
            }
        }
    }
    __syncthreads();
    // Thread blocks begin at different places, so that they do not write to the same ones at the same time.
    const int begin = static_cast<int>(int64_t(blockIdx.x) * words / gridDim.x);
    for (int i = threadIdx.x / kWarp; i < words; i += kMarkThreads / kWarp) {
        const int word = i + begin < words ? i + begin : i + begin - words;
        if ((bits[word] >> lane & 1) != 0) marked[first_feature + word * 32 + lane] = 1;
    }
}

}  // namespace nnue::cuda::optimizer_step
