// The lower rungs of the ladder, as a torch-free shared library that run.py builds and times: what the production
// kernels in csrc/cuda had to beat. fp32, rows of both perspectives in one matrix, N a multiple of 128, no activation.
// Rung 1 is the plain pair that this project began with, whole, with values and the gradient of the bias. The rungs
// above it are the bare sum of rows or its transpose, so the comparison favours them. docs/ops.md leads from here to
// production.
#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int kThreads = 256;

// 1: the plain pair. A thread block per position, and a slice of neighbouring columns per thread. The sums begin as the
// bias, in shared memory; then every active feature adds its row of the weight, times its value.
__global__ void forward_pair(const int32_t* indices, const float* values, const float* weight, const float* bias,
                             float* out, int K, int N) {
    extern __shared__ float sums[];
    const int slice = (N + blockDim.x - 1) / blockDim.x, begin = threadIdx.x * slice, end = min(begin + slice, N);
    const size_t row = size_t(blockIdx.x) * K;
    for (int c = begin; c < end; ++c) sums[c] = bias[c];
    for (int k = 0; k < K && indices[row + k] != -1; ++k) {
        const float* feature = weight + size_t(indices[row + k]) * N;
        for (int c = begin; c < end; ++c) sums[c] += feature[c] * values[row + k];
    }
    for (int c = begin; c < end; ++c) out[size_t(blockIdx.x) * N + c] = sums[c];
}

// 2: a thread per column, so that neighbouring threads read neighbouring addresses; the sum is in a register.
__global__ void forward_scalar(const int32_t* indices, const float* weight, const float* bias, float* out, int K,
                               int N) {
    const int32_t* row = indices + size_t(blockIdx.x) * K;
    for (int c = threadIdx.x; c < N; c += blockDim.x) {
        float sum = bias[c];
        for (int k = 0; k < K && row[k] >= 0; ++k) sum += weight[size_t(row[k]) * N + c];
        out[size_t(blockIdx.x) * N + c] = sum;
    }
}

// 3: the same, four columns per thread.
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

// 4: slabs of 128 columns, the slab outermost and rows in the order of their king bucket: what is read stays in the
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

// 1: the plain pair. An atomic add for each active feature and column whose gradient is not zero, and one for the bias.
// grad_weight and grad_bias are zero before.
__global__ void backward_pair(const int32_t* indices, const float* values, const float* grad, float* grad_weight,
                              float* grad_bias, int K, int N) {
    const int slice = (N + blockDim.x - 1) / blockDim.x, begin = threadIdx.x * slice, end = min(begin + slice, N);
    const size_t row = size_t(blockIdx.x) * K;
    const float* gradient = grad + size_t(blockIdx.x) * N;
    for (int c = begin; c < end; ++c) {
        if (gradient[c] != 0) atomicAdd(grad_bias + c, gradient[c]);
    }
    for (int k = 0; k < K && indices[row + k] != -1; ++k) {
        float* feature = grad_weight + size_t(indices[row + k]) * N;
        for (int c = begin; c < end; ++c) {
            if (gradient[c] != 0) atomicAdd(feature + c, gradient[c] * values[row + k]);
        }
    }
}

// 2: a thread per column. The gradient is read once.
__global__ void backward_scalar(const int32_t* indices, const float* grad, float* grad_weight, int K, int N) {
    const int32_t* row = indices + size_t(blockIdx.x) * K;
    for (int c = threadIdx.x; c < N; c += blockDim.x) {
        const float g = grad[size_t(blockIdx.x) * N + c];
        if (g == 0) continue;
        for (int k = 0; k < K && row[k] >= 0; ++k) atomicAdd(grad_weight + size_t(row[k]) * N + c, g);
    }
}

// 3: four columns an atomic add.
__global__ void backward_vector(const int32_t* indices, const float* grad, float* grad_weight, int K, int N) {
    const int32_t* row = indices + size_t(blockIdx.x) * K;
    for (int c = threadIdx.x * 4; c < N; c += blockDim.x * 4) {
        const float4 g = *reinterpret_cast<const float4*>(grad + size_t(blockIdx.x) * N + c);
        for (int k = 0; k < K && row[k] >= 0; ++k)
            atomicAdd(reinterpret_cast<float4*>(grad_weight + size_t(row[k]) * N + c), g);
    }
}

// 4: the row's gradient goes to shared memory once, and from there the copy engine adds it to each feature's row.
__global__ void backward_bulk(const int32_t* indices, const float* grad, float* grad_weight, int K, int N) {
    extern __shared__ __align__(128) float row_gradient[];
    const int32_t* row = indices + size_t(blockIdx.x) * K;
    for (int c = threadIdx.x * 4; c < N; c += blockDim.x * 4)
        *reinterpret_cast<float4*>(row_gradient + c) =
            *reinterpret_cast<const float4*>(grad + size_t(blockIdx.x) * N + c);
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
    __syncthreads();
    if (threadIdx.x >= 32) return;
    const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(row_gradient));
    for (int base = 0; base < K; base += 32) {
        const int feature = base + threadIdx.x < K ? row[base + threadIdx.x] : -1;
        if (feature >= 0)
            asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n" ::"l"(
                             grad_weight + size_t(feature) * N),
                         "r"(shared), "r"(N * 4)
                         : "memory");
        if (__any_sync(~0u, feature < 0)) break;
    }
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\n" ::: "memory");
#endif
}

// The lists of rungs 5 and 6: segment s has the rows rows[begin[s]] … rows[begin[s + 1] − 1] of feature[s].

// 5: chunks of kChunk rows in the order of their king bucket; a chunk's gradients × 64 columns lie in shared memory,
// and a quarter of a warp sums the rows of each of its features (segments by chunk, rows by their place in the chunk).
constexpr int kChunk = 768;

