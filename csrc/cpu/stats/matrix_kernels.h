// Transposition of a strip of a matrix, and sums of norms. Compiled once for every instruction set level by
// for_each_isa.h; see matrix.cpp.

namespace {

constexpr int kLanes = NNUE_VECTOR_BYTES / 16;

// Elements T of which 16 bytes hold `kSide`: kSide vectors hold, in each lane of 16 bytes, one square of them.
template <class T>
struct Square {
    static constexpr int kSide = 16 / sizeof(T);
    static constexpr int kCount = NNUE_VECTOR_BYTES / sizeof(T);
    using Lane = typename VectorOf<T, 16>::type;
    using Vector = typename VectorOf<T, NNUE_VECTOR_BYTES>::type;

    // Interleaves the first halves of the lanes of a and b, or the second halves: one instruction.
    template <int half, int... i>
    static Vector interleave(Vector a, Vector b, std::integer_sequence<int, i...>) {
        return __builtin_shufflevector(a, b,
                                       (i % 2 * kCount + i / kSide * kSide + i % kSide / 2 + half * (kSide / 2))...);
    }

    template <int... i>
    static auto join(auto a, auto b, std::integer_sequence<int, i...>) {
        return __builtin_shufflevector(a, b, i...);
    }

    static Lane lane(const T* from) { return *reinterpret_cast<const typename VectorOf<T, 16>::InMemory*>(from); }

    // The lanes of one vector, from rows that are kSide rows apart in the staged tile.
    static Vector load(const T* from, int64_t stride) {
        if constexpr (kLanes == 1) {
            return lane(from);
        } else if constexpr (kLanes == 2) {
            return join(lane(from), lane(from + stride), std::make_integer_sequence<int, kCount>());
        } else {
            constexpr auto half = std::make_integer_sequence<int, kCount / 2>();
            return join(join(lane(from), lane(from + stride), half),
                        join(lane(from + 2 * stride), lane(from + 3 * stride), half),
                        std::make_integer_sequence<int, kCount>());
        }
    }

    // Interleaving v[i] with v[i + kSide / 2] moves the highest bit of the row's number to the lowest bit of the
    // column's. After log2(kSide) times the two have changed places.
    static void transpose(Vector* v) {
        constexpr auto all = std::make_integer_sequence<int, kCount>();
#pragma GCC unroll 4
        for (int step = 1; step < kSide; step *= 2) {
            Vector next[kSide];
#pragma GCC unroll 8
            for (int i = 0; i < kSide / 2; ++i) {
                next[2 * i] = interleave<0>(v[i], v[i + kSide / 2], all);
                next[2 * i + 1] = interleave<1>(v[i], v[i + kSide / 2], all);
            }
#pragma GCC unroll 16
            for (int i = 0; i < kSide; ++i) v[i] = next[i];
        }
    }
};

// Transposes a tile of matrix::kRows rows and 64 bytes of columns; `from` has `stride` elements per row, `to` has
// kRows.
template <class T>
void transpose_tile(const T* from, int64_t stride, T* __restrict__ to) {
    using S = Square<T>;
    constexpr int kSide = S::kSide, kColumns = kLineBytes / sizeof(T);
    for (int column = 0; column < kColumns; column += kSide) {
        for (int row = 0; row < matrix::kRows; row += S::kCount) {
            typename S::Vector v[kSide];
#pragma GCC unroll 16
            for (int i = 0; i < kSide; ++i) v[i] = S::load(from + (row + i) * stride + column, kSide * stride);
            S::transpose(v);
#pragma GCC unroll 16
            for (int i = 0; i < kSide; ++i) {
                *reinterpret_cast<typename S::Vector*>(to + (column + i) * matrix::kRows + row) = v[i];
            }
        }
    }
}

// Writes whole lines past the caches. The processor does not read them first, as it would for other writes.
inline void stream_lines(const void* from, void* to, int64_t bytes) {
#if defined(__x86_64__)
    for (int64_t i = 0; i < bytes; i += 16) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(static_cast<char*>(to) + i),
                         *reinterpret_cast<const __m128i*>(static_cast<const char*>(from) + i));
    }
#else
    __builtin_memcpy(to, from, bytes);
#endif
}

}  // namespace

