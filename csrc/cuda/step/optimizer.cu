// Operators of the optimizer step on CUDA; the contracts are in optimizer.h.

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <limits>
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
void with_kernel_types(Rule rule, const Tensor& weight, bool is_short, bool is_16, bool wide, const Body& body) {
    with_rule(rule, weight, is_short, [&]<class R, class T>() {
        with_width<T>(wide, [&]<int V>() {
            if constexpr (sizeof(T) == 4) {
                if (is_16) return body.template operator()<R, T, true, V>();
            }
            body.template operator()<R, T, false, V>();
        });
    });
}

// Launches `begin`, for everything in `a` that is there already.
void launch_begin(const std::vector<Summand>& from, BeginArguments a, const Tensor& numbers) {
    const cudaStream_t stream = current_stream(numbers);
    std::vector<PlacedSummand> placed;
    std::vector<unsigned> blocks;
    for (const Summand& summand : from) {
        const int64_t in_turn = summand.by_rows ? summand.row : summand.columns, bytes = bytes_of(summand.type);
        const bool wide = is_wide(in_turn, bytes, summand.gradient);
        const int64_t width = wide ? 16 / bytes : 1;
        const int64_t all = summand.by_rows ? groups_of(summand) * pieces_of(summand, width) * kWarp
                                            : divide_up(summand.columns, kBeginTurns * width);
        placed.push_back({summand, wide, 0});
        blocks.push_back(static_cast<unsigned>(divide_up(all, int64_t(kBeginThreads))));
        a.blocks += blocks.back();
    }
    a.blocks += 1;
    const Tensor scratch = torch::stable::new_empty(numbers, {static_cast<int64_t>(a.blocks) + kNumbers});
    a.partial = mutable_data<double>(scratch);
    a.all = a.partial;
    a.next = a.partial + a.blocks;
    size_t next = 0;
    do {
        a.last = next + kMostParts >= placed.size();
        unsigned grid = a.last ? 1 : 0;
        a.count = 0;
        for (; next < placed.size() && a.count < kMostParts; ++next) {
            placed[next].first_block = grid;
            grid += blocks[next];
            a.summands[a.count++] = placed[next];
        }
        launch("begin", begin, grid, kBeginThreads, 0, stream, a);
        a.partial += grid;
    } while (next < placed.size());
}

// Whether 16 bytes of weights can be loaded at once, and as many elements of every other tensor of the part.
bool is_wide_part(const Part& part, int64_t element) {
    const int64_t width = 16 / element, average = part.is_short ? width * 2 : 16;
    return is_wide(part.columns, element, part.weight, part.square, part.slow) &&
           is_aligned(part.averages[0], average) && is_aligned(part.averages[1], average) &&
           is_aligned(part.gradient, width * bytes_of(part.gradient_type)) && is_aligned(part.copy, width * 2);
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
        launch_behind(follows_begin, "update", kernel, grid, kWarps * kWarp, 0, stream, a);
    }
}

Tensor norm_op(Tensors gradients, std::vector<int64_t> shared_rows, Tensors rows, const Tensor& numbers) {
    Tensors kept;
    const std::vector<Summand> from = check_norm(gradients, shared_rows, rows, numbers, Device::cuda, kept);
    const torch::stable::accelerator::DeviceGuard guard(numbers.get_device_index());
    // A step of no optimiser: its count, its flag, and its loss and rate of 0 follow the numbers.
    Tensor found = torch::stable::new_zeros(numbers, {kNumbers + 3});
    double* const out = mutable_data<double>(found);
    BeginArguments a{};
    a.hyperparameters.eps = a.max_norm = 1;
    a.hyperparameters.max_value = std::numeric_limits<double>::infinity();
    a.numbers = out;
    a.step = reinterpret_cast<int64_t*>(out + kNumbers);
    a.failed = reinterpret_cast<float*>(out + kNumbers + 1);
    a.loss = a.lr = out + kNumbers + 2;
    a.loss_is_double = a.lr_is_double = true;
    launch_begin(from, a, numbers);
    return torch::stable::narrow(found, 0, 0, kNumbers);
}

