// Linear layers with stacks on CPU. Positions are visited stack by stack, and each is computed only for its own stack.
// The threads are those of torch's own pool, so torch.set_num_threads holds.

#include "../stacked_linear.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "../dtypes.h"
#include "feature_lists.h"
#include "huge_pages.h"
#include "tasks.h"
#include "vector.h"

namespace nnue::stacked_linear {

constexpr int64_t kOutputs = 16;    // that are summed together
constexpr int64_t kInputs = 64;     // a tile of the gradients of x and of weights
constexpr int64_t kPositions = 64;  // of a task
constexpr int64_t kPiece = 128;     // inputs whose products are one sum, before they are added to the others

struct Forward {
    const int64_t* order;  // positions by stack
    const float* x;
    float* output;
    int64_t inputs, outputs, padded_outputs;
};

struct Backward {
    const int64_t* order;
    const float* x;
    const float* gradient;  // of y, in that order, padded: [B, padded_outputs]
    float* grad_x;
    int64_t inputs, outputs, padded_outputs;
};

}  // namespace nnue::stacked_linear

#define NNUE_KERNELS "stacked_linear_kernels.h"
#include "for_each_isa.h"

namespace nnue::stacked_linear {
namespace {

// Positions by stack, in their order. The constructor throws on an illegal stack.
struct Order {
    std::vector<int64_t> places;  // [B]
    std::vector<int64_t> starts;  // [S + 1]
    struct Task {
        int64_t stack, begin, end;
    };
    std::vector<Task> tasks;

    Order(const char* op, const Tensor& bucket_in, const Sizes& s) : places(s.positions), starts(s.stacks + 1) {
        const Tensor buckets = torch::stable::contiguous(bucket_in);
        const int64_t* const bucket = const_data<int64_t>(buckets);
        for (int64_t b = 0; b < s.positions; ++b) {
            if (bucket[b] < 0 || bucket[b] >= s.stacks) {
                fail(op, "bucket", std::to_string(bucket[b]) + " at position " + std::to_string(b),
                     "0 <= bucket < " + std::to_string(s.stacks));
            }
            ++starts[bucket[b] + 1];
        }
        for (int64_t stack = 0; stack < s.stacks; ++stack) starts[stack + 1] += starts[stack];
        std::vector<int64_t> next(starts.begin(), starts.end() - 1);
        for (int64_t b = 0; b < s.positions; ++b) places[next[bucket[b]]++] = b;
        for (int64_t stack = 0; stack < s.stacks; ++stack) {
            for (int64_t begin = starts[stack]; begin < starts[stack + 1]; begin += kPositions) {
                tasks.push_back({stack, begin, std::min(begin + kPositions, starts[stack + 1])});
            }
        }
    }
};

int64_t padded(int64_t outputs) {
    return divide_up(outputs, kOutputs) * kOutputs;
}

Tensor forward_op(const Tensor& x_in, const Tensor& bucket, const Tensor& weight_in, const Tensor& bias_in) {
    const Sizes s = check(kForward, x_in, bucket, weight_in, Device::cpu);
    check_device(kForward, "bias", bias_in, Device::cpu, weight_in, "weight");
    check_dtype(kForward, "bias", bias_in, {ScalarType::Float});
    check_shape(kForward, "bias", bias_in, {s.stacks, s.outputs}, "[S, O]");
    const Order order(kForward, bucket, s);
    const Tensor x = torch::stable::contiguous(x_in), weight = torch::stable::contiguous(weight_in),
                 bias = torch::stable::contiguous(bias_in);
    Tensor output = torch::stable::new_empty(x, {s.positions, s.outputs});
    const Forward a{order.places.data(), const_data<float>(x), mutable_data<float>(output), s.inputs,
                    s.outputs,           padded(s.outputs)};
    // Neighbouring outputs are summed together, so their weights have to be neighbours.
    std::vector<float> transposed(s.stacks * s.inputs * a.padded_outputs);
    torch::stable::parallel_for(0, s.stacks * s.inputs, 512, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const float* const from = const_data<float>(weight) + row / s.inputs * s.outputs * s.inputs;
            for (int64_t o = 0; o < s.outputs; ++o) {
                transposed[row * a.padded_outputs + o] = from[o * s.inputs + row % s.inputs];
            }
        }
    });
    parallel_tasks(static_cast<int64_t>(order.tasks.size()), [&](int64_t t) {
        const Order::Task& task = order.tasks[t];
        NNUE_CALL_BEST_ISA(stacked_forward, a, transposed.data() + task.stack * s.inputs * a.padded_outputs,
                           const_data<float>(bias) + task.stack * s.outputs, task.begin, task.end);
    });
    return output;
}