// Transposes rows [row, last_row) and at most matrix::kStrip bytes of columns, from `column` on, of one matrix.
// `stream`: writes past the caches, for which each row of `to` begins at a line. The tiles are copied into a buffer
// first, whole lines at a time: in a matrix whose width is a power of two, all elements of a column are in the same few
// sets of the cache and drive each other out.
template <class T>
void transpose_strip(const T* from, T* to, const matrix::Matrices& m, int64_t row, int64_t last_row, int64_t column,
                     bool stream) {
    constexpr int64_t kColumns = kLineBytes / sizeof(T), kStripColumns = matrix::kStrip / sizeof(T);
    // A tile at an edge costs as much as a whole one, and is not worth it for so few columns or elements.
    constexpr int64_t kFewColumns = 8, kFewElements = 1024;
    const int64_t width = std::min(kStripColumns, m.columns - column);
    if (width < kFewColumns) return matrix::transpose_plainly(from, to, m, row, column, last_row - row, width);
    // At an edge a part of both buffers has no values. It is transposed, too, and not written to the output.
    alignas(64) T staged[matrix::kRows * kStripColumns], turned[kColumns * matrix::kRows];
    for (; row < last_row; row += matrix::kRows) {
        const int64_t height = std::min<int64_t>(matrix::kRows, last_row - row);
        if (height * width < kFewElements) {
            return matrix::transpose_plainly(from, to, m, row, column, last_row - row, width);
        }
        for (int64_t r = 0; r < height; ++r) {
            const T* const line = from + (row + r) * m.columns + column;
            if (width == kStripColumns) {
                __builtin_memcpy(staged + r * kStripColumns, line, matrix::kStrip);
            } else {
                __builtin_memcpy(staged + r * kStripColumns, line, width * sizeof(T));
            }
            if (row + r + matrix::kRows < last_row) {
                const char* const next = reinterpret_cast<const char*>(line + matrix::kRows * m.columns);
                for (int64_t b = 0; b < matrix::kStrip; b += kLineBytes) __builtin_prefetch(next + b, 0, 2);
            }
        }
        for (int64_t c = 0; c < width; c += kColumns) {
            T* const place = to + (column + c) * m.rows + row;
            transpose_tile(staged + c, kStripColumns, turned);
            for (int64_t i = 0; i < std::min(kColumns, width - c); ++i) {
                const T* const line = turned + i * matrix::kRows;
                if (height < matrix::kRows) {
                    __builtin_memcpy(place + i * m.rows, line, height * sizeof(T));
                } else if (stream) {
                    stream_lines(line, place + i * m.rows, matrix::kRows * sizeof(T));
                } else {
                    __builtin_memcpy(place + i * m.rows, line, matrix::kRows * sizeof(T));
                }
            }
        }
    }
#if defined(__x86_64__)
    if (stream) _mm_sfence();
#endif
}

// The sum of a vector: halves are added until one number is left. `i`: the lanes of a half.
template <class V, int... i>
[[gnu::always_inline]] inline double sum_of_lanes(V v, std::integer_sequence<int, i...>) {
    constexpr int kHalf = sizeof...(i);
    if constexpr (kHalf == 1) {
        return v[0] + v[1];
    } else {
        const auto half = __builtin_shufflevector(v, v, i...) + __builtin_shufflevector(v, v, (i + kHalf)...);
        return sum_of_lanes(half, std::make_integer_sequence<int, kHalf / 2>());
    }
}

// A vector of doubles from elements at any address. The compiler converts wide vectors half by half.
template <class T, class Doubles>
[[gnu::always_inline]] inline Doubles load_doubles(const T* from) {
#if defined(__x86_64__) && NNUE_VECTOR_BYTES == 64
    if constexpr (std::is_same_v<T, float>) return (Doubles)_mm512_cvtps_pd(_mm256_loadu_ps(from));
#elif defined(__x86_64__) && NNUE_VECTOR_BYTES == 32
    if constexpr (std::is_same_v<T, float>) return (Doubles)_mm256_cvtps_pd(_mm_loadu_ps(from));
#endif
    if constexpr (std::is_floating_point_v<T>) {
        using Loaded = typename VectorOf<T, sizeof(Doubles) / sizeof(double) * sizeof(T)>::InMemory;
        return __builtin_convertvector(*reinterpret_cast<const Loaded*>(from), Doubles);
    } else {
        double elements[sizeof(Doubles) / sizeof(double)];
        for (double& element : elements) element = static_cast<double>(*from++);
        Doubles all;
        __builtin_memcpy(&all, elements, sizeof all);
        return all;
    }
}

