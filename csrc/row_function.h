// Operators _row_function and, for several inputs, _row_function_of: they call a library that
// nnue_trainer/stats/row_function.py compiled from a user's body. A list of tensors costs more than a small call.
//
//   x, rows      1 to 8 inputs [..., n], float32 or float64, all of one dtype and device. The leading dimensions of
//                each are those of `out`, or it is one row that all outputs share. n may differ between them.
//   out          [...], contiguous, of their dtype and device, in memory of its own
//   functions    number of the library, from nnue_add_row_functions of the operators' library for the device
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "checks.h"
#include "dtypes.h"

namespace nnue::row_function {

constexpr const char* kName = "_row_function";
constexpr size_t kMost = 8;

// As in sources/row_function.h, which has only as many inputs as the function.
struct Job {
    void* space;
    void* out;
    int64_t rows;
    struct {
        const void* from;
        int64_t size, stride;
    } in[kMost];
};

// The functions of a library, as in sources/on_cpu.h and on_cuda.cuh. They return an error or null.
struct OnCpu {
    using Apply = const char* (*)(const Job*, int64_t begin, int64_t end);  // a range of rows
    Apply of_float, of_double;
};
struct OnCuda {
    using Apply = const char* (*)(const Job*, void* stream);
    Apply of_float, of_double;
    int64_t (*bytes)(const Job*);  // of `space`, zeros
};

// All libraries so far, with the inputs of their functions. They stay loaded.
template <class Functions>
class Libraries {
  public:
    int64_t add(const Functions& functions, int64_t inputs) {
        const std::lock_guard lock(access_);
        all_.emplace_back(functions, inputs);
        return static_cast<int64_t>(all_.size()) - 1;
    }
    Functions at(int64_t number, size_t inputs) {
        const std::lock_guard lock(access_);
        const auto count = static_cast<int64_t>(all_.size());
        if (number < 0 || number >= count) fail(kName, "functions", number, "a number below " + text(count));
        const auto& [functions, wanted] = all_[static_cast<size_t>(number)];
        if (static_cast<int64_t>(inputs) != wanted) fail(kName, "rows", inputs, text(wanted) + " inputs");
        return functions;
    }

  private:
    std::mutex access_;
    std::vector<std::pair<Functions, int64_t>> all_;
};

// Replaces rows that are not contiguous. Each property of a tensor is read once: it is a call.
inline Job check_job(Tensor* rows, size_t count, const Tensor& out, Device device) {
    if (count == 0 || count > kMost) fail(kName, "rows", text(count) + " tensors", "1 to 8");
    check_dtype(kName, "out", out, {ScalarType::Float, ScalarType::Double});
    if (!out.is_contiguous()) fail(kName, "out", "a tensor that is not contiguous", "a contiguous one");
    const ScalarType dtype = out.scalar_type();
    const auto leading = out.sizes();
    Job job{nullptr, out.mutable_data_ptr(), 1, {}};
    for (const int64_t size : leading) job.rows *= size;
    const int64_t bytes = dtype == ScalarType::Float ? 4 : 8;
    const auto* const begin = static_cast<const char*>(job.out);
    for (size_t i = 0; i < count; ++i) {
        Tensor& x = rows[i];
        check_device(kName, "x", x, device, out, "out");
        if (x.scalar_type() != dtype) check_dtype(kName, "x", x, {dtype});
        if (!x.is_contiguous()) x = torch::stable::contiguous(x);
        const auto shape = x.sizes();
        if (shape.size() == 0) fail(kName, "x", "no dimension", "shape [..., n]");
        const int64_t size = shape[shape.size() - 1];
        const bool own =
            shape.size() == leading.size() + 1 && std::equal(leading.begin(), leading.end(), shape.begin());
        if (!own && x.numel() != size) {
            fail(kName, "x", "shape " + shape_text(shape), "the leading dimensions of out, " + shape_text(leading));
        }
        const auto* const from = static_cast<const char*>(x.const_data_ptr());
        if (from < begin + job.rows * bytes && begin < from + (own ? job.rows : 1) * size * bytes) {
            fail(kName, "out", "a tensor that shares memory with x", "one with memory of its own");
        }
        job.in[i] = {from, size, own ? size : 0};
    }
    return job;
}

}  // namespace nnue::row_function
