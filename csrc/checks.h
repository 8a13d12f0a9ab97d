// Argument checks that all operators share. An error is one line with the operator, the argument, what was found and
// what was expected. The checks read only metadata, so the same code serves CPU and CUDA.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <charconv>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace nnue {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// The device type that a tensor must be on; the kernels of one file serve one device type.
enum class Device { cpu, cuda };

// No iostreams here: where the compiler links its C++ library statically, this library has a second locale, and writing
// a number to a stream crashes.
template <std::integral Integer>
std::string text(Integer number) {
    return std::to_string(number);
}
// With as many digits as identify the number: std::to_string has six behind the point.
inline std::string text(double number) {
    char digits[32];
    return std::string(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
}
inline std::string text(std::string words) {
    return words;
}

// Throws std::runtime_error, which is RuntimeError in Python: "nnue::op: argument: found X, expected Y".
template <class Found, class Expected>
[[noreturn]] void fail(const char* op, const char* argument, const Found& found, const Expected& expected) {
    throw std::runtime_error(std::string("nnue::") + op + ": " + argument + ": found " + text(found) + ", expected " +
                             text(expected));
}

inline std::string dtype_name(ScalarType dtype) {
    switch (dtype) {
        case ScalarType::Byte:
            return "uint8";
        case ScalarType::Char:
            return "int8";
        case ScalarType::Short:
            return "int16";
        case ScalarType::Int:
            return "int32";
        case ScalarType::Long:
            return "int64";
        case ScalarType::Half:
            return "float16";
        case ScalarType::BFloat16:
            return "bfloat16";
        case ScalarType::Float:
            return "float32";
        case ScalarType::Double:
            return "float64";
        case ScalarType::Bool:
            return "bool";
        case ScalarType::ComplexFloat:
            return "complex64";
        case ScalarType::ComplexDouble:
            return "complex128";
        case ScalarType::UInt16:
            return "uint16";
        case ScalarType::UInt32:
            return "uint32";
        case ScalarType::UInt64:
            return "uint64";
        default:
            return "dtype " + std::to_string(static_cast<int>(dtype));
    }
}

// A shape such as "[2, 3]". A size below 0 is written as "any".
template <class Sizes>
std::string shape_text(const Sizes& sizes) {
    std::string out;
    for (const int64_t size : sizes) out += (out.empty() ? "[" : ", ") + (size < 0 ? "any" : text(size));
    return out.empty() ? "[]" : out + "]";
}

inline bool is_missing(const Tensor& tensor) {
    return !tensor.defined();
}
inline bool is_missing(const std::optional<Tensor>& tensor) {
    return tensor && is_missing(*tensor);
}
inline bool is_missing(const std::vector<Tensor>& tensors) {
    return std::any_of(tensors.begin(), tensors.end(), [](const Tensor& tensor) { return is_missing(tensor); });
}
template <class Value>
bool is_missing(const Value&) {
    return false;
}

// An operator whose tensor arguments are checked to be there first: None becomes a tensor that is not defined, and
// every function of the stable ABI fails on it. `Name::text()` is the operator's name. NNUE_IMPL makes one.
template <class Name, auto function>
struct Checked;
template <class Name, class Result, class... Arguments, Result (*function)(Arguments...)>
struct Checked<Name, function> {
    static Result call(Arguments... arguments) {
        int number = 0;
        (check_defined(++number, arguments), ...);
        return function(std::forward<Arguments>(arguments)...);
    }

  private:
    template <class Value>
    static void check_defined(int number, const Value& value) {
        if (!is_missing(value)) return;
        fail(Name::text(), ("argument " + text(number)).c_str(), "None", "a tensor");
    }
};

// Registers the implementation of an operator, within STABLE_TORCH_LIBRARY_IMPL(nnue, …, m).
#define NNUE_IMPL(m, name, function)                                     \
    do {                                                                 \
        struct Name {                                                    \
            static const char* text() { return name; }                   \
        };                                                               \
        m.impl(name, TORCH_BOX((&nnue::Checked<Name, function>::call))); \
    } while (false)

inline std::string device_name(const Tensor& tensor) {
    if (tensor.is_cpu()) return "cpu";
    if (tensor.is_cuda()) return "cuda:" + std::to_string(tensor.get_device_index());
    return "another device";
}

// `like` is the tensor whose device is the reference, and `like_name` its name.
inline void check_device(const char* op, const char* argument, const Tensor& tensor, Device device, const Tensor& like,
                         const char* like_name) {
    const bool right_type = device == Device::cpu ? tensor.is_cpu() : tensor.is_cuda();
    if (!right_type || tensor.get_device_index() != like.get_device_index()) {
        fail(op, argument, "a tensor on " + device_name(tensor),
             "one on " + device_name(like) + ", where " + like_name + " is");
    }
}

inline void check_dtype(const char* op, const char* argument, const Tensor& tensor,
                        std::initializer_list<ScalarType> allowed) {
    std::string expected;
    for (const ScalarType dtype : allowed) {
        if (tensor.scalar_type() == dtype) return;
        expected += (expected.empty() ? "" : " or ") + dtype_name(dtype);
    }
    fail(op, argument, dtype_name(tensor.scalar_type()), expected);
}

// -1 in `shape` stands for any size; `letters` name the sizes.
inline void check_shape(const char* op, const char* argument, const Tensor& tensor,
                        std::initializer_list<int64_t> shape, const char* letters) {
    const auto found = tensor.sizes();
    const bool same = std::equal(found.begin(), found.end(), shape.begin(), shape.end(),
                                 [](int64_t size, int64_t wanted) { return wanted < 0 || size == wanted; });
    if (same) return;
    const bool known = std::any_of(shape.begin(), shape.end(), [](int64_t size) { return size >= 0; });
    fail(op, argument, "shape " + shape_text(found),
         std::string("shape ") + letters + (known ? " = " + shape_text(shape) : ""));
}

// The addresses from a tensor's first element to after its last one.
struct AddressRange {
    uintptr_t begin, end;
};

inline AddressRange addresses_of(const Tensor& tensor) {
    if (tensor.numel() == 0) return {0, 0};
    const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    int64_t last = 0;
    for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
    return {begin, begin + static_cast<uintptr_t>((last + 1) * static_cast<int64_t>(tensor.element_size()))};
}

// `out` is written while `other` is still read, or written, too: they must not share memory.
inline void check_apart(const char* op, const char* argument, const Tensor& out, const Tensor& other,
                        const char* other_name) {
    const AddressRange a = addresses_of(out), b = addresses_of(other);
    if (a.begin < b.end && b.begin < a.end) {
        fail(op, argument, std::string("a tensor that shares memory with ") + other_name, "one with memory of its own");
    }
}

// The error for an index outside the contract, with the same words on every device.
[[noreturn]] inline void fail_index(const char* op, int64_t row, int64_t value, int64_t num_features) {
    fail(op, "indices", "index " + std::to_string(value) + " in row " + std::to_string(row),
         "-1 (end of row) or 0 <= index < " + std::to_string(num_features));
}

}  // namespace nnue