// A sum, the sum of squares or the largest of the elements of a row, in kSums lanes. Lanes have a fixed order.
struct SumsSideBySide {
    static constexpr int kLanes = NNUE_VECTOR_BYTES / sizeof(double), kVectors = matrix::kSums / kLanes;
    using Doubles = typename VectorOf<double, NNUE_VECTOR_BYTES>::type;
    using Integers = typename VectorOf<int64_t, NNUE_VECTOR_BYTES>::type;

    Doubles at[kVectors] = {};

    [[gnu::always_inline]] double sum() {
#pragma GCC unroll 3
        for (int half = kVectors / 2; half > 0; half /= 2) {
#pragma GCC unroll 4
            for (int v = 0; v < half; ++v) at[v] += at[v + half];
        }
        return sum_of_lanes(at[0], std::make_integer_sequence<int, kLanes / 2>());
    }
};

// The sums of kRows rows of kSums elements or more, one after the other in memory; several rows hide the latency of the
// sums. Element i goes to lane i mod kSums; the last elements, which do not fill all lanes, go to the last lanes. kAll:
// all sums, not only the squares.
template <bool kAll, int kRows, class T>
[[gnu::always_inline]] inline void sums_of_rows(const T* from, int64_t count, matrix::Sums* all) {
    using S = SumsSideBySide;
    S sums[kRows], squares[kRows], largest[kRows];
    const auto add = [&](int r, S::Doubles x, int v) __attribute__((always_inline)) {
        squares[r].at[v] += x * x;
        if constexpr (kAll) {
            x = (S::Doubles)((S::Integers)x & INT64_MAX);  // the magnitudes
            sums[r].at[v] += x;
            largest[r].at[v] = x < largest[r].at[v] ? largest[r].at[v] : x;
        }
    };
    int64_t i = 0;
    for (; i + matrix::kSums <= count; i += matrix::kSums) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
            for (int v = 0; v < S::kVectors; ++v) {
                add(r, load_doubles<T, S::Doubles>(from + r * count + i + v * S::kLanes), v);
            }
        }
    }
    if (i < count) {
        // The last kSums elements, without those that are added already.
        const int64_t last = count - matrix::kSums;
        S::Integers place;
#pragma GCC unroll 8
        for (int lane = 0; lane < S::kLanes; ++lane) place[lane] = last + lane;
#pragma GCC unroll 8
        for (int v = 0; v < S::kVectors; ++v, place += S::kLanes) {
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
                const auto x = load_doubles<T, S::Doubles>(from + r * count + last + v * S::kLanes);
                add(r, (S::Doubles)((S::Integers)x & (S::Integers)(place >= i)), v);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
        all[r] = {0, squares[r].sum(), 0};
        if constexpr (kAll) {
#pragma GCC unroll 16
            for (int lane = 0; lane < matrix::kSums; ++lane) {
                all[r].largest = std::max(all[r].largest, largest[r].at[lane / S::kLanes][lane % S::kLanes]);
            }
            all[r].sum = sums[r].sum();
        }
    }
}

// The norms of rows that follow each other, those that have a place; without kAll only the roots.
template <bool kAll, class T>
void norms_of_rows(const T* from, int64_t rows, int64_t count, T* to_sums, T* to_roots, T* to_largest) {
    constexpr int kTogether = kAll ? 1 : std::max(8 / SumsSideBySide::kVectors, 1);  // as there are registers
    constexpr int64_t kLong = 3 * matrix::kSums;  // a processor works on several shorter rows at a time by itself
    int64_t row = 0;
    if constexpr (kTogether > 1) {
        for (; row + kTogether <= rows && count >= kLong; row += kTogether, from += kTogether * count) {
            matrix::Sums all[kTogether];
            sums_of_rows<false, kTogether>(from, count, all);
            for (int r = 0; r < kTogether; ++r) {
                to_roots[row + r] = matrix::narrowed<T>(matrix::root_of(from + r * count, count, all[r].squares));
            }
        }
    }
    for (; row < rows; ++row, from += count) {
        matrix::Sums all;
        if (count < matrix::kSums) {
            for (int64_t i = 0; i < count; ++i) all.add<kAll>(static_cast<double>(from[i]));
        } else {
            sums_of_rows<kAll, 1>(from, count, &all);
        }
        if (to_roots != nullptr) to_roots[row] = matrix::narrowed<T>(matrix::root_of(from, count, all.squares));
        if constexpr (kAll) {
            if (to_sums != nullptr) to_sums[row] = matrix::narrowed<T>(all.sum);
            // Comparisons lose a NaN, sums do not.
            if (to_largest != nullptr)
                to_largest[row] = matrix::narrowed<T>(all.sum != all.sum ? all.sum : all.largest);
        }
    }
}
