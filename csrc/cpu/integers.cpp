// Operators _to_integers and _to_integers_backward on CPU, threads from torch's own pool; the contracts are in
// integers.h.

#include "../integers.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>

#include "huge_pages.h"

#define NNUE_KERNELS "integers_kernels.h"
#include "for_each_isa.h"

namespace nnue::integers {
namespace {

constexpr int64_t kPiece = 1 << 14;  // elements of a task

Tensor run(const char*, Problem& problem) {
    Tensor flat = torch::stable::new_empty(problem.parameters[0], {problem.size}, ScalarType::Float);
    system::request_huge_pages(flat.mutable_data_ptr(), problem.size * sizeof(float));
    problem.write_to(mutable_data<float>(flat));
    for (const Range& range : problem.ranges) {
        torch::stable::parallel_for(0, divide_up(range.count, kPiece), 1, [&](int64_t begin, int64_t end) {
            NNUE_CALL_BEST_ISA(convert_range, range, begin * kPiece, std::min(end * kPiece, range.count));
        });
    }
    return flat;
}

using DeviceOperators = Operators<Device::cpu, run>;

}  // namespace
}  // namespace nnue::integers

STABLE_TORCH_LIBRARY_IMPL(nnue, CPU, m) {
    NNUE_IMPL(m, "_to_integers", &nnue::integers::DeviceOperators::forward);
    NNUE_IMPL(m, "_to_integers_backward", &nnue::integers::DeviceOperators::backward);
}
