// Helpers for tensors and their dtypes, which all files with operators share, on every device.
#pragma once

#include <cstdint>
#include <optional>
#include <type_traits>

#include "checks.h"
#include "float_type.h"

namespace nnue {

// The type in which weights of type T are summed.
template <class T>
using sum_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Converts a dtype, which the caller has checked, to Float.
inline Float float_type(ScalarType dtype) {
    return dtype == ScalarType::Float      ? Float::kFloat32
           : dtype == ScalarType::Half     ? Float::kFloat16
           : dtype == ScalarType::BFloat16 ? Float::kBFloat16
                                           : Float::kFloat64;
}

constexpr int64_t divide_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

template <class T>
const T* const_data(const Tensor& tensor) {
    return static_cast<const T*>(tensor.const_data_ptr());
}

// Null for an absent tensor.
template <class T>
const T* const_data(const std::optional<Tensor>& tensor) {
    return tensor ? const_data<T>(*tensor) : nullptr;
}

template <class T>
T* mutable_data(const Tensor& tensor) {
    return static_cast<T*>(tensor.mutable_data_ptr());
}

inline std::optional<Tensor> contiguous(const std::optional<Tensor>& tensor) {
    if (!tensor) return std::nullopt;
    return torch::stable::contiguous(*tensor);
}

// Calls `body` with a null pointer of the C++ type of a weight dtype, which the caller has checked. Half and BFloat16
// are the device's own types.
template <class Half, class BFloat16, class Body>
void dispatch_weight_dtype(ScalarType dtype, const Body& body) {
    switch (dtype) {
        case ScalarType::Float:
            return body(static_cast<float*>(nullptr));
        case ScalarType::Double:
            return body(static_cast<double*>(nullptr));
        case ScalarType::Half:
            return body(static_cast<Half*>(nullptr));
        default:
            return body(static_cast<BFloat16*>(nullptr));
    }
}

// The same where only float32 and float64 are possible.
template <class Body>
void with_float_or_double(ScalarType dtype, const Body& body) {
    dtype == ScalarType::Double ? body(static_cast<double*>(nullptr)) : body(static_cast<float*>(nullptr));
}

}  // namespace nnue
