// Sliding windows on CUDA; rolling.h says how a window is cut.
//
// Short windows: a thread block loads the elements of its tile of outputs and of the windows that reach beyond it, the
// halo, into shared memory. A window is the suffix of the chunk that it begins in, whole chunks, and a prefix; a thread
// has the windows that begin in its chunk, and the whole chunks are merged by doubling in shared memory.
//
// Long windows: the states of tiles come first, and are merged by doubling in device memory. Then a thread block finds
// the suffixes of its tile and the prefixes at the other end of its windows by two scans. So a row is read three times.
#pragma once

#include "../../rolling.h"
#include "scan.cuh"

namespace nnue::cuda::analysis {

// The longest window whose elements go into shared memory, with 512 threads' chunks.
constexpr int kShort = 4096;

using rolling::Finish;
using rolling::State;
using rolling::Windows;

template <class T>
struct Job {
    Windows windows;
    const T *x, *y;
    T* out;
    Finish finish;
    double* sums;     // [rows, summed tiles] states of tiles
    double* between;  // [rows, tiles] states of the whole tiles after each tile, or null
};

// Pairs need twice the room for elements, and twice the registers.
template <class M>
constexpr int kMostThreads = M::kPair ? kThreads / 2 : kThreads;

template <class M>
using StateOf = State<double, M::kNumbers>;

template <class M>
struct Merge {
    __device__ StateOf<M> operator()(const StateOf<M>& a, const StateOf<M>& b) const { return M::merge(a, b); }
};

template <class M, class T>
__device__ void append(StateOf<M>& state, const T* x, const T* y, int64_t i) {
    const double value = static_cast<double>(x[padded(i)]);
    M::append(state, value, M::kPair ? static_cast<double>(y[padded(i)]) : value);
}

// Bytes of shared memory: elements of x and y, and states.
template <class M, class T>
size_t shared_bytes(int64_t elements, int64_t states) {
    const int64_t bytes = (padded(elements) + 1) * sizeof(T) * (M::kPair ? 2 : 1);
    return static_cast<size_t>((bytes + 15) / 16 * 16 + states * sizeof(StateOf<M>));
}

template <class M, class T>
struct Shared {
    T *x, *y;
    StateOf<M>* states;

    __device__ Shared(double* memory, int64_t elements) {
        const int64_t one = padded(elements) + 1, bytes = one * sizeof(T) * (M::kPair ? 2 : 1);
        x = reinterpret_cast<T*>(memory);
        y = M::kPair ? x + one : nullptr;
        states = reinterpret_cast<StateOf<M>*>(memory + (bytes + 15) / 16 * 2);
    }
    __device__ void load(const Job<T>& job, int64_t row, int64_t begin, int64_t count) {
        load_elements(x, job.x + row * job.windows.n, job.windows.n, begin, count);
        if (M::kPair) load_elements(y, job.y + row * job.windows.n, job.windows.n, begin, count);
    }
};

template <class M>
int64_t short_states(int64_t threads, int64_t length) {
    return threads + length / kChunk + 1;
}
inline int64_t short_elements(int64_t threads, int64_t length) {
    return (threads + length / kChunk + 2) * kChunk;
}

// Tiles are as long as the thread block's chunks.
template <class M, class T>
__global__ void __launch_bounds__(kMostThreads<M>) roll_short(const Job<T> job) {
    extern __shared__ double memory[];
    const Windows& w = job.windows;
    const int threads = blockDim.x, me = threadIdx.x;
    const int whole = static_cast<int>(w.length / kChunk), rest = static_cast<int>(w.length % kChunk);
    const int chunks = threads + whole;
    const int64_t elements = (threads + whole + 2) * kChunk;
    Shared<M, T> shared(memory, elements);
    for (int64_t block = blockIdx.x; block < w.rows * w.tiles; block += gridDim.x) {
        const int64_t row = block / w.tiles, tile = block % w.tiles * w.tile;
        shared.load(job, row, w.first + tile, elements);
        __syncthreads();
        auto between = M::template identity<double>();
        if (whole > 1) {
            for (int c = me; c < chunks; c += threads) {
                auto state = M::template identity<double>();
#pragma unroll
                for (int j = 0; j < kChunk; ++j) append<M>(state, shared.x, shared.y, c * kChunk + j);
                shared.states[c] = state;
            }
            __syncthreads();
            int offset = 1;
            for (int size = 1; size < whole; size *= 2) {
                if (((whole - 1) & size) != 0) {
                    between = M::merge(between, shared.states[me + offset]);
                    offset += size;
                }
                if (size * 2 >= whole) break;
                __syncthreads();
                // In place: what a turn writes is not read by later turns.
                for (int first = 0; first < chunks; first += threads) {
                    const int c = first + me;
                    StateOf<M> doubled;
                    const bool has = c + size < chunks;
                    if (has) doubled = M::merge(shared.states[c], shared.states[c + size]);
                    __syncthreads();
                    if (has) shared.states[c] = doubled;
                }
                __syncthreads();
            }
        }
        double found[kChunk];
        if (whole == 0) {
            for (int j = 0; j < kChunk; ++j) {
                auto state = M::template identity<double>();
                for (int k = 0; k < rest; ++k) append<M>(state, shared.x, shared.y, me * kChunk + j + k);
                found[j] = job.finish(state);
            }
        } else {
            StateOf<M> suffixes[kChunk];
            auto state = M::template identity<double>();
#pragma unroll
            for (int j = kChunk - 1; j >= 0; --j) {
                append<M>(state, shared.x, shared.y, me * kChunk + j);
                suffixes[j] = state;
            }
            const int end = (me + whole) * kChunk;
            for (int j = 0; j < rest; ++j) append<M>(between, shared.x, shared.y, end + j);
#pragma unroll
            for (int j = 0; j < kChunk; ++j) {
                found[j] = job.finish(M::merge(suffixes[j], between));
                append<M>(between, shared.x, shared.y, end + rest + j);
            }
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < kChunk; ++j) shared.x[padded(me * kChunk + j)] = static_cast<T>(found[j]);
        __syncthreads();
        store_elements(shared.x, job.out + row * w.n + tile, min(w.tile, w.n - tile));
        __syncthreads();
    }
}

// The state of the thread's chunk, as far as it lies below `count`.
template <class M, class T>
__device__ StateOf<M> chunk_state(const Shared<M, T>& shared, int64_t count) {
    auto state = M::template identity<double>();
    const int64_t begin = static_cast<int64_t>(threadIdx.x) * kChunk;
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
        if (begin + j < count) append<M>(state, shared.x, shared.y, begin + j);
    }
    return state;
}

