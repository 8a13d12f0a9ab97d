// Operator _row_function on CPU, threads from torch's own pool; the contract is in row_function.h.

#include "../../row_function.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <mutex>
#include <optional>

namespace nnue::row_function {
namespace {

Libraries<OnCpu> libraries;

// Elements for each thread, at least.
constexpr int64_t kGrain = 1 << 14;

void run(Tensor* rows, size_t count, const Tensor& out, int64_t functions) {
    const Job job = check_job(rows, count, out, Device::cpu);
    const OnCpu on_cpu = libraries.at(functions, count);
    const auto call = out.scalar_type() == ScalarType::Float ? on_cpu.of_float : on_cpu.of_double;
    int64_t cost = 1;
    for (size_t i = 0; i < count; ++i) cost += job.in[i].size;
    std::mutex access;
    std::optional<std::string> error;
    torch::stable::parallel_for(0, job.rows, divide_up(kGrain, cost), [&](int64_t begin, int64_t end) {
        const char* const found = call(&job, begin, end);
        if (found == nullptr) return;
        const std::lock_guard lock(access);
        error = found;
    });
    if (error) throw std::runtime_error(*error);
}

void row_function_op(Tensor x, const Tensor& out, int64_t functions) {
    run(&x, 1, out, functions);
}
void row_function_of_op(std::vector<Tensor> rows, const Tensor& out, int64_t functions) {
    run(rows.data(), rows.size(), out, functions);
}

}  // namespace
}  // namespace nnue::row_function

extern "C" __attribute__((visibility("default"))) int64_t nnue_add_row_functions(
    const nnue::row_function::OnCpu* functions, int64_t inputs) {
    return nnue::row_function::libraries.add(*functions, inputs);
}

STABLE_TORCH_LIBRARY_IMPL(nnue, CPU, m) {
    NNUE_IMPL(m, "_row_function", &nnue::row_function::row_function_op);
    NNUE_IMPL(m, "_row_function_of", &nnue::row_function::row_function_of_op);
}
