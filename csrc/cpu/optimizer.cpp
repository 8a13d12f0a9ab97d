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

void begin_op(Tensors gradients, std::vector<int64_t> shared_rows, const Tensor& loss, const Tensor& lr, Tensors state,
              int64_t rule, std::vector<double> constants, double max_norm, Tensors rows) {
    const Hyperparameters h = check_rule(kBegin, rule, constants);
    const auto [step, failed, numbers] = check_begin(loss, lr, state, max_norm, Device::cpu);
    Tensors kept;
    const std::vector<Summand> from = summands(gradients, shared_rows, rows, numbers, Device::cpu, kept);
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
    double* const out = mutable_data<double>(numbers);
    float* const flag = mutable_data<float>(failed);
    if (*flag != 0 || !is_number(scalar(loss)) || !is_number(total)) {
        *flag = 1;
        out[kGo] = 0;
        return;
    }
    int64_t* const count = mutable_data<int64_t>(step);
    make_numbers(h, ++*count, scalar(lr), std::sqrt(total), max_norm, out);
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

void update_op(Tensors weights, Tensors gradients, Tensors moments, Tensors copies, Tensors state,
               std::vector<double> settings, int64_t rule, std::vector<double> constants, bool /*follows_begin*/) {
    const Hyperparameters h = check_rule(kUpdate, rule, constants);
    const auto [step, failed, numbers] = check_state(kUpdate, state, Device::cpu);
    Tensors kept;
    const std::vector<Part> found =
        parts(kUpdate, weights, gradients, moments, copies, settings, h, numbers, Device::cpu, kept);
    const double* const given = const_data<double>(numbers);
    if (found.empty() || given[kGo] == 0) return;
    float* const flag = mutable_data<float>(failed);
    with_rule(h.rule, weights[0], [&]<class R, class T>() { run<R, T>(found, factors(h), given, flag); });
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

// Where the gradient of each row lies, -1 for rows that make no step now: from marks, where there is a gradient for
// every row, or from the numbers of the rows that have one.
std::vector<int64_t> gradient_places(const Late& l, const Tensor& rows, const Tensor& gradient, int64_t step) {
    const int64_t num_rows = l.rows;
    std::vector<int64_t> places(num_rows, -1);
    if (l.marked != nullptr) {
        for (int64_t row = 0; row < num_rows; ++row) places[row] = l.marked[row] ? row : -1;
    } else {
        check_device(kUpdateRows, "rows", rows, Device::cpu, gradient, "gradient");
        check_dtype(kUpdateRows, "rows", rows, {ScalarType::Byte, ScalarType::Long});
        check_shape(kUpdateRows, "rows", rows, {gradient.size(0)}, "[R], the rows of gradient,");
        check_contiguous(kUpdateRows, "rows", rows);
        const int64_t* const numbers = const_data<int64_t>(rows);
        for (int64_t i = 0; i < rows.size(0); ++i) {
            if (numbers[i] < (i == 0 ? 0 : numbers[i - 1] + 1) || numbers[i] >= num_rows) {
                fail(kUpdateRows, "rows", text(numbers[i]) + " at place " + text(i),
                     "ascending numbers below " + text(num_rows));
            }
            places[numbers[i]] = i;
        }
    }
    for (int64_t row = 0; row < num_rows; ++row) {
        if (places[row] >= 0 && l.made[row] != step - 1) {
            fail(kUpdateRows, "made", text(l.made[row]) + " in row " + text(row),
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

void update_rows_op(const Tensor& weight, const Tensor& gradient, Tensors moments, const Tensor& rows,
                    Tensors late_tensors, Tensors state, std::vector<double> settings, int64_t rule,
                    std::vector<double> constants) {
    const Hyperparameters h = check_rule(kUpdateRows, rule, constants);
    const auto [step, failed, numbers] = check_state(kUpdateRows, state, Device::cpu);
    if (gradient.scalar_type() != weight.scalar_type()) {
        check_dtype(kUpdateRows, "gradient", gradient, {weight.scalar_type()});
    }
    const bool listed = rows.scalar_type() == ScalarType::Long;
    Tensors kept;
    std::vector<Part> found = parts(kUpdateRows, {weight}, {listed ? weight : gradient}, moments, {}, settings, h,
                                    numbers, Device::cpu, kept);
    if (found.empty() || const_data<double>(numbers)[kGo] == 0) return;
    const int64_t last = *const_data<int64_t>(step);
    if (last < 1) fail(kUpdateRows, "step", last, "1 or more");
    if (listed) {
        check_device(kUpdateRows, "gradient", gradient, Device::cpu, weight, "weight");
        if (gradient.dim() != weight.dim() ||
            gradient.numel() != gradient.size(0) * (weight.numel() / weight.size(0))) {
            fail(kUpdateRows, "gradient", "shape " + shape_text(gradient.sizes()),
                 "[R, ...] with the columns of weight");
        }
        kept.push_back(torch::stable::contiguous(gradient));
        found[0].gradient = kept.back().const_data_ptr();
    }
    const Late l =
        late(kUpdateRows, found[0], weight, listed ? std::nullopt : std::optional(rows), late_tensors, Device::cpu);
    const std::vector<int64_t> places = gradient_places(l, rows, gradient, last);
    const double* const given = const_data<double>(numbers);
    float* const flag = mutable_data<float>(failed);
    with_rule(h.rule, weight, [&]<class R, class T>() { update_rows<R, T>(l, places, factors(h), given, last, flag); });
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

void catch_up_op(const Tensor& weight, Tensors moments, const std::optional<Tensor>& rows, Tensors late_tensors,
                 Tensors state, std::vector<double> settings, int64_t rule, std::vector<double> constants) {
    const Hyperparameters h = check_rule(kCatchUp, rule, constants);
    const auto [counted, failed, numbers] = check_state(kCatchUp, state, Device::cpu);
    Tensors kept;
    const std::vector<Part> found =
        parts(kCatchUp, {weight}, {weight}, moments, {}, settings, h, weight, Device::cpu, kept);
    if (found.empty()) return;
    const int64_t step = *const_data<int64_t>(counted);
    const Late l = late(kCatchUp, found[0], weight, rows, late_tensors, Device::cpu);
    if (std::all_of(l.made, l.made + l.rows, [step](int64_t made) { return made == step; })) return;
    for (int64_t row = 0; row < weight.size(0); ++row) {
        const int64_t made = l.made[row];
        if (made < 0 || made > step) {
            fail(kCatchUp, "made", text(made) + " in row " + text(row), "0 to " + text(step) + ", the steps made");
        }
        if (step - made > l.window) {
            fail(kCatchUp, "made", text(made) + " in row " + text(row),
                 "at least " + text(step - l.window) + ", as the window has " + text(l.window) + " steps");
        }
    }
    with_rule(h.rule, weight, [&]<class R, class T>() { catch_up<R, T>(l, factors(h), step); });
}

}  // namespace
}  // namespace nnue::optimizer

STABLE_TORCH_LIBRARY_IMPL(nnue, CPU, m) {
    NNUE_IMPL(m, "_optimizer_begin", &nnue::optimizer::begin_op);
    NNUE_IMPL(m, "_optimizer_update", &nnue::optimizer::update_op);
    NNUE_IMPL(m, "_optimizer_mark_rows", &nnue::optimizer::mark_rows_op);
    NNUE_IMPL(m, "_optimizer_update_rows", &nnue::optimizer::update_rows_op);
    NNUE_IMPL(m, "_optimizer_catch_up", &nnue::optimizer::catch_up_op);
}
