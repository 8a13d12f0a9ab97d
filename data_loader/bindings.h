// What the parts of the Python module share: arrays of records in and out.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <span>
#include <string>

#include "chess/fen.h"
#include "chess/types.h"

namespace py = pybind11;
using namespace nnue::data;

template <class T>
using Array = py::array_t<T, py::array::c_style>;

// The n records of a uint8 [n, 32] array.
inline const Record* records_of(const Array<std::uint8_t>& array, const char* what) {
    if (array.ndim() != 2 || array.shape(1) != 32) {
        throw FormatError(std::string(what) + ": records have shape " +
                          py::str(array.attr("shape")).cast<std::string>() + ", expected [n, 32]");
    }
    return reinterpret_cast<const Record*>(array.data());
}

inline std::span<const Record> record_span(const Array<std::uint8_t>& array, const char* what) {
    return {records_of(array, what), static_cast<std::size_t>(array.shape(0))};
}

inline Array<std::uint8_t> make_records(std::size_t n) {
    return Array<std::uint8_t>({n, sizeof(Record)});
}

// Readers, writers and tools of data files: bindings_tools.cpp.
void bind_tools(py::module_& m);
