// Blocks of records and of their bytes in a file, as arrays.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "bindings/bindings.h"

// The next block of a reader, as a new array of at most `capacity` records, and their bytes in the file as uint8
// [n, original_size]; None if that is 0. `read` fills both.
template <class Read>
py::tuple read_block(std::size_t capacity, std::size_t original_size, Read&& read) {
    constexpr std::size_t kMost = std::size_t{1} << 32;
    if (capacity > kMost)
        throw FormatError("a block of " + std::to_string(capacity) + " records, expected at most 2^32");
    auto block = make_records(capacity);
    auto* out = reinterpret_cast<Record*>(block.mutable_data());
    py::object originals = py::none();
    std::uint8_t* bytes = nullptr;
    if (original_size) {
        Array<std::uint8_t> array({capacity, original_size});
        bytes = array.mutable_data();
        originals = std::move(array);
    }
    std::size_t n = 0;
    {
        py::gil_scoped_release release;
        n = read(std::span(out, capacity), bytes);
    }
    if (n == capacity) return py::make_tuple(block, originals);
    const py::slice head(0, static_cast<py::ssize_t>(n), 1);
    return py::make_tuple(block[head], original_size ? py::object(originals[head]) : originals);
}

// The original bytes of n records, None for none.
inline const std::uint8_t* originals_of(const std::optional<Array<std::uint8_t>>& array, std::size_t n,
                                        std::size_t size) {
    if (!array) return nullptr;
    if (array->ndim() != 2 || static_cast<std::size_t>(array->shape(0)) != n ||
        static_cast<std::size_t>(array->shape(1)) != size) {
        throw FormatError("original bytes have shape " + py::str(array->attr("shape")).cast<std::string>() +
                          ", expected [" + std::to_string(n) + ", " + std::to_string(size) + "]");
    }
    return array->data();
}
