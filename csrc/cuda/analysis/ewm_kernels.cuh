// Exponentially weighted moments on CUDA: the states of tiles, a scan of these by one thread block for each row, and
// the outputs by a scan of each tile. ewm.h has the states.
#pragma once

#include "../../ewm.h"
#include "scan.cuh"

namespace nnue::cuda::analysis {

template <class T>
struct EwmJob {
    ewm::Rule rule;
    const T* x;
    T* out;
    int64_t rows, n, tiles;
    double* last;    // [rows, tiles] the last observation's place in a tile, then before it; -1: none. Or null.
    double* states;  // [rows, tiles] the tile's state, then that of all before it
};

// The place of an observation; a double can be scanned as states are.
struct Place {
    double at = -1;
};
struct Later {
    __device__ Place operator()(const Place& a, const Place& b) const { return {a.at > b.at ? a.at : b.at}; }
};
template <bool kVariance>
struct EwmMerge {
    __device__ ewm::State<kVariance> operator()(const ewm::State<kVariance>& a, const ewm::State<kVariance>& b) const {
        return ewm::merge(a, b);
    }
};

// The last observation of the thread's chunk; `first` is the place of the tile's first element in its row.
template <class T>
__device__ Place last_of_chunk(const T* elements, int64_t first) {
    Place found;
    const int64_t begin = static_cast<int64_t>(threadIdx.x) * kChunk;
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
        const T x = elements[padded(begin + j)];
        if (x - x == 0) found.at = static_cast<double>(first + begin + j);
    }
    return found;
}

template <class T>
__global__ void __launch_bounds__(kThreads) ewm_last(const EwmJob<T> job) {
    extern __shared__ double memory[];
    __shared__ double place_memory[kWarp];
    Place* const warps = reinterpret_cast<Place*>(place_memory);
    T* const elements = reinterpret_cast<T*>(memory);
    const int64_t tile = static_cast<int64_t>(blockDim.x) * kChunk;
    for (int64_t block = blockIdx.x; block < job.rows * job.tiles; block += gridDim.x) {
        const int64_t row = block / job.tiles, first = block % job.tiles * tile;
        load_elements(elements, job.x + row * job.n, job.n, first, tile);
        __syncthreads();
        Place total;
        exclusive_scan<false>(last_of_chunk(elements, first), Place(), warps, Later(), &total);
        if (threadIdx.x == 0) job.last[block] = total.at;
    }
}

// What each tile has, replaced by what all tiles of the row before it have.
template <class S, class M>
__global__ void __launch_bounds__(kThreads)
    carry(S* states, int64_t rows, int64_t tiles, const S identity, const M merge) {
    extern __shared__ double memory[];
    S* const warps = reinterpret_cast<S*>(memory);
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        S before = identity;
        for (int64_t begin = 0; begin < tiles; begin += blockDim.x) {
            const int64_t i = begin + threadIdx.x;
            const S mine = i < tiles ? states[row * tiles + i] : identity;
            S total;
            const S inside = exclusive_scan<false>(mine, identity, warps, merge, &total);
            if (i < tiles) states[row * tiles + i] = merge(before, inside);
            before = merge(before, total);
        }
    }
}

template <bool kVariance, bool write, class T>
__global__ void __launch_bounds__(kThreads) ewm_tiles(const EwmJob<T> job) {
    extern __shared__ double memory[];
    __shared__ double place_memory[kWarp];
    using S = ewm::State<kVariance>;
    S* const warps = reinterpret_cast<S*>(memory);
    T* const elements = reinterpret_cast<T*>(memory + kWarp * sizeof(S) / sizeof(double));
    const int64_t tile = static_cast<int64_t>(blockDim.x) * kChunk;
    const int64_t begin = static_cast<int64_t>(threadIdx.x) * kChunk;
    for (int64_t block = blockIdx.x; block < job.rows * job.tiles; block += gridDim.x) {
        const int64_t row = block / job.tiles, first = block % job.tiles * tile;
        load_elements(elements, job.x + row * job.n, job.n, first, tile);
        __syncthreads();
        Place before;
        if (job.last != nullptr) {
            Place total;
            before = exclusive_scan<false>(last_of_chunk(elements, first), Place(),
                                           reinterpret_cast<Place*>(place_memory), Later(), &total);
            before = Later()(Place{job.last[block]}, before);
        }
        // The chunk's state, then that of all before it, then element by element.
        const auto follow = [&](S state, const auto& visit) {
            int64_t last = static_cast<int64_t>(before.at);
#pragma unroll
            for (int j = 0; j < kChunk; ++j) {
                const int64_t i = first + begin + j;
                const double x = static_cast<double>(elements[padded(begin + j)]);
                state = ewm::merge(state, job.rule.template element<kVariance>(x, i, last));
                if (x - x == 0) last = i;
                visit(j, state);
            }
            return state;
        };
        S total;
        const S inside =
            exclusive_scan<false>(follow(S(), [](int, const S&) {}), S(), warps, EwmMerge<kVariance>(), &total);
        if constexpr (write) {
            const S all = reinterpret_cast<const S*>(job.states)[block];
            T found[kChunk];
            follow(ewm::merge(all, inside),
                   [&](int j, const S& state) { found[j] = static_cast<T>(job.rule.finish(state)); });
            __syncthreads();
#pragma unroll
            for (int j = 0; j < kChunk; ++j) elements[padded(begin + j)] = found[j];
            __syncthreads();
            store_elements(elements, job.out + row * job.n + first, min(tile, job.n - first));
        } else if (threadIdx.x == 0) {
            reinterpret_cast<S*>(job.states)[block] = total;
        }
        __syncthreads();
    }
}

}  // namespace nnue::cuda::analysis
