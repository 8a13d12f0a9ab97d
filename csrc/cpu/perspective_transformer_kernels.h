// Kernels of the feature transformer of both perspectives, compiled once for every instruction set level
// (for_each_isa.h).
//
// Column j and column j + N / 2 are always processed together, so that the pairwise product of clipped halves stays
// within a register. The other activations work either way. F is Vector<float>, or float for the last few columns.

#include "row_sum_kernels.h"

// NaN stays NaN.
template <class F>
[[gnu::always_inline]] inline F clip(F x, float bound) {
    const F zero = {}, most = zero + bound;
    return x < zero ? zero : (x > most ? most : x);
}

[[gnu::always_inline]] inline void load(const float* from, float& to) {
    to = *from;
}
[[gnu::always_inline]] inline void load(const Half* from, float& to) {
    to = static_cast<float>(*from);
}
[[gnu::always_inline]] inline void load(const BFloat16* from, float& to) {
    to = static_cast<float>(*from);
}
template <class T>
[[gnu::always_inline]] inline void store(T* to, const float& from) {
    *to = static_cast<T>(from);
}

// Columns that one F holds.
template <class F>
constexpr int64_t kWidth = sizeof(F) / sizeof(float);

// The part of a row in its columns j and j + half, for accumulators a and b.
template <class F, class O>
[[gnu::always_inline]] inline void store_activated(const ActivationArguments& a, O* out, int64_t half, F first,
                                                   F second) {
    if (a.activation != Activation::kIdentity) {
        first = clip(first, a.bound);
        second = clip(second, a.bound);
    }
    if (a.activation == Activation::kPairwise) {
        store(out, first * second * a.scale);
        return;
    }
    if (a.activation == Activation::kSCReLU) {
        first = first * first;
        second = second * second;
    }
    store(out, first * a.scale);
    store(out + half, second * a.scale);
}

// How many entries ahead the rows of the weight are prefetched.
constexpr int64_t kForwardAhead = 2;

// V times F columns of either half, of one row.
template <class F, int V, class T, class O>
[[gnu::always_inline]] inline void forward_tile(const PerspectiveForward<T, O>& a, const int32_t* row, int64_t length,
                                                int64_t column, O* out, float* saved, int64_t saved_half) {
    const int64_t n = a.num_outputs, half = n / 2;
    F first[V], second[V];
    for (int v = 0; v < V; ++v) {
        load(a.bias + column + v * kWidth<F>, first[v]);
        load(a.bias + half + column + v * kWidth<F>, second[v]);
    }
    for (int64_t e = 0; e < length; ++e) {
        const T* weight = a.weight + row[e] * n + column;
        if (e + kForwardAhead < length) {
            const T* next = a.weight + row[e + kForwardAhead] * n + column;
            for (int v = 0; v < V; v += kVectorsPerLine<T, kWidth<F>>) __builtin_prefetch(next + v * kWidth<F>);
            for (int v = 0; v < V; v += kVectorsPerLine<T, kWidth<F>>) __builtin_prefetch(next + half + v * kWidth<F>);
        }
        for (int v = 0; v < V; ++v) {
            F part;
            load(weight + v * kWidth<F>, part);
            first[v] += part;
        }
        for (int v = 0; v < V; ++v) {
            F part;
            load(weight + half + v * kWidth<F>, part);
            second[v] += part;
        }
    }
    for (int v = 0; v < V; ++v) {
        if (saved != nullptr) {
            store(saved + v * kWidth<F>, first[v]);
            store(saved + saved_half + v * kWidth<F>, second[v]);
        }
        store_activated(a.activation, out + column + v * kWidth<F>, half, first[v], second[v]);
    }
}

