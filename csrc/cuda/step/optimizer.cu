// Operators optimizer_begin and optimizer_update on CUDA; the contracts are in optimizer.h.

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <vector>

#include "optimizer_kernels.cuh"

namespace nnue::cuda::optimizer_step {
namespace {

// Warps per thread block, rows whose gradients a warp holds, and rows whose states it loads at a time. On an H200,
// fp32, HalfKAv2_hm-1024, microseconds: 8, 4, 2: 197; 8, 4, 1: 200; 16, 2, 1: 200; 8, 2, 2: 197 (but 221 for 203 with
// 16-bit gradients, 258 for 239 with two averages); 4, 8, 2: 213; 32, 1, 1: 357. Streaming loads and stores (.cs): 202
// for 197.
constexpr int kWarps = 8, kRows = 4, kStates = 2;

bool is_aligned(const void* pointer, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

int64_t bytes_of(Kind kind) {
    return kind == Kind::kFloat64 ? 8 : kind == Kind::kFloat32 ? 4 : 2;
}

void begin_op(Tensors gradients, std::vector<int64_t> shared_rows, const Tensor& loss, const Tensor& lr, Tensors state,
              int64_t rule, std::vector<double> constants, double max_norm) {
    BeginArguments a{};
    a.hyperparameters = check_rule(kBegin, rule, constants);
    a.max_norm = max_norm;
    const auto [step, failed, numbers] = check_begin(loss, lr, state, max_norm, Device::cuda);
    Tensors kept;
    const std::vector<Summand> from = summands(gradients, shared_rows, numbers, Device::cuda, kept);
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
        const int64_t width = 16 / bytes_of(summand.kind);
        const bool wide = is_aligned(summand.gradient, 16) && summand.columns % width == 0;
        const int64_t turn = kBeginThreads * (wide ? width : 1) * (summand.shares ? 1 : kBeginTurns);
        placed.push_back({summand, wide, 0});
        blocks.push_back(static_cast<unsigned>(divide_up(summand.columns, turn)));
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
        launch("optimizer_begin", begin, grid, kBeginThreads, 0, stream, a);
        a.partial += grid;
    } while (next < placed.size());
}

// Whether V elements can be loaded at once from every tensor of the part.
bool is_wide_part(const Part& part, int64_t element, int64_t width) {
    bool wide = part.columns % width == 0 && is_aligned(part.gradient, width * bytes_of(part.gradient_kind)) &&
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
        launch_behind(follows_begin, "optimizer_update", kernel, grid, kWarps * kWarp, 0, stream, a);
    }
}

template <class R, class T>
void run(const std::vector<Part>& parts, const UpdateArguments& a, bool follows_begin, cudaStream_t stream) {
    constexpr int V = kWide<T>;
    std::vector<Part> groups[2][2];
    for (const Part& part : parts) {
        const bool is_16 = part.gradient_kind == Kind::kFloat16 || part.gradient_kind == Kind::kBFloat16;
        groups[is_16][is_wide_part(part, sizeof(T), V)].push_back(part);
    }
    launch_update<R, T, false, V>(groups[0][1], a, follows_begin, stream);
    launch_update<R, T, false, 1>(groups[0][0], a, follows_begin, stream);
    if constexpr (sizeof(T) == 4) {
        launch_update<R, T, true, V>(groups[1][1], a, follows_begin, stream);
        launch_update<R, T, true, 1>(groups[1][0], a, follows_begin, stream);
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
    with_rule(h.rule, weights[0], [&]<class R, class T>() { run<R, T>(found, a, follows_begin, stream); });
}

}  // namespace
}  // namespace nnue::cuda::optimizer_step

STABLE_TORCH_LIBRARY_IMPL(nnue, CUDA, m) {
    NNUE_IMPL(m, "optimizer_begin", &nnue::cuda::optimizer_step::begin_op);
    NNUE_IMPL(m, "optimizer_update", &nnue::cuda::optimizer_step::update_op);
}
