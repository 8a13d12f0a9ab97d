// Common code of the parts of the Python module: arrays of records in and out.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "chess/fen.h"
#include "chess/types.h"
#include "features/feature_set.h"
#include "filters/filters.h"
#include "formats/stream.h"
#include "pipeline/pipeline.h"

namespace py = pybind11;
using namespace nnue::data;

template <class T>
using Array = py::array_t<T, py::array::c_style>;

// A text that may quote bytes of a file. Bytes that are not UTF-8 are escaped: every text for Python is made here.
inline py::str text_of(std::string_view text) {
    return py::reinterpret_steal<py::str>(
        PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

// Lets Python's signal handlers run, which happens in the main thread only; throws what they raise.
inline void check_signals() {
    const py::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// Bytes from a Python object with readinto(), such as a decompressor. Its exceptions pass through.
class PythonSource final : public ByteSource {
  public:
    explicit PythonSource(py::object readinto) : readinto_(std::move(readinto)) {}

    std::size_t read(std::span<std::uint8_t> out) override {
        py::gil_scoped_acquire acquire;
        const auto view = py::memoryview::from_memory(out.data(), static_cast<py::ssize_t>(out.size()));
        const auto n = readinto_(view).cast<std::size_t>();
        if (n > out.size()) throw FormatError("readinto() returned more bytes than its buffer holds");
        return n;
    }

  private:
    py::object readinto_;
};

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

inline Array<std::uint8_t> copy_records(std::span<const Record> records) {
    auto array = make_records(records.size());
    std::memcpy(array.mutable_data(), records.data(), records.size_bytes());
    return array;
}

// An object that one thread may use at a time. A second thread gets an error instead of a data race: nothing else keeps
// them apart while the interpreter's lock is released.
template <class T>
class Exclusive {
  public:
    template <class... Arguments>
    explicit Exclusive(Arguments&&... arguments) : object_(std::forward<Arguments>(arguments)...) {}

    class Use {
      public:
        explicit Use(Exclusive& owner) : owner_(owner) {
            if (owner_.busy_.exchange(true)) throw FormatError("this object is in use by another thread");
        }
        ~Use() { owner_.busy_ = false; }
        Use(const Use&) = delete;
        Use& operator=(const Use&) = delete;
        T& operator*() const { return owner_.object_; }
        T* operator->() const { return &owner_.object_; }

      private:
        Exclusive& owner_;
    };
    Use use() { return Use(*this); }

  private:
    T object_;
    std::atomic<bool> busy_ = false;
};

template <class T>
void add_records(Exclusive<T>& exclusive, const Array<std::uint8_t>& records) {
    const std::span<const Record> all = record_span(records, "add");
    const auto object = exclusive.use();
    py::gil_scoped_release release;
    object->add(all);
}

// A writable pointer to a caller's array of exactly this many elements.
template <class T>
T* output(const py::object& object, std::size_t size, const char* name) {
    // Tested before anything converts it: a list would become an array that is gone when this function returns.
    if (py::isinstance<py::array_t<T>>(object)) {
        const auto array = py::reinterpret_borrow<py::array>(object);
        if ((array.flags() & py::array::c_style) && array.writeable() &&
            static_cast<std::size_t>(array.size()) == size) {
            return static_cast<T*>(const_cast<void*>(array.data()));
        }
    }
    throw FormatError(std::string("array '") + name + "' must be a writable contiguous " +
                      py::str(py::dtype::of<T>()).cast<std::string>() + " array of " + std::to_string(size) +
                      " elements");
}

// The slot of a batch of n positions in a caller's array uint8 [slot_bytes()], of any shape.
inline Slot slot_in_array(const py::object& memory, const FeatureSet* features, std::size_t n) {
    const std::size_t bytes = slot_bytes(features, n);
    return slot_in({reinterpret_cast<std::byte*>(output<std::uint8_t>(memory, bytes, "memory")), bytes}, features, n);
}

// The parts of the module; `bind_x` is defined in x.cpp.
void bind_records(py::module_& m);
void bind_filters(py::module_& m);
void bind_statistics(py::module_& m);
void bind_games(py::module_& m);
void bind_formats(py::module_& m);
void bind_changes(py::module_& m);
void bind_shuffle(py::module_& m);
void bind_pipeline(py::module_& m);
void bind_evaluate(py::module_& m);
void bind_leb128(py::module_& m);
