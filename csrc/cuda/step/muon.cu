// Operator _optimizer_update_matrices on CUDA; the contract is in muon.h.

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <vector>

#include "muon_kernels.cuh"

namespace nnue::cuda::muon_step {
namespace {

static_assert(iterate_bytes(capabilities::kMostMatrixSideOn75) <= layer_stacks::most_shared_bytes(75));

template <class T>
void run(const std::vector<Weight>& weights, Arguments a, const Tensor& numbers) {
    const cudaStream_t stream = current_stream(numbers);
    const int device = current_device(), most_here = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    const int most = std::min(static_cast<int>(iterate_bytes(kMostSide)), most_here);
    check_cuda(cudaFuncSetAttribute(iterate<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
               "shared memory of _optimizer_update_matrices");
    for (size_t next = 0; next < weights.size();) {
        unsigned gram_blocks = 0, iterate_blocks = 0, move_blocks = 0;
        int64_t directions = 0, sums = 0, factors = 0;
        int side = 0;
        for (a.count = 0; next < weights.size() && a.count < kMostWeights; ++next) {
            const Weight& of = weights[next];
            const int pieces = static_cast<int>(divide_up(of.length, kColumns));
            a.weights[a.count++] = {of, pieces, directions, sums, factors, gram_blocks, iterate_blocks, move_blocks};
            directions += of.all() * of.size();
            sums += int64_t(of.all()) * pieces * tiles_of(of.side) * 4;
            factors += int64_t(of.all()) * of.side * of.side;
            gram_blocks += static_cast<unsigned>(of.all() * pieces);
            iterate_blocks += static_cast<unsigned>(of.all());
            move_blocks += static_cast<unsigned>(of.count * pieces);
            side = std::max(side, of.side);
        }
        const int64_t in_doubles = divide_up((directions + factors) * int64_t(sizeof(T)), int64_t(sizeof(double)));
        const Tensor memory = torch::stable::new_empty(numbers, {sums + in_doubles});
        a.sums = mutable_data<double>(memory);
        a.directions = a.sums + sums;
        a.factors = static_cast<T*>(a.directions) + directions;
        const size_t bytes = iterate_bytes(side);
        launch_behind(true, kUpdateMatrices, gram<T>, gram_blocks, kGramThreads, 0, stream, a);
        launch_behind(true, kUpdateMatrices, iterate<T>, iterate_blocks, kIterateThreads, bytes, stream, a);
        launch_behind(true, kUpdateMatrices, move<T>, move_blocks, kMoveThreads, 0, stream, a);
    }
}

void update_op(Tensors weights, Tensors gradients, Tensors momenta, const Tensor& lr, Tensors state,
               std::vector<double> settings, std::vector<double> constants) {
    const StepState checked = check_state(kUpdateMatrices, state, Device::cuda);
    const Tensor& numbers = checked.on_device;
    check_scalar(kUpdateMatrices, "lr", lr, Device::cuda, numbers, {ScalarType::Float, ScalarType::Double});
    Arguments a{};
    a.constants = check_constants(constants);
    a.numbers = checked.numbers;
    a.lr = lr.const_data_ptr();
    a.lr_is_double = lr.scalar_type() == ScalarType::Double;
    Tensors kept;
    const std::vector<Weight> found = weights_of(weights, gradients, momenta, settings, numbers, Device::cuda, kept);
    if (found.empty()) return;
    const torch::stable::accelerator::DeviceGuard guard(numbers.get_device_index());
    weights[0].scalar_type() == ScalarType::Double ? run<double>(found, a, numbers) : run<float>(found, a, numbers);
}

}  // namespace
}  // namespace nnue::cuda::muon_step

STABLE_TORCH_LIBRARY_IMPL(nnue, CUDA, m) {
    NNUE_IMPL(m, "_optimizer_update_matrices", &nnue::cuda::muon_step::update_op);
}