__global__ void __launch_bounds__(1024)
    backward_segments(const int32_t* order, const int32_t* chunk_segments, const int32_t* feature, const int32_t* begin,
                      const int32_t* places, const float* grad, float* grad_weight, int N, int rows) {
    extern __shared__ float4 tile[];  // [kChunk][16]
    const int chunk = blockIdx.x, column = blockIdx.y * 64, lane = threadIdx.x % 16;
    for (int i = threadIdx.x / 16; i < kChunk && chunk * kChunk + i < rows; i += 64)
        tile[i * 16 + lane] =
            __ldg(reinterpret_cast<const float4*>(grad + size_t(order[chunk * kChunk + i]) * N + column) + lane);
    __syncthreads();
    for (int s = chunk_segments[chunk] + threadIdx.x / 16; s < chunk_segments[chunk + 1]; s += 64) {
        float4 sum = {0, 0, 0, 0};
        for (int i = begin[s]; i < begin[s + 1]; ++i) {
            const float4 g = tile[places[i] * 16 + lane];
            sum.x += g.x, sum.y += g.y, sum.z += g.z, sum.w += g.w;
        }
        atomicAdd(reinterpret_cast<float4*>(grad_weight + size_t(feature[s]) * N + column) + lane, sum);
    }
}

// 6: lists of the whole batch cut into pieces (segments) of at most 64 rows; slabs of 128 columns, the slab outermost,
// so that a slab of all gradients stays in the L2 cache; four rows in flight.
__global__ void backward_lists(const int32_t* feature, const int32_t* begin, const int32_t* rows, const float* grad,
                               float* grad_weight, int N, int segments) {
    const int s = blockIdx.x * blockDim.y + threadIdx.y, column = blockIdx.y * 128 + threadIdx.x * 4;
    if (s >= segments) return;
    float4 sum = {0, 0, 0, 0};
    for (int i = begin[s]; i < begin[s + 1]; i += 4) {
        float4 g[4];
#pragma unroll
        for (int j = 0; j < 4; ++j)
            g[j] = i + j < begin[s + 1]
                       ? __ldg(reinterpret_cast<const float4*>(grad + size_t(rows[i + j]) * N + column))
                       : float4{0, 0, 0, 0};
#pragma unroll
        for (int j = 0; j < 4; ++j) sum.x += g[j].x, sum.y += g[j].y, sum.z += g[j].z, sum.w += g[j].w;
    }
    float4* target = reinterpret_cast<float4*>(grad_weight + size_t(feature[s]) * N + column);
    const bool shared = (s > 0 && feature[s - 1] == feature[s]) || (s + 1 < segments && feature[s + 1] == feature[s]);
    if (shared)
        atomicAdd(target, sum);
    else
        *target = sum;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int forward(int rung, const int32_t* indices, const float* values, const int32_t* order, const float* weight,
                   const float* bias, float* out, int rows, int K, int N, void* stream) {
    const auto s = static_cast<cudaStream_t>(stream);
    if (rung == 1) forward_pair<<<rows, kThreads, N * sizeof(float), s>>>(indices, values, weight, bias, out, K, N);
    if (rung == 2) forward_scalar<<<rows, kThreads, 0, s>>>(indices, weight, bias, out, K, N);
    if (rung == 3) forward_vector<<<rows, kThreads, 0, s>>>(indices, weight, bias, out, K, N);
    if (rung == 4)
        forward_slabs<<<dim3((rows + 7) / 8, N / 128), dim3(32, 8), 0, s>>>(indices, order, weight, bias, out, K, N,
                                                                            rows);
    return cudaGetLastError();
}

EXPORT int backward(int rung, const int32_t* indices, const float* values, const float* grad, float* grad_weight,
                    float* grad_bias, int rows, int features, int K, int N, void* stream) {
    const auto s = static_cast<cudaStream_t>(stream);
    cudaMemsetAsync(grad_weight, 0, size_t(features) * N * sizeof(float), s);
    if (rung == 1) {
        cudaMemsetAsync(grad_bias, 0, N * sizeof(float), s);
        backward_pair<<<rows, kThreads, 0, s>>>(indices, values, grad, grad_weight, grad_bias, K, N);
    }
    if (rung == 2) backward_scalar<<<rows, kThreads, 0, s>>>(indices, grad, grad_weight, K, N);
    if (rung == 3) backward_vector<<<rows, kThreads, 0, s>>>(indices, grad, grad_weight, K, N);
    if (rung == 4) backward_bulk<<<rows, kThreads, N * sizeof(float), s>>>(indices, grad, grad_weight, K, N);
    return cudaGetLastError();
}

// Rung 5: `order` and `chunk_segments` given, `places` within a chunk; rung 6: `places` are rows.
EXPORT int backward_by_lists(int rung, const int32_t* order, const int32_t* chunk_segments, const int32_t* feature,
                             const int32_t* begin, const int32_t* places, int segments, const float* grad,
                             float* grad_weight, int rows, int features, int N, void* stream) {
    const auto s = static_cast<cudaStream_t>(stream);
    cudaMemsetAsync(grad_weight, 0, size_t(features) * N * sizeof(float), s);
    if (rung == 5) {
        constexpr int kBytes = kChunk * 64 * sizeof(float);
        cudaFuncSetAttribute(backward_segments, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
        backward_segments<<<dim3((rows + kChunk - 1) / kChunk, N / 64), 1024, kBytes, s>>>(
            order, chunk_segments, feature, begin, places, grad, grad_weight, N, rows);
    }
    if (rung == 6)
        backward_lists<<<dim3((segments + 7) / 8, N / 128), dim3(32, 8), 0, s>>>(feature, begin, places, grad,
                                                                                 grad_weight, N, segments);
    return cudaGetLastError();
}
