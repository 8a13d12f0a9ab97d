#!/usr/bin/env bash
# Builds and runs the GoogleTest programs of data_loader/. Arguments: the folder of cmake and ninja; then cmake options.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "$1")
shift
if [ ! -e /usr/include/gtest/gtest.h ] && [ -z "${GTest_DIR:-}" ]; then
    echo "  SKIPPED: GoogleTest is not installed (apt-get install libgtest-dev)"
    [ -z "${NNUE_REQUIRE_ALL:-}" ]
    exit
fi
build=${NNUE_CPP_BUILD:-build/cpp}
mkdir -p build
launcher=()
if command -v ccache >/dev/null; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
"$bin/cmake" -S data_loader -B "$build" -G Ninja -DCMAKE_MAKE_PROGRAM="$bin/ninja" \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo "${launcher[@]}" "$@" >"$build.log" 2>&1 || { cat "$build.log"; exit 1; }
"$bin/cmake" --build "$build" >"$build.log" 2>&1 || { cat "$build.log"; exit 1; }
tail -n 1 "$build.log"
export NNUE_SHARED=${NNUE_SHARED:-$PWD/../shared}  # as tests/conftest.py
"$bin/ctest" --test-dir "$build" --output-on-failure -j 2
