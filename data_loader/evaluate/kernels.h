// The hot loops of the evaluator, compiled once for any CPU and once for AVX2. The data pipeline chooses which of the
// two runs (pipeline/kernels.h), so NNUE_DATA_ISA governs both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace nnue::data {

// Vectors of the evaluator are padded with zeros to a multiple of this many elements.
inline constexpr std::size_t kEvaluateLanes = 16;

struct EvaluateKernels {
    // sum[j] += the rows' sum, mod 2^16, j < width.
    void (*add_rows_i8)(const std::int8_t* const* rows, std::size_t n, std::uint16_t* sum, std::size_t width);
    void (*add_rows_i16)(const std::int16_t* const* rows, std::size_t n, std::uint16_t* sum, std::size_t width);

    // min(max(a << shift, 0), clip) in 16 bits, in place.
    void (*clip)(std::uint16_t* a, std::size_t n, int shift, int clip);

    // out = a · b >> shift, for values in [0, 32767] whose result fits into 16 bits. narrow_products is the faster one,
    // for values whose product fits before the shift too.
    void (*narrow_products)(const std::uint16_t* a, const std::uint16_t* b, std::uint16_t* out, std::size_t n,
                            int shift);
    void (*products)(const std::uint16_t* a, const std::uint16_t* b, std::uint16_t* out, std::size_t n, int shift);

    // Σ x · w mod 2^32 for each of `outputs` rows of `columns` weights, a multiple of kEvaluateLanes.
    void (*multiply)(const std::int16_t* x, const std::int16_t* weight, std::size_t columns, std::size_t outputs,
                     std::uint32_t* sums);
};

// The loops compiled for `isa`, a name that pipeline/kernels.h uses.
const EvaluateKernels& evaluate_kernels(std::string_view isa);

}  // namespace nnue::data
