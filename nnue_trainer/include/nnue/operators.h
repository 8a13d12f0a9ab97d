// The operators with derivatives, for LibTorch: compiled in your program, with your torch. docs/cpp.md is the guide.
//
//     nnue::load_operators();  // once, before the first call
//     at::Tensor out = nnue::feature_transformer(indices, weight, bias);  // differentiable
//
// torch's stable ABI cannot register derivatives, so the dispatcher does not connect the operators' forward and
// backward. Here torch::autograd::Functions connect them, as nnue_trainer/ops does in
// Python, with bit-identical results. Only first derivatives in reverse mode are supported.
//
// Errors are exceptions that derive from std::exception: std::runtime_error from operators and load_operators,
// c10::Error from torch and from checks of this header. Call load_operators() first. Any thread may call these
// functions.
#pragma once

#include <ATen/DynamicLibrary.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "activation.h"
#include "nnue/operator_calls.h"

namespace nnue {

namespace detail {

// A CPU library and, if torch has CUDA and the folder has it, a CUDA library.
inline void load_libraries(const std::filesystem::path& folder, const std::string& cpu, const std::string& cuda) {
    const auto load = [](const std::filesystem::path& path) {
        try {
            at::DynamicLibrary(path.string().c_str(), nullptr, /*leak_handle=*/true);
        } catch (const c10::Error& error) {
            throw std::runtime_error("nnue: " + error.msg());
        }
    };
    static std::mutex mutex;
    static std::map<std::string, std::filesystem::path> every;
    const std::lock_guard<std::mutex> lock(mutex);
    std::filesystem::path& loaded = every[cpu];
    std::error_code failed;
    std::filesystem::path wanted = std::filesystem::weakly_canonical(folder / cpu, failed);
    if (failed) wanted = folder / cpu;
    if (!loaded.empty()) {
        if (wanted == loaded) return;
        throw std::runtime_error("nnue: found operators in " + wanted.string() + ", but those of " + loaded.string() +
                                 " are loaded; a program can load them from one folder only");
    }
    load(folder / cpu);
    if (at::hasCUDA() && std::filesystem::exists(folder / cuda)) load(folder / cuda);
    loaded = wanted;
}

}  // namespace detail

// Loads the operators of training, and on a torch with CUDA those that the package has for it. `folder` is the folder
// of the installed package; the CMake target nnue::operators sets the default. Throws std::runtime_error, also if a
// program has loaded them from another folder before: a process can have them once. `load_stats` does the same for the
// operators of statistics (docs/statistics.md).
#ifdef NNUE_OPERATORS_FOLDER
#define NNUE_DEFAULT_FOLDER = NNUE_OPERATORS_FOLDER
#else
#define NNUE_DEFAULT_FOLDER
#endif
inline void load_operators(const std::filesystem::path& folder NNUE_DEFAULT_FOLDER) {
    detail::load_libraries(folder, "_ops_cpu.so", "_ops_cuda.so");
}
inline void load_stats(const std::filesystem::path& folder NNUE_DEFAULT_FOLDER) {
    detail::load_libraries(folder, "_stats_cpu.so", "_stats_cuda.so");
}
#undef NNUE_DEFAULT_FOLDER

// Converts int64 rows to int32. An index that does not fit becomes the nearest one that does, which no set of features
// has, so the operators report it.
inline at::Tensor index_rows(const at::Tensor& indices) {
    if (indices.scalar_type() != at::kLong) return indices;
    using Limits = std::numeric_limits<int32_t>;
    return indices.clamp(Limits::min(), Limits::max()).to(at::kInt);
}

namespace detail {

// Calls an operator that reads index_rows(each of rows). If it reports an index that int32 does not have, the error
// gets that index, and its row, from the int64 rows.
template <class Call>
auto with_exact_indices(std::initializer_list<at::Tensor> rows, const Call& call) {
    try {
        return call();
    } catch (const std::runtime_error& error) {
        using Limits = std::numeric_limits<int32_t>;
        const std::string text = error.what(), found = "found index ";
        const size_t begin = text.find(found), end = text.find(", expected", begin);
        if (begin == std::string::npos || end == std::string::npos) throw;
        const std::string number =
            text.substr(begin + found.size(), text.find(' ', begin + found.size()) - begin - found.size());
        if (number != std::to_string(Limits::min()) && number != std::to_string(Limits::max())) throw;
        for (const at::Tensor& each : rows) {
            if (!each.defined() || each.scalar_type() != at::kLong) continue;
            const at::Tensor inside = each.eq(-1).cumsum(1).eq(0);
            const at::Tensor wrong = (inside & (each.lt(Limits::min()) | each.gt(Limits::max()))).nonzero();
            if (wrong.size(0) == 0) continue;
            const auto row = wrong[0][0].item<int64_t>(), index = each[row][wrong[0][1]].item<int64_t>();
            throw std::runtime_error(text.substr(0, begin) + found + std::to_string(index) + " in row " +
                                     std::to_string(row) + text.substr(end));
        }
        throw;
    }
}

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// Whether the CUDA library is loaded; it has this operator.
inline bool has_cuda_library() {
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow(calls::set_cuda_index_check_name, "")
        .hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
}

// The text in a tensor uint8 [n] that an operator returned.
inline std::string text_of(const at::Tensor& bytes) {
    return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())};
}

