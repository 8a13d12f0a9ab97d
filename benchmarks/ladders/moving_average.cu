// A ladder of kernels: means of the last `window` of n float64, NaN where there are fewer. Rungs 1 to 4 are those of
// the document that this project began with. ../ladders.py builds, checks and times them; docs/learning-cuda.md
// explains them.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

namespace {

constexpr int kThreads = 128;

__device__ void finish(double* out, int64_t i, double sum, int window) {
    out[i] = i + 1 < window ? NAN : sum / window;
}

// 1: a thread per output reads its window from global memory.
__global__ void naive(const double* x, double* out, int64_t n, int window) {
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double sum = 0;
    for (int64_t j = max(i + 1 - window, int64_t(0)); j <= i; ++j) sum += x[j];
    finish(out, i, sum, window);
}

// Copies what the outputs [first, first + outputs) of a thread block need into shared memory: window - 1 elements of
// history, then theirs. Places outside the array are 0.
__device__ void load_tile(const double* x, double* tile, int64_t first, int outputs, int64_t n, int window) {
    for (int j = threadIdx.x; j < outputs + window - 1; j += blockDim.x) {
        const int64_t from = first - (window - 1) + j;
        tile[j] = from >= 0 && from < n ? x[from] : 0;
    }
    __syncthreads();
}

// 2: the threads of a block read each element from global memory once, together, and share it.
__global__ void in_shared_memory(const double* x, double* out, int64_t n, int window) {
    extern __shared__ double tile[];
    const int64_t first = int64_t(blockIdx.x) * blockDim.x, i = first + threadIdx.x;
    load_tile(x, tile, first, blockDim.x, n, window);
    if (i >= n) return;
    double sum = 0;
    for (int j = 0; j < window; ++j) sum += tile[threadIdx.x + j];
    finish(out, i, sum, window);
}

// 3: a thread makes kTile neighbouring outputs. It sums what their windows have in common once, and adds the ends.
constexpr int kTile = 9;  // odd, so that the threads of a warp read different banks

__global__ void tiled(const double* x, double* out, int64_t n, int window) {
    extern __shared__ double tile[];
    const int64_t first = int64_t(blockIdx.x) * blockDim.x * kTile;
    load_tile(x, tile, first, blockDim.x * kTile, n, window);
    const double* mine = tile + threadIdx.x * kTile;
    double common = 0;
    for (int j = kTile - 1; j < window; ++j) common += mine[j];
    for (int k = 0; k < kTile; ++k) {
        const int64_t i = first + threadIdx.x * kTile + k;
        if (i >= n) return;
        double sum = common;
        for (int j = k; j < min(kTile - 1, window + k); ++j) sum += mine[j];
        for (int j = max(window, kTile - 1); j < window + k; ++j) sum += mine[j];
        finish(out, i, sum, window);
    }
}

// 4, 5: a thread makes kOutputs outputs with a running sum: add the newest element, subtract the oldest. With 48
// outputs, as in the document, all threads of a warp read the same bank of shared memory; with 49, different ones.
// Rounding errors add up along the outputs of a thread.
template <int kOutputs>
__global__ void running_sum(const double* x, double* out, int64_t n, int window) {
    extern __shared__ double tile[];
    const int64_t first = int64_t(blockIdx.x) * blockDim.x * kOutputs;
    load_tile(x, tile, first, blockDim.x * kOutputs, n, window);
    const double* mine = tile + threadIdx.x * kOutputs;
    double sum = 0;
    for (int j = 0; j < window - 1; ++j) sum += mine[j];
    for (int k = 0; k < kOutputs; ++k) {
        const int64_t i = first + threadIdx.x * kOutputs + k;
        if (i >= n) return;
        sum += mine[k + window - 1];
        finish(out, i, sum, window);
        sum -= mine[k];
    }
}

// 6: the same, and outputs go through registers and shared memory, so that neighbouring threads write neighbouring
// addresses.
constexpr int kOdd = 49;

__global__ void written_together(const double* x, double* out, int64_t n, int window) {
    extern __shared__ double tile[];
    const int64_t first = int64_t(blockIdx.x) * blockDim.x * kOdd;
    load_tile(x, tile, first, blockDim.x * kOdd, n, window);
    double* mine = tile + threadIdx.x * kOdd;
    double sum = 0, made[kOdd];
    for (int j = 0; j < window - 1; ++j) sum += mine[j];
#pragma unroll
    for (int k = 0; k < kOdd; ++k) {
        sum += mine[k + window - 1];
        made[k] = sum;
        sum -= mine[k];
    }
    __syncthreads();  // all have read
#pragma unroll
    for (int k = 0; k < kOdd; ++k) mine[k] = made[k];
    __syncthreads();
    for (int j = threadIdx.x; j < blockDim.x * kOdd && first + j < n; j += blockDim.x) {
        finish(out, first + j, tile[j], window);
    }
}

template <class Kernel>
int launch(Kernel kernel, int threads, int outputs, bool shares, const double* x, double* out, int64_t n, int window,
           cudaStream_t stream) {
    const int64_t each = int64_t(threads) * outputs;
    const size_t bytes = shares ? (each + window - 1) * sizeof(double) : 0;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes));
    kernel<<<unsigned((n + each - 1) / each), threads, bytes, stream>>>(x, out, n, window);
    return cudaGetLastError();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int moving_average(int rung, const double* x, double* out, int64_t n,
                                                                     int window, void* stream) {
    const auto s = static_cast<cudaStream_t>(stream);
    if (rung == 1) return launch(naive, kThreads, 1, false, x, out, n, window, s);
    if (rung == 2) return launch(in_shared_memory, kThreads, 1, true, x, out, n, window, s);
    if (rung == 3) return launch(tiled, kThreads, kTile, true, x, out, n, window, s);
    if (rung == 4) return launch(running_sum<48>, 64, 48, true, x, out, n, window, s);
    if (rung == 5) return launch(running_sum<kOdd>, 64, kOdd, true, x, out, n, window, s);
    if (rung == 6) return launch(written_together, 64, kOdd, true, x, out, n, window, s);
    return -1;
}
