#!/usr/bin/env bash
# Checks the CUDA libraries: kernels for each architecture, linked with libtorch, no dependency on a CUDA runtime.
#
#   tools/check_cuda_library.sh [ARCHITECTURES [LIBRARY]]    ARCHITECTURES: as in NNUE_CUDA_ARCHS, by default those that
#                                                            setup.py builds with this machine's nvcc; LIBRARY: by
#                                                            default both
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
[ -x "$python" ] || python=python3
wanted=${1:-$("$python" setup.py architectures)}
read -ra archs <<<"$(tr ';' '\n' <<<"$wanted" | sort -n | paste -s -d ' ')"
if [ $# -lt 2 ]; then
    for library in nnue_trainer/_ops_cuda.so nnue_trainer/_stats_cuda.so; do tools/check_cuda_library.sh "$wanted" "$library"; done
    exit
fi
library=$2
fail() {
    echo "$library: $*"
    exit 1
}
cuobjdump=$(command -v cuobjdump || find -L .venv -name cuobjdump -type f -print -quit)
[ -n "$cuobjdump" ] || fail "cuobjdump is missing: install requirements/dev.txt"

# Lines of an architecture and a kernel: of machine code, and of PTX.
code=$("$cuobjdump" -symbols "$library" | awk '/^arch = / {arch = $3} / ENTRY / {print arch, $NF}' | sort)
ptx=$("$cuobjdump" -ptx "$library" |
    awk '/^\.target / {arch = $2} sub(/^.*\.entry /, "") {sub(/\(.*/, ""); print arch, $0}' | sort)
architectures_of() { cut -d ' ' -f 1 | sort -u | paste -s -d ' '; }
kernels_for() { awk -v arch="sm_$1" '$1 == arch {print $2}'; }
portable=$(kernels_for "${archs[0]}" <<<"$code")
hopper=$(kernels_for 90a <<<"$code")

expected=$(printf 'sm_%s\n' "${archs[@]}")
if [[ " ${archs[*]} " == *" 90 "* && $library != *_stats_cuda.so ]]; then
    expected+=$'\nsm_90a'
    for family in bucket_plan group_features one_hot_product forward_gather unbucketed_lists; do
        grep -q "$family" <<<"$hopper" || fail "no kernels of $family for sm_90a"
    done
fi
expected=$(architectures_of <<<"$expected")
found=$(architectures_of <<<"$code")
[ "$found" = "$expected" ] || fail "machine code for $found, expected $expected"
for arch in "${archs[@]}"; do
    [ "$(kernels_for "$arch" <<<"$code")" = "$portable" ] || fail "not the same kernels for sm_$arch and sm_${archs[0]}"
done
if grep -E 'bucket_plan|one_hot_product' <<<"$portable"; then fail "these kernels belong only in code for sm_90a"; fi
both=$(comm -12 <(sort -u <<<"$hopper") <(sort -u <<<"$portable"))
[ -z "$both" ] || fail "the same kernels for sm_90a and for every GPU: $both"
# The lowest one from 90 on, or from 80 on, or of all (architecture_flags in setup.py).
newest=${archs[0]}
for arch in "${archs[@]}"; do
    if { [ "$arch" -ge 90 ] && [ "$newest" -lt 90 ]; } || { [ "$arch" -ge 80 ] && [ "$newest" -lt 80 ]; }; then
        newest=$arch
    fi
done
found=$(architectures_of <<<"$ptx")
[ "$found" = "sm_$newest" ] || fail "PTX for $found, expected sm_$newest"
[ "$(kernels_for "$newest" <<<"$ptx")" = "$portable" ] || fail "not the same kernels in PTX and for sm_${archs[0]}"

PATH=$(dirname "$cuobjdump"):$PATH python3 tools/check_spills.py "$library"

# The architectures that the library reports.
named=$(IFS=+ && echo "${archs[*]}")
grep -qaF "\"architectures\": \"$named\"" "$library" || fail "does not report that it was built for $named"

# Users would see them in messages; check_wheel.sh refuses them too, but CI's wheel has no CUDA library.
paths=$(strings -n 6 "$library" | grep -E '(^|[^A-Za-z0-9_.])/(home|root|work|tmp|build|opt|usr/(src|local))/' | head -n 3 || true)
[ -z "$paths" ] || fail "holds paths of this machine: $paths"

needed=$(readelf -d "$library" | grep NEEDED)
grep -q 'libtorch.so' <<<"$needed" || fail "does not need libtorch.so, so it would load nowhere"
if grep -q libcudart <<<"$needed"; then fail "needs a CUDA runtime of the machine"; fi
if grep -q libtorch_python <<<"$needed"; then fail "needs libtorch_python"; fi
missing=$(nm -DC --undefined-only "$library" | grep 'nnue::' || true)
[ -z "$missing" ] || fail "would not load, stale objects? $missing"
echo "$library: $(wc -l <<<"$portable") kernels for ${archs[*]/#/sm_} and in PTX for sm_$newest," \
    "$(grep -c . <<<"$hopper" || true) only for sm_90a; free of the CUDA runtime's and Python's version"
