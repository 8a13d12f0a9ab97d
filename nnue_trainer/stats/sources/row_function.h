// A row function: the names in capitals stand for the user's parameters and body (row_function.py).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#ifdef __CUDACC__
#define NNUE_HERE __host__ __device__ __forceinline__
#else
#define NNUE_HERE inline __attribute__((always_inline))
#endif
namespace {
constexpr int kInputs = INPUTS;
constexpr bool kHasSums = SUMS;
struct Job {
    void* space;  // the first member of all jobs
    void* out;
    int64_t rows;
    struct {
        const void* from;
        int64_t size, stride;
    } in[kInputs];
};
// The sum of twice as many lanes: the upper half is added to the lower one until one is left.
template <int width>
NNUE_HERE double folded(const double* lanes) {
    if constexpr (width == 0) {
        return lanes[0];
    } else {
        double half[width];
        for (int k = 0; k < width; ++k) half[k] = lanes[k] + lanes[k + width];
        return folded<width / 2>(half);
    }
}
// The sum of 16 lanes in the order of `folded`, which g++ would compute through memory.
NNUE_HERE double folded_16(const double* lanes) {
#ifdef __CUDACC__
    return folded<8>(lanes);
#else
    typedef double Four __attribute__((vector_size(32)));
    Four a, b;
#ifdef __AVX512F__  // narrower vectors would make g++ compute all lanes in them
    typedef double Eight __attribute__((vector_size(64)));
    Eight c, d;
    std::memcpy(&c, lanes, 64), std::memcpy(&d, lanes + 8, 64);
    c += d;
    std::memcpy(&a, &c, 32), std::memcpy(&b, reinterpret_cast<const char*>(&c) + 32, 32);
#else
    Four c, d;
    std::memcpy(&a, lanes, 32), std::memcpy(&b, lanes + 4, 32);
    std::memcpy(&c, lanes + 8, 32), std::memcpy(&d, lanes + 12, 32);
    a += c, b += d;
#endif
    a += b;
    return (a[0] + a[2]) + (a[1] + a[3]);
#endif
}
// `sum` of a row that one thread computes.
template <class Of>
struct Sums {
    // The sum of f(element), in lanes that a compiler turns into vectors; the same on every machine. A long row has
    // more lanes, so that an addition need not wait for the one before.
    template <class F>
    NNUE_HERE double sum(F f) const {
#ifdef __CUDACC__  // there several threads compute a long row together
        constexpr int64_t kLong = INT64_MAX;
#else
        constexpr int64_t kLong = 512;
#endif
        const Of& x = *static_cast<const Of*>(this);
        const int64_t count = x.size();
        double total = 0;
        int64_t i = 0;
        if (count >= kLong) {  // apart from the next branch: lanes that both used would be kept in memory by g++
            double lanes[32] = {};
            add<32>(lanes, f, i);
            for (int k = 0; k < 16; ++k) lanes[k] += lanes[k + 16];
            add<16>(lanes, f, i);
            total = folded_16(lanes);
        } else if (count >= 16) {
            double lanes[16] = {};
            add<16>(lanes, f, i);
            total = folded_16(lanes);
        }
        for (; i + 4 <= count; i += 4) {
            double four[4];
            for (int k = 0; k < 4; ++k) four[k] = f(x[i + k]);
            total += folded<2>(four);
        }
        for (; i < count; ++i) total += f(x[i]);
        return total;
    }

  private:
    // Adds the elements from i on that fill all lanes.
    template <int kLanes, class F>
    NNUE_HERE void add(double* lanes, F f, int64_t& i) const {
        const Of& x = *static_cast<const Of*>(this);
        for (; i + kLanes <= x.size(); i += kLanes) {
            for (int k = 0; k < kLanes; ++k) lanes[k] += f(x[i + k]);
        }
    }
};
template <class T>
struct Row : Sums<Row<T>> {
    const T* from;
    int64_t count;
    NNUE_HERE int64_t size() const { return count; }
    NNUE_HERE double operator[](int64_t i) const { return static_cast<double>(from[i]); }
};
template <class R>
NNUE_HERE double of_row(PARAMETERS) {
#line 1
    BODY
}
#line 1 "row function"
template <class T>
NNUE_HERE void one(const Job& job, int64_t r) {
    const auto row = [&](int k) {
        return Row<T>{{}, static_cast<const T*>(job.in[k].from) + r * job.in[k].stride, job.in[k].size};
    };
    static_cast<T*>(job.out)[r] = static_cast<T>(of_row<Row<T>>(ARGUMENTS));
}
}  // namespace
