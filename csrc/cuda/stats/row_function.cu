// Operator _row_function on CUDA; the contract is in row_function.h.

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "../../row_function.h"
#include "../common.cuh"

namespace nnue::cuda::stats {
namespace {

row_function::Libraries<row_function::OnCuda> libraries;

void run(Tensor* rows, size_t count, const Tensor& out, int64_t functions) {
    using namespace row_function;
    const torch::stable::accelerator::DeviceGuard guard(out.get_device_index());
    Job job = check_job(rows, count, out, Device::cuda);
    if (job.rows == 0) return;
    const OnCuda on_cuda = libraries.at(functions, count);
    Tensor space;
    if (const int64_t bytes = on_cuda.bytes(&job); bytes > 0) {
        space = torch::stable::new_zeros(out, {bytes}, ScalarType::Byte);
        job.space = space.mutable_data_ptr();
    }
    const auto call = out.scalar_type() == ScalarType::Float ? on_cuda.of_float : on_cuda.of_double;
    const char* const error = call(&job, current_stream(out));
    if (error != nullptr) throw std::runtime_error(std::string("CUDA: ") + error);
}

void row_function_op(Tensor x, const Tensor& out, int64_t functions) {
    run(&x, 1, out, functions);
}
void row_function_of_op(std::vector<Tensor> rows, const Tensor& out, int64_t functions) {
    run(rows.data(), rows.size(), out, functions);
}

}  // namespace
}  // namespace nnue::cuda::stats

extern "C" __attribute__((visibility("default"))) int64_t nnue_add_row_functions(
    const nnue::row_function::OnCuda* functions, int64_t inputs) {
    return nnue::cuda::stats::libraries.add(*functions, inputs);
}

STABLE_TORCH_LIBRARY_IMPL(nnue, CUDA, m) {
    NNUE_IMPL(m, "_row_function", &nnue::cuda::stats::row_function_op);
    NNUE_IMPL(m, "_row_function_of", &nnue::cuda::stats::row_function_of_op);
}
