#!/usr/bin/env bash
# Compiles the data library and the CPU operators for arm64 with a cross compiler, and runs the C++ tests under qemu-user.
# apt-get install g++-aarch64-linux-gnu qemu-user libgtest-dev. Argument: the folder of cmake, ninja and python.
# With NNUE_ARM64_PYTHON=FOLDER, which tools/arm64_python.sh makes, also runs the operators in an arm64 Python: their
# results must equal those of this machine in every bit.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "${1:-.venv/bin}")
compiler=aarch64-linux-gnu-g++
for program in "$compiler" qemu-aarch64; do
    command -v "$program" >/dev/null || { echo "arm64: $program is missing; the first lines of $0 name the packages"; exit 1; }
done
options=(-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc)
options+=("-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/aarch64-linux-gnu" -DCMAKE_MAKE_PROGRAM="$bin/ninja")

out=$PWD/build/arm64
compile() {  # the folder of the objects, the sources, then options
    local folder=$out/$1 sources=$2
    shift 2
    rm -rf "$folder"
    mkdir -p "$folder"
    # shellcheck disable=SC2086 # sources are patterns
    (cd "$folder" && printf '%s\0' $sources | xargs -0 -P "$(nproc)" -I SOURCE $compiler -std=c++20 -O1 -fPIC -Wno-psabi \
        -fvisibility=hidden -I"$root/csrc" -I"$root/data_loader" -I"$root/build/include" "$@" -c SOURCE)
}
root=$PWD
python=${NNUE_ARM64_PYTHON:+$(realpath "$NNUE_ARM64_PYTHON")}

# torch's stable headers are the same for every processor, but its libraries are not.
torch=${python:+$python/site/torch}
torch=${torch:-$("$bin/python" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parent)')}
flags=(-ffp-contract=off -fno-math-errno -fno-trapping-math -DTORCH_TARGET_VERSION=0x020a000000000000 -DNNUE_CUDA_BUILD=no_nvcc)
flags+=(-isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include")
compile operators "$root/csrc/library.cpp $root/csrc/cpu/*.cpp" "${flags[@]}"
compile stats "$root/csrc/stats_library.cpp $root/csrc/cpu/stats/*.cpp" "${flags[@]}"
echo "arm64: the operators compile"

if [ -n "$python" ]; then
    headers=$python/debian/usr/include
    for room in base chess evaluate features filters formats pipeline bindings; do
        compile "$room" "$root/data_loader/$room/*.cpp" -isystem "$("$bin/python" -c 'import pybind11; print(pybind11.get_include())')" \
            -isystem "$headers/python3.11" -idirafter "$headers"
    done
    rm -rf "$out/package"
    mkdir -p "$out/package"
    git ls-files -z nnue_trainer | xargs -0 cp --parents -t "$out/package"
    package=$out/package/nnue_trainer
    $compiler -shared -o "$package/_ops_cpu.so" "$out"/{operators,base,features}/*.o -L"$torch/lib" -ltorch_cpu -ldl \
        -Wl,--allow-shlib-undefined
    $compiler -shared -o "$package/_stats_cpu.so" "$out"/{stats,base}/*.o -L"$torch/lib" -ltorch_cpu -ldl -Wl,--allow-shlib-undefined
    $compiler -shared -pthread -o "$package/_data.cpython-311-aarch64-linux-gnu.so" \
        "$out"/{base,chess,evaluate,features,filters,formats,pipeline,bindings}/*.o -ldl
    "$bin/python" tools/compare_torch.py --save "$out/here.safetensors"
    PYTHONPATH=$out/package:$python/site qemu-aarch64 -L "$python/debian" "$python/debian/usr/bin/python3.11" tools/compare_torch.py \
        --against "$out/here.safetensors"
fi

gtest=$PWD/build/gtest-arm64
"$bin/cmake" -S /usr/src/googletest -B "$gtest" -G Ninja "${options[@]}" -DBUILD_GMOCK=OFF -DCMAKE_INSTALL_PREFIX="$gtest/install" \
    >"$gtest.log" 2>&1 || { cat "$gtest.log"; exit 1; }
"$bin/cmake" --build "$gtest" --target install >"$gtest.log" 2>&1 || { cat "$gtest.log"; exit 1; }
NNUE_CPP_BUILD=build/cpp-arm64 tools/cpp_tests.sh "$bin" "${options[@]}" -DCMAKE_BUILD_TYPE=Release -DNNUE_FUZZ_RUNS=100 \
    -DGTest_DIR="$gtest/install/lib/cmake/GTest"
