// How CUDA operators report data that breaks their contract, such as an illegal index. A kernel finds it: a separate
// small kernel for index rows, and the kernel itself that reads them for records and PSQT buckets. There are three
// modes:
//
//   sync   The operator itself throws. The host first queues the work and then waits only for the kernel that checks,
//          so the device does not become idle.
//   async  The host never waits. The next operator on the device, or raise_cuda_index_errors, throws.
//   off    There is no check.
//
// While a stream is captured into a CUDA graph, the check is async and runs with every replay. Kernels skip illegal
// indices by themselves (for_each_entry), so no mode leads to an illegal access.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>

namespace nnue::cuda {

// The first error that a kernel has found, and the function that turns it into an error message. The pointers are the
// host's; kernels only pass them on.
struct Finding {
    const char* op;
    void (*raise)(const Finding&);  // throws
    int64_t row;
    int64_t num_features;
    int64_t value;
    int32_t set;
};

struct Report;  // where a kernel stores the first thing it finds

// A report as kernels see it. With null pointers nothing is reported.
struct FindingSink {
    volatile Finding* finding = nullptr;
    unsigned* claimed = nullptr;
    const char* op = nullptr;
    void (*raise)(const Finding&) = nullptr;
    int64_t num_features = 0;
};

// Only the first thread that claims the report writes it.
__device__ inline void report(const FindingSink& sink, int64_t row, int64_t value) {
    if (sink.finding == nullptr || atomicExch(sink.claimed, 1u) != 0) return;
    sink.finding->op = sink.op;
    sink.finding->raise = sink.raise;
    sink.finding->row = row;
    sink.finding->num_features = sink.num_features;
    sink.finding->value = value;
    __threadfence_system();
    sink.finding->set = 1;
}

// Usage: construct it, launch the kernel that reports to sink(), call mark(), queue other work, then call finish().
class Check {
  public:
    // `op` is a string literal. Throws what an earlier async check found.
    Check(const char* op, int device, cudaStream_t stream, void (*raise)(const Finding&), int64_t num_features = 0);
    ~Check();
    Check(const Check&) = delete;
    Check& operator=(const Check&) = delete;

    const FindingSink& sink() const { return sink_; }

    // Marks the place in the stream up to which finish() waits.
    void mark();

    // In sync mode waits for the kernel and throws if it found something. Otherwise does nothing.
    void finish();

  private:
    FindingSink sink_;
    Report* own_ = nullptr;  // in mode sync
    bool marked_ = false;
    int device_;
    cudaStream_t stream_;
};

// The check of index rows. Usage: construct it, which queues the check, queue the work, then call finish().
class IndexCheck : public Check {
  public:
    // Each of `indices` is [rows, max_active], on `device`.
    IndexCheck(const char* op, std::initializer_list<const int32_t*> indices, int64_t rows, int64_t max_active,
               int64_t num_features, int device, cudaStream_t stream);
};

}  // namespace nnue::cuda
