// See index_check.cuh. A report is a record in pinned host memory that the kernel writes. A flag in device memory lets
// only one thread write it. Each device has one report for async checks, and a pool of reports for sync checks, one for
// each call in flight.

#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "../build_info.h"
#include "../enumerations.h"
#include "common.cuh"
#include "index_check.cuh"

namespace nnue::cuda {

struct Report {
    volatile Finding* finding = nullptr;  // pinned and mapped, so that host and device see it
    unsigned* claimed = nullptr;          // device
    cudaEvent_t done = nullptr;

    Report() = default;
    Report(const Report&) = delete;
    Report& operator=(const Report&) = delete;
    ~Report() {  // of a report that could not be completed
        if (done != nullptr) cudaEventDestroy(done);
        if (claimed != nullptr) cudaFree(claimed);
        if (finding != nullptr) cudaFreeHost(const_cast<Finding*>(finding));
    }
};

namespace {

std::atomic<CheckMode> mode{CheckMode::sync};

struct DeviceReports {
    Report* async = nullptr;    // null until the first check on the device
    std::vector<Report*> idle;  // for sync checks; it has room for all of them
    std::size_t made = 0;       // for sync checks
};
std::mutex mutex;
// Reports live as long as the process, since a graph may write to one at any time.
std::map<int, DeviceReports>& reports() {
    static auto* all = new std::map<int, DeviceReports>;
    return *all;
}

// While any stream is captured in CUDA's strictest mode, no thread may allocate or wait. Relaxing the mode is safe
// here, because these calls are not part of the capture.
class RelaxedCapture {
  public:
    RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
    ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }

  private:
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

std::unique_ptr<Report> make_report() {
    auto report = std::make_unique<Report>();
    void* memory = nullptr;
    check_cuda(cudaHostAlloc(&memory, sizeof(Finding), cudaHostAllocMapped | cudaHostAllocPortable), "index check");
    report->finding = static_cast<volatile Finding*>(memory);
    report->finding->set = 0;
    check_cuda(cudaMalloc(&report->claimed, sizeof(unsigned)), "index check");
    cudaStream_t stream = nullptr;  // a new one, since the default stream may be captured
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "index check");
    const auto destroy = [](cudaStream_t of) { cudaStreamDestroy(of); };
    const std::unique_ptr<std::remove_pointer_t<cudaStream_t>, decltype(destroy)> owner(stream, destroy);
    check_cuda(cudaMemsetAsync(report->claimed, 0, sizeof(unsigned), stream), "index check");
    check_cuda(cudaStreamSynchronize(stream), "index check");
    check_cuda(cudaEventCreateWithFlags(&report->done, cudaEventDisableTiming), "index check");
    return report;
}

// Throws the error in `report` if there is one, and clears it.
void raise(Report* report, cudaStream_t stream, bool earlier) {
    if (report->finding->set == 0) return;
    // The device has written `set` after the rest. Processors that reorder reads (ARM) must not read the rest first.
    std::atomic_thread_fence(std::memory_order_acquire);
    const Finding found{report->finding->op,           report->finding->raise, report->finding->row,
                        report->finding->num_features, report->finding->value, 1};
    report->finding->set = 0;
    check_cuda(cudaMemsetAsync(report->claimed, 0, sizeof(unsigned), stream), "index check");
    check_cuda(cudaStreamSynchronize(stream), "index check");
    try {
        found.raise(found);
    } catch (const std::runtime_error& error) {
        if (!earlier) throw;
        // Only in this mode are the int64 rows gone that index_rows of Python and C++ converted.
        using Limits = std::numeric_limits<int32_t>;
        const bool nearest = found.value == Limits::min() || found.value == Limits::max();
        throw std::runtime_error(std::string(error.what()) + " (in an earlier call, or a CUDA graph's replay" +
                                 (nearest ? "; for an int64 index beyond 32 bits, the nearest is named)" : ")"));
    }
}

// One warp per row.
__global__ void check_rows(const int32_t* indices, int64_t rows, int max_active, FindingSink sink) {
    const int lane = threadIdx.x;
    for (int64_t row = int64_t(blockIdx.x) * blockDim.y + threadIdx.y; row < rows;
         row += int64_t(gridDim.x) * blockDim.y) {
        for (int64_t base = 0; base < max_active; base += kWarp) {
            const int32_t index = base + lane < max_active ? indices[row * max_active + base + lane] : -1;
            const unsigned ends = __ballot_sync(kAllLanes, index == -1);
            const int count = ends == 0 ? kWarp : __ffs(ends) - 1;
            if (lane < count && (index < 0 || index >= sink.num_features)) report(sink, row, index);
            if (count < kWarp) break;
        }
    }
}

bool is_capturing(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check_cuda(cudaStreamIsCapturing(stream, &status), "index check");
    return status != cudaStreamCaptureStatusNone;
}

}  // namespace

