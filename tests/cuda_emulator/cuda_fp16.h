// Half precision, for a C++ compiler: stands in for the toolkit's header.
#pragma once

#include "cuda_runtime.h"

struct __half {
    _Float16 value;
};
struct __half2 {
    __half x, y;
};
inline float __half2float(__half x) {
    return float(x.value);
}
inline __half __float2half_rn(float x) {
    return {_Float16(x)};
}
inline __half __float2half_ru(float x) {
    __half h{_Float16(x)};
    if (float(h.value) < x) {
        uint16_t bits;
        std::memcpy(&bits, &h, 2);
        bits = bits == 0x8000 ? 1 : bits & 0x8000 ? bits - 1 : bits + 1;
        std::memcpy(&h, &bits, 2);
    }
    return h;
}
inline __half2 __floats2half2_rn(float x, float y) {
    return {__float2half_rn(x), __float2half_rn(y)};
}
inline __half2 __half2half2(__half x) {
    return {x, x};
}
inline __half2 __hmul2(__half2 x, __half2 y) {
    return __floats2half2_rn(float(x.x.value) * float(y.x.value), float(x.y.value) * float(y.y.value));
}
inline float2 __half22float2(__half2 v) {
    return {__half2float(v.x), __half2float(v.y)};
}
inline __half __ushort_as_half(unsigned short bits) {
    __half h;
    std::memcpy(&h, &bits, 2);
    return h;
}
