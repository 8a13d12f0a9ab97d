// Work beside torch's current stream: a fork of this stream, which is joined again before the operator returns.
//
// So everything that an operator does stays ordered with its stream, as its caller and the caching allocator expect,
// and a CUDA graph that captures the operator captures both branches.
#pragma once

#include <cuda_runtime.h>

#include <map>
#include <utility>

namespace nnue::cuda {

class Fork {
  public:
    // Work on stream() begins after the work that `main` has been given so far. If ok() is not cudaSuccess, the fork
    // must not be used further. stream() has a high priority, so that its thread blocks take the places that finished
    // thread blocks of `main` leave. Otherwise they would begin only after all thread blocks of `main` have begun.
    explicit Fork(cudaStream_t main) : main_(main) {
        error_ = find(main, side_);
        if (error_ == cudaSuccess) error_ = cudaEventRecord(side_.forked, main_);
        if (error_ == cudaSuccess) error_ = cudaStreamWaitEvent(side_.stream, side_.forked, 0);
    }
    Fork(const Fork&) = delete;
    Fork& operator=(const Fork&) = delete;

    cudaError_t ok() const { return error_; }
    cudaStream_t stream() const { return side_.stream; }

    // Work that `main` is given from here on begins after all work on stream().
    cudaError_t join() {
        const cudaError_t error = cudaEventRecord(side_.done, side_.stream);
        return error == cudaSuccess ? cudaStreamWaitEvent(main_, side_.done, 0) : error;
    }

  private:
    struct Side {
        cudaStream_t stream = nullptr;
        cudaEvent_t forked = nullptr, done = nullptr;
    };

    // Finds the side stream for `main`, and makes it at its first use. Each thread has one per device, so that no
    // thread waits for another thread's event. It has a second one for captures, because a stream belongs to a capture
    // until that ends. They are never destroyed, since a thread may end after CUDA has shut down.
    static cudaError_t find(cudaStream_t main, Side& found) {
        thread_local std::map<std::pair<int, bool>, Side> sides;
        int device = 0;
        cudaError_t error = cudaGetDevice(&device);
        cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
        if (error == cudaSuccess) error = cudaStreamIsCapturing(main, &status);
        if (error != cudaSuccess) return error;
        Side& side = sides[{device, status == cudaStreamCaptureStatusActive}];
        if (side.stream == nullptr) {
            // A capture does no harm to new streams and events, but CUDA refuses them in its strictest capture mode.
            cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
            error = cudaThreadExchangeStreamCaptureMode(&mode);
            if (error != cudaSuccess) return error;
            error = create(side);
            const cudaError_t back = cudaThreadExchangeStreamCaptureMode(&mode);
            if (error == cudaSuccess) error = back;
        }
        found = side;
        return error;
    }

    static cudaError_t create(Side& side) {
        int least = 0, most = 0;
        cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &most);
        if (error == cudaSuccess) error = cudaEventCreateWithFlags(&side.forked, cudaEventDisableTiming);
        if (error == cudaSuccess) error = cudaEventCreateWithFlags(&side.done, cudaEventDisableTiming);
        if (error == cudaSuccess) error = cudaStreamCreateWithPriority(&side.stream, cudaStreamNonBlocking, most);
        return error;
    }

    const cudaStream_t main_;
    Side side_;
    cudaError_t error_;
};

}  // namespace nnue::cuda
