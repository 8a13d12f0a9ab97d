// The hot loops of the evaluator, compiled for every CPU and again for AVX2. Which build runs is the choice of the
// dispatcher of the data pipeline (pipeline/kernels.h), so NNUE_DATA_ISA governs both.
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

    // a · b >> shift of values in [0, 32767]. The products of narrow_products have at most 16 bits, those of products
    // have them only after the shift.
    void (*narrow_products)(const std::uint16_t* a, const std::uint16_t* b, std::uint16_t* out, std::size_t n,
                            int shift);
    void (*products)(const std::uint16_t* a, const std::uint16_t* b, std::uint16_t* out, std::size_t n, int shift);

    // Σ x · w mod 2^32 for each of `outputs` rows of `columns` weights, a multiple of kEvaluateLanes.
    void (*multiply)(const std::int16_t* x, const std::int16_t* weight, std::size_t columns, std::size_t outputs,
                     std::uint32_t* sums);
};

// The build that goes with `isa` of pipeline/kernels.h.
const EvaluateKernels& evaluate_kernels(std::string_view isa);

}  // namespace nnue::data
