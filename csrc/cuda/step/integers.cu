// Operators _to_integers and _to_integers_backward on CUDA, one launch for all parameters; the contracts are in
// integers.h.

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>

#include "../../integers.h"
#include "../common.cuh"

namespace nnue::cuda::step {
namespace {

using integers::Problem;
using integers::Range;

constexpr int kThreads = 256, kEach = 16;  // elements per thread, all of which it loads at once
constexpr int64_t kPiece = kThreads * kEach;
constexpr int kMostRanges = 32;  // per launch

struct Ranges {
    Placed<Range> at[kMostRanges];
    int count;
};

template <class T>
__device__ __forceinline__ void convert_piece(const Range& range, int64_t begin) {
    const T scale = static_cast<T>(range.scale), limit = static_cast<T>(range.limit);
    const bool is_backward = range.gradient != nullptr;
    float x[kEach], gradient[kEach];
    for (int k = 0; k < kEach; ++k) {
        const int64_t i = begin + k * kThreads;
        x[k] = i < range.count ? range.from[i] : 0.0f;
        gradient[k] = is_backward && i < range.count ? range.gradient[i] : 0.0f;
    }
    for (int k = 0; k < kEach; ++k) {
        const int64_t i = begin + k * kThreads;
        const float result = is_backward ? integers::ste_gradient(x[k], gradient[k], scale, limit)
                                         : integers::to_integer(x[k], scale, limit);
        if (i < range.count) range.to[i] = result;
    }
}

__global__ void __launch_bounds__(kThreads) to_integers(const Ranges ranges) {
    const auto& [range, first_block] = item_of_block(ranges.at, ranges.count);
    const int64_t begin = (blockIdx.x - first_block) * kPiece + threadIdx.x;
    range.wide ? convert_piece<double>(range, begin) : convert_piece<float>(range, begin);
}

Tensor run(const char* op, Problem& problem) {
    const Tensor& like = problem.parameters[0];
    const torch::stable::accelerator::DeviceGuard guard(like.get_device_index());
    Tensor flat = torch::stable::new_empty(like, {problem.size}, ScalarType::Float);
    problem.write_to(mutable_data<float>(flat));
    for (size_t first = 0; first < problem.ranges.size(); first += kMostRanges) {
        Ranges ranges{};
        ranges.count = static_cast<int>(std::min<size_t>(problem.ranges.size() - first, kMostRanges));
        unsigned blocks = 0;
        for (int r = 0; r < ranges.count; ++r) {
            ranges.at[r] = {problem.ranges[first + r], blocks};
            blocks += static_cast<unsigned>(divide_up(problem.ranges[first + r].count, kPiece));
        }
        launch(op, to_integers, blocks, kThreads, 0, current_stream(like), ranges);
    }
    return flat;
}

using DeviceOperators = integers::Operators<Device::cuda, run>;

}  // namespace
}  // namespace nnue::cuda::step

STABLE_TORCH_LIBRARY_IMPL(nnue, CUDA, m) {
    NNUE_IMPL(m, "_to_integers", &nnue::cuda::step::DeviceOperators::forward);
    NNUE_IMPL(m, "_to_integers_backward", &nnue::cuda::step::DeviceOperators::backward);
}
