// The check of index rows on CUDA: a small kernel beside the work, and three ways to hear of it.
//
//   sync   (0) the operator itself throws. The host waits for the check kernel alone, after it has queued the work, so
//              the device does not run dry.
//   async  (1) the host never waits; the next operator on the device, or raise_cuda_index_errors, throws.
//   off    (2) no check.
//
// While a stream is captured into a CUDA graph the check is async: it runs with every replay. Kernels leave out illegal
// indices by themselves (for_each_entry), so that no mode leads to an illegal access.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace nnue::cuda {

struct IndexReport;  // where a kernel leaves the first illegal index it meets

// Use: construct (queues the check), queue the work, then finish().
class IndexCheck {
  public:
    // Rows [rows, max_active] on `device`, `op` a string literal. Throws what an earlier async check found.
    IndexCheck(const char* op, const int32_t* indices, int64_t rows, int64_t max_active, int64_t num_features,
               int device, cudaStream_t stream);
    ~IndexCheck();
    IndexCheck(const IndexCheck&) = delete;
    IndexCheck& operator=(const IndexCheck&) = delete;

    // In mode sync waits for the check and throws if it found something; otherwise does nothing.
    void finish();

  private:
    IndexReport* own_ = nullptr;  // in mode sync
    int device_;
    cudaStream_t stream_;
};

}  // namespace nnue::cuda
