// Bodies of the evaluator's hot loops; included once per instruction set, nowhere else. They are plain loops that
// compilers turn into vector instructions, so every build computes the same integers.
#pragma once

#include "chess/types.h"
#include "evaluate/kernels.h"

namespace nnue::data {
inline namespace NNUE_ISA {

template <class Weight>
inline void add_rows(const Weight* const* rows, std::size_t n, std::uint16_t* __restrict sum, std::size_t width) {
    // Four rows at a time: a sum is loaded and stored once for all of them, and four streams come from memory at once.
    std::size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const Weight* __restrict a = rows[i];
        const Weight* __restrict b = rows[i + 1];
        const Weight* __restrict c = rows[i + 2];
        const Weight* __restrict d = rows[i + 3];
        for (std::size_t j = 0; j < width; ++j) {
            const unsigned four = static_cast<unsigned>(a[j]) + static_cast<unsigned>(b[j]) +
                                  static_cast<unsigned>(c[j]) + static_cast<unsigned>(d[j]);
            sum[j] = static_cast<std::uint16_t>(sum[j] + four);
        }
    }
    for (; i < n; ++i) {
        const Weight* __restrict a = rows[i];
        for (std::size_t j = 0; j < width; ++j) {
            sum[j] = static_cast<std::uint16_t>(sum[j] + static_cast<unsigned>(a[j]));
        }
    }
}

inline void add_rows_i8(const std::int8_t* const* rows, std::size_t n, std::uint16_t* sum, std::size_t width) {
    add_rows(rows, n, sum, width);
}

inline void add_rows_i16(const std::int16_t* const* rows, std::size_t n, std::uint16_t* sum, std::size_t width) {
    add_rows(rows, n, sum, width);
}

inline void clip(std::uint16_t* a, std::size_t n, int shift, int largest) {
    const auto most = static_cast<std::int16_t>(largest);
    for (std::size_t i = 0; i < n; ++i) {
        auto value = static_cast<std::int16_t>(static_cast<std::uint16_t>(a[i] << shift));
        value = value < 0 ? std::int16_t{0} : value;
        value = value > most ? most : value;
        a[i] = static_cast<std::uint16_t>(value);
    }
}

inline void narrow_products(const std::uint16_t* a, const std::uint16_t* b, std::uint16_t* __restrict out,
                            std::size_t n, int shift) {
    for (std::size_t i = 0; i < n; ++i) {
        const auto product = static_cast<std::uint16_t>(unsigned{a[i]} * b[i]);
        out[i] = static_cast<std::uint16_t>(product >> shift);
    }
}

inline void products(const std::uint16_t* a, const std::uint16_t* b, std::uint16_t* __restrict out, std::size_t n,
                     int shift) {
    for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<std::uint16_t>(unsigned{a[i]} * b[i] >> shift);
}

inline void multiply(const std::int16_t* x, const std::int16_t* weight, std::size_t columns, std::size_t outputs,
                     std::uint32_t* sums) {
    for (std::size_t o = 0; o < outputs; ++o, weight += columns) {
        std::uint32_t sum = 0;
        for (std::size_t i = 0; i < columns; ++i) sum += static_cast<std::uint32_t>(int{x[i]} * weight[i]);
        sums[o] = sum;
    }
}

inline constexpr EvaluateKernels kEvaluateTable{add_rows_i8, add_rows_i16, clip, narrow_products, products, multiply};

}  // namespace NNUE_ISA
}  // namespace nnue::data
