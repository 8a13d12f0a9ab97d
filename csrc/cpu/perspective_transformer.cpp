// The feature transformer of both perspectives on CPU. Its threads are those of torch's own pool, so
// torch.set_num_threads holds.
//
// Forward: the 2 B rows are visited one king bucket after the other. The sums of a row stay in registers until they are
// activated and written to their place, side to move first. Backward: for one slab of columns at a time, the gradients
// of all rows are computed once into a scratch buffer that fits in the last-level cache. Each gradient row of the
// weight is then one sum over its feature's list of rows and one plain store; the second backward operator leaves out
// features without a row. There are no atomics and no zero fill, and the bits are the same for any number of threads.

#include "../perspective_transformer.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../capabilities.h"
#include "feature_lists.h"
#include "huge_pages.h"
#include "index_rows.h"
#include "tasks.h"
#include "vector.h"

namespace nnue {

// Columns of either half that are processed together: as many sums as one pass over a list can hold in registers.
constexpr int64_t kPerspectiveSlab = 256;

// A row at its place in the visiting order.
struct PlacedRow {
    const int32_t* entries;
    int64_t length;
    int64_t target;  // 2 · position + (0 side to move, 1 other side)
};

struct ActivationArguments {
    Activation activation;
    float bound;
    float scale;
};

// T is the type of the weights, O that of the outputs.
template <class T, class O>
struct PerspectiveForward {
    const PlacedRow* rows;
    const T* weight;
    const float* bias;
    O* output;         // [B, 2 width]
    float* saved;      // slab after slab: [rows, 2, columns of the slab]; or null
    int64_t num_rows;  // 2 B
    int64_t num_outputs;
    int64_t width;
    ActivationArguments activation;
};

// One slab: columns [column, column + columns) of either half.
template <class O>
struct RowGradients {
    const PlacedRow* rows;
    const O* grad_output;
    const float* saved;  // null if the activation is the identity
    float* gradients;    // [2, rows, columns]
    int64_t num_rows;
    int64_t half;
    int64_t width;
    int64_t column;
    int64_t columns;
    ActivationArguments activation;
};

}  // namespace nnue

#define NNUE_KERNELS "perspective_transformer_kernels.h"
#include "for_each_isa.h"

namespace nnue::perspective_transformer {
namespace {

constexpr int64_t kForwardChunk = 128;
constexpr int64_t kRowChunk = 256;  // of the backward: it decides in which order the gradient of the bias is summed
constexpr int64_t kPositionChunk = 512;
constexpr int64_t kRanges = 64;  // of features, in the backward

// Calls `body` with a null pointer of the C++ type of an output dtype.
template <class Body>
void dispatch_float(ScalarType dtype, const Body& body) {
    switch (dtype) {
        case ScalarType::Float:
            return body(static_cast<float*>(nullptr));
        case ScalarType::Half:
            return body(static_cast<Half*>(nullptr));
        default:
            return body(static_cast<BFloat16*>(nullptr));
    }
}

// The rows of both perspectives in visiting order. The constructor throws on an illegal index.
struct Rows {
    Tensor white, black;
    std::vector<PlacedRow> placed;  // [2 B]

    Rows(const char* op, const Tensor& white_in, const Tensor& black_in, const Tensor& black_to_move_in,
         int64_t num_features)
        : white(torch::stable::contiguous(white_in)), black(torch::stable::contiguous(black_in)) {
        check_device(op, "plan", black_to_move_in, Device::cpu, white, "white");
        check_dtype(op, "plan", black_to_move_in, {ScalarType::Byte});
        check_shape(op, "plan", black_to_move_in, {white.size(0)}, "[B], what _perspective_plan makes,");
        const Tensor black_to_move = torch::stable::contiguous(black_to_move_in);
        const int64_t positions = white.size(0), max_active = white.size(1);
        const Tensor* const perspectives[] = {&white, &black};
        std::vector<PlacedRow> rows(2 * positions);
        for (int64_t p = 0; p < 2; ++p) {
            const int32_t* indices = const_data<int32_t>(*perspectives[p]);
            const auto lengths = checked_row_lengths(op, indices, positions, max_active, num_features);
            for (int64_t b = 0; b < positions; ++b) {
                const bool second = (const_data<uint8_t>(black_to_move)[b] != 0) != (p == 1);
                rows[p * positions + b] = {indices + b * max_active, lengths[b], 2 * b + second};
            }
        }
        // A caller may pass any number of features, so memory is allocated for those that occur.
        int64_t firsts = 1;
        for (const PlacedRow& row : rows) firsts = std::max<int64_t>(firsts, row.length > 0 ? row.entries[0] + 1 : 0);
        const auto order = visiting_order(2 * positions, firsts, [&](int64_t row) {
            return std::span(rows[row].entries, static_cast<size_t>(rows[row].length));
        });
        placed.reserve(rows.size());
        for (const int64_t row : order) placed.push_back(rows[row]);
    }

