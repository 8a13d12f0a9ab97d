// Checks and unpacking of tensors for both sets of kernels of perspective_transformer.h: those for
// compute capability 9.0 (hopper/bucketed.cu) and the portable ones (portable/portable.cu).
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../capabilities.h"
#include "../perspective_transformer.h"
#include "../stringize.h"
#include "carver.cuh"
#include "common.cuh"
#include "index_check.cuh"
#include "output_gradient.cuh"
#include "psqt_forward.cuh"

namespace nnue::perspective_transformer {

constexpr int64_t kMultiple = capabilities::kGpuMultiple;  // of N

// Whether this library has the kernels for 9.0.
constexpr std::string_view kArchitectures = NNUE_STRINGIZE(NNUE_CUDA_ARCHS);
constexpr bool kBuiltFor90 = kArchitectures.find("90") != kArchitectures.npos;

// One set of kernels, as functions on tensors that perspective_transformer.cu has checked as far as both sets need it.
// Index rows and black_to_move are contiguous.
struct Kernels {
    // Throws if the kernels are not made for these sizes.
    void (*check_sizes)(const char* op, const Tensor& white, int64_t num_features, PlanLayout layout);
    Tensor (*plan)(const Tensor& white, const Tensor& black, const Tensor& black_to_move, int64_t num_features,
                   PlanLayout layout);
    // Without `output_dtype`, which needs 16-bit weights and king buckets, the output has no rows.
    Three (*forward)(const Batch& batch, PlanLayout layout, const Tensor& weight, const Tensor& bias,
                     const std::optional<Tensor>& psqt, Activation activation, Range range,
                     std::optional<ScalarType> output_dtype, bool save);
    // The psqt output alone. The batch has a psqt_bucket.
    Tensor (*psqt_output)(const Batch& batch, PlanLayout layout, const Tensor& psqt, PositionRange wanted);
    Three (*backward)(const OutputGradients& gradients, const Batch& batch, PlanLayout layout, const Tensor& saved,
                      Sizes sizes, Activation activation, Range range, ScalarType weight_dtype);
    std::string (*layout_text)(int64_t positions, int64_t max_active, int64_t num_features, PlanLayout layout);
};

// Checks what the kernels require beyond the contract of every device.
void check_plan_arguments(const char* op, const Tensor& white, const Tensor& black, int64_t num_features,
                          PlanLayout layout);

// The operator's backward by the kernels that the layout selects, also from what the layer after makes instead of the
// gradient of the output. It checks everything.
Three backward(const OutputGradients& given, const Batch& batch, const Transformer& of, const Tensor& saved,
               ScalarType weight_dtype);

// A contiguous tensor whose address allows 16-byte loads.
inline Tensor aligned(const Tensor& tensor) {
    Tensor out = torch::stable::contiguous(tensor);
    return reinterpret_cast<uintptr_t>(out.const_data_ptr()) % 16 == 0 ? out : torch::stable::clone(out);
}

template <class Carve, class Rows>
int64_t bytes_of(const Carve& carve, const Rows& in) {
    Carver carver{nullptr};
    carve(carver, in);
    return static_cast<int64_t>(carver.used);
}

// Opens a tensor that this library has made for these rows: checks its type and size, and returns the pieces that
// `carve` takes from it.
template <class Carve, class Rows>
auto open_tensor(const char* op, const char* name, const Tensor& tensor, const Carve& carve, const Rows& in,
                 const char* what) {
    check_dtype(op, name, tensor, {ScalarType::Byte});
    const int64_t bytes = bytes_of(carve, in);
    if (tensor.dim() != 1 || tensor.size(0) != bytes) {
        fail(op, name, "shape " + shape_text(tensor.sizes()), "[" + std::to_string(bytes) + "], " + what);
    }
    Carver carver{static_cast<char*>(tensor.mutable_data_ptr())};
    return carve(carver, in);
}

constexpr const char* kMadeByPlan = "what _perspective_plan makes for these sizes";

// New memory for what `carve` takes, on the device of `like`.
template <class Carve, class Rows>
Tensor memory_for(const Carve& carve, const Rows& in, const Tensor& like) {
    return torch::stable::new_empty(like, {bytes_of(carve, in)}, ScalarType::Byte);
}

// The gradient of the output for the kernels. The tensors must outlive the launches.
inline OutputGradient output_gradient(const OutputGradients& of) {
    if (!of.factors) return {of.output.const_data_ptr(), nullptr, nullptr, 0};
    return {of.output.const_data_ptr(), const_data<float>(of.factors->gradient), const_data<int64_t>(of.factors->stack),
            static_cast<int>(of.output.size(0))};
}

inline Float float_type(const char* op, const char* argument, ScalarType dtype) {
    return nnue::float_type(check_float_dtype(op, argument, dtype));
}

// The output of the PSQT columns for some positions. `in` has the rows of features, and num_features counts all of
// them.
template <class Rows, class BlackFirst>
Tensor psqt_forward(const char* op, const Rows& in, int num_features, const BlackFirst& black_first,
                    const Tensor& psqt_in, const Tensor& psqt_bucket_in, PositionRange wanted, cudaStream_t stream) {
    const Tensor psqt = torch::stable::contiguous(psqt_in), psqt_bucket = torch::stable::contiguous(psqt_bucket_in);
    if (psqt.size(1) > INT32_MAX) fail(op, "psqt", "P = " + text(psqt.size(1)), "P < 2^31");
    Tensor out = torch::stable::new_empty(psqt, std::vector<int64_t>{wanted.end - wanted.begin});
    cuda::Check check(
        op, psqt.get_device_index(), stream,
        [](const cuda::Finding& found) { fail_psqt_bucket(found.op, found.row, found.value, found.num_features); },
        psqt.size(1));
    psqt::Positions of{{in.white, in.black}, const_data<int64_t>(psqt_bucket)};
    of.first = static_cast<int>(wanted.begin), of.positions = static_cast<int>(wanted.end - wanted.begin);
    of.max_active = in.max_active, of.num_features = num_features, of.psqt_buckets = static_cast<int>(psqt.size(1));
    cuda::launch("psqt forward", psqt::forward_kernel<BlackFirst>,
                 cuda::thread_blocks_for(of.positions, psqt::kThreads / cuda::kWarp), psqt::kThreads, 0, stream, of,
                 black_first, const_data<float>(psqt), mutable_data<float>(out), check.sink());
    check.finish();
    return out;
}

// {"bytes": …, "pieces": {name: [begin, bytes], …}} of what `carve` takes.
template <class Carve, class Rows>
std::string described(const Carve& carve, const Rows& in) {
    std::string pieces;
    Carver carver{nullptr};
    carver.each = [&](const char* name, size_t begin, size_t bytes) {
        pieces += (pieces.empty() ? "\"" : ", \"") + std::string(name) + "\": [" + std::to_string(begin) + ", " +
                  std::to_string(bytes) + "]";
    };
    carve(carver, in);
    return "{\"bytes\": " + std::to_string(carver.used) + ", \"pieces\": {" + pieces + "}}";
}

}  // namespace nnue::perspective_transformer
