// The optimizer step on CPU, threads from torch's own pool (torch.set_num_threads holds).
//
// A task is a run of columns of all rows of a part: the gradients of up to 32 rows that share virtual rows stay in the
// cache between the sum over them and the update, so every byte of weight, moments and gradient comes from memory once.

#include "../optimizer.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <vector>

#include "../dtypes.h"
#include "vector.h"

namespace nnue::optimizer {

// Columns of a task: 32 rows of float gradients take 128 KB.
constexpr int64_t kRun = 1024;

}  // namespace nnue::optimizer

#define NNUE_KERNELS "optimizer_kernels.h"
#include "for_each_isa.h"

namespace nnue::optimizer {
namespace {

// Tasks of `items` in order: calls body(item, begin column, end column), several at a time.
template <class Item, class Body>
void for_each_run(const std::vector<Item>& items, const Body& body) {
    std::vector<int64_t> first{0};
    for (const Item& item : items) first.push_back(first.back() + divide_up(item.columns, kRun));
    torch::stable::parallel_for(0, first.back(), 4, [&](int64_t begin, int64_t end) {
        size_t i = std::upper_bound(first.begin(), first.end(), begin) - first.begin() - 1;
        for (int64_t task = begin; task < end; ++task) {
            while (task >= first[i + 1]) ++i;
            const int64_t column = (task - first[i]) * kRun;
            body(items[i], task, column, std::min(column + kRun, items[i].columns));
        }
    });
}

double scalar(const Tensor& tensor) {
    return tensor.scalar_type() == ScalarType::Double ? *const_data<double>(tensor) : *const_data<float>(tensor);
}

void begin_op(Tensors gradients, std::vector<int64_t> shared_rows, const Tensor& loss, const Tensor& lr,
              const Tensor& step, const Tensor& failed, const Tensor& numbers, int64_t rule, double beta1, double beta2,
              double eps, double positive, int64_t lookahead_every, double lookahead_share, double max_norm) {
    const Hyperparameters h =
        check_hyperparameters(rule, beta1, beta2, eps, positive, lookahead_every, lookahead_share, max_norm);
    check_begin(loss, lr, step, failed, numbers, Device::cpu);
    Tensors kept;
    const std::vector<Summand> from = summands(gradients, shared_rows, numbers, Device::cpu, kept);
    int64_t tasks = 0;
    for (const Summand& summand : from) tasks += divide_up(summand.columns, kRun);
    std::vector<double> partial(tasks);
    for_each_run(from, [&](const Summand& summand, int64_t task, int64_t begin, int64_t end) {
        switch (summand.kind) {
            case Kind::kFloat32:
                partial[task] = NNUE_CALL_BEST_ISA(squares_of_columns<float>, summand, begin, end);
                break;
            case Kind::kFloat64:
                partial[task] = NNUE_CALL_BEST_ISA(squares_of_columns<double>, summand, begin, end);
                break;
            case Kind::kFloat16:
                partial[task] = NNUE_CALL_BEST_ISA(squares_of_columns<Half>, summand, begin, end);
                break;
            default:
                partial[task] = NNUE_CALL_BEST_ISA(squares_of_columns<BFloat16>, summand, begin, end);
        }
    });
    double total = 0;
    for (const double part : partial) total += part;
    double* const out = mutable_data<double>(numbers);
    float* const flag = mutable_data<float>(failed);
    if (*flag != 0 || !is_number(scalar(loss)) || !is_number(total)) {
        *flag = 1;
        out[kGo] = 0;
        return;
    }
    int64_t* const count = mutable_data<int64_t>(step);
    make_numbers(h, ++*count, scalar(lr), std::sqrt(total), out);
}

template <class R, class T>
void run(const std::vector<Part>& parts, const Factors& factors, const double* numbers, float* failed) {
    std::atomic<bool> bad{false};
    for_each_run(parts, [&](const Part& part, int64_t /*task*/, int64_t begin, int64_t end) {
        const Common<T> c = common<T>(factors, numbers, part.rate, part.decay, part.low, part.high);
        const int turn = R::kAverages == 2 ? static_cast<int>(numbers[kTurn]) : 0;
        const bool good = NNUE_CALL_BEST_ISA(update_columns<R>, part, c, turn, begin, end);
        if (!good) bad = true;
    });
    if (bad) *failed = 1;
}

void update_op(Tensors weights, Tensors gradients, Tensors averages, Tensors squares, Tensors shared_averages,
               Tensors shared_squares, Tensors slow, Tensors copies, const Tensor& numbers, const Tensor& failed,
               std::vector<double> rates, std::vector<double> decays, std::vector<double> lows,
               std::vector<double> highs, int64_t rule_in, double beta1, double beta2, double positive,
               bool /*follows_begin*/) {
    const Rule rule = check_rule(kUpdate, rule_in, beta1, beta2);
    check_numbers(kUpdate, numbers, Device::cpu);
    check_scalar(kUpdate, "failed", failed, Device::cpu, numbers, {ScalarType::Float});
    Tensors kept;
    const std::vector<Part> found =
        parts({weights, gradients, averages, squares, shared_averages, shared_squares, slow, copies},
              {rates, decays, lows, highs}, averages_of(rule), numbers, Device::cpu, kept);
    const double* const given = const_data<double>(numbers);
    if (found.empty() || given[kGo] == 0) return;
    const Factors f = factors(rule, beta1, beta2, positive);
    float* const flag = mutable_data<float>(failed);
    const bool is_double = weights[0].scalar_type() == ScalarType::Double;
    if (rule == Rule::kPositiveNegative) {
        is_double ? run<PositiveNegative, double>(found, f, given, flag)
                  : run<PositiveNegative, float>(found, f, given, flag);
    } else {
        is_double ? run<Adam, double>(found, f, given, flag) : run<Adam, float>(found, f, given, flag);
    }
}

}  // namespace
}  // namespace nnue::optimizer

STABLE_TORCH_LIBRARY_IMPL(nnue, CPU, m) {
    m.impl("optimizer_begin", TORCH_BOX(&nnue::optimizer::begin_op));
    m.impl("optimizer_update", TORCH_BOX(&nnue::optimizer::update_op));
}
