// The checks of index_check.cuh, which never find anything here: kernels leave out illegal entries by themselves.
#include "cuda/index_check.cuh"

namespace nnue::cuda {

Check::Check(const char*, int device, cudaStream_t stream, void (*)(const Finding&), int64_t)
    : device_(device), stream_(stream) {}
Check::~Check() = default;
void Check::mark() {}
void Check::finish() {}
IndexCheck::IndexCheck(const char* op, std::initializer_list<const int32_t*>, int64_t, int64_t, int64_t, int device,
                       cudaStream_t stream)
    : Check(op, device, stream, nullptr) {}

}  // namespace nnue::cuda
