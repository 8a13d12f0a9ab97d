// Large outputs in huge pages: getting 64 MB from the system in pages of 4 KB takes as long as the work that fills
// them.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>

#include "base/system.h"

namespace nnue {

// An uninitialised tensor on the device of `like`, in huge pages where that is possible.
inline torch::stable::Tensor new_output(const torch::stable::Tensor& like, int64_t rows, int64_t columns,
                                        torch::headeronly::ScalarType dtype) {
    torch::stable::Tensor output = torch::stable::new_empty(like, {rows, columns}, dtype);
    system::request_huge_pages(output.mutable_data_ptr(), output.numel() * output.element_size());
    return output;
}

}  // namespace nnue
