// Operators of the optimizer step on CUDA; the contracts are in optimizer.h.

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "optimizer_kernels.cuh"

namespace nnue::cuda::optimizer_step {
namespace {

// Warps per thread block, rows whose gradients a warp holds, and rows whose states it loads at a time. On an H200,
// fp32, HalfKAv2_hm-1024, microseconds: 8, 4, 2: 197; 8, 4, 1: 200; 16, 2, 1: 200; 8, 2, 2: 197 (but 221 for 203 with
// 16-bit gradients, 258 for 239 with two averages); 4, 8, 2: 213; 32, 1, 1: 357. Streaming loads and stores (.cs): 202
// for 197.
constexpr int kWarps = 8, kRows = 4, kStates = 2;
static_assert(kWarps == kLateWarps, "`update_sharing_rows` adds up gradients in the order of `update`");

bool is_aligned(const void* pointer, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

int64_t bytes_of(Float type) {
    return type == Float::kFloat64 ? 8 : type == Float::kFloat32 ? 4 : 2;
}

// Calls body.operator()<R, T, k16, V>(): the rule, the type of the weights, whether gradients have 16 bits (those of
// float64 weights never do), and how many elements a lane loads at once.
template <class Body>
void with_kernel_types(Rule rule, const Tensor& weight, bool is_16, bool wide, const Body& body) {
    with_rule(rule, weight, [&]<class R, class T>() {
        with_width<T>(wide, [&]<int V>() {
            if constexpr (sizeof(T) == 4) {
                if (is_16) return body.template operator()<R, T, true, V>();
            }
            body.template operator()<R, T, false, V>();
        });
    });
}

void begin_op(Tensors gradients, std::vector<int64_t> shared_rows, const Tensor& loss, const Tensor& lr, Tensors state,
              int64_t rule, std::vector<double> constants, double max_norm, Tensors rows) {
    BeginArguments a{};
    a.hyperparameters = check_rule(kBegin, rule, constants);
    a.max_norm = max_norm;
    const auto [step, failed, numbers] = check_begin(loss, lr, state, max_norm, Device::cuda);
    Tensors kept;
    const std::vector<Summand> from = summands(gradients, shared_rows, rows, numbers, Device::cuda, kept);
    const torch::stable::accelerator::DeviceGuard guard(numbers.get_device_index());
    const cudaStream_t stream = current_stream(numbers);
    a.loss = loss.const_data_ptr();
    a.loss_is_double = loss.scalar_type() == ScalarType::Double;
    a.lr = lr.const_data_ptr();
    a.lr_is_double = lr.scalar_type() == ScalarType::Double;
    a.step = mutable_data<int64_t>(step);
    a.failed = mutable_data<float>(failed);
    a.numbers = mutable_data<double>(numbers);

    std::vector<PlacedSummand> placed;
    std::vector<unsigned> blocks;
    for (const Summand& summand : from) {
        int64_t width = 16 / bytes_of(summand.type);
        const int64_t in_turn = summand.by_rows ? summand.row : summand.columns;
        const bool wide = is_aligned(summand.gradient, 16) && in_turn % width == 0;
        if (!wide) width = 1;
        const int64_t all = summand.by_rows ? groups_of(summand) * pieces_of(summand, width) * kWarp
                                            : divide_up(summand.columns, kBeginTurns * width);
        placed.push_back({summand, wide, 0});
        blocks.push_back(static_cast<unsigned>(divide_up(all, int64_t(kBeginThreads))));
        a.blocks += blocks.back();
    }
    if (placed.empty()) a.blocks = 1;
    const Tensor partial = torch::stable::new_empty(numbers, {static_cast<int64_t>(a.blocks)});
    a.partial = mutable_data<double>(partial);
    a.all = a.partial;
    size_t next = 0;
    do {
        unsigned grid = 0;
        a.count = 0;
        for (; next < placed.size() && a.count < kMostParts; ++next) {
            placed[next].first_block = grid;
            grid += blocks[next];
            a.summands[a.count++] = placed[next];
        }
        a.last = next == placed.size();
        if (placed.empty()) grid = 1;
        launch("_optimizer_begin", begin, grid, kBeginThreads, 0, stream, a);
        a.partial += grid;
    } while (next < placed.size());
}

// Whether V elements can be loaded at once from every tensor of the part.
bool is_wide_part(const Part& part, int64_t element, int64_t width) {
    bool wide = part.columns % width == 0 && is_aligned(part.gradient, width * bytes_of(part.gradient_type)) &&
                is_aligned(part.copy, width * 2);
    for (const void* pointer : {static_cast<const void*>(part.weight), static_cast<const void*>(part.averages[0]),
                                static_cast<const void*>(part.averages[1]), static_cast<const void*>(part.square),
                                static_cast<const void*>(part.slow)}) {
        wide = wide && is_aligned(pointer, width * element);
    }
    return wide;
}

template <class R, class T, bool k16, int V>
void launch_update(std::vector<Part> parts, UpdateArguments a, bool follows_begin, cudaStream_t stream) {
    // The largest parts come first, because each thread block searches for its part from the front.
    std::stable_sort(parts.begin(), parts.end(),
                     [](const Part& x, const Part& y) { return x.rows * x.columns > y.rows * y.columns; });
    for (size_t next = 0; next < parts.size();) {
        unsigned grid = 0;
        for (a.count = 0; next < parts.size() && a.count < kMostParts; ++next) {
            const Part& part = parts[next];
            const int64_t columns = kWarp * V * (part.shares ? 1 : kWarps * kRows);
            a.parts[a.count++] = {part, grid};
            grid += static_cast<unsigned>(divide_up(part.columns, columns));
        }
        const auto kernel = update<R, T, k16, V, kWarps, kRows, kStates>;
        launch_behind(follows_begin, "_optimizer_update", kernel, grid, kWarps * kWarp, 0, stream, a);
    }
}

void update_op(Tensors weights, Tensors gradients, Tensors moments, Tensors copies, Tensors state,
               std::vector<double> settings, int64_t rule, std::vector<double> constants, bool follows_begin) {
    const Hyperparameters h = check_rule(kUpdate, rule, constants);
    const auto [step, failed, numbers] = check_state(kUpdate, state, Device::cuda);
    Tensors kept;
    const std::vector<Part> found =
        parts(kUpdate, weights, gradients, moments, copies, settings, h, numbers, Device::cuda, kept);
    if (found.empty()) return;
    const torch::stable::accelerator::DeviceGuard guard(numbers.get_device_index());
    const cudaStream_t stream = current_stream(numbers);
    UpdateArguments a{};
    a.factors = factors(h);
    a.numbers = const_data<double>(numbers);
    a.failed = mutable_data<float>(failed);
    const int64_t element = weights[0].element_size();
    std::vector<Part> groups[2][2];
    for (const Part& part : found)
        groups[bytes_of(part.gradient_type) == 2][is_wide_part(part, element, 16 / element)].push_back(part);
    for (const bool is_16 : {false, true}) {
        for (const bool wide : {true, false}) {
            with_kernel_types(h.rule, weights[0], is_16, wide, [&]<class R, class T, bool k16, int V>() {
                launch_update<R, T, k16, V>(groups[is_16][wide], a, follows_begin, stream);
            });
        }
    }
}

// ---- rows updated late ----------------------------------------------------------------------------------------------

void mark_rows_op(const Tensor& white, const Tensor& black, const Tensor& rows) {
    check_marks(white, black, rows, Device::cuda);
    const torch::stable::accelerator::DeviceGuard guard(rows.get_device_index());
    const Tensor one = torch::stable::contiguous(white), other = torch::stable::contiguous(black);
    const int64_t all = one.size(0) + other.size(0);
    if (all == 0) return;
    const int64_t grid =
        std::min<int64_t>(divide_up(all, kMarkThreads / kWarp * kMarkRows), multiprocessors(current_device()));
    const dim3 blocks(static_cast<unsigned>(grid), static_cast<unsigned>(divide_up(rows.size(0), int64_t(kMarkBits))));
    launch("_optimizer_mark_rows", mark_rows, blocks, kMarkThreads, 0, current_stream(rows), const_data<int32_t>(one),
           const_data<int32_t>(other), one.size(0), all, static_cast<int>(one.size(1)), static_cast<int>(other.size(1)),
           mutable_data<uint8_t>(rows), rows.size(0));
}

// What both operators on rows of a part take. `gradient`: the weight itself if there is none.
struct LateCall {
    Tensors kept;
    LateArguments arguments{};
    bool any = false, is_16 = false, wide = false;

    LateCall(const char* op, const Tensor& weight, const Tensor& gradient, const Tensors& moments,
             const std::optional<Tensor>& rows, const Tensors& late_tensors, const Tensors& state,
             const std::vector<double>& settings, const Hyperparameters& h) {
        const auto [step, failed, numbers] = check_state(op, state, Device::cuda);
        const auto end_of_late = late_tensors.begin() + std::min<size_t>(late_tensors.size(), 3);
        const Tensors copies(end_of_late, late_tensors.end());
        const std::vector<Part> found =
            parts(op, {weight}, {gradient}, moments, copies, settings, h, numbers, Device::cuda, kept);
        if (found.empty()) return;
        const Late l = late(op, found[0], weight, rows, {late_tensors.begin(), end_of_late}, Device::cuda);
        if (l.rows > INT32_MAX) fail(op, "weight", text(l.rows) + " rows", "fewer than 2^31");
        if (found[0].shares && found[0].columns > INT32_MAX)
            fail(op, "changes", text(found[0].columns) + " elements of virtual rows", "fewer than 2^31");
        if (l.window > kMostWindow) fail(op, "history", text(l.window) + " steps", "at most " + text(kMostWindow));
        any = true;
        is_16 = bytes_of(found[0].gradient_type) == 2;
        arguments = {l, const_data<int64_t>(step), const_data<double>(numbers), mutable_data<float>(failed),
                     factors(h)};
        Part row = found[0];
        row.columns = l.columns;
        wide = is_wide_part(row, weight.element_size(), 16 / weight.element_size()) && is_aligned(l.changes, 16);
    }

    // What is the same in every step.
    template <class T>
    Common<T> fixed() const {
        Common<T> c{};
        set_factors(c, arguments.factors, arguments.part.low, arguments.part.high);
        return c;
    }
};

void update_rows_op(const Tensor& weight, const Tensor& gradient, Tensors moments, const Tensor& rows,
                    Tensors late_tensors, Tensors state, std::vector<double> settings, int64_t rule,
                    std::vector<double> constants) {
    const Hyperparameters h = check_rule(kUpdateRows, rule, constants);
    const LateCall call(kUpdateRows, weight, gradient, moments, rows, late_tensors, state, settings, h);
    if (!call.any) return;
    const torch::stable::accelerator::DeviceGuard guard(weight.get_device_index());
    with_kernel_types(h.rule, weight, call.is_16, call.wide, [&]<class R, class T, bool k16, int V>() {
        const LateArguments& a = call.arguments;
        const bool shares = a.part.shares;
        const int64_t pieces = divide_up(a.columns, int64_t(kWarp) * V);
        const int64_t grid = shares ? a.virtual_rows * pieces : divide_up(a.rows, int64_t(kLateRows));
        if (grid > INT32_MAX) fail(kUpdateRows, "weight", text(weight.numel()) + " elements", "fewer than 2^36");
        launch("_optimizer_update_rows", shares ? update_sharing_rows<R, T, k16, V> : update_rows<R, T, k16, V>,
               static_cast<unsigned>(grid), kLateThreads, 0, current_stream(weight), a, call.fixed<T>());
    });
}

void catch_up_op(const Tensor& weight, Tensors moments, const std::optional<Tensor>& rows, Tensors late_tensors,
                 Tensors state, std::vector<double> settings, int64_t rule, std::vector<double> constants) {
    const Hyperparameters h = check_rule(kCatchUp, rule, constants);
    const LateCall call(kCatchUp, weight, weight, moments, rows, late_tensors, state, settings, h);
    if (!call.any) return;
    const torch::stable::accelerator::DeviceGuard guard(weight.get_device_index());
    const cudaStream_t stream = current_stream(weight);
    const int64_t num_rows = call.arguments.rows;
    const Tensor memory = torch::stable::new_empty(late_tensors[0], {num_rows});
    LateRow* const list = reinterpret_cast<LateRow*>(memory.mutable_data_ptr());
    launch("_optimizer_catch_up", list_late, static_cast<unsigned>(divide_up(num_rows, kListThreads)), kListThreads, 0,
           stream, call.arguments, list);
    const unsigned grid = static_cast<unsigned>(kCatchUpBlocks * multiprocessors(current_device()));
    with_kernel_types(h.rule, weight, false, call.wide, [&]<class R, class T, bool, int V>() {
        const auto kernel = call.arguments.part.shares ? catch_up<R, T, V, true> : catch_up<R, T, V, false>;
        launch_behind(true, "_optimizer_catch_up", kernel, grid, kLateThreads, 0, stream, call.arguments,
                      call.fixed<T>(), list);
    });
}

}  // namespace
}  // namespace nnue::cuda::optimizer_step

STABLE_TORCH_LIBRARY_IMPL(nnue, CUDA, m) {
    NNUE_IMPL(m, "_optimizer_begin", &nnue::cuda::optimizer_step::begin_op);
    NNUE_IMPL(m, "_optimizer_update", &nnue::cuda::optimizer_step::update_op);
    NNUE_IMPL(m, "_optimizer_mark_rows", &nnue::cuda::optimizer_step::mark_rows_op);
    NNUE_IMPL(m, "_optimizer_update_rows", &nnue::cuda::optimizer_step::update_rows_op);
    NNUE_IMPL(m, "_optimizer_catch_up", &nnue::cuda::optimizer_step::catch_up_op);
}
