// Sums of rows, compiled once for every instruction set level (for_each_isa.h). This file has no include guard and no
// includes, only templates in the namespace that includes it. The kernels of every operator over index rows start with
// it.
//
// Every sum runs over the entries in order, so its bits depend neither on the threads nor on the level.

constexpr int kBytes = NNUE_VECTOR_BYTES;
template <class S>
using Vector = typename VectorOf<S, kBytes>::type;
template <class S>
constexpr int64_t kLanes = kBytes / static_cast<int64_t>(sizeof(S));
using Half16 = typename VectorOf<uint16_t, kBytes / 2>::InMemory;
using Bits = typename VectorOf<uint32_t, kBytes>::type;
using SignedBits = typename VectorOf<int32_t, kBytes>::type;
// The number of vectors of sums that fit in the level's registers, next to the values that are loaded.
constexpr int kTile = kBytes == 64 ? 16 : 8;

[[gnu::always_inline]] inline void load(const float* from, Vector<float>& to) {
    to = *reinterpret_cast<const VectorOf<float, kBytes>::InMemory*>(from);
}

[[gnu::always_inline]] inline void load(const double* from, Vector<double>& to) {
    to = *reinterpret_cast<const VectorOf<double, kBytes>::InMemory*>(from);
}

[[gnu::always_inline]] inline void load(const BFloat16* from, Vector<float>& to) {
    const Bits wide = __builtin_convertvector(*reinterpret_cast<const Half16*>(from), Bits) << 16;
    to = reinterpret_cast<const Vector<float>&>(wide);
}

[[gnu::always_inline]] inline void load(const Half* from, Vector<float>& to) {
    const Bits half = __builtin_convertvector(*reinterpret_cast<const Half16*>(from), Bits);
    const Bits magnitude = (half & 0x7fffu) << 13;
    // Shifting puts exponent and mantissa in place, and the factor corrects the bias of the exponent, for subnormals as
    // well.
    const Vector<float> scaled = reinterpret_cast<const Vector<float>&>(magnitude) * 0x1p112f;
    Bits bits = reinterpret_cast<const Bits&>(scaled);
    const SignedBits special = reinterpret_cast<const SignedBits&>(magnitude) >= (0x7c00 << 13);  // infinities and NaN
    bits |= reinterpret_cast<const Bits&>(special) & 0x7f800000u;
    bits |= (half & 0x8000u) << 16;
    to = reinterpret_cast<const Vector<float>&>(bits);
}

[[gnu::always_inline]] inline void store(float* to, const Vector<float>& from) {
    *reinterpret_cast<VectorOf<float, kBytes>::InMemory*>(to) = from;
}

[[gnu::always_inline]] inline void store(double* to, const Vector<double>& from) {
    *reinterpret_cast<VectorOf<double, kBytes>::InMemory*>(to) = from;
}

template <class T>
requires(sizeof(T) == 2) [[gnu::always_inline]] inline void store(T* to, const Vector<float>& from) {
    for (int64_t lane = 0; lane < kLanes<float>; ++lane) to[lane] = static_cast<T>(from[lane]);
}

constexpr int64_t kNoPrefetch = INT32_MAX;

// How many vectors of this many columns lie in a cache line of T. One prefetch serves all of them.
template <class T, int64_t columns>
constexpr int kVectorsPerLine = kLineBytes / (columns * static_cast<int64_t>(sizeof(T)));

// Sums of V vectors of columns: start + the rows of the entries, times their values if there are any. `row_of(entry)`
// is the offset of an entry's row in `source`, and `value_of(entry)` its factor. Rows are prefetched `ahead` entries
// early; kNoPrefetch switches that off.
template <int V, int64_t ahead, class T, class Out, class RowOf, class ValueOf>
[[gnu::always_inline]] inline void sum_rows(const T* source, int64_t entries, const T* start, Out* out,
                                            const RowOf& row_of, const ValueOf& value_of, bool has_values) {
    using S = sum_t<T>;
    Vector<S> sum[V] = {};
    if (start != nullptr) {
        for (int v = 0; v < V; ++v) load(start + v * kLanes<S>, sum[v]);
    }
    for (int64_t e = 0; e < entries; ++e) {
        const T* row = source + row_of(e);
        if (e + ahead < entries) {
            const T* next = source + row_of(e + ahead);
            for (int v = 0; v < V; v += kVectorsPerLine<T, kLanes<S>>) __builtin_prefetch(next + v * kLanes<S>);
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

// The same for any number of columns.
template <int64_t ahead, class T, class Out, class RowOf, class ValueOf>
[[gnu::always_inline]] inline void sum_columns(const T* source, int64_t entries, int64_t columns, const T* start,
                                               Out* out, const RowOf& row_of, const ValueOf& value_of,
                                               bool has_values) {
    using S = sum_t<T>;
    int64_t c = 0;
    const auto start_at = [&](int64_t column) { return start == nullptr ? nullptr : start + column; };
    for (; c + kTile * kLanes<S> <= columns; c += kTile * kLanes<S>) {
        sum_rows<kTile, ahead>(source + c, entries, start_at(c), out + c, row_of, value_of, has_values);
    }
    for (; c + 4 * kLanes<S> <= columns; c += 4 * kLanes<S>) {
        sum_rows<4, ahead>(source + c, entries, start_at(c), out + c, row_of, value_of, has_values);
    }
    for (; c + kLanes<S> <= columns; c += kLanes<S>) {
        sum_rows<1, ahead>(source + c, entries, start_at(c), out + c, row_of, value_of, has_values);
    }
    for (; c < columns; ++c) {
        S sum = start == nullptr ? S(0) : static_cast<S>(start[c]);
        for (int64_t e = 0; e < entries; ++e) {
            const S part = static_cast<S>(source[row_of(e) + c]);
            sum += has_values ? part * value_of(e) : part;
        }
        out[c] = static_cast<Out>(sum);
    }
}

// Gradient rows of the features [begin, end), for `columns` columns from `column` on: sums of `source` rows over the
// lists.
template <class T, class Out>
void weight_gradient_slab(const WeightGradientArguments<T, Out>& a, int64_t column, int64_t columns, int64_t begin,
                          int64_t end) {
    // Neighbouring features have rows in common. Summing one tile of columns for all features keeps that part of the
    // rows in the cache.
    constexpr int64_t kWide = kTile * kLanes<sum_t<T>>;
    for (int64_t c = 0; c < columns; c += kWide) {
        for (int64_t f = begin; f < end; ++f) {
            const int64_t first = a.starts[f];
            const int64_t* rows = a.rows + first;
            const sum_t<T>* values = a.values == nullptr ? nullptr : a.values + first;
            sum_columns<3>(
                a.source + c, a.starts[f + 1] - first, std::min(kWide, columns - c), static_cast<const T*>(nullptr),
                a.grad_weight + f * a.num_outputs + column + c, [&](int64_t e) { return rows[e] * a.stride; },
                [=](int64_t e) { return values[e]; }, values != nullptr);
        }
    }
}
