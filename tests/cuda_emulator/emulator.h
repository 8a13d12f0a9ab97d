// A multiprocessor on the CPU, just enough of one to run the project's kernels without a GPU.
//
// A thread block is a thread of the operating system; its threads are fibers that are switched where they wait for each
// other, in random order; asynchronous copies arrive at random times. Several thread blocks, and a kernel and its
// programmatic dependent, run at the same time. So kernels are right here only if their barriers, rings, flags and
// index arithmetic are; what memory orders, and how fast anything is, only a GPU shows. Kernels that
// cuda::launch_behind launches run one after the other: whether they wait for the one before is not tested here.
//
// Shared memory is addressed as on a GPU, by 32 bits, from the start of the dynamic part.
#pragma once

#include <cuda_runtime.h>

#include <functional>

namespace emulator {

// The fiber goes on when `ready` returns true.
void wait_until(const std::function<bool()>& ready);
// Others may go first.
void pause();

uint32_t shared_address(const void* pointer);
void* shared_pointer(uint32_t address);
template <typename T>
T& at(uint32_t address) {
    return *static_cast<T*>(shared_pointer(address));
}

// Copies: of 4 or 16 bytes, in groups, by a fiber; of any multiple of 16, by the copy engine.
void copy_async(uint32_t to, const void* from, int bytes, bool valid);
void copy_commit();
void copy_wait(int pending);
void copy_arrive(uint32_t barrier);
void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier);

void barrier_init(uint32_t barrier, int count);
void barrier_arrive(uint32_t barrier, int bytes = 0);
void barrier_wait(uint32_t barrier, uint32_t parity);
void named_barrier(int number, int count);

void kernel_wait();
void kernel_trigger();

// For tests: how many thread blocks of a kernel run at a time, and the seed of all that is random.
void configure(int blocks_at_a_time, uint64_t seed);

}  // namespace emulator