[[noreturn]] inline void no_second_derivative(const char* backward) {
    TORCH_CHECK(false, backward,
                ": it has no derivative of its own (double backward): second derivatives are not available in C++; "
                "leave out create_graph=true");
}

using MaybeTensor = std::optional<at::Tensor>;

inline MaybeTensor if_defined(const at::Tensor& tensor) {
    return tensor.defined() ? MaybeTensor(tensor) : std::nullopt;
}

// In both pairs, tensors with gradients come first, because needs_input_grad() does not count absent tensors.
struct FeatureTransformerBackward : torch::autograd::Function<FeatureTransformerBackward> {
    static variable_list forward(AutogradContext*, const Variable& grad_output, const at::Tensor& indices,
                                 const MaybeTensor& values, const MaybeTensor& weight, int64_t num_features,
                                 std::array<bool, 3> needs, std::optional<bool> deterministic) {
        const at::AutoDispatchBelowADInplaceOrView below;
        // Unchecked: the forward has checked these indices.
        auto [grad_weight, grad_bias, grad_values] = calls::feature_transformer_backward(
            grad_output, indices, values, weight, num_features, needs, deterministic, false);
        return {grad_weight, grad_bias, grad_values};
    }
    static variable_list backward(AutogradContext*, const variable_list&) {
        no_second_derivative(calls::feature_transformer_backward_name);
    }
};

struct FeatureTransformer : torch::autograd::Function<FeatureTransformer> {
    static Variable forward(AutogradContext* context, const Variable& weight, const Variable& bias,
                            const MaybeTensor& values, const at::Tensor& indices, std::optional<bool> deterministic) {
        const at::AutoDispatchBelowADInplaceOrView below;
        const bool needs_values = values && values->requires_grad();
        context->save_for_backward({indices, values.value_or(at::Tensor()), needs_values ? weight : at::Tensor()});
        context->saved_data["num_features"] = weight.dim() ? weight.size(0) : 0;
        if (!deterministic && at::globalContext().deterministicAlgorithms()) deterministic = true;
        context->saved_data["deterministic"] = deterministic;
        return calls::feature_transformer_forward(indices, values, weight, bias, deterministic);
    }
    static variable_list backward(AutogradContext* context, const variable_list& grads) {
        const variable_list saved = context->get_saved_variables();
        const std::array<bool, 3> needs = {context->needs_input_grad(0), context->needs_input_grad(1),
                                           saved[2].defined() && context->needs_input_grad(2)};
        const variable_list made = FeatureTransformerBackward::apply(
            grads[0], saved[0], if_defined(saved[1]), if_defined(saved[2]), context->saved_data["num_features"].toInt(),
            needs, context->saved_data["deterministic"].toOptional<bool>());
        variable_list gradients(5);
        for (size_t i = 0; i < needs.size(); ++i) {
            if (needs[i]) gradients[i] = made[i];
        }
        return gradients;
    }
};

}  // namespace detail