// The rows at places [begin, end) of the visiting order, one slab after the other.
template <class T, class O>
void forward_rows(const PerspectiveForward<T, O>& a, int64_t begin, int64_t end) {
    constexpr int V = kTile / 2;
    constexpr int64_t kStep = V * kLanes<float>;
    const int64_t half = a.num_outputs / 2;
    for (int64_t slab = 0; slab < half; slab += kPerspectiveSlab) {
        const int64_t width = std::min(kPerspectiveSlab, half - slab);
        for (int64_t place = begin; place < end; ++place) {
            const PlacedRow row = a.rows[place];
            O* out = a.output + row.target * a.width;
            float* saved = a.saved == nullptr ? nullptr : a.saved + 2 * (slab * a.num_rows + place * width);
            const auto saved_at = [=](int64_t c) { return saved == nullptr ? nullptr : saved + c; };
            int64_t c = 0;
            for (; c + kStep <= width; c += kStep) {
                forward_tile<Vector<float>, V>(a, row.entries, row.length, slab + c, out, saved_at(c), width);
            }
            for (; c + kLanes<float> <= width; c += kLanes<float>) {
                forward_tile<Vector<float>, 1>(a, row.entries, row.length, slab + c, out, saved_at(c), width);
            }
            for (; c < width; ++c) {
                forward_tile<float, 1>(a, row.entries, row.length, slab + c, out, saved_at(c), width);
            }
        }
    }
}

// The gradients of accumulators a and b, from those of the activated values. The clip passes the gradient at both of
// its ends.
template <class F>
[[gnu::always_inline]] inline void differentiate(const ActivationArguments& a, F first, F second, F& grad_first,
                                                 F& grad_second) {
    grad_first = grad_first * a.scale;
    grad_second = grad_second * a.scale;
    if (a.activation == Activation::kIdentity) return;
    const F zero = {}, most = zero + a.bound;
    if (a.activation == Activation::kSCReLU) {
        grad_first = grad_first * (first + first);
        grad_second = grad_second * (second + second);
    }
    if (a.activation == Activation::kPairwise) {
        grad_first = grad_first * clip(second, a.bound);
        grad_second = grad_second * clip(first, a.bound);
    }
    grad_first = first >= zero ? (first <= most ? grad_first : zero) : zero;
    grad_second = second >= zero ? (second <= most ? grad_second : zero) : zero;
}

template <class F, class O>
[[gnu::always_inline]] inline void row_gradient_at(const RowGradients<O>& a, const O* grad, const float* saved,
                                                   float* to_first, float* to_second, float* bias, int64_t c) {
    F first = {}, second = {}, grad_first, grad_second;
    if (saved != nullptr) {
        load(saved + c, first);
        load(saved + a.columns + c, second);
    }
    load(grad + c, grad_first);
    if (a.activation.activation == Activation::kPairwise) {
        grad_second = grad_first;
    } else {
        load(grad + a.half + c, grad_second);
    }
    differentiate(a.activation, first, second, grad_first, grad_second);
    store(to_first + c, grad_first);
    store(to_second + c, grad_second);
    F sum;
    load(bias + c, sum);
    store(bias + c, sum + grad_first);
    load(bias + a.columns + c, sum);
    store(bias + a.columns + c, sum + grad_second);
}

// Row gradients of the places [begin, end), one slab, and their sum into `bias` [2, columns].
template <class O>
void row_gradients(const RowGradients<O>& arguments, int64_t begin, int64_t end, float* bias) {
    const RowGradients<O> a = arguments;  // a copy, so that the compiler can assume that no store changes them
    for (int64_t c = 0; c < 2 * a.columns; ++c) bias[c] = 0;
    const auto gradient_of = [&](int64_t place) { return a.grad_output + a.rows[place].target * a.width + a.column; };
    for (int64_t place = begin; place < end; ++place) {
        const O* const grad = gradient_of(place);
        // The rows are in the order of the king buckets, the gradients in that of the positions.
        if (place + 1 < end) {
            const O* const next = gradient_of(place + 1);
            const int64_t halves = a.activation.activation == Activation::kPairwise ? 1 : 2;
            for (int64_t side = 0; side < halves; ++side) {
                for (int64_t c = 0; c < a.columns; c += kLineBytes / sizeof(O))
                    __builtin_prefetch(next + side * a.half + c);
            }
        }
        const float* saved = a.saved == nullptr ? nullptr : a.saved + 2 * (a.column * a.num_rows + place * a.columns);
        float* to_first = a.gradients + place * a.columns;
        float* to_second = to_first + a.num_rows * a.columns;
        int64_t c = 0;
        for (; c + kLanes<float> <= a.columns; c += kLanes<float>) {
            row_gradient_at<Vector<float>>(a, grad, saved, to_first, to_second, bias, c);
        }
        for (; c < a.columns; ++c) row_gradient_at<float>(a, grad, saved, to_first, to_second, bias, c);
    }
}