void update_parts(const StepCall::Group& group, const Tensor& weight, const StepState& state, bool follows_begin) {
    const cudaStream_t stream = current_stream(state.on_device);
    UpdateArguments a{};
    a.factors = factors(group.h);
    a.numbers = group.numbers;
    a.failed = state.failed;
    const int64_t element = weight.element_size();
    std::vector<Part> kinds[2][2][2];
    for (const Part& part : group.parts)
        kinds[part.is_short][bytes_of(part.gradient_type) == 2][is_wide_part(part, element)].push_back(part);
    for (const bool is_short : {false, true}) {
        for (const bool is_16 : {false, true}) {
            for (const bool wide : {true, false}) {
                with_kernel_types(
                    group.h.rule, weight, is_short, is_16, wide, [&]<class R, class T, bool k16, int V>() {
                        launch_update<R, T, k16, V>(kinds[is_short][is_16][wide], a, follows_begin, stream);
                    });
            }
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

// A part that is updated late, for the kernels.
struct LateLaunch {
    LateArguments arguments{};
    Rule rule;
    Tensor weight;
    bool is_16, wide;

    LateLaunch(const char* op, const LatePart& part, float* failed) : rule(part.h.rule), weight(part.weight) {
        const Late& l = part.late;
        if (l.rows > INT32_MAX) fail(op, "weights", text(l.rows) + " rows", "fewer than 2^31");
        if (l.part.shares && l.virtual_rows * l.columns > INT32_MAX)
            fail(op, at("changes", part.number).c_str(), text(l.virtual_rows * l.columns) + " elements of virtual rows",
                 "fewer than 2^31");
        if (l.window > kMostWindow)
            fail(op, at("history", part.number).c_str(), text(l.window) + " steps", "at most " + text(kMostWindow));
        is_16 = bytes_of(l.part.gradient_type) == 2;
        arguments = {l, part.step, part.numbers, failed, factors(part.h)};
        Part row = l.part;
        row.columns = l.columns;
        wide = is_wide_part(row, part.weight.element_size()) && is_aligned(l.changes, 16);
    }

    bool shares() const { return arguments.part.shares; }
    // Whether one launch can make the steps of both.
    bool fits(const LateLaunch& other) const {
        return shares() != other.shares() && arguments.part.is_short == other.arguments.part.is_short &&
               is_16 == other.is_16 && wide == other.wide;
    }

    // The values that are the same in every step.
    template <class T>
    Common<T> fixed() const {
        Common<T> c{};
        set_factors(c, arguments.factors, arguments.part.low, arguments.part.high);
        return c;
    }
};

// The step of one part or, in one launch, of two, of which one has virtual rows. `second` may be null.
void update_late(const LateLaunch& first, const LateLaunch* second) {
    const LateLaunch *const sharing = first.shares() ? &first : second, *const own = first.shares() ? second : &first;
    const Tensor& weight = first.weight;
    const bool is_short = first.arguments.part.is_short;
    with_kernel_types(first.rule, weight, is_short, first.is_16, first.wide, [&]<class R, class T, bool k16, int V>() {
        int64_t sharing_blocks = 0, own_blocks = 0;
        if (sharing != nullptr)
            sharing_blocks =
                sharing->arguments.virtual_rows * divide_up(sharing->arguments.columns, int64_t(kWarp) * V);
        if (own != nullptr) own_blocks = divide_up(own->arguments.rows, int64_t(kLateRows));
        const int64_t grid = sharing_blocks + own_blocks;
        if (grid > INT32_MAX) fail(kStep, "weights", text(weight.numel()) + " elements", "fewer than 2^36");
        const LateLaunch &one = sharing != nullptr ? *sharing : first, &other = own != nullptr ? *own : first;
        launch("update_late_rows", update_late_rows<R, T, k16, V>, static_cast<unsigned>(grid), kLateThreads, 0,
               current_stream(weight), one.arguments, one.fixed<T>(), static_cast<unsigned>(sharing_blocks),
               other.arguments, other.fixed<T>());
    });
}

void catch_up_op(Tensors weights, Tensors moments, Tensors copies, Tensors late, Tensors rows, Tensors state,
                 std::vector<int64_t> parts, int64_t optimizer) {
    const CatchUpCall all({weights, moments, copies}, late, rows, state, parts, optimizer, Device::cuda);
    const Tensor& numbers = all.state.on_device;
    const torch::stable::accelerator::DeviceGuard guard(numbers.get_device_index());
    const cudaStream_t stream = current_stream(numbers);
    Tensors lists;
    std::vector<LateLaunch> calls;
    for (const LatePart& part : all.late) {
        const LateArguments& a = calls.emplace_back(kCatchUp, part, all.state.failed).arguments;
        lists.push_back(torch::stable::new_empty(numbers, {a.rows}));
        launch("list_late", list_late, static_cast<unsigned>(divide_up(a.rows, int64_t(kListThreads))), kListThreads, 0,
               stream, a, reinterpret_cast<LateRow*>(lists.back().mutable_data_ptr()));
    }
    const unsigned grid = static_cast<unsigned>(kCatchUpBlocks * multiprocessors(current_device()));
    for (size_t i = 0; i < calls.size(); ++i) {
        const LateLaunch& call = calls[i];
        const auto* const list = static_cast<const LateRow*>(lists[i].const_data_ptr());
        const bool is_short = call.arguments.part.is_short;
        with_kernel_types(call.rule, call.weight, is_short, false, call.wide, [&]<class R, class T, bool, int V>() {
            const auto kernel = call.shares() ? catch_up<R, T, V, true> : catch_up<R, T, V, false>;
            launch_behind(true, "catch_up", kernel, grid, kLateThreads, 0, stream, call.arguments, call.fixed<T>(),
                          list, i == 0, i + 1 == calls.size());
        });
    }
}

// ---- a step ---------------------------------------------------------------------------------------------------------

void step_op(Tensors weights, Tensors gradients, Tensors moments, Tensors copies, Tensors late, Tensors rows,
             Tensors state, const Tensor& loss, const Tensor& lr, Tensors also, std::vector<int64_t> also_shared,
             const std::optional<Tensor>& norm, int64_t optimizer) {
    const StepCall call({weights, moments, copies}, gradients, late, rows, state, loss, lr, also, also_shared, norm,
                        optimizer, Device::cuda);
    const torch::stable::accelerator::DeviceGuard guard(call.state.on_device.get_device_index());
    std::vector<LateLaunch> late_launches;  // checked before anything is launched
    for (const LatePart& part : call.late) late_launches.emplace_back(kStep, part, call.state.failed);
    BeginArguments a{};
    a.max_norm = call.optimizer.max_norm;
    a.loss = loss.const_data_ptr(), a.lr = lr.const_data_ptr();
    a.loss_is_double = loss.scalar_type() == ScalarType::Double;
    a.lr_is_double = lr.scalar_type() == ScalarType::Double;
    a.failed = call.state.failed;
    for (size_t g = 0; g < call.groups.size(); ++g) {
        const StepCall::Group& group = call.groups[g];
        a.hyperparameters = group.h;
        a.step = group.step, a.numbers = group.numbers;
        launch_begin(call.summands_of(g), a, call.state.on_device);
    }
    const bool follows_begin = call.groups.size() == 1;  // nothing has come between the two
    for (const StepCall::Group& group : call.groups) {
        if (!group.parts.empty()) update_parts(group, weights[0], call.state, follows_begin);
    }
    for (size_t i = 0; i < late_launches.size(); ++i) {
        const LateLaunch& first = late_launches[i];
        const bool two = i + 1 < late_launches.size() && first.fits(late_launches[i + 1]);
        update_late(first, two ? &late_launches[++i] : nullptr);
    }
}

}  // namespace
}  // namespace nnue::cuda::optimizer_step

STABLE_TORCH_LIBRARY_IMPL(nnue, CUDA, m) {
    NNUE_IMPL(m, "_optimizer_describe", &nnue::optimizer::describe_op);
    NNUE_IMPL(m, "_optimizer_step", &nnue::cuda::optimizer_step::step_op);
    NNUE_IMPL(m, "_optimizer_norm", &nnue::cuda::optimizer_step::norm_op);
    NNUE_IMPL(m, "_optimizer_mark_rows", &nnue::cuda::optimizer_step::mark_rows_op);
    NNUE_IMPL(m, "_optimizer_catch_up", &nnue::cuda::optimizer_step::catch_up_op);
}