    int64_t count() const { return static_cast<int64_t>(placed.size()); }

    // The largest index plus 1.
    int64_t reach() const {
        int32_t largest = -1;
        for (const PlacedRow& row : placed) {
            for (int64_t e = 0; e < row.length; ++e) largest = std::max(largest, row.entries[e]);
        }
        return int64_t{largest} + 1;
    }
};

// Throws if a PSQT bucket is outside [0, psqt_buckets), for the first one in row order.
void check_psqt_buckets(const char* op, const int64_t* psqt_bucket, int64_t positions, int64_t psqt_buckets) {
    for (int64_t b = 0; b < positions; ++b) {
        if (psqt_bucket[b] < 0 || psqt_bucket[b] >= psqt_buckets) fail_psqt_bucket(op, b, psqt_bucket[b], psqt_buckets);
    }
}

// Half the difference of both sides' sums at the PSQT bucket of each position.
Tensor psqt_forward(const Rows& rows, const Tensor& psqt_in, const Tensor& psqt_bucket_in) {
    const Tensor psqt = torch::stable::contiguous(psqt_in), buckets = torch::stable::contiguous(psqt_bucket_in);
    const int64_t positions = rows.count() / 2, width = psqt.size(1);
    const int64_t* psqt_bucket = const_data<int64_t>(buckets);
    check_psqt_buckets(kForward, psqt_bucket, positions, width);
    Tensor output = torch::stable::new_empty(psqt, {positions});
    std::vector<float> sums(rows.count());  // by target
    parallel_ranges(rows.count(), kPositionChunk, [&](int64_t begin, int64_t end) {
        for (int64_t place = begin; place < end; ++place) {
            const PlacedRow& row = rows.placed[place];
            const float* column = const_data<float>(psqt) + psqt_bucket[row.target / 2];
            float sum = 0;
            for (int64_t e = 0; e < row.length; ++e) sum += column[row.entries[e] * width];
            sums[row.target] = sum;
        }
    });
    float* out = mutable_data<float>(output);
    for (int64_t b = 0; b < positions; ++b) out[b] = (sums[2 * b] - sums[2 * b + 1]) / 2;
    return output;
}

Tensor plan_op(const Tensor& white, const Tensor& black, const Tensor& black_to_move, int64_t num_features,
               int64_t /*bucket_size*/, int64_t /*num_bucketed*/, int64_t /*weight_bytes*/,
               bool /*check_indices: always*/) {
    check_index_rows(kPlan, white, black, num_features, Device::cpu);
    check_black_to_move(black_to_move, white, Device::cpu);
    for (const Tensor* indices : {&white, &black}) {
        const Tensor rows = torch::stable::contiguous(*indices);
        checked_row_lengths(kPlan, const_data<int32_t>(rows), rows.size(0), rows.size(1), num_features);
    }
    // The plan of the CPU is a copy of black_to_move. Order and lists are made where they are used: that is fast, and
    // the indices would have to be checked again anyway.
    const Tensor from = torch::stable::contiguous(black_to_move);
    Tensor rows = torch::stable::new_empty(white, {white.size(0)}, ScalarType::Byte);
    std::copy_n(static_cast<const uint8_t*>(from.const_data_ptr()), white.size(0), mutable_data<uint8_t>(rows));
    return rows;
}

Three forward_op(std::vector<Tensor> batch, const Tensor& weight_in, const Tensor& bias_in,
                 const std::optional<Tensor>& psqt, std::vector<int64_t> transformer, std::vector<double> range_in,
                 ScalarType output_dtype, bool save, const std::optional<Tensor>& /*leaf*/, bool /*sparse_grad*/,
                 bool psqt_apart, bool saved_alone) {
    if (psqt_apart) fail(kForward, "psqt_apart", std::string("true"), "false on the CPU");
    if (saved_alone) fail(kForward, "saved_alone", std::string("true"), "false on the CPU");
    const auto [white, black, plan_in, psqt_bucket] = batch_of(kForward, batch);
    const Transformer of = transformer_of(kForward, transformer, range_in, capabilities::kCpuMultiple);
    const auto [num_features, num_outputs, _] = of.sizes;
    const Activation activation = of.activation;
    if (of.range.rounds_down) fail(kForward, "rounds_down", std::string("true"), "false on the CPU");
    check_parameters(weight_in, bias_in, of.sizes, white, Device::cpu);
    check_index_rows(kForward, white, black, num_features, Device::cpu);
    if (psqt) {
        check_psqt(kForward, *psqt, psqt_bucket, white, num_features, Device::cpu);
        check_shape(kForward, "psqt", *psqt, {of.sizes.num_features, of.sizes.psqt_buckets}, "[F, P]");
    }
    const Tensor weight = torch::stable::contiguous(weight_in), bias = torch::stable::contiguous(bias_in);
    const Rows rows(kForward, white, black, plan_in, num_features);
    const int64_t width = output_width(activation, num_outputs) / 2;
    Tensor output =
        new_output(weight, white.size(0), 2 * width, check_float_dtype(kForward, "output_dtype", output_dtype));
    // The gradient of the identity needs no sums.
    const bool saves = save && activation != Activation::kIdentity;
    Tensor saved = new_output(weight, saves ? rows.count() : 0, num_outputs, ScalarType::Float);
    dispatch_float(weight.scalar_type(), [&](auto* weight_type) {
        using T = std::remove_pointer_t<decltype(weight_type)>;
        dispatch_float(output.scalar_type(), [&](auto* output_type) {
            using O = std::remove_pointer_t<decltype(output_type)>;
            const PerspectiveForward<T, O> a{rows.placed.data(),
                                             const_data<T>(weight),
                                             const_data<float>(bias),
                                             mutable_data<O>(output),
                                             saves ? mutable_data<float>(saved) : nullptr,
                                             rows.count(),
                                             num_outputs,
                                             width,
                                             {activation, of.range.bound, of.range.scale}};
            parallel_ranges(rows.count(), kForwardChunk,
                            [&](int64_t begin, int64_t end) { NNUE_CALL_BEST_ISA(forward_rows, a, begin, end); });
        });
    });
    Tensor psqt_output =
        psqt ? psqt_forward(rows, *psqt, *psqt_bucket) : torch::stable::new_empty(weight, {0}, ScalarType::Float);
    return {output, psqt_output, saved};
}

// grad_psqt [F, P] from the lists. Each element is one sum in the order of the rows.
Tensor psqt_backward(const Rows& rows, const FeatureLists<float>& lists, const Tensor& grad_in,
                     const Tensor& psqt_bucket_in, int64_t num_features, int64_t psqt_buckets) {
    const Tensor grad = torch::stable::contiguous(grad_in), buckets = torch::stable::contiguous(psqt_bucket_in);
    const int64_t* psqt_bucket = const_data<int64_t>(buckets);
    check_psqt_buckets(kBackward, psqt_bucket, grad.size(0), psqt_buckets);
    Tensor grad_psqt = torch::stable::new_empty(grad, {num_features, psqt_buckets});
    float* out = mutable_data<float>(grad_psqt);
    const std::vector<int64_t> ranges = even_ranges(lists.starts, kRanges);
    parallel_tasks(kRanges, [&](int64_t range) {
        for (int64_t f = ranges[range]; f < ranges[range + 1]; ++f) {
            float* sums = out + f * psqt_buckets;
            std::fill_n(sums, psqt_buckets, 0.0f);
            for (int64_t i = lists.starts[f]; i < lists.starts[f + 1]; ++i) {
                const int64_t target = rows.placed[lists.rows[i]].target;
                const float half = const_data<float>(grad)[target / 2] / 2;
                sums[psqt_bucket[target / 2]] += target % 2 == 0 ? half : -half;
            }
        }
    });
    return grad_psqt;
}

// The results of both backward operators.
struct Gradients {
    std::vector<int64_t> rows;  // of the gradient of the weight, ascending
    Tensor weight, bias, psqt;
};

// `all_rows`: the gradient of the weight has all rows, and not only those of the features in the batch.
Gradients gradients_of(const Tensor& grad_output_in, const std::optional<Tensor>& grad_psqt_in,
                       const std::vector<Tensor>& batch, const Tensor& saved_in,
                       const std::vector<int64_t>& transformer, const std::vector<double>& range_in,
                       ScalarType weight_dtype, bool all_rows) {
    const auto [white, black, plan_in, psqt_bucket] = batch_of(kBackward, batch);
    const Transformer of = transformer_of(kBackward, transformer, range_in, capabilities::kCpuMultiple);
    const int64_t num_features = of.sizes.num_features, num_outputs = of.sizes.num_outputs,
                  psqt_buckets = grad_psqt_in ? of.sizes.psqt_buckets : 0;
    const Activation activation = of.activation;
    check_index_rows(kBackward, white, black, num_features, Device::cpu);
    const int64_t width = output_width(activation, num_outputs) / 2;
    check_device(kBackward, "grad_output", grad_output_in, Device::cpu, white, "white");
    check_shape(kBackward, "grad_output", grad_output_in, {white.size(0), 2 * width}, "[B, 2 W]");
    check_float(kBackward, "grad_output", grad_output_in);
    const bool has_saved = activation != Activation::kIdentity;
    if (has_saved) {
        check_device(kBackward, "saved", saved_in, Device::cpu, white, "white");
        check_shape(kBackward, "saved", saved_in, {2 * white.size(0), num_outputs}, "what the forward saved,");
        check_dtype(kBackward, "saved", saved_in, {ScalarType::Float});
    }
    if (psqt_buckets != 0) check_grad_psqt(kBackward, grad_psqt_in, psqt_bucket, white, psqt_buckets, Device::cpu);
    const Rows rows(kBackward, white, black, plan_in, num_features);
    const Tensor grad_output = torch::stable::contiguous(grad_output_in), saved = torch::stable::contiguous(saved_in);

    // The gradient of the weight is the largest tensor: if there is no memory for it, this fails before anything else.
    const ScalarType dtype = check_float_dtype(kBackward, "weight_dtype", weight_dtype);
    Tensor grad_weight = new_output(grad_output, all_rows ? num_features : 0, num_outputs, dtype);
    const int64_t reach = all_rows || psqt_buckets != 0 ? num_features : rows.reach();
    const FeatureLists<float> lists(
        rows.count(), reach, false,
        [&](int64_t place) {
            return std::span(rows.placed[place].entries, static_cast<size_t>(rows.placed[place].length));
        },
        [](int64_t) -> const float* { return nullptr; });
    std::vector<int64_t> present, starts;
    if (!all_rows) {
        for (int64_t f = 0; f < reach; ++f) {
            if (lists.starts[f] == lists.starts[f + 1]) continue;
            present.push_back(f);
            starts.push_back(lists.starts[f]);
        }
        starts.push_back(lists.starts.back());
        grad_weight = new_output(grad_output, static_cast<int64_t>(present.size()), num_outputs, dtype);
    }
    const std::vector<int64_t>& row_starts = all_rows ? lists.starts : starts;
    const std::vector<int64_t> ranges = even_ranges(row_starts, kRanges);

    Tensor grad_bias = torch::stable::new_empty(grad_output, {num_outputs}, ScalarType::Float);
    const int64_t half = num_outputs / 2, widest = std::min(half, kPerspectiveSlab);
    const int64_t chunks = divide_up(rows.count(), kRowChunk);
    Tensor scratch = new_output(grad_output, 2 * rows.count(), widest, ScalarType::Float);
    float* gradients = mutable_data<float>(scratch);
    std::vector<float> bias_parts(chunks * 2 * widest);
    dispatch_float(grad_output.scalar_type(), [&](auto* output_type) {
        using O = std::remove_pointer_t<decltype(output_type)>;
        dispatch_float(grad_weight.scalar_type(), [&](auto* weight_type) {
            using T = std::remove_pointer_t<decltype(weight_type)>;
            for (int64_t column = 0; column < half; column += kPerspectiveSlab) {
                const int64_t columns = std::min(kPerspectiveSlab, half - column);
                const RowGradients<O> g{rows.placed.data(),
                                        const_data<O>(grad_output),
                                        has_saved ? const_data<float>(saved) : nullptr,
                                        gradients,
                                        rows.count(),
                                        half,
                                        width,
                                        column,
                                        columns,
                                        {activation, of.range.bound, of.range.scale}};
                parallel_tasks(chunks, [&](int64_t chunk) {
                    NNUE_CALL_BEST_ISA(row_gradients, g, chunk * kRowChunk,
                                       std::min((chunk + 1) * kRowChunk, rows.count()),
                                       bias_parts.data() + chunk * 2 * columns);
                });
                for (int64_t c = 0; c < 2 * columns; ++c) {
                    float sum = 0;
                    for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += bias_parts[chunk * 2 * columns + c];
                    mutable_data<float>(grad_bias)[c < columns ? column + c : half + column + c - columns] = sum;
                }
                parallel_tasks(2 * kRanges, [&](int64_t task) {
                    const int64_t side = task / kRanges, range = task % kRanges;
                    const WeightGradientArguments<float, T> a{
                        row_starts.data(), lists.rows.data(),
                        nullptr,           gradients + side * rows.count() * columns,
                        columns,           mutable_data<T>(grad_weight),
                        num_outputs};
                    NNUE_CALL_BEST_ISA(weight_gradient_slab, a, side * half + column, columns, ranges[range],
                                       ranges[range + 1]);
                });
            }
        });
    });
    Tensor grad_psqt = psqt_buckets == 0
                           ? torch::stable::new_empty(grad_output, {0}, ScalarType::Float)
                           : psqt_backward(rows, lists, *grad_psqt_in, *psqt_bucket, num_features, psqt_buckets);
    return {std::move(present), grad_weight, grad_bias, grad_psqt};
}

Three backward_op(const Tensor& grad_output, const std::optional<Tensor>& grad_psqt, std::vector<Tensor> batch,
                  const Tensor& saved, std::vector<int64_t> transformer, std::vector<double> range,
                  ScalarType weight_dtype) {
    const Gradients found = gradients_of(grad_output, grad_psqt, batch, saved, transformer, range, weight_dtype, true);
    return {found.weight, found.bias, found.psqt};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward_rows_op(const Tensor& grad_output,
                                                            const std::optional<Tensor>& grad_psqt,
                                                            std::vector<Tensor> batch, const Tensor& saved,
                                                            std::vector<int64_t> transformer, std::vector<double> range,
                                                            ScalarType weight_dtype) {
    const Gradients found = gradients_of(grad_output, grad_psqt, batch, saved, transformer, range, weight_dtype, false);
    Tensor rows = torch::stable::new_empty(grad_output, {static_cast<int64_t>(found.rows.size())}, ScalarType::Long);
    std::copy(found.rows.begin(), found.rows.end(), mutable_data<int64_t>(rows));
    return {rows, found.weight, found.bias, found.psqt};
}

}  // namespace
}  // namespace nnue::perspective_transformer

STABLE_TORCH_LIBRARY_IMPL(nnue, CPU, m) {
    NNUE_IMPL(m, "_perspective_plan", &nnue::perspective_transformer::plan_op);
    NNUE_IMPL(m, "_perspective_transformer_forward", &nnue::perspective_transformer::forward_op);
    NNUE_IMPL(m, "_perspective_transformer_backward", &nnue::perspective_transformer::backward_op);
    NNUE_IMPL(m, "_perspective_transformer_backward_rows", &nnue::perspective_transformer::backward_rows_op);
}
