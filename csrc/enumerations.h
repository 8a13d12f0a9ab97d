// Choices among words, such as a statistic, are integers in the operators' schemas: torch's stable ABI leaks the string
// of every str argument (torch 2.10 to 2.13), and of every str in a result. This file has the one table of each
// choice. Python reads it from the operators `enumerations` and `stats_enumerations`, and translates words to integers
// (nnue_trainer/base/_words.py).
//
// An operator that needs a text from the user, such as the path of a library, takes its bytes as uint8 [n].
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "checks.h"

// Defines an enumeration and the words for its values, which are 0, 1, … in this order.
#define NNUE_ENUMERATION(Name, ...)        \
    enum class Name : int { __VA_ARGS__ }; \
    constexpr const char* words_of(Name) { \
        return #__VA_ARGS__;               \
    }

namespace nnue {

template <class E>
constexpr int64_t count_of() {
    const std::string_view words = words_of(E{});
    return 1 + std::count(words.begin(), words.end(), ',');
}

// The value that an operator was given as an integer.
template <class E>
E check_enumeration(const char* op, const char* argument, int64_t value) {
    if (value < 0 || value >= count_of<E>()) {
        fail(op, argument, value, "0 to " + text(count_of<E>() - 1) + ", for " + words_of(E{}));
    }
    return static_cast<E>(value);
}

// The text of a tensor uint8 [n] on the CPU.
inline std::string check_text(const char* op, const char* argument, const Tensor& tensor) {
    check_device(op, argument, tensor, Device::cpu, tensor, argument);
    check_dtype(op, argument, tensor, {ScalarType::Byte});
    check_shape(op, argument, tensor, {-1}, "[n]");
    if (!tensor.is_contiguous()) fail(op, argument, "a tensor with gaps", "a contiguous one");
    return {static_cast<const char*>(tensor.const_data_ptr()), static_cast<size_t>(tensor.numel())};
}

// The words of a choice as one line, for the operators that give a library's table.
template <class E>
std::string line_of(const char* argument) {
    return std::string(argument) + ": " + words_of(E{}) + "\n";
}

inline Tensor text_tensor(const std::string& text) {
    Tensor tensor = torch::stable::empty({static_cast<int64_t>(text.size())}, ScalarType::Byte);
    std::copy(text.begin(), text.end(), static_cast<char*>(tensor.mutable_data_ptr()));
    return tensor;
}

NNUE_ENUMERATION(CheckMode, sync, async, off)  // cuda/index_check.cuh

}  // namespace nnue
