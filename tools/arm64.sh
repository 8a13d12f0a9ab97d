#!/usr/bin/env bash
# Compiles the data library and the CPU operators for arm64 with a cross compiler, and runs the C++ tests under qemu-user.
# apt-get install g++-aarch64-linux-gnu qemu-user libgtest-dev. Argument: the folder of cmake, ninja and python.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "${1:-.venv/bin}")
compiler=aarch64-linux-gnu-g++
for program in "$compiler" qemu-aarch64; do
    command -v "$program" >/dev/null || { echo "arm64: $program is missing; the first lines of $0 name the packages"; exit 1; }
done
options=(-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc)
options+=("-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/aarch64-linux-gnu" -DCMAKE_MAKE_PROGRAM="$bin/ninja")

# The operators are only compiled: torch's stable headers are the same for every processor, but this torch is x86-64.
torch=$("$bin/python" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parent / "include")')
printf '%s\0' csrc/*.cpp csrc/cpu/*.cpp | xargs -0 -P "$(nproc)" -I SOURCE \
    $compiler -std=c++20 -O1 -Wno-psabi -fvisibility=hidden -DTORCH_TARGET_VERSION=0x020a000000000000 \
    -DNNUE_CUDA_BUILD=no_nvcc -Icsrc -Idata_loader -Ibuild/include -isystem "$torch" \
    -isystem "$torch/torch/csrc/api/include" -c SOURCE -o /dev/null
echo "arm64: the operators compile"

gtest=$PWD/build/gtest-arm64
"$bin/cmake" -S /usr/src/googletest -B "$gtest" -G Ninja "${options[@]}" -DBUILD_GMOCK=OFF -DCMAKE_INSTALL_PREFIX="$gtest/install" \
    >"$gtest.log" 2>&1 || { cat "$gtest.log"; exit 1; }
"$bin/cmake" --build "$gtest" --target install >"$gtest.log" 2>&1 || { cat "$gtest.log"; exit 1; }
NNUE_CPP_BUILD=build/cpp-arm64 tools/cpp_tests.sh "$bin" "${options[@]}" -DCMAKE_BUILD_TYPE=Release -DNNUE_FUZZ_RUNS=100 \
    -DGTest_DIR="$gtest/install/lib/cmake/GTest"
