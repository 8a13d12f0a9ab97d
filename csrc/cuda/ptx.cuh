// Thin wrappers over PTX instructions: asynchronous copies, mbarriers, loads and stores, and products on tensor cores.
// Nothing here depends on the computation. The kernels of hopper/ are compiled only for sm_90a. Other kernels use only
// the wrappers of instructions that 8.0 has, the two that belong to launch_early, which do nothing in code that is
// compiled for less than 9.0, and add_global_16, which only code for 9.0 may call. What 7.5 lacks of 8.0 has a second
// version here.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace nnue::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800

constexpr bool kTuring = true;

// 7.5 copies through registers: a copy is done when the function returns.
template <typename T>
__device__ __forceinline__ void copy_now(uint32_t shared, const void* global, uint32_t valid = 1) {
    *static_cast<T*>(__cvta_shared_to_generic(shared)) = valid != 0 ? *static_cast<const T*>(global) : T{};
}
__device__ __forceinline__ void copy_async_16(uint32_t shared, const void* global, uint32_t valid) {
    copy_now<uint4>(shared, global, valid);
}
__device__ __forceinline__ void copy_async_8(uint32_t shared, const void* global, uint32_t valid = 1) {
    copy_now<uint2>(shared, global, valid);
}
__device__ __forceinline__ void copy_async_4(uint32_t shared, const void* global) {
    copy_now<uint32_t>(shared, global);
}
__device__ __forceinline__ void copy_async_commit() {}
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {}
__device__ __forceinline__ void copy_async_wait_all() {}

// The sum of all lanes.
__device__ __forceinline__ int sum_over_warp(int x) {
    for (int by = 16; by > 0; by /= 2) x += __shfl_xor_sync(0xffffffffu, x, by);
    return x;
}

#else

constexpr bool kTuring = false;

// Copies 16 bytes asynchronously. If `valid` is 0, nothing is read and zeros are written.
__device__ __forceinline__ void copy_async_16(uint32_t shared, const void* global, uint32_t valid) {
    asm volatile(
        "{\n.reg .pred none;\nsetp.eq.u32 none, %2, 0;\ncp.async.cg.shared.global [%0], [%1], 16, none;\n}\n" ::"r"(
            shared),
        "l"(global), "r"(valid)
        : "memory");
}
// The same for 8 bytes.
__device__ __forceinline__ void copy_async_8(uint32_t shared, const void* global, uint32_t valid = 1) {
    asm volatile(
        "{\n.reg .pred none;\nsetp.eq.u32 none, %2, 0;\ncp.async.ca.shared.global [%0], [%1], 8, none;\n}\n" ::"r"(
            shared),
        "l"(global), "r"(valid)
        : "memory");
}
__device__ __forceinline__ void copy_async_4(uint32_t shared, const void* global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\n" ::"r"(shared), "l"(global) : "memory");
}
__device__ __forceinline__ void copy_async_commit() {
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ void copy_async_wait_all() {
    asm volatile("cp.async.wait_all;\n" ::: "memory");
}

// The sum of all lanes.
__device__ __forceinline__ int sum_over_warp(int x) {
    return __reduce_add_sync(0xffffffffu, x);
}

#endif

// Makes ordinary stores to shared memory visible to wgmma.
__device__ __forceinline__ void fence_shared_for_wgmma() {
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

// An mbarrier is given by its address in shared memory.
__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}\n" ::"r"(barrier) : "memory");
}
// Waits until the phase with this parity is complete.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra end;\n"
        "bra again;\n"
        "end:\n"
        "}\n" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// Arrives once, and makes the phase wait for `bytes` more bytes of bulk copies.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;\n}\n" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
}
// Copies a multiple of 16 bytes with the copy engine, and counts them on the barrier.
__device__ __forceinline__ void copy_bulk(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(shared),
        "l"(global), "r"(bytes), "r"(barrier)
        : "memory");
}

// Lets a kernel use up to `most` bytes of dynamic shared memory in all its launches, and requests the largest shared
// memory carveout. Between two kernels with the same carveout, the second one can start on a multiprocessor that the
// first one still occupies.
template <typename Kernel>
cudaError_t set_shared_memory(Kernel* kernel, int most) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    return error != cudaSuccess || most == 0
               ? error
               : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
}

// Launches a kernel that may start before the previous kernel of the stream is done (programmatic dependent launch).
// The kernel must call wait_for_kernels_before.
template <typename... Parameters>
cudaError_t launch_early(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                         const Parameters&... parameters) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, parameters...);
}
// Called by such a kernel: waits until the kernels before it are done and their results are visible.
__device__ __forceinline__ void wait_for_kernels_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}
// Lets the next kernel start once all thread blocks of this one have called this or ended.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

