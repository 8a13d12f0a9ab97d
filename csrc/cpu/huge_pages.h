// Large outputs in huge pages: getting 64 MB from the system in pages of 4 KB takes as long as the work that fills
// them.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstddef>
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace nnue {

// Requests huge pages for memory that nothing has been written to yet. The system may ignore this, and memory that is
// already in use stays as it is.
inline void want_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] size_t bytes) {
#if defined(MADV_HUGEPAGE)
    constexpr uintptr_t kHugePage = uintptr_t(1) << 21;
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(memory) + kHugePage - 1) / kHugePage * kHugePage;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + bytes) / kHugePage * kHugePage;
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

// An uninitialised tensor on the device of `like`, in huge pages where that is possible.
inline torch::stable::Tensor new_output(const torch::stable::Tensor& like, int64_t rows, int64_t columns,
                                        torch::headeronly::ScalarType dtype) {
    torch::stable::Tensor output = torch::stable::new_empty(like, {rows, columns}, dtype);
    want_huge_pages(output.mutable_data_ptr(), output.numel() * output.element_size());
    return output;
}

}  // namespace nnue
