// Operations of the sliding windows that are done in a special way on CUDA, most of them to be faster. F is double, or
// a vector of doubles on the CPU.
#pragma once

#include "host_device.h"

namespace nnue {

// a / b for b from 1e-300 to 1e300. On CUDA to the last bit or two, and for b = 1 exactly, in a third of a division's
// operations.
template <class F>
NNUE_HOST_DEVICE F divide(F a, F b) {
#if defined(__CUDACC__) && defined(__CUDA_ARCH__)
    double guess;  // 1 / b to 20 bits
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(guess) : "d"(b));
    const double error = fma(-b, guess, 1.0);
    return a * fma(guess, fma(error, error, error), guess);
#else
    return a / b;
#endif
}

// a / b for b from 1e-300 to 1e300, to the last bit. `inverse` is 1 / b to a bit or two.
NNUE_HOST_DEVICE double quotient(double a, double b, [[maybe_unused]] double inverse) {
#if defined(__CUDACC__) && defined(__CUDA_ARCH__)
    const double near = a * inverse, found = fma(fma(-near, b, a), inverse, near);
    return found == found ? found : near;  // of an infinite a
#else
    return a / b;
#endif
}
NNUE_HOST_DEVICE double quotient(double a, double b) {
    return quotient(a, b, divide(1.0, b));
}

// a * b, rounded before anything is added to it. nvcc would make one operation of both, and other bits than the CPU.
NNUE_HOST_DEVICE double rounded_product(double a, double b) {
#if defined(__CUDACC__) && defined(__CUDA_ARCH__)
    return __dmul_rn(a, b);
#else
    return a * b;
#endif
}

// Whether x is neither NaN nor infinite; for a vector, one answer per element.
template <class F>
NNUE_HOST_DEVICE auto is_finite(F x) {
#if defined(__CUDACC__) && defined(__CUDA_ARCH__)
    return (__double2hiint(x) & 0x7ff00000) != 0x7ff00000;
#else
    return (x - x) == F{};
#endif
}

}  // namespace nnue
