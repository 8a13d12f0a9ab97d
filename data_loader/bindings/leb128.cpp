// The part of nnue_trainer._data for the compressed blocks of net files; nnue_trainer/nnue_file/leb128.py and
// huffman.py are its faces.
#include "formats/leb128.h"

#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "formats/huffman.h"

namespace {

std::span<const std::uint8_t> bytes_of(const py::buffer_info& bytes, const char* what) {
    if (bytes.itemsize != 1 || bytes.ndim != 1 || bytes.strides[0] != 1)
        throw FormatError(std::string(what) + ": expected a row of bytes");
    return {static_cast<const std::uint8_t*>(bytes.ptr), static_cast<std::size_t>(bytes.size)};
}

// Fills `out` with the numbers from byte `offset` of the payload on: (offset, element, reason) as LebProgress.
template <class Int>
py::tuple decode(const py::buffer& payload, std::size_t offset, const Array<Int>& out) {
    const py::buffer_info bytes = payload.request();
    const std::span<const std::uint8_t> all = bytes_of(bytes, "leb128_decode");
    if (offset > all.size()) throw FormatError("leb128_decode: the offset is beyond the payload");
    const auto n = static_cast<std::size_t>(out.size());
    const std::span<Int> numbers{output<Int>(out, n, "out"), n};
    LebProgress progress;
    {
        py::gil_scoped_release release;
        progress = leb128_decode(all, offset, numbers);
    }
    return py::make_tuple(progress.offset, progress.element, progress.reason);
}

template <class Int>
py::bytes encode(const Array<Int>& values) {
    const std::span<const Int> numbers{values.data(), static_cast<std::size_t>(values.size())};
    std::size_t size = 0;
    {
        py::gil_scoped_release release;
        size = leb128_size(numbers);
    }
    auto bytes = py::reinterpret_steal<py::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<py::ssize_t>(size)));
    if (!bytes) throw py::error_already_set();
    auto* const out = reinterpret_cast<std::uint8_t*>(PyBytes_AS_STRING(bytes.ptr()));
    {
        py::gil_scoped_release release;
        leb128_encode(numbers, out);
    }
    return bytes;
}

// Fills `out` with the array that the bytes are: (offset, element, reason) as HuffmanProgress.
template <class Int>
py::tuple decode_huffman(const py::buffer& coded, const Array<Int>& out) {
    const py::buffer_info bytes = coded.request();
    const std::span<const std::uint8_t> all = bytes_of(bytes, "huffman_decode");
    const auto n = static_cast<std::size_t>(out.size());
    const std::span<Int> numbers{output<Int>(out, n, "out"), n};
    HuffmanProgress progress;
    {
        py::gil_scoped_release release;
        progress = huffman_decode(all, numbers);
    }
    return py::make_tuple(progress.offset, progress.element, progress.reason);
}

template <class Int>
py::bytes encode_huffman(const Array<Int>& values) {
    const std::span<const Int> numbers{values.data(), static_cast<std::size_t>(values.size())};
    std::vector<std::uint8_t> coded;
    {
        py::gil_scoped_release release;
        coded = huffman_encode(numbers);
    }
    return py::bytes(reinterpret_cast<const char*>(coded.data()), coded.size());
}

template <class Int>
void bind(py::module_& m) {
    m.def("huffman_decode", &decode_huffman<Int>, py::arg("coded"), py::arg("out").noconvert());
    m.def("huffman_encode", &encode_huffman<Int>, py::arg("values").noconvert());
    // No conversion: an output that was converted would be another array.
    m.def("leb128_decode", &decode<Int>, py::arg("payload"), py::arg("offset"), py::arg("out").noconvert());
    m.def("leb128_encode", &encode<Int>, py::arg("values").noconvert());
}

}  // namespace

void bind_leb128(py::module_& m) {
    m.def("huffman_blocks", &huffman_blocks, py::arg("count"));
    bind<std::int8_t>(m);
    bind<std::int16_t>(m);
    bind<std::int32_t>(m);
}