// Arrives when all earlier copy_async calls of this thread are done. `noinc`: the barrier's count includes this
// arrival.
__device__ __forceinline__ void barrier_arrive_copied(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(barrier) : "memory");
}

// If kOrdered, the compiler does not move this load in front of earlier stores.
template <bool kOrdered = false>
__device__ __forceinline__ uint4 load_shared_16(uint32_t shared) {
    uint4 v;
    if constexpr (kOrdered)
        asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(shared)
                     : "memory");
    else
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(shared));
    return v;
}

// Volatile, because the compiler would otherwise move such loads up to where registers are scarce.
__device__ __forceinline__ uint2 load_shared_8(uint32_t shared) {
    uint2 v;
    asm volatile("ld.volatile.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(shared));
    return v;
}

__device__ __forceinline__ uint32_t load_shared_4(uint32_t shared) {
    uint32_t v;
    asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(v) : "r"(shared));
    return v;
}
__device__ __forceinline__ void store_shared_4(uint32_t shared, uint32_t v) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared), "r"(v) : "memory");
}

__device__ __forceinline__ void store_shared_8(uint32_t shared, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(shared), "f"(x), "f"(y) : "memory");
}
// Stores four 8 × 8 matrices of 16-bit numbers from the register layout of wgmma. Lane i gives the address of row i % 8
// of matrix i / 8.
__device__ __forceinline__ void store_matrices(uint32_t shared, const uint32_t (&v)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(shared), "r"(v[0]),
                 "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
}

// Stores to global memory if `wanted`, by a predicate and without a branch.
__device__ __forceinline__ void store_global_16(void* to, uint4 v, bool wanted) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p st.global.v4.u32 [%0], {%1, %2, %3, %4};\n}\n" ::"l"(to),
                 "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(int(wanted))
                 : "memory");
}

__device__ __forceinline__ void store_global_8(void* to, uint2 v, bool wanted) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n@p st.global.v2.u32 [%0], {%1, %2};\n}\n" ::"l"(to),
                 "r"(v.x), "r"(v.y), "r"(int(wanted))
                 : "memory");
}

// The read-only cache (`__ldg`, ld.global.nc; nvcc also takes it for `const T* __restrict__` parameters) is only for
// memory that nothing writes from the start of a kernel to its end. A kernel that starts early has begun while the
// kernel before it still writes, so such kernels, and what they use, read by plain loads. These may not be moved in
// front of wait_for_kernels_before. tests/ops/test_readonly_loads.py walks the sources.

// Loads from global memory if `wanted`, else gives zeros; also without a branch.
__device__ __forceinline__ uint4 load_global_16(const void* from, bool wanted) {
    uint4 v;
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\nmov.u32 %0, 0;\nmov.u32 %1, 0;\nmov.u32 %2, 0;\nmov.u32 %3, 0;\n"
        "@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}\n"
        : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
        : "l"(from), "r"(int(wanted)));
    return v;
}
// The same for bytes that are read only once: they do not take the place of others in the L1 cache.
__device__ __forceinline__ uint4 load_once_16(const void* from, bool wanted) {
    uint4 v;
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\nmov.u32 %0, 0;\nmov.u32 %1, 0;\nmov.u32 %2, 0;\nmov.u32 %3, 0;\n"
        "@p ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n}\n"
        : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
        : "l"(from), "r"(int(wanted)));
    return v;
}

__device__ __forceinline__ unsigned load_acquire(const unsigned* counter) {
    unsigned value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(value) : "l"(counter) : "memory");
    return value;
}
// Waits until the counter has this value.
__device__ __forceinline__ void counter_wait(const unsigned* counter, unsigned value) {
    while (load_acquire(counter) != value) continue;
}
// Adds one to the counter, with release and acquire: a thread that reads the new value also sees all earlier writes of
// this thread, and all that this thread has seen.
__device__ __forceinline__ void counter_add(unsigned* counter) {
    asm volatile("fence.acq_rel.gpu;\n\tred.relaxed.gpu.global.add.u32 [%0], 1;\n" ::"l"(counter) : "memory");
}
// Adds four numbers to 16 bytes of global memory with one atomic instruction, in no particular order with others.
__device__ __forceinline__ void add_global_16(float* to, float4 v) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z),
                 "f"(v.w)
                 : "memory");
}
// Hides how x, of 4 or 8 bytes, was computed from the compiler. It then neither computes x again at each use nor, for
// an x that is read anew in a loop, keeps it and what follows from it from one iteration to the next. To a pointer it
// adds an offset in one instruction, and not to each term of the pointer.
template <typename T>
__device__ __forceinline__ T keep(T x) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    if constexpr (sizeof(T) == 4)
        asm volatile("" : "+r"(x));
    else
        asm volatile("" : "+l"(x));
    return x;
}

