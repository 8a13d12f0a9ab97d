// Kernels of the feature transformer, compiled once for every instruction set level (for_each_isa.h).
//
// Columns are divided into slabs, so that the part of the weights (forward) or of the gradient rows (backward) that one
// slab reads repeatedly stays in the cache.

#include "row_sum_kernels.h"

// Places [begin, end) of the visiting order, one slab of columns.
template <class T>
void forward_slab(const ForwardArguments<T>& a, int64_t column, int64_t columns, int64_t begin, int64_t end) {
    const int64_t n = a.num_outputs;
    for (int64_t i = begin; i < end; ++i) {
        const int64_t b = a.order[i];
        const int32_t* row = a.indices + b * a.max_active;
        const sum_t<T>* values = a.values == nullptr ? nullptr : a.values + b * a.max_active;
        sum_columns<kNoPrefetch>(
            a.weight + column, a.lengths[b], columns, a.bias + column, a.output + b * n + column,
            [=](int64_t e) { return row[e] * n; }, [=](int64_t e) { return values[e]; }, values != nullptr);
    }
}

// Column sums over all rows, columns [column, column + columns).
template <class T>
void bias_gradient_slab(const T* grad_output, int64_t rows, int64_t n, T* grad_bias, int64_t column, int64_t columns) {
    sum_columns<kNoPrefetch>(
        grad_output + column, rows, columns, static_cast<const T*>(nullptr), grad_bias + column,
        [=](int64_t e) { return e * n; }, [](int64_t) { return sum_t<T>(1); }, false);
}

// grad_values of the rows [begin, end): dot products of a gradient row with weight rows.
template <class T>
void values_gradient_rows(const ValuesGradientArguments<T>& a, int64_t begin, int64_t end) {
    using S = sum_t<T>;
    const int64_t n = a.num_outputs;
    for (int64_t b = begin; b < end; ++b) {
        const T* gradient = a.grad_output + b * n;
        S* out = a.grad_values + b * a.max_active;
        for (int64_t k = 0; k < a.max_active; ++k) {
            if (k >= a.lengths[b]) {
                out[k] = 0;
                continue;
            }
            const T* weight = a.weight + a.indices[b * a.max_active + k] * n;
            // There are 64 bytes of sums on every level, so that their order is the same.
            constexpr int64_t kSums = 64 / sizeof(S);
            Vector<S> sums[64 / kBytes] = {};
            int64_t c = 0;
            for (; c + kSums <= n; c += kSums) {
                for (int v = 0; v < 64 / kBytes; ++v) {
                    Vector<S> x, y;
                    load(gradient + c + v * kLanes<S>, x);
                    load(weight + c + v * kLanes<S>, y);
                    sums[v] += x * y;
                }
            }
            S sum = 0;
            for (const Vector<S>& part : sums) {
                for (int64_t lane = 0; lane < kLanes<S>; ++lane) sum += part[lane];
            }
            for (; c < n; ++c) sum += static_cast<S>(gradient[c]) * static_cast<S>(weight[c]);
            out[k] = sum;
        }
    }
}
