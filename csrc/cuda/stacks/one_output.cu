// Launches one_output_kernel with x (one_output.cuh).

#include "one_output.cuh"

namespace nnue::cuda::stacks {

namespace {

// Calls `body` with the type of x and whether the layers round, which float16 inputs never are for.
template <class Body>
void dispatch_rounding(ScalarType dtype, bool rounds, const Body& body) {
    dispatch_input(dtype, [&]<class T>() {
        if constexpr (!std::is_same_v<T, __half>) {
            if (rounds) return body.template operator()<T, true>();
        }
        body.template operator()<T, false>();
    });
}

}  // namespace

void run_one_output(const Tensor& x, const TileArguments& a, cudaStream_t stream) {
    const unsigned tiles = static_cast<unsigned>(a.of_order.most_tiles());
    const int inputs = a.layers.at[0].inputs;
    dispatch_rounding(x.scalar_type(), a.layers.integers.rounds, [&]<class T, bool kRounds>() {
        dispatch_packs<T>(inputs, [&]<int kPacks>() {
            launch("one_output_kernel", one_output_kernel<XRows<T>, kPacks, kRounds>, tiles, kThreads, 0, stream,
                   XRows<T>{const_data<T>(x), inputs}, a);
        });
    });
}

}  // namespace nnue::cuda::stacks
