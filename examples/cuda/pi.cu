// π from random points inside a kernel: no random number is ever stored.
//
//   nvcc -O3 -std=c++20 examples/cuda/pi.cu -o pi && ./pi [points]
//
// Each thread makes its own points from (seed, number of the point, stream), so the result does not depend on the grid,
// and equals that of a plain loop over the points.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "../../csrc/philox.h"

namespace {

constexpr uint64_t kSeed = 1, kStream = 0;

// A quadruple of words is two points.
__host__ __device__ unsigned inside(uint64_t quadruple) {
    const nnue::random::Words w = nnue::random::philox(kSeed, quadruple, kStream);
    unsigned count = 0;
    for (int i = 0; i < 4; i += 2) {
        const float x = nnue::random::unit(w.at[i]), y = nnue::random::unit(w.at[i + 1]);
        count += x * x + y * y < 1;
    }
    return count;
}

__global__ void count_points(uint64_t quadruples, unsigned long long* total) {
    const uint64_t step = uint64_t(gridDim.x) * blockDim.x;
    unsigned long long mine = 0;
    for (uint64_t q = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; q < quadruples; q += step) mine += inside(q);
    atomicAdd(total, mine);
}

}  // namespace

int main(int count, char** arguments) {
    const uint64_t points = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 1'000'000'000;
    unsigned long long *total = nullptr, found = 0;
    if (cudaMallocManaged(&total, sizeof *total) != cudaSuccess) {
        std::fprintf(stderr, "pi: no GPU: %s\n", cudaGetErrorString(cudaGetLastError()));
        return 1;
    }
    *total = 0;
    count_points<<<1024, 256>>>(points / 2, total);
    if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess) {
        std::fprintf(stderr, "pi: %s\n", cudaGetErrorString(error));
        return 1;
    }
    found = *total;
    cudaFree(total);
    const double n = double(points / 2 * 2), share = double(found) / n;
    std::printf("%.0f points: pi = %.7f +- %.7f\n", n, 4 * share, 4 * std::sqrt(share * (1 - share) / n));
    for (uint64_t q = 0, check = 0; q < 1000; ++q) {
        check += inside(q);
        if (q == 999) std::printf("on the CPU, of the first 2000 points %llu are inside\n", (unsigned long long)check);
    }
    return 0;
}