Check::Check(const char* op, int device, cudaStream_t stream, void (*raise_found)(const Finding&), int64_t num_features)
    : device_(device), stream_(stream) {
    const CheckMode now = mode.load(std::memory_order_relaxed);
    if (now == CheckMode::off) return;
    const bool capturing = is_capturing(stream);
    const RelaxedCapture relaxed;
    Report* report = nullptr;
    const std::lock_guard lock(mutex);
    DeviceReports& mine = reports()[device];
    if (mine.async == nullptr) mine.async = make_report().release();
    if (!capturing) raise(mine.async, stream, true);
    if (capturing || now == CheckMode::async) {
        report = mine.async;
    } else if (mine.idle.empty()) {
        mine.idle.reserve(mine.made + 1);  // so that the destructor needs no memory
        report = own_ = make_report().release();
        ++mine.made;
    } else {
        report = own_ = mine.idle.back();
        mine.idle.pop_back();
    }
    sink_ = {report->finding, report->claimed, op, raise_found, num_features};
}

void Check::mark() {
    if (own_ != nullptr) check_cuda(cudaEventRecord(own_->done, stream_), "index check");
    marked_ = true;
}

void Check::finish() {
    if (!marked_) mark();
    if (own_ == nullptr) return;
    const RelaxedCapture relaxed;
    check_cuda(cudaEventSynchronize(own_->done), "index check");
    raise(own_, stream_, false);
}

Check::~Check() {
    if (own_ == nullptr) return;
    const RelaxedCapture relaxed;
    // If the operator failed before finish(), the kernel may still write. The next call that takes this report must
    // find it empty.
    if (!marked_) cudaEventRecord(own_->done, stream_);
    if (cudaEventSynchronize(own_->done) == cudaSuccess && own_->finding->set != 0) {
        own_->finding->set = 0;
        cudaMemsetAsync(own_->claimed, 0, sizeof(unsigned), stream_);
        cudaStreamSynchronize(stream_);
    }
    const std::lock_guard lock(mutex);
    reports()[device_].idle.push_back(own_);
}

IndexCheck::IndexCheck(const char* op, std::initializer_list<const int32_t*> indices, int64_t rows, int64_t max_active,
                       int64_t num_features, int device, cudaStream_t stream)
    : Check(
          op, device, stream,
          [](const Finding& found) { fail_index(found.op, found.row, found.value, found.num_features); },
          num_features) {
    if (sink().finding == nullptr || rows == 0 || max_active == 0) return;
    constexpr int kRowsPerBlock = 8;
    const unsigned blocks = static_cast<unsigned>(std::min<int64_t>(divide_up(rows, kRowsPerBlock), 4096));
    for (const int32_t* of : indices) {
        launch("check_rows", check_rows, blocks, dim3(kWarp, kRowsPerBlock), 0, stream, of, rows,
               static_cast<int>(max_active), sink());
    }
    mark();
}

namespace {

// Returns the previous mode.
int64_t set_cuda_index_check(int64_t value) {
    return static_cast<int64_t>(mode.exchange(check_enumeration<CheckMode>("set_cuda_index_check", "mode", value)));
}

void raise_cuda_index_errors() {
    const RelaxedCapture relaxed;
    const std::lock_guard lock(mutex);
    for (const auto& [device, mine] : reports()) {
        if (mine.async == nullptr) continue;  // its first check failed before there was a report
        const torch::stable::accelerator::DeviceGuard guard(device);
        check_cuda(cudaDeviceSynchronize(), "raise_cuda_index_errors");
        raise(mine.async, nullptr, true);
    }
}

}  // namespace
}  // namespace nnue::cuda

STABLE_TORCH_LIBRARY_IMPL(nnue, CompositeExplicitAutograd, m) {
    NNUE_IMPL(m, "set_cuda_index_check", &nnue::cuda::set_cuda_index_check);
    NNUE_IMPL(m, "raise_cuda_index_errors", &nnue::cuda::raise_cuda_index_errors);
}

NNUE_CUDA_BUILD_INFO("cuda");
