#!/usr/bin/env bash
# clang-format over every C++ and CUDA source that git knows; --check only looks.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v clang-format >/dev/null; then
    echo "SKIPPED: clang-format is not here (apt-get install clang-format)"
    [ -z "${NNUE_REQUIRE_ALL:-}" ]
    exit
fi
mode=(-i)
if [ "${1:-}" = --check ]; then mode=(--dry-run --Werror); fi
git ls-files -z -- '*.cpp' '*.h' '*.cu' '*.cuh' | xargs -0 -r clang-format "${mode[@]}"
