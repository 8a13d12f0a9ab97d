#!/usr/bin/env bash
# Formats every C, C++ and CUDA source in git with clang-format; --check only reports.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v clang-format >/dev/null; then
    echo "SKIPPED: clang-format is not installed (apt-get install clang-format)"
    [ -z "${NNUE_REQUIRE_ALL:-}" ]
    exit
fi
mode=(-i)
if [ "${1:-}" = --check ]; then mode=(--dry-run --Werror); fi
git ls-files -z -- '*.c' '*.cpp' '*.h' '*.cu' '*.cuh' | xargs -0 -r clang-format "${mode[@]}"
