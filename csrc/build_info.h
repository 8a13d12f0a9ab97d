// Describes how a library was built, as one JSON object in the file itself, after a marker. `nnue info` searches the
// bytes of the file for it, so it can be read even where the library cannot be loaded.
#pragma once

#include <torch/headeronly/version.h>

#include "stringize.h"
#ifndef NNUE_VERSION
#include "nnue_version.h"  // written by setup.py from nnue_trainer.__version__
#endif

#if defined(__clang__)
#define NNUE_COMPILER "clang " NNUE_STRINGIZE(__clang_major__) "." NNUE_STRINGIZE(__clang_minor__)
#else
#define NNUE_COMPILER "gcc " NNUE_STRINGIZE(__GNUC__) "." NNUE_STRINGIZE(__GNUC_MINOR__)
#endif

// `fields` is the inside of a JSON object, with the quotes escaped.
#define NNUE_BUILD_INFO(fields)                                                                      \
    extern "C" __attribute__((used, visibility("default"))) const char nnue_build_info[] =           \
        "@nnue-build-info@{" fields                                                                  \
        ", \"version\": \"" NNUE_STRINGIZE(NNUE_VERSION) "\", \"torch_headers\": \"" NNUE_STRINGIZE( \
            TORCH_VERSION_MAJOR) "." NNUE_STRINGIZE(TORCH_VERSION_MINOR) "\", \"compiler\": \"" NNUE_COMPILER "\"}"

#define NNUE_CUDA_BUILD_INFO(library)                                                           \
    NNUE_BUILD_INFO("\"library\": \"" library                                                   \
                    "\", \"cuda\": \"" NNUE_STRINGIZE(__CUDACC_VER_MAJOR__) "." NNUE_STRINGIZE( \
                        __CUDACC_VER_MINOR__) "\", \"architectures\": \"" NNUE_STRINGIZE(NNUE_CUDA_ARCHS) "\"")
