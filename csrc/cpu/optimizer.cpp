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
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "../dtypes.h"
#include "tasks.h"
#include "vector.h"

namespace nnue::optimizer {

// Columns of a task: 32 rows of float gradients take 128 KB.
constexpr int64_t kRun = 1024;

}  // namespace nnue::optimizer

#define NNUE_KERNELS "optimizer_kernels.h"
#include "for_each_isa.h"

// For kernels of elements T: float64 has only the lowest level. It is for tests of derivatives, and the other levels of
// its kernels would be a third of this file's compile time. In templates of T, as those levels must not be
// instantiated.
#define NNUE_CALL_BEST_UNLESS_DOUBLE(FUNCTION, ...)           \
    [&] {                                                     \
        if constexpr (std::is_same_v<T, double>) {            \
            return ::nnue::lowest::FUNCTION(__VA_ARGS__);     \
        } else {                                              \
            return NNUE_CALL_BEST_ISA(FUNCTION, __VA_ARGS__); \
        }                                                     \
    }()

namespace nnue::optimizer {
namespace {

// Tasks of `items` in order: calls body(item, begin column, end column), several at a time.
template <class Item, class Body>
void for_each_run(const std::vector<Item>& items, const Body& body) {
    std::vector<int64_t> first{0};
    for (const Item& item : items) first.push_back(first.back() + divide_up(item.columns, kRun));
    parallel_ranges(first.back(), 4, [&](int64_t begin, int64_t end) {
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

double sum_of_squares(const std::vector<Summand>& from) {
    int64_t tasks = 0;
    for (const Summand& summand : from) tasks += divide_up(summand.columns, kRun);
    std::vector<double> partial(tasks);
    for_each_run(from, [&](const Summand& summand, int64_t task, int64_t begin, int64_t end) {
        switch (summand.type) {
            case Float::kFloat32:
                partial[task] = NNUE_CALL_BEST_ISA(squares_of_columns<float>, summand, begin, end);
                break;
            case Float::kFloat64:
                partial[task] = NNUE_CALL_BEST_ISA(squares_of_columns<double>, summand, begin, end);
                break;
            case Float::kFloat16:
                partial[task] = NNUE_CALL_BEST_ISA(squares_of_columns<Half>, summand, begin, end);
                break;
            default:
                partial[task] = NNUE_CALL_BEST_ISA(squares_of_columns<BFloat16>, summand, begin, end);
        }
    });
    double total = 0;
    for (const double part : partial) total += part;
    return total;
}

Tensor norm_op(Tensors gradients, std::vector<int64_t> shared_rows, Tensors rows, const Tensor& numbers) {
    Tensors kept;
    const double total = sum_of_squares(check_norm(gradients, shared_rows, rows, numbers, Device::cpu, kept));
    const Tensor found = torch::stable::new_zeros(numbers, {kNumbers});
    double* const out = mutable_data<double>(found);
    out[kGo] = is_number(total);
    out[kNorm] = std::sqrt(total);
    return found;
}

template <class R, class T>
void run(const std::vector<Part>& parts, const Factors& factors, const double* numbers, float* failed) {
    std::atomic<bool> bad{false};
    for_each_run(parts, [&](const Part& part, int64_t /*task*/, int64_t begin, int64_t end) {
        const Common<T> c = common<T>(factors, numbers, part.rate, part.decay, part.low, part.high);
        const int turn = R::kAverages == 2 ? turn_of(numbers) : 0;
        const bool good = NNUE_CALL_BEST_UNLESS_DOUBLE(update_columns<R>, part, c, turn, begin, end);
        if (!good) bad = true;
    });
    if (bad) *failed = 1;
}

// ---- rows updated late ----------------------------------------------------------------------------------------------

void mark_rows_op(const Tensor& white, const Tensor& black, const Tensor& rows) {
    check_marks(white, black, rows, Device::cpu);
    uint8_t* const marked = mutable_data<uint8_t>(rows);
    const int64_t num_rows = rows.size(0);
    for (const Tensor* tensor : {&white, &black}) {
        const Tensor indices = torch::stable::contiguous(*tensor);
        const int64_t positions = indices.size(0), length = indices.size(1);
        const int32_t* row = const_data<int32_t>(indices);
        for (int64_t b = 0; b < positions; ++b, row += length) {
            for (int64_t i = 0; i < length && row[i] >= 0; ++i) {
                if (row[i] < num_rows) marked[row[i]] = 1;
            }
        }
    }
}

// Rows that are worked on together, for one task: few enough that there are tasks for all threads.
int64_t groups_of_task(const Late& l) {
    return std::clamp<int64_t>(l.virtual_rows / 128, 1, 32);
}

// Where the gradient of each row lies, -1 for rows that do not make this step: from marks, where there is a gradient
// for every row, or from the numbers of the rows that have one.
std::vector<int64_t> gradient_places(const LatePart& part, int64_t step) {
    const Late& l = part.late;
    const int64_t num_rows = l.rows;
    const std::string made = at("made", part.number), rows = at("rows", part.number);
    if (step < 1) fail(kStep, "step", step - 1, "0 or more");
    std::vector<int64_t> places(num_rows, -1);
    if (part.rows.scalar_type() != ScalarType::Long) {
        for (int64_t row = 0; row < num_rows; ++row) {
            if (l.marked == nullptr || l.marked[row]) places[row] = row;
        }
    } else {
        check_device(kStep, rows.c_str(), part.rows, Device::cpu, part.weight, "its weight");
        check_shape(kStep, rows.c_str(), part.rows, {part.gradient.size(0)}, "[R], the rows of gradient,");
        check_contiguous(kStep, rows, part.rows);
        const int64_t* const numbers = const_data<int64_t>(part.rows);
        for (int64_t i = 0; i < part.rows.size(0); ++i) {
            if (numbers[i] < (i == 0 ? 0 : numbers[i - 1] + 1) || numbers[i] >= num_rows) {
                fail(kStep, rows.c_str(), text(numbers[i]) + " at place " + text(i),
                     "ascending numbers below " + text(num_rows));
            }
            places[numbers[i]] = i;
        }
    }
    for (int64_t row = 0; row < num_rows; ++row) {
        if (places[row] >= 0 && l.made[row] != step - 1) {
            fail(kStep, made.c_str(), text(l.made[row]) + " in row " + text(row),
                 text(step - 1) + ", as this is step " + text(step));
        }
    }
    return places;
}

template <class R, class T>
void update_rows(const Late& l, const std::vector<int64_t>& places, const Factors& factors, const double* numbers,
                 int64_t step, float* failed) {
    std::copy_n(numbers, kNumbers, l.history + (step - 1) % l.window * kNumbers);
    const Common<T> c = common<T>(factors, numbers, l.part.rate, l.part.decay, l.part.low, l.part.high);
    const int turn = R::kAverages == 2 ? turn_of(numbers) : 0;
    T* const changes = l.changes == nullptr
                           ? nullptr
                           : static_cast<T*>(l.changes) + (step - 1) % l.window * l.virtual_rows * l.columns;
    std::atomic<bool> bad{false};
    parallel_ranges(l.virtual_rows, groups_of_task(l), [&](int64_t begin, int64_t end) {
        for (int64_t v = begin; v < end; ++v) {
            T* const change = changes == nullptr ? nullptr : changes + v * l.columns;
            const bool good = NNUE_CALL_BEST_UNLESS_DOUBLE(update_group<R>, l.part, c, turn, v, l.virtual_rows,
                                                           l.columns, places.data(), change);
            if (!good) bad = true;
            for (int64_t row = v; row < l.rows; row += l.virtual_rows) {
                if (places[row] >= 0) l.made[row] = step;
            }
        }
    });
    if (bad) *failed = 1;
}

void update_late(const LatePart& part, const std::vector<int64_t>& places, float* failed) {
    with_rule(part.h.rule, part.weight, part.late.part.is_short, [&]<class R, class T>() {
        update_rows<R, T>(part.late, places, factors(part.h), part.numbers, *part.step, failed);
    });
}

template <class R, class T>
void catch_up(const Late& l, const Factors& factors, int64_t step) {
    // The numbers of the steps in the window, the last one at the end.
    const int64_t oldest = std::max<int64_t>(step - l.window, 0);
    std::vector<Common<T>> steps;
    std::vector<int> turns;
    for (int64_t t = oldest; t < step; ++t) {
        const double* const numbers = l.history + t % l.window * kNumbers;
        steps.push_back(common<T>(factors, numbers, l.part.rate, l.part.decay, l.part.low, l.part.high));
        turns.push_back(turn_of(numbers));
    }
    const int64_t num_rows = l.rows;
    // From `row` on, the next one of its group that has steps to make.
    const auto next_row = [&](int64_t row) {
        for (; row < num_rows; row += l.virtual_rows) {
            const int64_t missed = step - l.made[row];
            if (missed >= l.window || (missed > 0 && (l.marked == nullptr || l.marked[row]))) break;
        }
        return row;
    };
    parallel_ranges(l.virtual_rows, groups_of_task(l), [&](int64_t begin, int64_t end) {
        std::vector<const T*> shared(step - oldest);
        for (int64_t v = begin; v < end; ++v) {
            for (int64_t t = oldest; t < step; ++t) {
                shared[t - oldest] = l.changes == nullptr ? nullptr
                                                          : static_cast<const T*>(l.changes) +
                                                                (t % l.window * l.virtual_rows + v) * l.columns;
            }
            for (int64_t row = next_row(v), next; row < num_rows; row = next) {
                next = next_row(row + l.virtual_rows);
                const int64_t from = l.made[row] - oldest;
                NNUE_CALL_BEST_UNLESS_DOUBLE(replay_row<R>, l.part, row * l.columns,
                                             (next < num_rows ? next : row) * l.columns, l.columns, steps.data() + from,
                                             turns.data() + from, shared.data() + from, step - l.made[row]);
                l.made[row] = step;
            }
        }
    });
}

void catch_up_op(Tensors weights, Tensors moments, Tensors copies, Tensors late, Tensors rows, Tensors state,
                 std::vector<int64_t> parts, int64_t optimizer) {
    const CatchUpCall call({weights, moments, copies}, late, rows, state, parts, optimizer, Device::cpu);
    for (const LatePart& part : call.late) {
        const Late& l = part.late;
        const int64_t step = *part.step;
        const std::string name = at("made", part.number);
        if (std::all_of(l.made, l.made + l.rows, [step](int64_t made) { return made == step; })) continue;
        for (int64_t row = 0; row < l.rows; ++row) {
            const int64_t made = l.made[row];
            if (made < 0 || made > step) {
                fail(kCatchUp, name.c_str(), text(made) + " in row " + text(row),
                     "0 to " + text(step) + ", the steps made");
            }
            if (step - made > l.window) {
                fail(kCatchUp, name.c_str(), text(made) + " in row " + text(row),
                     "at least " + text(step - l.window) + ", as the window has " + text(l.window) + " steps");
            }
        }
        with_rule(part.h.rule, part.weight, l.part.is_short,
                  [&]<class R, class T>() { catch_up<R, T>(l, factors(part.h), step); });
    }
}

// ---- a step ---------------------------------------------------------------------------------------------------------

void step_op(Tensors weights, Tensors gradients, Tensors moments, Tensors copies, Tensors late, Tensors rows,
             Tensors state, const Tensor& loss, const Tensor& lr, Tensors also, std::vector<int64_t> also_shared,
             const std::optional<Tensor>& norm, int64_t optimizer) {
    const StepCall call({weights, moments, copies}, gradients, late, rows, state, loss, lr, also, also_shared, norm,
                        optimizer, Device::cpu);
    std::vector<std::vector<int64_t>> places;  // of each part that is updated late; checked before anything changes
    for (const LatePart& part : call.late) {
        check_dtype(kStep, "gradient", part.gradient, {part.weight.scalar_type()});
        places.push_back(gradient_places(part, *part.step + 1));
    }
    float* const failed = call.state.failed;
    for (size_t g = 0; g < call.groups.size(); ++g) {
        const StepCall::Group& group = call.groups[g];
        const double total = sum_of_squares(call.summands_of(g));
        if (*failed != 0 || !is_number(scalar(loss)) || !is_number(total)) {
            *failed = 1;
            group.numbers[kGo] = 0;
        } else {
            prepare_numbers(group.h, ++*group.step, scalar(lr), group.numbers, group.numbers);
            complete_numbers(group.h, std::sqrt(total), call.optimizer.max_norm, group.numbers);
        }
    }
    for (const StepCall::Group& group : call.groups) {
        if (group.numbers[kGo] == 0) continue;
        for (const bool is_short : {false, true}) {
            std::vector<Part> parts;
            std::copy_if(group.parts.begin(), group.parts.end(), std::back_inserter(parts),
                         [&](const Part& part) { return part.is_short == is_short; });
            if (parts.empty()) continue;
            with_rule(group.h.rule, weights[0], is_short,
                      [&]<class R, class T>() { run<R, T>(parts, factors(group.h), group.numbers, failed); });
        }
    }
    for (size_t i = 0; i < call.late.size(); ++i) {
        if (call.late[i].numbers[kGo] != 0) update_late(call.late[i], places[i], failed);
    }
}

}  // namespace
}  // namespace nnue::optimizer

STABLE_TORCH_LIBRARY_IMPL(nnue, CPU, m) {
    NNUE_IMPL(m, "_optimizer_describe", &nnue::optimizer::describe_op);
    NNUE_IMPL(m, "_optimizer_step", &nnue::optimizer::step_op);
    NNUE_IMPL(m, "_optimizer_norm", &nnue::optimizer::norm_op);
    NNUE_IMPL(m, "_optimizer_mark_rows", &nnue::optimizer::mark_rows_op);
    NNUE_IMPL(m, "_optimizer_catch_up", &nnue::optimizer::catch_up_op);
}
