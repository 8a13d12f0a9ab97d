#!/usr/bin/env bash
# The C++ tests of the data pipeline under AddressSanitizer + UndefinedBehaviorSanitizer, then ThreadSanitizer.
set -euo pipefail
cd "$(dirname "$0")/.."
for kind in address,undefined thread; do
    echo "== -fsanitize=$kind"
    flags="-fsanitize=$kind -fno-omit-frame-pointer -fno-sanitize-recover=all"
    NNUE_CPP_BUILD="build/cpp-${kind%%,*}" tools/cpp_tests.sh .venv/bin -DCMAKE_CXX_FLAGS="$flags" -DCMAKE_EXE_LINKER_FLAGS="-fsanitize=$kind"
done