// bias + Σ_k values[b, k] · weight[indices[b, k]] for every row b: [B, N] in the dtype of `weight`. Differentiable in
// weight, bias and values.
//   indices        int32 or int64 [B, K]; the first −1 ends a row; duplicates add up
//   weight         [F, N], float32, float64, float16 or bfloat16; 16-bit weights are summed in float32
//   bias           [N], dtype of `weight`
//   values         float32 [B, K] (float64 with a float64 weight); default 1
//   deterministic  true: the backward gives equal bits for equal inputs; false: the kernel with atomics on CUDA;
//                  absent: the fastest, at present the deterministic one
inline at::Tensor feature_transformer(const at::Tensor& indices, const at::Tensor& weight, const at::Tensor& bias,
                                      const std::optional<at::Tensor>& values = std::nullopt,
                                      std::optional<bool> deterministic = std::nullopt) {
    return detail::with_exact_indices({indices}, [&] {
        return detail::FeatureTransformer::apply(weight, bias, values, index_rows(indices), deterministic);
    });
}

namespace detail {

// The properties of a GPU for the table of kernels: capability, multiprocessors, code.
inline std::tuple<int64_t, int64_t, int64_t> gpu_of(int64_t device) {
    static std::mutex mutex;
    static std::map<int64_t, std::tuple<int64_t, int64_t, int64_t>> known;
    const std::scoped_lock lock(mutex);
    const auto found = known.find(device);
    return found != known.end() ? found->second : known[device] = calls::_describe_gpu(device);
}

}  // namespace detail

// The plan of a batch's rows, made once for all calls on the batch (csrc/perspective_transformer.h). It keeps the rows
// alive; do not change them while it is in use.
struct PerspectivePlan {
    at::Tensor white, black, data;
    std::vector<int64_t> layout;
    at::ScalarType weight_dtype;
    at::Tensor given_white, given_black;  // the rows before index_rows, for errors
};

// Prepares index rows int32 or int64 [B, K] and `black_to_move` uint8 or bool [B] for weights [num_features, N] of a
// dtype. `bucket_size`: features per king bucket, 0 for sets without; `num_bucketed`: how many features lie in king
// buckets, −1 for all (FeaturePart in nnue/data.h has both numbers). They select the kernels on CUDA. `check_indices`:
// on CUDA, report an illegal index, which is skipped otherwise.
inline PerspectivePlan perspective_plan(const at::Tensor& white, const at::Tensor& black,
                                        const at::Tensor& black_to_move, int64_t num_features, int64_t bucket_size = 0,
                                        int64_t num_bucketed = -1, at::ScalarType weight_dtype = at::kFloat,
                                        bool check_indices = true) {
    if (num_bucketed < 0) num_bucketed = num_features;
    bool has_buckets = true;  // a CPU takes any
    if (white.is_cuda()) {
        constexpr int64_t all = 3, hopper = 3;  // Code and Transformer of csrc/capabilities.h
        const auto [capability, multiprocessors, code] = detail::gpu_of(white.get_device());
        const int64_t machine[] = {capability, multiprocessors, code, all};
        has_buckets = std::get<0>(calls::_transformer_kernels(machine, weight_dtype, num_features, -1, bucket_size,
                                                              num_bucketed, weight_dtype)) == hopper;
    }
    PerspectivePlan plan{index_rows(white), index_rows(black), {}, {}, weight_dtype, white, black};
    plan.layout = {has_buckets ? bucket_size : 0, has_buckets ? num_bucketed : num_features,
                   static_cast<int64_t>(c10::elementSize(weight_dtype))};
    plan.data = detail::with_exact_indices({white, black}, [&] {
        return calls::_perspective_plan(plan.white, plan.black, black_to_move, num_features, plan.layout[0],
                                        plan.layout[1], plan.layout[2], check_indices);
    });
    return plan;
}

