// The step of Muon for matrices: the contract of its operator and its checks. It exists on CUDA only; for a CPU, and
// for matrices with two long sides, nnue_trainer/optim/muon.py makes the same step with torch's operators.
//
// _optimizer_update_matrices makes the step that _optimizer_step has counted (optimizer.h), each matrix separately.
//
//   weights    [..., rows, columns] contiguous, float32 or float64, the same for all; the shorter side of a matrix has
//              at most kMostSide elements
//   gradients  of the same shape and dtype
//   momenta    two for each weight: its own, and that of its virtual rows [V, ..., rows, columns], V a divisor of the
//              weight's first size; no elements if there are none. Both are brought up to date
//   lr         float32 or float64, one element: the learning rate
//   state      as in optimizer.h; the numbers of its first group
//   settings   four numbers for each weight: the factor of the learning rate, the decoupled weight decay, and the
//              lowest and the highest value that the weight is clipped to
//   constants  six numbers: the momentum's decay, the size that gradients are clipped to, the number of steps of the
//              Newton-Schulz iteration, and its three coefficients
//
// A weight W with gradient G (scaled to the norm, then clipped) moves along its momentum M:
//
//   M <- keep M + (1 - keep) G,  U = keep M + (1 - keep) G,  X = U / max(|U|, 1e-7)
//   X <- a X + b (X X') X + c (X X')^2 X, once for each step of the iteration
//   W <- (1 - lr decay) W - lr X, clipped
//
// where X X' is X' X for a matrix with more rows than columns. With virtual rows X is the sum of that of the matrix and
// that of its virtual one, whose gradient is the sum of its matrices'.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "capabilities.h"
#include "optimizer.h"

namespace nnue::muon {

using namespace nnue::optimizer;

constexpr const char* kUpdateMatrices = "_optimizer_update_matrices";
constexpr size_t kMatrixSettings = 4;
constexpr int kMostSide = capabilities::kMostMatrixSide;

struct Constants {
    double keep, most;
    int iterations;
    double a, b, c;
};

inline Constants check_constants(const std::vector<double>& constants) {
    if (constants.size() != 6) {
        fail(kUpdateMatrices, "constants", text(constants.size()) + " numbers",
             "six: momentum, max_value, iterations and three coefficients");
    }
    if (!(constants[0] >= 0 && constants[0] < 1))
        fail(kUpdateMatrices, "momentum", std::to_string(constants[0]), "0 <= momentum < 1");
    if (!(constants[1] > 0)) fail(kUpdateMatrices, "max_value", std::to_string(constants[1]), "a number above 0");
    if (!(constants[2] >= 1 && constants[2] <= 100))
        fail(kUpdateMatrices, "iterations", std::to_string(constants[2]), "1 to 100");
    return {constants[0], constants[1], static_cast<int>(constants[2]), constants[3], constants[4], constants[5]};
}

// A weight as kernels see it: `count` matrices, of which matrix m shares virtual matrix m mod `shared_count`.
struct Weight {
    void *weight, *momentum, *shared;  // shared: momentum of the virtual ones
    const void* gradient;
    int count, shared_count;
    int side, length;  // the shorter one first
    bool tall;         // more rows than columns
    double rate, decay, low, high;

    int all() const { return count + shared_count; }
    NNUE_HOST_DEVICE int64_t size() const { return int64_t(side) * length; }
};

// The weights, checked; those without elements are left out. `kept` keeps contiguous copies of gradients alive.
inline std::vector<Weight> weights_of(const Tensors& weights, const Tensors& gradients, const Tensors& momenta,
                                      const std::vector<double>& settings, const Tensor& like, Device device,
                                      Tensors& kept) {
    constexpr const char* op = kUpdateMatrices;
    check_length(op, "gradients", gradients.size(), weights.size());
    check_length(op, "momenta", momenta.size(), 2 * weights.size(), "two for each weight");
    check_length(op, "settings", settings.size(), kMatrixSettings * weights.size(), "four for each weight");
    std::vector<Weight> found;
    for (size_t i = 0; i < weights.size(); ++i) {
        const std::string name = at("weights", i), gradient_name = at("gradients", i);
        const Tensor &weight = weights[i], &own = momenta[2 * i], &shared = momenta[2 * i + 1];
        check_device(op, name.c_str(), weight, device, like, "numbers");
        check_dtype(op, name.c_str(), weight, {ScalarType::Float, ScalarType::Double});
        check_dtype(op, name.c_str(), weight, {weights[0].scalar_type()});
        check_contiguous(op, name, weight);
        const auto sizes = weight.sizes();
        const size_t dims = sizes.size();
        if (dims < 2) fail(op, name.c_str(), "shape " + shape_text(sizes), "[..., rows, columns]");
        const int64_t rows = sizes[dims - 2], columns = sizes[dims - 1], side = std::min(rows, columns);
        if (side > kMostSide || std::max(rows, columns) > INT32_MAX / kMostSide) {
            fail(op, name.c_str(), "shape " + shape_text(sizes),
                 "at most " + text(kMostSide) + " rows or columns, and less than 2^31 elements");
        }
        check_device(op, gradient_name.c_str(), gradients[i], device, like, "numbers");
        kept.push_back(torch::stable::contiguous(gradients[i]));
        Weight made{};
        made.gradient = moment(op, gradient_name, kept.back(), weight, name);
        const std::string own_name = at("momenta", 2 * i), shared_name = at("momenta", 2 * i + 1);
        check_device(op, own_name.c_str(), own, device, like, "numbers");
        made.momentum = moment(op, own_name, own, weight, name);
        made.weight = weight.mutable_data_ptr();
        if (weight.numel() == 0) continue;
        made.count = static_cast<int>(weight.numel() / (rows * columns));
        if (shared.numel() != 0) {
            check_device(op, shared_name.c_str(), shared, device, like, "numbers");
            check_dtype(op, shared_name.c_str(), shared, {weight.scalar_type()});
            check_contiguous(op, shared_name, shared);
            const auto of_shared = shared.sizes();
            if (dims < 3 || of_shared.size() != dims ||
                !std::equal(sizes.begin() + 1, sizes.end(), of_shared.begin() + 1))
                fail(op, shared_name.c_str(), "shape " + shape_text(of_shared),
                     "[V, ...] with the matrices of " + name);
            made.shared_count = static_cast<int>(made.count / rows_of(op, shared_name, weight, shared.size(0)));
            made.shared = shared.mutable_data_ptr();
        }
        made.side = static_cast<int>(side), made.length = static_cast<int>(std::max(rows, columns));
        made.tall = rows > columns;
        const double* const numbers = settings.data() + kMatrixSettings * i;
        made.rate = numbers[0], made.decay = numbers[1], made.low = numbers[2], made.high = numbers[3];
        if (!(made.low <= made.high)) {
            fail(op, at("settings", kMatrixSettings * i + 2).c_str(), "lowest weight " + std::to_string(made.low),
                 "at most the highest, " + std::to_string(made.high));
        }
        found.push_back(made);
    }
    return found;
}

}  // namespace nnue::muon
