// Kernels of the feature transformer, compiled once for every instruction set level (for_each_isa.h): no include guard,
// no includes, only templates in whatever namespace includes it.
//
// Columns are cut into slabs of kSlab: the part of the weights (forward) or of the gradient rows (backward) that one
// slab touches then stays in the L2 cache. Within a slab every sum runs over the row's entries, or the feature's rows,
// in order: bits depend neither on threads nor on the level.

template <class T>
[[gnu::always_inline]] inline void load(const T* from, Vector<T>& to) {
    to = *reinterpret_cast<const UnalignedVector<T>*>(from);
}

[[gnu::always_inline]] inline void load(const BFloat16* from, Vector<float>& to) {
    const U32x16 wide = __builtin_convertvector(*reinterpret_cast<const U16x16*>(from), U32x16) << 16;
    to = reinterpret_cast<const Vector<float>&>(wide);
}

[[gnu::always_inline]] inline void load(const Half* from, Vector<float>& to) {
    const U32x16 half = __builtin_convertvector(*reinterpret_cast<const U16x16*>(from), U32x16);
    const U32x16 magnitude = (half & 0x7fffu) << 13;
    // Shifting moves exponent and mantissa into place; the factor mends the exponent's bias, subnormals included.
    const Vector<float> scaled = reinterpret_cast<const Vector<float>&>(magnitude) * 0x1p112f;
    U32x16 bits = reinterpret_cast<const U32x16&>(scaled);
    const I32x16 special = reinterpret_cast<const I32x16&>(magnitude) >= (0x7c00 << 13);  // infinities and NaN
    bits |= reinterpret_cast<const U32x16&>(special) & 0x7f800000u;
    bits |= (half & 0x8000u) << 16;
    to = reinterpret_cast<const Vector<float>&>(bits);
}

template <class T>
[[gnu::always_inline]] inline void store(T* to, const Vector<T>& from) {
    *reinterpret_cast<UnalignedVector<T>*>(to) = from;
}

template <class T>
requires(sizeof(T) == 2) [[gnu::always_inline]] inline void store(T* to, const Vector<float>& from) {
    for (int64_t lane = 0; lane < kLanes<float>; ++lane) to[lane] = static_cast<T>(from[lane]);
}

// Sums of V vectors' width of columns: start + the entries' rows, times their values where there are any.
// `row_of(entry)` is the offset of an entry's row in `source`, `value_of(entry)` its factor.
template <int V, class T, class RowOf, class ValueOf>
[[gnu::always_inline]] inline void sum_rows(const T* source, int64_t entries, const T* start, T* out,
                                            const RowOf& row_of, const ValueOf& value_of, bool has_values) {
    using S = sum_t<T>;
    Vector<S> sum[V] = {};
    if (start != nullptr) {
        for (int v = 0; v < V; ++v) load(start + v * kLanes<S>, sum[v]);
    }
    constexpr int64_t kAhead = 6;
    for (int64_t e = 0; e < entries; ++e) {
        const T* row = source + row_of(e);
        if (e + kAhead < entries) {
            const char* next = reinterpret_cast<const char*>(source + row_of(e + kAhead));
            for (int64_t b = 0; b < V * kLanes<S> * static_cast<int64_t>(sizeof(T)); b += 64)
                __builtin_prefetch(next + b);
        }
        if (has_values) {
            const S value = value_of(e);
            for (int v = 0; v < V; ++v) {
                Vector<S> part;
                load(row + v * kLanes<S>, part);
                sum[v] += part * value;
            }
        } else {
            for (int v = 0; v < V; ++v) {
                Vector<S> part;
                load(row + v * kLanes<S>, part);
                sum[v] += part;
            }
        }
    }
    for (int v = 0; v < V; ++v) store(out + v * kLanes<S>, sum[v]);
}

// The same for `columns` columns, any number.
template <class T, class RowOf, class ValueOf>
[[gnu::always_inline]] inline void sum_columns(const T* source, int64_t entries, int64_t columns, const T* start,
                                               T* out, const RowOf& row_of, const ValueOf& value_of, bool has_values) {
    using S = sum_t<T>;
    int64_t c = 0;
    const auto start_at = [&](int64_t column) { return start == nullptr ? nullptr : start + column; };
    for (; c + 4 * kLanes<S> <= columns; c += 4 * kLanes<S>) {
        sum_rows<4>(source + c, entries, start_at(c), out + c, row_of, value_of, has_values);
    }
    for (; c + kLanes<S> <= columns; c += kLanes<S>) {
        sum_rows<1>(source + c, entries, start_at(c), out + c, row_of, value_of, has_values);
    }
    for (; c < columns; ++c) {
        S sum = start == nullptr ? S(0) : static_cast<S>(start[c]);
        for (int64_t e = 0; e < entries; ++e) {
            const S part = static_cast<S>(source[row_of(e) + c]);
            sum += has_values ? part * value_of(e) : part;
        }
        out[c] = static_cast<T>(sum);
    }
}

// Rows [begin, end) of one slab of columns.
template <class T>
void forward_slab(const ForwardArguments<T>& a, int64_t column, int64_t columns, int64_t begin, int64_t end) {
    const int64_t n = a.num_outputs;
    for (int64_t b = begin; b < end; ++b) {
        const int32_t* row = a.indices + b * a.max_active;
        const sum_t<T>* values = a.values == nullptr ? nullptr : a.values + b * a.max_active;
        sum_columns(
            a.weight + column, a.lengths[b], columns, a.bias + column, a.output + b * n + column,
            [=](int64_t e) { return row[e] * n; }, [=](int64_t e) { return values[e]; }, values != nullptr);
    }
}

// Gradient rows of the features [begin, end), one slab of columns.
template <class T>
void weight_gradient_slab(const WeightGradientArguments<T>& a, int64_t column, int64_t columns, int64_t begin,
                          int64_t end) {
    const int64_t n = a.num_outputs;
    for (int64_t f = begin; f < end; ++f) {
        const int64_t first = a.starts[f];
        const int64_t* rows = a.rows + first;
        const sum_t<T>* values = a.values == nullptr ? nullptr : a.values + first;
        sum_columns(
            a.grad_output + column, a.starts[f + 1] - first, columns, static_cast<const T*>(nullptr),
            a.grad_weight + f * n + column, [=](int64_t e) { return rows[e] * n; },
            [=](int64_t e) { return values[e]; }, values != nullptr);
    }
}

// Column sums over all rows, columns [column, column + columns).
template <class T>
void bias_gradient_slab(const T* grad_output, int64_t rows, int64_t n, T* grad_bias, int64_t column, int64_t columns) {
    sum_columns(
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
            Vector<S> sums = {};
            int64_t c = 0;
            for (; c + kLanes<S> <= n; c += kLanes<S>) {
                Vector<S> x, y;
                load(gradient + c, x);
                load(weight + c, y);
                sums += x * y;
            }
            S sum = 0;
            for (int64_t lane = 0; lane < kLanes<S>; ++lane) sum += sums[lane];
            for (; c < n; ++c) sum += static_cast<S>(gradient[c]) * static_cast<S>(weight[c]);
            out[k] = sum;
        }
    }
}
