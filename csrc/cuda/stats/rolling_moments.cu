// The kernels of rolling for moments and for pairs of sequences; rolling.cu has the operator.

#include "rolling_windows.cuh"

namespace nnue::cuda::stats {

template void roll_windows<rolling::Moments<2>>(Job, const Tensor&, cudaStream_t);
template void roll_windows<rolling::Moments<3>>(Job, const Tensor&, cudaStream_t);
template void roll_windows<rolling::Moments<4>>(Job, const Tensor&, cudaStream_t);
template void roll_windows<rolling::Pairs>(Job, const Tensor&, cudaStream_t);

}  // namespace nnue::cuda::stats
