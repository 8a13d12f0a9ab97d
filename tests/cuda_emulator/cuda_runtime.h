// The part of CUDA that the project's kernels use, for a C++ compiler: see emulator.h. Stands in for the toolkit's
// header.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <type_traits>

#define __device__
#define __host__
#define __global__
#define __shared__ static thread_local
#define __forceinline__ inline
#define __noinline__
#define __restrict__ __restrict
#define __align__(n) alignas(n)
#define __launch_bounds__(...)
#ifndef EMULATED_CAPABILITY
#define EMULATED_CAPABILITY 90
#endif
#define __CUDA_ARCH__ (10 * EMULATED_CAPABILITY)

struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

using cudaError_t = int;
using cudaStream_t = void*;
constexpr cudaError_t cudaSuccess = 0;
enum {
    cudaFuncAttributeMaxDynamicSharedMemorySize,
    cudaFuncAttributePreferredSharedMemoryCarveout,
    cudaSharedmemCarveoutMaxShared,
    cudaDevAttrMultiProcessorCount,
    cudaDevAttrMaxSharedMemoryPerBlockOptin,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor,
    cudaDevAttrComputeCapabilityMajor,
    cudaDevAttrComputeCapabilityMinor
};

namespace emulator {

constexpr int kMostShared = (EMULATED_CAPABILITY < 80 ? 64 : 227) * 1024;  // bytes of a thread block

extern constinit thread_local dim3 thread_index, block_index, block_size, grid_size;

// All threads of a warp, or those of the mask `lanes`, give a value and see those of all of them.
const uint64_t* exchange(uint64_t value, unsigned lanes = ~0u);
void block_barrier();
int block_count(bool predicate);
int multiprocessors();
// Runs after all that was launched before, and is done when this returns, except for what launch_early starts.
void synchronize();
void launch(dim3 grid, dim3 block, size_t shared, bool early, const std::function<void()>& body);
// Dynamic shared memory of the thread block.
char* dynamic_shared();
void memory_fence();

template <typename T>
uint64_t bits_of(T x) {
    uint64_t bits = 0;
    std::memcpy(&bits, &x, sizeof(T));
    return bits;
}
template <typename T>
T from_bits(uint64_t bits) {
    T x;
    std::memcpy(&x, &bits, sizeof(T));
    return x;
}

template <typename... Parameters, typename... Arguments>
void launch_kernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, cudaStream_t,
                   const Arguments&... arguments) {
    launch(grid, block, shared, false, [=] { kernel(arguments...); });
}

}  // namespace emulator

#define threadIdx emulator::thread_index
#define blockIdx emulator::block_index
#define blockDim emulator::block_size
#define gridDim emulator::grid_size

inline cudaError_t cudaGetLastError() {
    return emulator::synchronize(), cudaSuccess;
}
inline const char* cudaGetErrorName(cudaError_t) {
    return "error";
}
inline const char* cudaGetErrorString(cudaError_t) {
    return "emulated";
}
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, int, int bytes) {
    return bytes <= emulator::kMostShared ? cudaSuccess : 1;
}
template <typename Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel, int, size_t) {
    return *blocks = 1, cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
    emulator::synchronize();
    std::memset(to, value, bytes);
    return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int* device) {
    return *device = 0, cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, int attribute, int) {
    *value = attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin       ? emulator::kMostShared
             : attribute == cudaDevAttrMaxSharedMemoryPerMultiprocessor ? emulator::kMostShared + 1024
             : attribute == cudaDevAttrComputeCapabilityMajor           ? EMULATED_CAPABILITY / 10
             : attribute == cudaDevAttrComputeCapabilityMinor           ? EMULATED_CAPABILITY % 10
                                                                        : emulator::multiprocessors();
    return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int) {
    return cudaSuccess;
}
using cudaFuncAttribute = int;
using cudaDeviceAttr = int;
struct cudaFuncAttributes {
    int ptxVersion;
};
template <typename Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* found, Kernel) {
    return found->ptxVersion = EMULATED_CAPABILITY, cudaSuccess;
}

using std::max;
using std::min;
inline long long min(long long a, int b) {
    return a < b ? a : b;
}
inline long long min(int a, long long b) {
    return a < b ? a : b;
}
inline unsigned max(unsigned a, int b) {
    return std::max(a, unsigned(b));
}
inline int atomic_order() {
    return __ATOMIC_SEQ_CST;
}

template <typename T>
T __ldg(const T* p) {
    return *p;
}
template <typename T>
T __ldcg(const T* p) {
    return *p;
}
template <typename T>
T __ldcs(const T* p) {
    return *p;
}
template <typename T>
void __stcs(T* p, T v) {
    *p = v;
}
template <typename T>
void __stcg(T* p, T v) {
    *p = v;
}

