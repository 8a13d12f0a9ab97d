// nnue/operators.h as operators of Python, so that a test can hold them against those of nnue_trainer.
#include <nnue/operators.h>
#include <torch/library.h>

#include <limits>

namespace {

at::Tensor feature_transformer(const at::Tensor& indices, const at::Tensor& weight, const at::Tensor& bias,
                               const std::optional<at::Tensor>& values, std::optional<bool> deterministic) {
    return nnue::feature_transformer(indices, weight, bias, values, deterministic);
}

// `sizes`: bucket_size and num_bucketed. Without psqt the second result has no elements.
std::tuple<at::Tensor, at::Tensor> perspective_transformer(at::TensorList batch, const at::Tensor& weight,
                                                           const at::Tensor& bias,
                                                           const std::optional<at::Tensor>& psqt,
                                                           const std::optional<at::Tensor>& psqt_bucket,
                                                           at::IntArrayRef sizes, int64_t activation, double bound,
                                                           double scale, at::ScalarType output_dtype) {
    const auto plan =
        nnue::perspective_plan(batch[0], batch[1], batch[2], weight.size(0), sizes[0], sizes[1], weight.scalar_type());
    nnue::PerspectiveOptions options;
    options.activation = static_cast<nnue::Activation>(activation);
    options.bound = bound;
    options.scale = scale;
    options.output_dtype = output_dtype;
    if (psqt) options.psqt = *psqt;
    if (psqt_bucket) options.psqt_bucket = *psqt_bucket;
    auto [output, psqt_output] = nnue::perspective_transformer(plan, weight, bias, options);
    return {output, psqt_output.defined() ? psqt_output : at::empty({0})};
}

// A step of AdamW of one weight, in place: operators that change tensors. `moments` are average, square, and nothing
// for virtual rows; `state` the count, the flag and the numbers.
void adam_step(at::Tensor weight, const at::Tensor& gradient, at::TensorList moments, at::TensorList state,
               const at::Tensor& lr, double decay) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const std::vector<double> constants = {1e-8, 1, 0, 0.5, 1, 0, 0, 0, infinity, infinity}, betas = {0.9, 0.999},
                              part = {0, 1, 0, 1, decay, -infinity, infinity, 0};
    const int64_t optimizer = nnue::calls::_optimizer_describe(weight, 0, constants, betas, part);
    const at::Tensor nothing = weight.new_empty({0}), loss = weight.new_zeros({});
    nnue::calls::_optimizer_step({weight}, {gradient}, moments, {nothing}, {}, {}, state, loss, lr, {}, {},
                                 std::nullopt, optimizer);
}

}  // namespace

TORCH_LIBRARY(nnue_cpp, m) {
    m.def(
        "feature_transformer(Tensor indices, Tensor weight, Tensor bias, Tensor? values, bool? deterministic) -> "
        "Tensor",
        &feature_transformer);
    m.def(
        "perspective_transformer(Tensor[] batch, Tensor weight, Tensor bias, Tensor? psqt, Tensor? psqt_bucket, "
        "int[] sizes, int activation, float bound, float scale, ScalarType output_dtype) -> (Tensor, Tensor)",
        &perspective_transformer);
    m.def(
        "adam_step(Tensor(a!) weight, Tensor gradient, Tensor(b!)[] moments, Tensor(c!)[] state, Tensor lr, float "
        "decay) "
        "-> ()",
        &adam_step);
    m.def("set_index_check(str mode) -> ()", [](std::string_view mode) { nnue::set_index_check(std::string(mode)); });
    m.def("load_operators(str folder) -> ()", [](std::string_view folder) { nnue::load_operators(folder); });
    m.def("load_stats(str folder) -> ()", [](std::string_view folder) { nnue::load_stats(folder); });
    m.def("transpose(Tensor x) -> Tensor", [](const at::Tensor& x) { return nnue::calls::transpose(x); });
    m.def("expand_features(Tensor records, str name) -> Tensor[]",
          [](const at::Tensor& records, std::string_view name) {
              const auto e = nnue::expand_features(records, nnue::feature_set_handle(std::string(name)));
              return std::vector<at::Tensor>{e.white, e.black,  e.counts,      e.black_to_move,
                                             e.score, e.result, e.piece_count, e.material};
          });
}
