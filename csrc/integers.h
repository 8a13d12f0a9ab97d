// A net's parameters as an engine's integers, all of them in one pass: the contracts of the operators and the checks
// that hold on every device. Integers are held as float32.
//
// _to_integers
//   parameters  float32 tensors of any shape
//   ranges      int [R, 2], flat: the index of a parameter, and a number of its elements. The ranges of a parameter
//               follow one another and cover it. Parameters come in order.
//   scales      float [R]; limits int [R]
//   output      float32, flat: the parameters one after another, each begins at a multiple of 64. The gaps between them
//               are not written. An element x is round(min(max(x · scale, -limit), limit)), ties to even. It is
//               computed in float32, and in float64 where the limit is above 32,767. NaN stays.
//
// _to_integers_backward: gradients of the parameters from those of the integers, straight through the rounding
//   gradients   float32 tensors of the same shapes
//   output      flat likewise: gradient · scale where -limit <= x · scale <= limit, else 0
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "checks.h"
#include "dtypes.h"
#include "host_device.h"

namespace nnue::integers {

constexpr const char* kForward = "_to_integers";
constexpr const char* kBackward = "_to_integers_backward";
constexpr int64_t kAlignment = 64;  // floats
constexpr int64_t kWideFrom = 32767;

using Tensors = std::vector<Tensor>;

struct Range {
    const float* from;
    const float* gradient;  // null: forward
    float* to;
    int64_t count;
    double scale, limit;
    bool wide;
};

template <class T>
NNUE_HOST_DEVICE float to_integer(float x, T scale, T limit) {
    const T steps = static_cast<T>(x) * scale;
    // Not min and max, which lose what is not a number.
    return static_cast<float>(std::rint(steps < -limit ? -limit : steps > limit ? limit : steps));
}

template <class T>
NNUE_HOST_DEVICE float ste_gradient(float x, float gradient, T scale, T limit) {
    const T steps = static_cast<T>(x) * scale;
    return steps >= -limit && steps <= limit ? static_cast<float>(static_cast<T>(gradient) * scale) : 0.0f;
}

// Parameters and gradients, contiguous, and the flat result with room for all of them.
struct Problem {
    Tensors parameters, gradients;
    std::vector<Range> ranges;
    int64_t size = 0;  // of the result

    Problem(const char* op, const Tensors* gradients_in, const Tensors& parameters_in,
            const std::vector<int64_t>& parts, const std::vector<double>& scales, const std::vector<int64_t>& limits,
            Device device) {
        if (parameters_in.empty()) fail(op, "parameters", "none", "at least one tensor");
        if (gradients_in != nullptr && gradients_in->size() != parameters_in.size())
            fail(op, "gradients", text(gradients_in->size()) + " tensors", "as many as parameters");
        if (parts.size() != 2 * scales.size() || limits.size() != scales.size())
            fail(op, "ranges", text(parts.size()) + " numbers", "two for each scale and each limit");
        for (size_t i = 0; i < parameters_in.size(); ++i) {
            const Tensor& x = parameters_in[i];
            check_device(op, "parameters", x, device, parameters_in[0], "parameters[0]");
            check_dtype(op, "parameters", x, {ScalarType::Float});
            parameters.push_back(torch::stable::contiguous(x));
            if (gradients_in == nullptr) continue;
            const Tensor& gradient = (*gradients_in)[i];
            check_device(op, "gradients", gradient, device, parameters_in[0], "parameters[0]");
            check_dtype(op, "gradients", gradient, {ScalarType::Float});
            if (shape_text(gradient.sizes()) != shape_text(x.sizes()))
                fail(op, "gradients", "shape " + shape_text(gradient.sizes()), "shape " + shape_text(x.sizes()));
            gradients.push_back(torch::stable::contiguous(gradient));
        }
        size_t r = 0;
        for (size_t i = 0; i < parameters.size(); ++i) {
            const Tensor& x = parameters[i];
            int64_t begin = 0;
            for (; r < scales.size() && parts[2 * r] == static_cast<int64_t>(i); ++r) {
                const int64_t count = parts[2 * r + 1];
                if (count < 0 || count > x.numel() - begin) break;
                ranges.push_back({const_data<float>(x) + begin,
                                  gradients.empty() ? nullptr : const_data<float>(gradients[i]) + begin, nullptr, count,
                                  scales[r], static_cast<double>(limits[r]), limits[r] > kWideFrom});
                offsets_.push_back(size + begin);
                begin += count;
            }
            if (begin != x.numel())
                fail(op, "ranges", text(begin) + " elements of parameter " + std::to_string(i),
                     "all " + std::to_string(x.numel()));
            size += divide_up(begin, kAlignment) * kAlignment;
        }
        if (r != scales.size())
            fail(op, "ranges", "one of parameter " + std::to_string(parts[2 * r]), "parameters in order");
    }

    // The result goes to `flat`.
    void write_to(float* flat) {
        for (size_t r = 0; r < ranges.size(); ++r) ranges[r].to = flat + offsets_[r];
    }

  private:
    std::vector<int64_t> offsets_;
};

// The forward and backward operator of a device; `run` computes the result.
template <Device device, Tensor (*run)(const char* op, Problem&)>
struct Operators {
    static Tensor forward(Tensors parameters, std::vector<int64_t> ranges, std::vector<double> scales,
                          std::vector<int64_t> limits) {
        Problem problem(kForward, nullptr, parameters, ranges, scales, limits, device);
        return run(kForward, problem);
    }
    static Tensor backward(Tensors gradients, Tensors parameters, std::vector<int64_t> ranges,
                           std::vector<double> scales, std::vector<int64_t> limits) {
        Problem problem(kBackward, &gradients, parameters, ranges, scales, limits, device);
        return run(kBackward, problem);
    }
};

}  // namespace nnue::integers
