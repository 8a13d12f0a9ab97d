// bfloat16, for a C++ compiler: stands in for the toolkit's header.
#pragma once

#include "cuda_runtime.h"

struct __nv_bfloat16 {
    uint16_t bits;
};
struct __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
    if (x != x) return {0x7fff};
    const uint32_t bits = __float_as_uint(x);
    return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
inline float __bfloat162float(__nv_bfloat16 x) {
    return __uint_as_float(uint32_t(x.bits) << 16);
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
