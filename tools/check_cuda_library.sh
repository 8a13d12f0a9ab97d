#!/usr/bin/env bash
# The CUDA library that was built: machine code for sm_80 and sm_90 inside, libtorch named as needed, no CUDA runtime.
set -euo pipefail
cd "$(dirname "$0")/.."
library=$(ls nnue_trainer/_ops_cuda*.so)
built=$(.venv/bin/nnue info --json)
for arch in 80 90; do
    grep -q "\b$arch\b" <<<"$built" || { echo "$library: not built for sm_$arch: $built"; exit 1; }
done
needed=$(readelf -d "$library" | grep NEEDED)
grep -q 'libtorch.so' <<<"$needed" || { echo "$library: does not need libtorch.so, so it would load nowhere"; exit 1; }
if grep -q libcudart <<<"$needed"; then echo "$library: needs a CUDA runtime of the machine"; exit 1; fi
if grep -q libtorch_python <<<"$needed"; then echo "$library: needs libtorch_python"; exit 1; fi
missing=$(nm -DC --undefined-only "$library" | grep 'nnue::' || true)
if [ -n "$missing" ]; then echo "$library: would not load, stale objects? $missing"; exit 1; fi
echo "$library: sm_80 and sm_90 inside, free of the CUDA runtime's and Python's version"