// threadIdx.x, read here. The compiler cannot compute what depends on it ahead of time, where it would occupy
// registers.
__device__ __forceinline__ int thread_number() {
    int number;
    asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(number));
    return number;
}

// Makes the ordinary stores to global memory that this thread sees visible to the bulk copies that it starts.
__device__ __forceinline__ void fence_global_for_copies() {
    asm volatile("fence.proxy.async.global;\n" ::: "memory");
}

// kThreads threads wait for each other at hardware barrier kPlace, one of sixteen; __syncthreads uses number 0.
template <int kPlace, int kThreads>
__device__ __forceinline__ void named_barrier() {
    asm volatile("bar.sync %0, %1;\n" ::"n"(kPlace), "n"(kThreads) : "memory");
}

// The threads of warpgroup number `warpgroup` wait for each other.
__device__ __forceinline__ void warpgroup_barrier(int warpgroup) {
    asm volatile("bar.sync %0, 128;\n" ::"r"(warpgroup + 1) : "memory");
}

__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

// d[16, 8] += a[16, 16] · b[16, 8], by one warp. Lane i has columns 2 · (i % 4) and 2 · (i % 4) + 1 of d, first of row
// i / 4 and then of row i / 4 + 8.
template <bool kBf16>
__device__ __forceinline__ void mma_k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#define NNUE_MMA(TYPE)                                                           \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE                   \
        ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n" \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                         \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
    if constexpr (kBf16) {
        NNUE_MMA("bf16");
    } else {
        NNUE_MMA("f16");
    }
#undef NNUE_MMA
}

// The same of float32 numbers, without tensor cores: those of 7.5 have neither bfloat16 nor its range. a[i] and b[i]
// are the two numbers of a word of an operand above.
__device__ __forceinline__ void multiply_k16(float (&d)[4], const float (&a)[4][2], const float (&b)[2][2]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
    for (int q = 0; q < 4; ++q) {  // a quarter of the depth: the numbers of lanes whose i % 4 is q
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float right[2];
            for (int c = 0; c < 2; ++c) right[c] = __shfl_sync(0xffffffffu, b[i / 2][i % 2], lane % 4 * 8 + c * 4 + q);
            for (int r = 0; r < 2; ++r) {
                const float left = __shfl_sync(0xffffffffu, a[i / 2 * 2 + r][i % 2], lane / 4 * 4 + q);
                for (int c = 0; c < 2; ++c) d[2 * r + c] = fmaf(left, right[c], d[2 * r + c]);
            }
        }
    }
}

// The low word of the wgmma descriptor of a right operand of two column atoms; the high word is a constant. An atom has
// 64 contiguous 16-bit columns, in pieces of 8 rows (k) × 128 bytes with the 128-byte swizzle. It is 1024 bytes from
// one piece to the next and `atom_stride` bytes from one atom to the next. Adding 128 to the word moves on by 16 rows.
__device__ __forceinline__ uint32_t operand_descriptor(uint32_t shared, uint32_t atom_stride) {
    return ((shared >> 4) & 0x3fff) | (atom_stride >> 4) << 16;
}
// Byte offset of the 16-byte chunk number `chunk` (0…7) of row `k` in an atom.
__device__ __forceinline__ uint32_t operand_offset(int k, int chunk) {
    return k * 128 + ((chunk ^ (k & 7)) << 4);
}

// d[64, 128] += a[64, 16] · b[16, 128], with `a` in registers and b given by its descriptor. With `a` in registers a
// product takes 64 cycles for any number of columns up to 128, so narrower products are not faster.
template <bool kBf16>
__device__ __forceinline__ void wgmma_k16(float (&d)[64], const uint32_t (&a)[4], uint32_t b) {
#define NNUE_FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define NNUE_SIXTEEN(i) NNUE_FOUR(i), NNUE_FOUR(i + 4), NNUE_FOUR(i + 8), NNUE_FOUR(i + 12)
#define NNUE_WGMMA(TYPE)                                                                                              \
    asm volatile(                                                                                                     \
        "{\n.reg .b64 descriptor;\nmov.b64 descriptor, {%68, 0x40000040};\n"                                          \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE                                                  \
        " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
        "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "   \
        "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "       \
        "{%64, %65, %66, %67}, descriptor, 1, 1, 1, 1;\n}\n"                                                          \
        : NNUE_SIXTEEN(0), NNUE_SIXTEEN(16), NNUE_SIXTEEN(32), NNUE_SIXTEEN(48)                                       \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b))
    if constexpr (kBf16) {
        NNUE_WGMMA("bf16");
    } else {
        NNUE_WGMMA("f16");
    }
#undef NNUE_WGMMA
#undef NNUE_SIXTEEN
#undef NNUE_FOUR
}

}  // namespace nnue::ptx