// The states of tiles.
template <class M, class T>
__global__ void __launch_bounds__(kMostThreads<M>) sum_tiles(const Job<T> job) {
    extern __shared__ double memory[];
    const Windows& w = job.windows;
    Shared<M, T> shared(memory, static_cast<int64_t>(blockDim.x) * kChunk);
    const int64_t tiles = w.summed;
    for (int64_t block = blockIdx.x; block < w.rows * tiles; block += gridDim.x) {
        shared.load(job, block / tiles, w.first + block % tiles * w.tile, w.tile);
        __syncthreads();
        StateOf<M> total;
        exclusive_scan<false>(chunk_state<M>(shared, w.tile), M::template identity<double>(), shared.states, Merge<M>(),
                              &total);
        if (threadIdx.x == 0) reinterpret_cast<StateOf<M>*>(job.sums)[block] = total;
    }
}

// One turn of doubling: between ⊕= the state of `size` tiles at the offset, if the turn has it; then the states of
// twice as many tiles go from `sums` to `doubled`.
template <class M>
__global__ void __launch_bounds__(kThreads)
    double_tiles(const Windows w, const StateOf<M>* sums, StateOf<M>* doubled, StateOf<M>* between, int64_t offset,
                 int64_t size, bool first, bool takes, bool more) {
    const int64_t tiles = w.summed, step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    const int64_t most = tiles > w.tiles ? tiles : w.tiles;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < w.rows * most; i += step) {
        const int64_t row = i / most, t = i % most;
        const StateOf<M>* const from = sums + row * tiles;
        if (t < w.tiles) {
            StateOf<M>* const to = between + row * w.tiles + t;
            StateOf<M> state = first ? M::template identity<double>() : *to;
            if (takes && t + offset < tiles) state = M::merge(state, from[t + offset]);
            *to = state;
        }
        if (more && t < tiles) {
            doubled[row * tiles + t] = t + size < tiles ? M::merge(from[t], from[t + size]) : from[t];
        }
    }
}

template <class M, class T>
__global__ void __launch_bounds__(kMostThreads<M>) roll_long(const Job<T> job) {
    extern __shared__ double memory[];
    const Windows& w = job.windows;
    const int64_t begin = static_cast<int64_t>(threadIdx.x) * kChunk;
    Shared<M, T> shared(memory, static_cast<int64_t>(blockDim.x) * kChunk);
    const auto identity = M::template identity<double>();
    for (int64_t block = blockIdx.x; block < w.rows * w.tiles; block += gridDim.x) {
        const int64_t row = block / w.tiles, tile = block % w.tiles, from = w.first + tile * w.tile;
        const int64_t end = from + w.whole * w.tile;
        StateOf<M> total, suffixes[kChunk];

        shared.load(job, row, from, w.tile);
        __syncthreads();
        StateOf<M> behind =
            exclusive_scan<true>(chunk_state<M>(shared, w.tile), identity, shared.states, Merge<M>(), &total);
        auto state = identity;
#pragma unroll
        for (int j = kChunk - 1; j >= 0; --j) {
            if (begin + j < w.tile) append<M>(state, shared.x, shared.y, begin + j);
            suffixes[j] = M::merge(state, behind);
        }
        __syncthreads();

        auto before = identity;
        if (job.between != nullptr) before = reinterpret_cast<const StateOf<M>*>(job.between)[block];
        if (w.rest > 0) {
            shared.load(job, row, end, w.rest);
            __syncthreads();
            exclusive_scan<false>(chunk_state<M>(shared, w.rest), identity, shared.states, Merge<M>(), &total);
            before = M::merge(before, total);
            __syncthreads();
        }

        shared.load(job, row, end + w.rest, w.tile);
        __syncthreads();
        state = M::merge(
            before, exclusive_scan<false>(chunk_state<M>(shared, w.tile), identity, shared.states, Merge<M>(), &total));
        double found[kChunk];
#pragma unroll
        for (int j = 0; j < kChunk; ++j) {
            found[j] = job.finish(M::merge(suffixes[j], state));
            if (begin + j < w.tile) append<M>(state, shared.x, shared.y, begin + j);
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < kChunk; ++j) shared.x[padded(begin + j)] = static_cast<T>(found[j]);
        __syncthreads();
        const int64_t first = tile * w.tile;
        store_elements(shared.x, job.out + row * w.n + first, min(w.tile, w.n - first));
        __syncthreads();
    }
}

template <class T>
__global__ void __launch_bounds__(kThreads) fill(T* out, int64_t count, T value) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) out[i] = value;
}

}  // namespace nnue::cuda::analysis
