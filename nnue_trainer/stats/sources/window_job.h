// The beginning of the sources of window functions and window states.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>
#include <vector>
#ifdef __CUDACC__
#define NNUE_HERE __host__ __device__
#else
#define NNUE_HERE
#endif
namespace {
struct Job {
    void* space;  // the first member of all jobs
    const void* x;
    void* out;
    int64_t rows, n, first, length, min_periods, segment;
    NNUE_HERE int64_t segments() const { return (n + segment - 1) / segment; }
    NNUE_HERE int64_t items() const { return rows * segments(); }  // of which a thread takes one at a time
};
}  // namespace