inline int lane_number() {
    return int((threadIdx.x + threadIdx.y * blockDim.x) % 32);
}
template <typename T>
T __shfl_sync(unsigned, T v, int from, int width = 32) {
    const uint64_t* all = emulator::exchange(emulator::bits_of(v));
    return emulator::from_bits<T>(all[lane_number() / width * width + (from & (width - 1))]);
}
template <typename T>
T __shfl_up_sync(unsigned, T v, int by, int width = 32) {
    const uint64_t* all = emulator::exchange(emulator::bits_of(v));
    return lane_number() % width >= by ? emulator::from_bits<T>(all[lane_number() - by]) : v;
}
template <typename T>
T __shfl_xor_sync(unsigned lanes, T v, int by) {
    return emulator::from_bits<T>(emulator::exchange(emulator::bits_of(v), lanes)[lane_number() ^ by]);
}
inline unsigned __ballot_sync(unsigned, bool p) {
    const uint64_t* all = emulator::exchange(p);
    unsigned result = 0;
    for (int i = 0; i < 32; ++i) result |= unsigned(all[i] != 0) << i;
    return result;
}
inline bool __any_sync(unsigned mask, bool p) {
    return __ballot_sync(mask, p) != 0;
}
inline bool __all_sync(unsigned mask, bool p) {
    return __ballot_sync(mask, p) == ~0u;
}
template <typename T>
unsigned __match_any_sync(unsigned, T v) {
    const uint64_t mine = emulator::bits_of(v), *all = emulator::exchange(mine);
    unsigned result = 0;
    for (int i = 0; i < 32; ++i) result |= unsigned(all[i] == mine) << i;
    return result;
}
template <typename T>
T __reduce_max_sync(unsigned, T v) {
    const uint64_t* all = emulator::exchange(emulator::bits_of(v));
    for (int i = 0; i < 32; ++i) v = std::max(v, emulator::from_bits<T>(all[i]));
    return v;
}
template <typename T>
T __reduce_min_sync(unsigned, T v) {
    const uint64_t* all = emulator::exchange(emulator::bits_of(v));
    for (int i = 0; i < 32; ++i) v = std::min(v, emulator::from_bits<T>(all[i]));
    return v;
}
template <typename T>
T __reduce_add_sync(unsigned, T) {
    std::abort();
}
template <>
inline int __reduce_add_sync(unsigned, int v) {
    const uint64_t* all = emulator::exchange(emulator::bits_of(v));
    int sum = 0;
    for (int i = 0; i < 32; ++i) sum += emulator::from_bits<int>(all[i]);
    return sum;
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selectors) {
    const uint64_t both = uint64_t(high) << 32 | low;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= unsigned(both >> 8 * (selectors >> 4 * i & 7) & 255) << 8 * i;
    return result;
}
inline void __syncwarp() {
    emulator::exchange(0);
}
inline void __syncthreads() {
    emulator::block_barrier();
}
inline bool __syncthreads_and(bool p) {
    return emulator::block_count(!p) == 0;
}
inline int __syncthreads_count(bool p) {
    return emulator::block_count(p);
}
inline void __threadfence() {
    emulator::memory_fence();
}
inline void __threadfence_system() {
    emulator::memory_fence();
}
[[noreturn]] inline void __trap() {
    std::abort();
}

inline int __popcll(unsigned long long x) {
    return __builtin_popcountll(x);
}
inline int __ffsll(long long x) {
    return __builtin_ffsll(x);
}
inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
inline int __clz(int x) {
    return x == 0 ? 32 : __builtin_clz(unsigned(x));
}
inline int __clzll(long long x) {
    return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x));
}
inline unsigned __umulhi(unsigned a, unsigned b) {
    return unsigned(uint64_t(a) * b >> 32);
}
inline float __uint_as_float(unsigned x) {
    return emulator::from_bits<float>(x);
}
inline float __int_as_float(int x) {
    return emulator::from_bits<float>(uint32_t(x));
}
inline unsigned __float_as_uint(float x) {
    return unsigned(emulator::bits_of(x));
}
inline int __float_as_int(float x) {
    return int(emulator::bits_of(x));
}
inline long long __double_as_longlong(double x) {
    return static_cast<long long>(emulator::bits_of(x));
}
inline double __longlong_as_double(long long x) {
    return emulator::from_bits<double>(static_cast<uint64_t>(x));
}
inline long long __double2ll_rn(double x) {
    return std::llrint(x);
}
// Two products of a 16-bit and an 8-bit number.
inline unsigned __dp2a_lo(unsigned a, unsigned b, unsigned c) {
    return c + (a & 0xffff) * (b & 0xff) + (a >> 16) * (b >> 8 & 0xff);
}

// The number of atomic instructions that kernels have executed.
inline std::atomic<uint64_t> executed_atomics{0};

template <typename T>
T atomicAnd(T* p, T v) {
    ++executed_atomics;
    return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST);
}
template <typename T, typename U>
T atomicAdd(T* p, U v) {
    ++executed_atomics;
    if constexpr (std::is_floating_point_v<T>) {
        T before = *p;
        while (!__atomic_compare_exchange(p, &before, std::array<T, 1>{T(before + v)}.data(), false, __ATOMIC_SEQ_CST,
                                          __ATOMIC_SEQ_CST))
            continue;
        return before;
    } else {
        return __atomic_fetch_add(p, T(v), __ATOMIC_SEQ_CST);
    }
}
inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}
inline void atomicAdd(float4* p, float4 v) {
    atomicAdd(&p->x, v.x), atomicAdd(&p->y, v.y), atomicAdd(&p->z, v.z), atomicAdd(&p->w, v.w);
    executed_atomics -= 3;  // it is one instruction
}
template <typename T>
T atomicOr(T* p, T v) {
    ++executed_atomics;
    return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST);
}
template <typename T>
T atomicExch(T* p, T v) {
    ++executed_atomics;
    return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);
}
template <typename T>
T atomicMin(T* p, T v) {
    ++executed_atomics;
    T before = *p;
    while (v < before && !__atomic_compare_exchange_n(p, &before, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        continue;
    return before;
}
template <typename T>
T atomicMax(T* p, T v) {
    ++executed_atomics;
    T before = *p;
    while (before < v && !__atomic_compare_exchange_n(p, &before, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        continue;
    return before;
}