struct PerspectiveOptions {
    Activation activation = Activation::kCReLU;
    double bound = 1.0;                                         // of the clip
    double scale = 1.0;                                         // of the output
    std::optional<at::ScalarType> output_dtype = std::nullopt;  // absent: the weight's
    at::Tensor psqt = {};                                       // float32 [F, P], one column per PSQT bucket
    at::Tensor psqt_bucket = {};                                // int64 [B]; together with psqt
};

namespace detail {

struct PerspectiveBackward : torch::autograd::Function<PerspectiveBackward> {
    static variable_list forward(AutogradContext*, const Variable& grad_output, const MaybeTensor& grad_psqt,
                                 const variable_list& batch, const at::Tensor& saved,
                                 const std::vector<int64_t>& transformer, const std::vector<double>& range,
                                 at::ScalarType weight_dtype) {
        const at::AutoDispatchBelowADInplaceOrView below;
        auto [grad_weight, grad_bias, grad_of_psqt] = calls::_perspective_transformer_backward(
            grad_output, grad_psqt, batch, saved, transformer, range, weight_dtype);
        return {grad_weight, grad_bias, grad_of_psqt};
    }
    static variable_list backward(AutogradContext*, const variable_list&) {
        no_second_derivative(calls::_perspective_transformer_backward_name);
    }
};

struct Perspective : torch::autograd::Function<Perspective> {
    static variable_list forward(AutogradContext* context, const Variable& weight, const Variable& bias,
                                 const MaybeTensor& psqt, const variable_list& batch,
                                 const std::vector<int64_t>& transformer, const std::vector<double>& range,
                                 at::ScalarType output_dtype, bool save) {
        const at::AutoDispatchBelowADInplaceOrView below;
        auto [output, psqt_output, saved] =
            calls::_perspective_transformer_forward(batch, weight, bias, psqt, transformer, range, output_dtype, save);
        variable_list kept = {saved};
        kept.insert(kept.end(), batch.begin(), batch.end());
        context->save_for_backward(kept);
        context->set_materialize_grads(false);
        context->saved_data["transformer"] = transformer;
        context->saved_data["range"] = range;
        context->saved_data["weight_dtype"] = static_cast<int64_t>(weight.scalar_type());
        context->saved_data["output"] = output.sizes().vec();
        return {output, psqt_output};
    }
    static variable_list backward(AutogradContext* context, const variable_list& grads) {
        auto& data = context->saved_data;
        variable_list gradients(8);
        if (!grads[0].defined() && !grads[1].defined()) return gradients;
        const variable_list kept = context->get_saved_variables();
        const auto weight_dtype = static_cast<at::ScalarType>(data["weight_dtype"].toInt());
        at::Tensor grad = grads[0];
        if (!grad.defined()) grad = at::zeros(data["output"].toIntVector(), kept[0].options().dtype(at::kFloat));
        if (weight_dtype == at::kFloat) grad = grad.to(at::kFloat);  // as the float32 kernels of CUDA read it
        const bool needs_psqt = grads[1].defined() && context->needs_input_grad(2);
        const variable_list made = PerspectiveBackward::apply(
            grad, needs_psqt ? MaybeTensor(grads[1]) : std::nullopt, variable_list(kept.begin() + 1, kept.end()),
            kept[0], data["transformer"].toIntVector(), data["range"].toDoubleVector(), weight_dtype);
        std::copy_n(made.begin(), needs_psqt ? 3 : 2, gradients.begin());
        return gradients;
    }
};

}  // namespace detail

