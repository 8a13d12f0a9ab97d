// The checks of index_check.cu with a CUDA runtime whose calls fail one after the other. Prints "OK" and the number of
// failures; anything else is a fault.
// clang-format off
#include <torch/csrc/stable/library.h>  // before the emulator defines __CUDACC__
#include <cuda_runtime.h>
// clang-format on

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <utility>

using cudaEvent_t = void*;
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeRelaxed };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone };
constexpr unsigned cudaHostAllocMapped = 1, cudaHostAllocPortable = 2, cudaStreamNonBlocking = 1,
                   cudaEventDisableTiming = 2;

static int left_until_failure = -1, alive = 0, strict_waits = 0;
static cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

static cudaError_t may_fail() {
    return left_until_failure >= 0 && left_until_failure-- == 0 ? 1 : cudaSuccess;
}
template <class T>
cudaError_t make(T** place, std::size_t bytes) {
    if (may_fail() != cudaSuccess) return 1;
    *place = static_cast<T*>(std::calloc(1, bytes));
    ++alive;
    return cudaSuccess;
}
static cudaError_t destroy(void* thing) {
    std::free(thing);
    --alive;
    return cudaSuccess;
}
// In the strictest mode a call that waits would end the capture of another thread.
static cudaError_t wait() {
    strict_waits += capture_mode != cudaStreamCaptureModeRelaxed;
    return may_fail();
}
static cudaError_t cudaHostAlloc(void** place, std::size_t bytes, unsigned) {
    return make(place, bytes);
}
template <class T>
cudaError_t cudaMalloc(T** place, std::size_t bytes) {
    return make(place, bytes);
}
static cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
    return make(stream, 1);
}
static cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    return make(event, 1);
}
static cudaError_t cudaFree(void* thing) {
    return destroy(thing);
}
static cudaError_t cudaFreeHost(void* thing) {
    return destroy(thing);
}
static cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    return destroy(stream);
}
static cudaError_t cudaEventDestroy(cudaEvent_t event) {
    return destroy(event);
}
static cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
    return may_fail();
}
static cudaError_t cudaEventSynchronize(cudaEvent_t) {
    return wait();
}
static cudaError_t cudaStreamSynchronize(cudaStream_t) {
    return wait();
}
static cudaError_t cudaDeviceSynchronize() {
    return wait();
}
static cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
    return *status = cudaStreamCaptureStatusNone, may_fail();
}
static cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    return std::swap(*mode, capture_mode), cudaSuccess;
}

#include "cuda/index_check.cpp"

static void check(int device) {
    nnue::cuda::Check one(
        "made_up", device, nullptr, [](const nnue::cuda::Finding&) {}, 5);
    one.mark();
    one.finish();
}

int main() {
    constexpr int kOfAReport = 3;                   // two allocations and an event
    for (int device = 0; device < 100; ++device) {  // each begins without reports
        bool failed = false;
        left_until_failure = device;
        try {
            check(device);
        } catch (const std::runtime_error&) {
            failed = true;
        }
        left_until_failure = -1;
        if (alive % kOfAReport != 0) return std::printf("%d: a part of a report is left\n", device), 1;
        nnue::cuda::raise_cuda_index_errors();
        check(device);
        if (strict_waits > 0) return std::printf("%d: it waits in the strictest mode\n", device), 1;
        if (!failed && device > 0) return std::printf("OK %d\n", device), 0;
    }
    return 1;
}
