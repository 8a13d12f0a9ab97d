#!/usr/bin/env bash
# The C++ tests of the data pipeline under AddressSanitizer + UndefinedBehaviorSanitizer, then ThreadSanitizer; among them
# each fuzz target over its corpus and 20,000 mutations of it, seeded.
set -euo pipefail
cd "$(dirname "$0")/.."
for kind in address,undefined thread; do
    echo "== -fsanitize=$kind"
    flags="-fsanitize=$kind -fno-omit-frame-pointer -fno-sanitize-recover=all"
    NNUE_CPP_BUILD="build/cpp-${kind%%,*}" tools/cpp_tests.sh .venv/bin -DNNUE_FUZZ_RUNS=20000 -DCMAKE_CXX_FLAGS="$flags" -DCMAKE_EXE_LINKER_FLAGS="-fsanitize=$kind"
done