// Both perspectives' accumulators, activated and joined, side to move first, in one fused operator: [B, N] for
// pairwise, else [B, 2 N]; and with psqt, float32 [B], half the difference of both sides' sums of piece-square values,
// else an undefined tensor. Differentiable in weight, bias and psqt; always deterministic.
//   weight  [F, N], float32, float16 or bfloat16; sums are float32. N even on a CPU, a multiple of 16 on CUDA, which
//           needs compute capability 7.5; otherwise combine feature_transformer with torch's functions
//   bias    [N]
//   plan    of perspective_plan, made for the F and the dtype of `weight`
inline std::pair<at::Tensor, at::Tensor> perspective_transformer(const PerspectivePlan& plan, const at::Tensor& weight,
                                                                 const at::Tensor& bias,
                                                                 const PerspectiveOptions& options = {}) {
    TORCH_CHECK(plan.weight_dtype == weight.scalar_type(), "perspective_transformer: plan: found a plan for ",
                "weight_dtype = ", plan.weight_dtype, ", expected ", weight.scalar_type());
    TORCH_CHECK(options.psqt.defined() == options.psqt_bucket.defined(),
                "perspective_transformer: psqt and psqt_bucket: found one of them, expected both or none");
    std::vector<at::Tensor> batch = {plan.white, plan.black, plan.data};
    if (options.psqt.defined()) batch.push_back(options.psqt_bucket);
    const bool save = at::GradMode::is_enabled() && (weight.requires_grad() || bias.requires_grad() ||
                                                     (options.psqt.defined() && options.psqt.requires_grad()));
    const auto size = [](const at::Tensor& tensor, int64_t dim) { return tensor.dim() == 2 ? tensor.size(dim) : 0; };
    const std::vector<int64_t> transformer = {
        size(weight, 0), size(weight, 1), options.psqt.defined() ? size(options.psqt, 1) : 0, plan.layout[0],
        plan.layout[1],  plan.layout[2],  static_cast<int64_t>(options.activation),           0};
    const auto made = detail::with_exact_indices({plan.given_white, plan.given_black}, [&] {
        return detail::Perspective::apply(weight, bias.to(at::kFloat), detail::if_defined(options.psqt), batch,
                                          transformer, std::vector<double>{options.bound, options.scale},
                                          options.output_dtype.value_or(weight.scalar_type()), save);
    });
    return {made[0], options.psqt.defined() ? made[1] : at::Tensor()};
}

// Selects when CUDA reports an illegal index or record: "sync" (the call throws; the host waits for a small kernel),
// "async" (a later call throws) or "off". The CPU always checks.
inline void set_index_check(const std::string& mode) {
    const std::string text = detail::text_of(calls::enumerations());
    const std::string key = "set_cuda_index_check.mode: ";
    std::string words = text.substr(text.find(key) + key.size());
    words = words.substr(0, words.find('\n')) + ", ";
    int64_t code = 0;
    for (size_t begin = 0, end; (end = words.find(", ", begin)) != std::string::npos; begin = end + 2, ++code) {
        if (words.substr(begin, end - begin) == mode) {
            if (detail::has_cuda_library()) calls::set_cuda_index_check(code);
            return;
        }
    }
    TORCH_CHECK(false, "set_index_check: mode: found '", mode, "', expected one of ",
                words.substr(0, words.size() - 2));
}

// B positions as index rows: int32 [B, K] `white` and `black`, the others [B]; features/batch_layout.h has the fields.
struct Expanded {
    at::Tensor white, black, counts, black_to_move, score, result, piece_count, material;
};

// The integer that identifies a feature set in calls of operators: the same in every process.
inline int64_t feature_set_handle(const std::string& name) {
    const at::Tensor text = at::empty({static_cast<int64_t>(name.size())}, at::kByte);
    std::copy(name.begin(), name.end(), static_cast<char*>(text.mutable_data_ptr()));
    const int64_t handle = calls::name_feature_set(text);
    if (detail::has_cuda_library()) calls::name_cuda_feature_set(text);
    return handle;
}

// Expands packed positions, uint8 [B, 32], into new tensors on their device. `check_records`: on CUDA, report a record
// that is not a position; false for records of a loader, which are valid. The CPU always checks.
inline Expanded expand_features(const at::Tensor& records, int64_t feature_set, bool check_records = true) {
    auto [white, black, counts, black_to_move, score, result, piece_count, material] =
        calls::expand_features(records, feature_set, check_records);
    return {white, black, counts, black_to_move, score, result, piece_count, material};
}

}  // namespace nnue
