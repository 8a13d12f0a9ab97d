// The lower rungs of the ladder, as a torch-free shared library that run.py builds and times: what the production
// kernels (csrc/cuda/block_product.cuh) had to beat. fp32, rows of one perspective, N a multiple of 128; no activation,
// no bias gradient: each rung is the bare sum of rows or its transpose, so the comparison favours them.
#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int kThreads = 256;

// 1: a thread block per row, a thread per column.
__global__ void forward_scalar(const int32_t* indices, const float* weight, const float* bias, float* out, int K,
                               int N) {
    const int32_t* row = indices + size_t(blockIdx.x) * K;
    for (int c = threadIdx.x; c < N; c += blockDim.x) {
        float sum = bias[c];
        for (int k = 0; k < K && row[k] >= 0; ++k) sum += weight[size_t(row[k]) * N + c];
        out[size_t(blockIdx.x) * N + c] = sum;
    }
}

// 2: the same, four columns a thread.
__global__ void forward_vector(const int32_t* indices, const float* weight, const float* bias, float* out, int K,
                               int N) {
    const int32_t* row = indices + size_t(blockIdx.x) * K;
    for (int c = threadIdx.x * 4; c < N; c += blockDim.x * 4) {
        float4 sum = *reinterpret_cast<const float4*>(bias + c);
        for (int k = 0; k < K && row[k] >= 0; ++k) {
            const float4 w = __ldg(reinterpret_cast<const float4*>(weight + size_t(row[k]) * N + c));
            sum.x += w.x, sum.y += w.y, sum.z += w.z, sum.w += w.w;
        }
        *reinterpret_cast<float4*>(out + size_t(blockIdx.x) * N + c) = sum;
    }
}

// 3: slabs of 128 columns, the slab outermost and rows in the order of their king bucket: what is read stays in the
// caches.
__global__ void forward_slabs(const int32_t* indices, const int32_t* order, const float* weight, const float* bias,
                              float* out, int K, int N, int rows) {
    const int slot = blockIdx.x * blockDim.y + threadIdx.y;
    if (slot >= rows) return;
    const int r = order[slot], c = blockIdx.y * 128 + threadIdx.x * 4;
    const int32_t* row = indices + size_t(r) * K;
    float4 sum = *reinterpret_cast<const float4*>(bias + c);
    for (int k = 0; k < K; k += 4) {
        const int4 f = *reinterpret_cast<const int4*>(row + k);
        const int features[4] = {f.x, f.y, f.z, f.w};
        bool done = false;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            done = done || features[j] < 0;
            if (done) continue;
            const float4 w = __ldg(reinterpret_cast<const float4*>(weight + size_t(features[j]) * N + c));
            sum.x += w.x, sum.y += w.y, sum.z += w.z, sum.w += w.w;
        }
        if (done) break;
    }
    *reinterpret_cast<float4*>(out + size_t(r) * N + c) = sum;
}

// 1: the classic scheme, a thread block per row, an atomic add per feature and column. grad_weight is zero before.
__global__ void backward_scalar(const int32_t* indices, const float* grad, float* grad_weight, int K, int N) {
    const int32_t* row = indices + size_t(blockIdx.x) * K;
    for (int c = threadIdx.x; c < N; c += blockDim.x) {
        const float g = grad[size_t(blockIdx.x) * N + c];
        if (g == 0) continue;
        for (int k = 0; k < K && row[k] >= 0; ++k) atomicAdd(grad_weight + size_t(row[k]) * N + c, g);
    }
}

// 2: four columns an atomic add.
__global__ void backward_vector(const int32_t* indices, const float* grad, float* grad_weight, int K, int N) {
    const int32_t* row = indices + size_t(blockIdx.x) * K;
    for (int c = threadIdx.x * 4; c < N; c += blockDim.x * 4) {
        const float4 g = *reinterpret_cast<const float4*>(grad + size_t(blockIdx.x) * N + c);
        for (int k = 0; k < K && row[k] >= 0; ++k)
            atomicAdd(reinterpret_cast<float4*>(grad_weight + size_t(row[k]) * N + c), g);
    }
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int forward(int rung, const int32_t* indices, const int32_t* order, const float* weight, const float* bias,
                   float* out, int rows, int K, int N, void* stream) {
    const auto s = static_cast<cudaStream_t>(stream);
    if (rung == 1) forward_scalar<<<rows, kThreads, 0, s>>>(indices, weight, bias, out, K, N);
    if (rung == 2) forward_vector<<<rows, kThreads, 0, s>>>(indices, weight, bias, out, K, N);
    if (rung == 3)
        forward_slabs<<<dim3((rows + 7) / 8, N / 128), dim3(32, 8), 0, s>>>(indices, order, weight, bias, out, K, N,
                                                                            rows);
    return cudaGetLastError();
}

EXPORT int backward(int rung, const int32_t* indices, const float* grad, float* grad_weight, int rows, int features,
                    int K, int N, void* stream) {
    const auto s = static_cast<cudaStream_t>(stream);
    cudaMemsetAsync(grad_weight, 0, size_t(features) * N * sizeof(float), s);
    if (rung == 1) backward_scalar<<<rows, kThreads, 0, s>>>(indices, grad, grad_weight, K, N);
    if (rung == 2) backward_vector<<<rows, kThreads, 0, s>>>(indices, grad, grad_weight, K, N);
    return cudaGetLastError();
}