// The sums of the gradients of y, stack by stack.
void bias_gradients(const Backward& a, const Order& order, int64_t stacks, float* grad_bias) {
    std::vector<float> piece(a.outputs);
    for (int64_t stack = 0; stack < stacks; ++stack) {
        float* const total = grad_bias + stack * a.outputs;
        std::fill_n(total, a.outputs, 0.0f);
        for (int64_t begin = order.starts[stack]; begin < order.starts[stack + 1]; begin += kPositions) {
            std::fill(piece.begin(), piece.end(), 0.0f);
            for (int64_t b = begin; b < std::min(begin + kPositions, order.starts[stack + 1]); ++b) {
                for (int64_t o = 0; o < a.outputs; ++o) piece[o] += a.gradient[b * a.padded_outputs + o];
            }
            for (int64_t o = 0; o < a.outputs; ++o) total[o] += piece[o];
        }
    }
}

std::tuple<Tensor, Tensor, Tensor> backward_op(const Tensor& grad_output, const Tensor& x_in, const Tensor& bucket,
                                               const Tensor& weight_in, bool needs_x_grad) {
    const Sizes s = check(kBackward, x_in, bucket, weight_in, Device::cpu);
    check_device(kBackward, "grad_output", grad_output, Device::cpu, weight_in, "weight");
    check_dtype(kBackward, "grad_output", grad_output, {ScalarType::Float});
    check_shape(kBackward, "grad_output", grad_output, {s.positions, s.outputs}, "[B, O]");
    const Order order(kBackward, bucket, s);
    const Tensor x = torch::stable::contiguous(x_in), weight = torch::stable::contiguous(weight_in),
                 gradient = torch::stable::contiguous(grad_output);
    Tensor grad_x = new_output(x, needs_x_grad ? s.positions : 0, s.inputs, ScalarType::Float);
    Tensor grad_weight = torch::stable::new_empty(x, {s.stacks, s.outputs, s.inputs});
    Tensor grad_bias = torch::stable::new_empty(x, {s.stacks, s.outputs});
    const int64_t pitch = padded(s.outputs);
    std::vector<float> ordered(s.positions * pitch);
    for (int64_t place = 0; place < s.positions; ++place) {
        const float* const from = const_data<float>(gradient) + order.places[place] * s.outputs;
        std::copy_n(from, s.outputs, ordered.data() + place * pitch);
    }
    const Backward a{order.places.data(),
                     const_data<float>(x),
                     ordered.data(),
                     needs_x_grad ? mutable_data<float>(grad_x) : nullptr,
                     s.inputs,
                     s.outputs,
                     pitch};
    bias_gradients(a, order, s.stacks, mutable_data<float>(grad_bias));
    const int64_t tiles = divide_up(s.inputs, kInputs);
    parallel_tasks(s.stacks * tiles, [&](int64_t t) {
        const int64_t stack = t / tiles;
        NNUE_CALL_BEST_ISA(stacked_weight_gradients, a, mutable_data<float>(grad_weight) + stack * s.outputs * s.inputs,
                           t % tiles * kInputs, order.starts[stack], order.starts[stack + 1]);
    });
    if (!needs_x_grad) return {grad_x, grad_weight, grad_bias};
    parallel_tasks(static_cast<int64_t>(order.tasks.size()), [&](int64_t t) {
        const Order::Task& task = order.tasks[t];
        std::vector<float> tile(s.outputs * kInputs);
        NNUE_CALL_BEST_ISA(stacked_input_gradients, a, const_data<float>(weight) + task.stack * s.outputs * s.inputs,
                           tile.data(), task.begin, task.end);
    });
    return {grad_x, grad_weight, grad_bias};
}

}  // namespace
}  // namespace nnue::stacked_linear

STABLE_TORCH_LIBRARY_IMPL(nnue, CPU, m) {
    NNUE_IMPL(m, "_stacked_linear_forward", &nnue::stacked_linear::forward_op);
    NNUE_IMPL(m, "_stacked_linear_backward", &nnue::stacked_linear::backward_op);
}
