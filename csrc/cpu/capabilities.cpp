// The operators that give Python and programs in C++ the table of capabilities.h. They need no device: a machine is
// given as [capability, multiprocessors, code, allowed]. Each gives (kernels, reason), as numbers of the enumerations
// there.

#include "../capabilities.h"

#include <torch/csrc/stable/library.h>

#include <string>
#include <tuple>
#include <vector>

namespace nnue::capabilities {
namespace {

using Ints = std::vector<int64_t>;
using Floats = std::vector<double>;
using Pair = std::tuple<int64_t, int64_t>;

Machine machine_of(const char* op, const Ints& numbers) {
    if (numbers.size() != 4)
        fail(op, "machine", text(numbers.size()) + " numbers", "capability, multiprocessors, code and allowed");
    return {numbers[0], numbers[1], numbers[2], numbers[3]};
}

template <class Kernels>
Pair pair_of(const Choice<Kernels>& choice) {
    return {static_cast<int64_t>(choice.kernels), static_cast<int64_t>(choice.reason)};
}

Tensor reasons_op() {
    std::string lines;
    for (const std::string_view text : kReasonTexts) lines += std::string(text) + "\n";
    return text_tensor(lines);
}

Pair transformer_op(Ints machine, ScalarType weight_dtype, int64_t num_features, int64_t num_outputs,
                    int64_t bucket_size, int64_t num_bucketed, ScalarType output_dtype, bool has_values, int64_t mode) {
    constexpr const char* op = "_transformer_kernels";
    return pair_of(
        transformer(machine_of(op, machine),
                    {weight_dtype, num_features, num_outputs, bucket_size, num_bucketed, output_dtype, has_values},
                    check_enumeration<Mode>(op, "mode", mode)));
}

Pair stacks_op(Ints machine, int64_t inputs, int64_t num_stacks, Ints hidden, Floats constants, Floats integers,
               ScalarType x_dtype, ScalarType weight_dtype, bool is_aligned, bool wide_sums, int64_t mode) {
    constexpr const char* op = "_stack_kernels";
    const Machine on = machine_of(op, machine);
    const StacksCall call = {x_dtype, weight_dtype, is_aligned, wide_sums, check_enumeration<Mode>(op, "mode", mode)};
    if (on.is_cpu()) return pair_of(stacks(on, {}, call));  // a CPU takes any layers
    const bool is_too_large =
        hidden.size() > layer_stacks::kMostHidden * layer_stacks::kHiddenInts || num_stacks > layer_stacks::kMostStacks;
    if (is_too_large) return pair_of(Choice<Stacks>{Stacks::torch, Reason::many_layers});
    return pair_of(stacks(on, layer_stacks::read_description(inputs, num_stacks, hidden, constants, integers), call));
}

Pair layer_op(Ints machine, ScalarType x_dtype, ScalarType weight_dtype, int64_t mode) {
    constexpr const char* op = "_layer_kernels";
    return pair_of(layer(machine_of(op, machine),
                         {x_dtype, weight_dtype, true, false, check_enumeration<Mode>(op, "mode", mode)}));
}

Pair between_op(int64_t of_transformer, int64_t of_stacks, ScalarType trained_dtype, ScalarType output_dtype,
                int64_t num_outputs, int64_t hidden, int64_t activation, double bound, bool has_psqt, bool divided,
                bool is_needed) {
    constexpr const char* op = "_gradient_between";
    if (activation < 0 || activation > 3) fail(op, "activation", activation, "0 to 3");
    return pair_of(between(check_enumeration<Transformer>(op, "transformer", of_transformer),
                           check_enumeration<Stacks>(op, "stacks", of_stacks),
                           {trained_dtype, output_dtype, num_outputs, hidden, static_cast<Activation>(activation),
                            bound, has_psqt, divided, is_needed}));
}

Pair update_op(Ints machine, int64_t rows, int64_t tensors, int64_t positions) {
    return pair_of(update(machine_of("_row_update", machine), rows, tensors, positions));
}

Pair matrix_op(Ints machine, int64_t rows, int64_t columns) {
    return pair_of(matrix_step(machine_of("_matrix_step", machine), rows, columns));
}

}  // namespace
}  // namespace nnue::capabilities

STABLE_TORCH_LIBRARY_IMPL(nnue, CompositeExplicitAutograd, m) {
    NNUE_IMPL(m, "_kernel_reasons", &nnue::capabilities::reasons_op);
    NNUE_IMPL(m, "_transformer_kernels", &nnue::capabilities::transformer_op);
    NNUE_IMPL(m, "_stack_kernels", &nnue::capabilities::stacks_op);
    NNUE_IMPL(m, "_layer_kernels", &nnue::capabilities::layer_op);
    NNUE_IMPL(m, "_gradient_between", &nnue::capabilities::between_op);
    NNUE_IMPL(m, "_row_update", &nnue::capabilities::update_op);
    NNUE_IMPL(m, "_matrix_step", &nnue::capabilities::matrix_op);
}
