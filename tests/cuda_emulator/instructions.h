// C++ versions of the functions with inline assembly; translate.py substitutes them by name.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "emulator.h"

inline uint32_t __cvta_generic_to_shared(const void* pointer) {
    return emulator::shared_address(pointer);
}
inline void* __cvta_shared_to_generic(uint32_t address) {
    return &emulator::at<char>(address);
}

namespace emulated {

using emulator::at;

template <typename T>
T keep(T x) {
    return x;
}
inline void fence_registers(float (&)[64]) {}
// The address of a row.
template <typename T>
T* row_of(T* first, unsigned row, unsigned row_bytes) {
    return reinterpret_cast<T*>(reinterpret_cast<uint64_t>(first) + uint64_t(row) * row_bytes);
}
inline float clip(float x, float bound) {
    if (x != x) return x;
    return std::min(x > 0 ? x : 0.0f, bound);
}
inline uint32_t of_halves(uint32_t x, auto&& each) {
    const uint16_t low = each(uint16_t(x)), high = each(uint16_t(x >> 16));
    return low | uint32_t(high) << 16;
}
inline uint32_t clip_halves(uint32_t x, uint32_t bound) {
    return of_halves(x, [&](uint16_t h) -> uint16_t {
        if ((h & 0x7fff) > 0x7c00) return h;
        return h & 0x8000 ? 0 : std::min(h, uint16_t(bound));
    });
}
inline uint32_t halves_inside(uint32_t x, uint32_t limit) {
    return of_halves(x, [&](uint16_t h) -> uint16_t { return h <= uint16_t(limit) ? 0xffff : 0; });
}
inline void copy_async_16(uint32_t to, const void* from, uint32_t valid) {
    emulator::copy_async(to, from, 16, valid != 0);
}
inline void copy_async_8(uint32_t to, const void* from, uint32_t valid = 1) {
    emulator::copy_async(to, from, 8, valid != 0);
}
inline void copy_async_4(uint32_t to, const void* from) {
    emulator::copy_async(to, from, 4, true);
}
inline void copy_async_commit() {
    emulator::copy_commit();
}
template <int kPending>
void copy_async_wait() {
    emulator::copy_wait(kPending);
}
inline void copy_async_wait_all() {
    emulator::copy_wait(0);
}
inline void fence_shared_for_wgmma() {}
inline void fence_global_for_copies() {
    emulator::memory_fence();
}
inline void fence_barrier_init() {}
inline void barrier_init(uint32_t barrier, int arrivals) {
    emulator::barrier_init(barrier, arrivals);
}
inline void barrier_arrive(uint32_t barrier) {
    emulator::barrier_arrive(barrier), emulator::pause();
}
inline void barrier_wait(uint32_t barrier, uint32_t parity) {
    emulator::barrier_wait(barrier, parity);
}
inline void barrier_expect(uint32_t barrier, uint32_t bytes) {
    emulator::barrier_arrive(barrier, int(bytes));
}
inline void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
    emulator::copy_bulk(to, from, bytes, barrier);
}
inline void barrier_arrive_copied(uint32_t barrier) {
    emulator::copy_arrive(barrier);
}
inline void wait_for_kernels_before() {
    emulator::kernel_wait();
}
inline void let_next_kernel_start() {
    emulator::kernel_trigger();
}

template <bool kOrdered>
uint4 load_shared_16(uint32_t from) {
    return at<uint4>(from);
}
inline uint2 load_shared_8(uint32_t from) {
    return at<uint2>(from);
}
inline uint32_t load_shared_4(uint32_t from) {
    return at<uint32_t>(from);
}
inline void store_shared_4(uint32_t to, uint32_t v) {
    at<uint32_t>(to) = v;
}
inline void store_shared_8(uint32_t to, float x, float y) {
    at<float2>(to) = {x, y};
}
inline uint32_t load_if(bool condition, uint32_t from, uint32_t otherwise) {
    return condition ? at<uint32_t>(from) : otherwise;
}
inline void store_global_16(void* to, uint4 v, bool wanted) {
    if (wanted) *static_cast<uint4*>(to) = v;
}
inline void store_global_8(void* to, uint2 v, bool wanted) {
    if (wanted) *static_cast<uint2*>(to) = v;
}
inline uint4 load_global_16(const void* from, bool wanted) {
    return wanted ? *static_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
}
inline uint4 load_once_16(const void* from, bool wanted) {
    return load_global_16(from, wanted);
}
inline void shared_or(uint32_t to, uint32_t bits) {
    at<uint32_t>(to) |= bits, emulator::pause();
}
inline void shared_increment(uint32_t to) {
    ++at<uint32_t>(to);
}

