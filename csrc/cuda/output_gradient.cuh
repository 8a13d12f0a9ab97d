// The gradient of the output of the feature transformer, as its backward reads it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nnue {

// Rows [2 · positions, width], the side to move first. If a layer with one output follows the transformer, they need
// not exist: a position's gradient is that of the layer's output × the layer's weight, [stacks, 2, width].
struct OutputGradient {
    const void* rows;      // the gradient; with `factors` the layer's weight, fp32
    const float* factors;  // [positions], or null
    const int64_t* stack;  // [positions]; a stack that does not exist stands for the nearest one
    int stacks;

    template <class T>
    struct Row {
        const T* at;
        float factor;  // multiplies every number of the row
    };

    // The row of 2 · position + (0 for the side to move, 1 for the other side).
    template <class T>
    __device__ __forceinline__ Row<T> row(int target, int width) const {
        const T* const from = static_cast<const T*>(rows);
        if (factors == nullptr) return {from + size_t(target) * width, 1.0f};
        const int position = target / 2;
        const int64_t given = stack[position], s = given < 0 ? 0 : given < stacks ? given : stacks - 1;
        return {from + size_t(2 * s + target % 2) * width, factors[position]};
    }
};

}  // namespace nnue
