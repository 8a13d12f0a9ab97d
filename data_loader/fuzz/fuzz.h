// Code of all fuzz targets. Each target is one LLVMFuzzerTestOneInput; libFuzzer (clang) or driver.cpp calls it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#define NNUE_FUZZ_CHECK(condition)                                                        \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            std::fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
            std::abort();                                                                 \
        }                                                                                 \
    } while (false)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
