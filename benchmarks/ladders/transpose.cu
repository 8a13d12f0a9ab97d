// A ladder of kernels: the transpose of an n × n matrix of int32. n is a multiple of 32. ../ladders.py builds, checks
// and times them; docs/learning-cuda.md explains them. csrc/cuda/stats/matrix.cu has the production kernel.
#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int kTile = 32, kRows = 8;  // a thread block of 32 × 8 threads; each thread moves 4 elements

// 1: neighbouring threads read neighbouring addresses, and write addresses that are a row apart.
__global__ void naive(const int32_t* x, int32_t* out, int64_t n) {
    const int64_t column = blockIdx.x * kTile + threadIdx.x, row = blockIdx.y * kTile + threadIdx.y;
    for (int j = 0; j < kTile; j += kRows) out[column * n + row + j] = x[(row + j) * n + column];
}

// 2: a tile is turned in shared memory, so that reads and writes are both of neighbours. With kPadding = 0, the threads
// of a warp read a column of the tile: 32 elements of one bank, one after the other. 3: with a column of padding, the
// 32 elements lie in 32 banks.
template <int kPadding>
__global__ void tiled(const int32_t* x, int32_t* out, int64_t n) {
    __shared__ int32_t tile[kTile][kTile + kPadding];
    const int64_t left = blockIdx.x * kTile, top = blockIdx.y * kTile;
    for (int j = threadIdx.y; j < kTile; j += kRows) tile[j][threadIdx.x] = x[(top + j) * n + left + threadIdx.x];
    __syncthreads();
    for (int j = threadIdx.y; j < kTile; j += kRows) out[(left + j) * n + top + threadIdx.x] = tile[threadIdx.x][j];
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int transpose(int rung, const int32_t* x, int32_t* out, int64_t n,
                                                                void* stream) {
    const dim3 grid(unsigned(n / kTile), unsigned(n / kTile)), block(kTile, kRows);
    const auto s = static_cast<cudaStream_t>(stream);
    if (rung == 1) naive<<<grid, block, 0, s>>>(x, out, n);
    if (rung == 2) tiled<0><<<grid, block, 0, s>>>(x, out, n);
    if (rung == 3) tiled<1><<<grid, block, 0, s>>>(x, out, n);
    return cudaGetLastError();
}