inline unsigned load_acquire(const unsigned* counter) {
    return __atomic_load_n(counter, __ATOMIC_SEQ_CST);
}
inline void counter_wait(const unsigned* counter, unsigned value) {
    emulator::wait_until([=] { return load_acquire(counter) == value; });
}
inline void counter_add(unsigned* counter) {
    __atomic_fetch_add(counter, 1u, __ATOMIC_SEQ_CST);
}
inline void add_global_16(float* to, float4 v) {
    atomicAdd(reinterpret_cast<float4*>(to), v);
}

template <int kPlace, int kThreads>
void named_barrier() {
    emulator::named_barrier(kPlace, kThreads);
}
inline int thread_number() {
    return int(threadIdx.x);
}
inline void warpgroup_barrier(int warpgroup) {
    emulator::named_barrier(warpgroup + 1, 128);
}

inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int kPending>
void wgmma_wait() {
    emulator::pause();
}
template <int kRegisters>
void take_registers() {}
template <int kRegisters>
void give_registers() {}

// Four 8 × 8 matrices: lane i has the address of row i % 8 of matrix i / 8 goes, and two elements of row i / 4 of each.
inline void store_matrices(uint32_t to, const uint32_t (&v)[4]) {
    const uint64_t* addresses = emulator::exchange(to);
    for (int m = 0; m < 4; ++m) {
        const uint32_t row = uint32_t(addresses[m * 8 + lane_number() / 4]);
        if (row % 16 != 0) std::abort();
        at<uint32_t>(row + lane_number() % 4 * 4) = v[m];
    }
    emulator::exchange(0);
}

// A 16-bit float, the lower half of `bits`.
template <bool kBf16>
float number(uint32_t bits) {
    return kBf16 ? __uint_as_float(bits << 16) : float(emulator::from_bits<_Float16>(bits & 0xffff));
}

// d[64, 128] += a[64, 16] · b[16, 128]: each warp its sixteen rows. See ptx.cuh for where b lies.
template <bool kBf16>
void wgmma_k16(float (&d)[64], const uint32_t (&a)[4], uint32_t b) {
    const int quad = lane_number() / 4 * 4, t = lane_number() % 4;
    float left[2][16];
    for (int part = 0; part < 2; ++part) {  // a[0], a[1]: k = 2 t, 2 t + 1 of rows g, g + 8; a[2], a[3] the next eight
        const uint64_t* all = emulator::exchange(uint64_t(a[2 * part + 1]) << 32 | a[2 * part]);
        for (int q = 0; q < 4; ++q)
            for (int r = 0; r < 2; ++r) {
                const uint32_t word = uint32_t(all[quad + q] >> (32 * r));
                left[r][part * 8 + 2 * q] = number<kBf16>(word & 0xffff);
                left[r][part * 8 + 2 * q + 1] = number<kBf16>(word >> 16);
            }
    }
    const uint32_t base = (b & 0x3fff) << 4, stride = b >> 16 << 4;
    for (int j = 0; j < 16; ++j)
        for (int c = 0; c < 2; ++c) {
            const int n = 8 * j + 2 * t + c;
            for (int k = 0; k < 16; ++k) {
                const uint32_t from = base + n / 64 * stride + k * 128 + ((n % 64 / 8 ^ (k & 7)) << 4) + n % 8 * 2;
                const float right = number<kBf16>(at<uint16_t>(from));
                for (int r = 0; r < 2; ++r)
                    if (left[r][k] != 0 || right != right || std::isinf(right))
                        d[4 * j + 2 * r + c] += left[r][k] * right;
            }
        }
}

// d[16, 8] += a[16, 16] · b[16, 8]; see ptx.cuh for which elements a lane has.
template <bool kBf16>
void mma_k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    const int quad = lane_number() / 4 * 4, t = lane_number() % 4;
    float left[2][16], right[2][16];
    // k = 8 · part …: a[2 · part] of row i / 4, a[2 · part + 1] of row i / 4 + 8.
    for (int part = 0; part < 2; ++part) {
        const uint64_t* rows = emulator::exchange(uint64_t(a[2 * part + 1]) << 32 | a[2 * part]);
        for (int q = 0; q < 4; ++q)
            for (int r = 0; r < 2; ++r)
                for (int i = 0; i < 2; ++i)
                    left[r][part * 8 + 2 * q + i] =
                        number<kBf16>(uint32_t(rows[quad + q] >> (32 * r + 16 * i)) & 0xffff);
        const uint64_t* columns = emulator::exchange(b[part]);  // of column i / 4
        for (int c = 0; c < 2; ++c)
            for (int q = 0; q < 4; ++q)
                for (int i = 0; i < 2; ++i)
                    right[c][part * 8 + 2 * q + i] =
                        number<kBf16>(uint32_t(columns[(2 * t + c) * 4 + q] >> (16 * i)) & 0xffff);
    }
    for (int r = 0; r < 2; ++r)
        for (int c = 0; c < 2; ++c)
            for (int k = 0; k < 16; ++k) d[2 * r + c] += left[r][k] * right[c][k];
}

inline int2 load_here(const int* from) {
    return {from[0], from[1]};
}

}  // namespace emulated
