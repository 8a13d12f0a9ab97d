#!/usr/bin/env bash
# Everything that needs a GPU, in one go: build from source, tests on CUDA, compute-sanitizer, benchmarks.
# Run from the project's root on a machine with an NVIDIA GPU, torch with CUDA, nvcc and the requirements installed:
#
#   tools/gpu_check.sh OUT_FOLDER [BINPACK]       BINPACK: real positions for the benchmarks (default: the bundled sample)
#
# PREBUILT=1 uses the libraries lying in nnue_trainer/ instead of building; TESTS: what to test (default: everything).
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:?where to write logs and results}
positions=${2:-samples/train.binpack}
mkdir -p "$out"
export PYTHONUNBUFFERED=1 PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
failed=()
step() { # name, command...
    local name=$1 begin=$SECONDS
    shift
    printf '\n######## %s\n' "$name"
    "$@" >"$out/$name.log" 2>&1 || failed+=("$name")
    tail -n "${TAIL:-12}" "$out/$name.log"
    echo "######## $name: $((SECONDS - begin)) s"
}

if [ "${PREBUILT:-0}" != 1 ]; then
    NNUE_CUDA_ARCHS=${NNUE_CUDA_ARCHS:-90} FORCE_CUDA=1 step build python3 setup.py build_ext --inplace
fi
step info python3 -m nnue_trainer info
step tests python3 -m pytest -q ${TESTS:-tests} -p no:cacheprovider -m "not engine"
# One test of every kernel family: a sanitizer is a hundred times slower.
subset="test_forward_backward or test_any_number_of_rows or test_hot_features or test_rows_outside_the_rule or illegal_index or either_output"
for tool in memcheck racecheck; do
    step "$tool" timeout 120 compute-sanitizer --tool "$tool" --error-exitcode 9 \
        python3 -m pytest -q tests/ops -m cuda -k "$subset" -p no:cacheprovider
done
step bench_op python3 benchmarks/feature_transformer_op.py --device cuda --data "$positions" --out "$out"
step bench_fused python3 benchmarks/feature_transformer/run.py --data "$positions" --out "$out"
step bench_bytes python3 benchmarks/feature_transformer/bytes.py --data "$positions" --out "$out"
step bench_step python3 benchmarks/training_step.py --data "$positions" --out "$out"
step bench_expand python3 benchmarks/expand_features.py --device cuda --data "$positions" --copies 16 --out "$out"
[ ${#failed[@]} -eq 0 ] || { echo "FAILED: ${failed[*]}"; exit 1; }
echo "all steps passed"
