// The end of all CUDA sources, which have `bytes_of` and `launch`.
namespace {
template <class T>
const char* launched(const Job& job, void* stream) {
    launch<T>(job, static_cast<cudaStream_t>(stream));
    const cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
}  // namespace
#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT const char* apply_float(const Job* job, void* stream) {
    return launched<float>(*job, stream);
}
EXPORT const char* apply_double(const Job* job, void* stream) {
    return launched<double>(*job, stream);
}
EXPORT int64_t bytes(const Job* job) {
    return bytes_of(*job);
}
