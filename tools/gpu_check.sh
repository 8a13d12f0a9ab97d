#!/usr/bin/env bash
# Everything that needs a GPU: build, tests on CUDA, compute-sanitizer, benchmarks. Run it from the project's root on a
# machine with an NVIDIA GPU, torch with CUDA, nvcc and the requirements installed:
#
#   tools/gpu_check.sh OUT_FOLDER [BINPACK [STEP ...]]    BINPACK: real positions (default: the bundled sample)
#                                                         STEP: only these of `steps` below; `session`: those that
#                                                         fit into ten minutes, the most important ones first
#
# LIMIT: most seconds for everything; a step that takes longer is stopped, and the rest is left out. PACK: file, a
# .tar.gz, into which OUT_FOLDER is packed after each step. DRY=1: only print the commands of the steps; needs no GPU.
# On a machine that is lent for ten minutes, with libraries that were built elsewhere:
#
#   PREBUILT=1 LIMIT=570 PACK=results.tar.gz tools/gpu_check.sh /tmp/out train.binpack session
#
# PREBUILT=1: use the libraries that lie in nnue_trainer/. TESTS: what to test (default: everything). SANITIZED: what to
# run under the sanitizers (default: short tests of all operators). PYTEST: more arguments for both, such as "-n 10"
# with pytest-xdist. With it an H200 with 16 cores took 77 s for all tests. Those chosen for the sanitizers took 69 s under
# memcheck and 114 s under racecheck. MINUTES: most minutes for `several` (default: 7). TAIL: how many lines of each log are
# printed (default: 12). Logs, JSON and pictures are written to OUT_FOLDER.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:?where to write logs and results}
positions=${2:-samples/train.binpack}
shift $(($# < 2 ? $# : 2))
mkdir -p "$out"
export PYTHONUNBUFFERED=1 PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}

steps=(build info tests memcheck racecheck training timeline portable_training precision transformer stacks qat_stacks
    optimizer expand own_sets windows matrix graph)
session=(info operator_tests optimizer_sanitized stacks transformer whole_runs qat_training)
if [ "${DRY:-0}" = 1 ]; then
    python3() { echo "    python3 $*"; }
    timeout() { echo "    timeout $*"; }
    gpus=2
else
    gpus=$(python3 -c 'import torch; print(torch.cuda.device_count())')
fi
if [ "$gpus" -ge 2 ]; then
    steps+=(several several_tests)
    session+=(several_tests several)
fi

# The short tests of each kernel family: a sanitizer is 100 times slower.
subset="test_forward_backward or test_any_number_of_rows or test_hot_features or test_rows_outside_the_rule or illegal_index \
or either_output or test_on_cuda or test_cuda or test_it_is_what_torch_gives or test_against_the_definition or test_quantiles \
or test_mean or test_16_bit_gradients_and_copies or test_norms or test_transpose or test_bits or test_counts or test_psqt"
# shellcheck disable=SC2086  # PYTEST may be several words
sanitize() { # tool, tests...
    local tool=$1
    shift
    timeout "${SECONDS_TO_SANITIZE:-300}" compute-sanitizer --tool "$tool" --target-processes all --error-exitcode 9 \
        python3 -m pytest -q ${PYTEST:-} -m cuda -p no:cacheprovider "$@"
}
# Whole training from the file: recipe, batch, then more fields.
train() { # recipe, overrides...
    local recipe=$1
    shift
    python3 benchmarks/training_step.py 'data.filters={}' "$@" --config "configs/$recipe.yaml" --data "$positions" --out "$out"
}
both_precisions() { train "$@" training.precision=fp32 && train "$@" training.precision=mixed; }

step_build() { [ "${PREBUILT:-0}" = 1 ] || NNUE_CUDA_ARCHS=${NNUE_CUDA_ARCHS:-90} FORCE_CUDA=1 python3 setup.py build_ext --inplace; }
step_info() { python3 -m nnue_trainer info; }
# shellcheck disable=SC2086  # TESTS and PYTEST may be several words
step_tests() { python3 -m pytest -q ${TESTS:-tests} ${PYTEST:-} -p no:cacheprovider -m "cuda and not engine"; }
# shellcheck disable=SC2086  # SANITIZED may be several words
step_memcheck() { sanitize memcheck ${SANITIZED:-tests/ops tests/stats} -k "$subset"; }
# shellcheck disable=SC2086
step_racecheck() { sanitize racecheck ${SANITIZED:-tests/ops tests/stats} -k "$subset"; }
# Tests that a change of the kernels of a step can break.
step_operator_tests() {
    TESTS="tests/ops tests/training/test_cuda.py tests/training/test_devices.py tests/training/test_qat.py tests/cpp" step_tests
}
# Muon and rows that are updated late: all of their tests.
step_optimizer_sanitized() {
    local tool failed=0
    for tool in memcheck racecheck; do
        SECONDS_TO_SANITIZE=${SECONDS_TO_SANITIZE:-100} sanitize "$tool" tests/ops/test_muon_kernels.py tests/ops/test_late_rows_on_gpus.py || failed=1
    done
    return "$failed"
}
step_training() {
    both_precisions reference_sfnnv5 data.batch_size=16384 && both_precisions reference_sfnnv5 data.batch_size=65536 &&
        both_precisions reference_sfnnv16 data.batch_size=16384 && both_precisions buckets data.batch_size=16384 &&
        both_precisions simple data.batch_size=16384 model.hidden=1024
}
# SFNNv18 and v16 beside v17, of whose rates they are fractions.
step_qat_training() {
    local net
    for net in sfnnv16 sfnnv17 sfnnv18; do
        train "$net" data.batch_size=16384 training.precision=mixed --qat --name "$net-qat" || return
    done
}
step_whole_runs() {
    python3 benchmarks/whole_runs.py --data "$positions" --validation "${VALIDATION:-samples/val.binpack}" --out "$out"
}
step_timeline() { python3 benchmarks/step_timeline.py 'data.filters={}' data.batch_size=16384 --data "$positions" --out "$out"; }
# VALIDATION: held-out positions to compare losses on.
step_precision() {
    python3 benchmarks/precision.py --name quickstart --seeds 6 --out "$out" training.device=cuda
    python3 benchmarks/precision.py --config configs/reference_sfnnv5.yaml --name 100M --seeds 3 --out "$out" 'data.filters={}' \
        "data.train=[$positions]" "data.validation=[${VALIDATION:-samples/val.binpack}]" data.batch_size=16384 \
        training.epochs=10 training.positions_per_epoch=10000000
}
step_portable_training() {
    # In a folder of their own: the results have the same names.
    NNUE_CUDA_KERNELS=portable out="$out/portable" both_precisions reference_sfnnv5 data.batch_size=16384
}
step_transformer() {
    python3 benchmarks/feature_transformer/run.py --data "$positions" --out "$out" &&
        python3 benchmarks/feature_transformer/bytes.py --data "$positions" --out "$out"
    python3 benchmarks/feature_transformer_op.py --device cuda --data "$positions" --out "$out"
}
step_stacks() { python3 benchmarks/layer_stacks.py --out "$out"; }
step_qat_stacks() { python3 benchmarks/layer_stacks.py --qat --out "$out"; }
step_optimizer() { python3 benchmarks/optimizer.py --device cuda --out "$out"; }
step_expand() { python3 benchmarks/expand_features.py --device cuda --data "$positions" --copies 16 --out "$out"; }
step_own_sets() { python3 benchmarks/own_feature_sets.py --device cuda --data "$positions" --out "$out"; }
step_windows() { python3 benchmarks/rolling.py --device cuda --out "$out"; }
step_matrix() { python3 benchmarks/matrix.py --device cuda --out "$out"; }
step_graph() { python3 benchmarks/graph.py --device cuda --out "$out"; }
# With 1, 2, 4, … of the GPUs that are there.
step_several() {
    python3 benchmarks/several_gpus.py --data "$positions" --out "$out" --minutes "${MINUTES:-7}" 'data.filters={}' \
        data.batch_size=16384 data.shuffle_buffer=1000000 training.precision=mixed
}
# shellcheck disable=SC2086  # PYTEST may be several words
step_several_tests() {
    python3 -m pytest -q tests/parallel/test_several_gpus.py tests/training/test_devices.py tests/ops/test_perspectives.py \
        ${PYTEST:-} -p no:cacheprovider -m two_gpus --durations 8
}

if [ $# -gt 0 ]; then steps=("$@"); fi
if [ "${steps[*]}" = session ]; then steps=("${session[@]}"); fi
for step in "${steps[@]}"; do
    declare -F "step_$step" >/dev/null || { echo "no step $step; there are: $(declare -F | sed -n 's/.* step_//p' | paste -s -d ' ')"; exit 2; }
done

# Runs a step in a process group of its own, and stops all of it when the time is up.
limited() { # step
    local seconds=$((LIMIT - SECONDS)) pid timer status=0
    [ "$seconds" -gt 0 ] || return 124
    set -m
    "step_$1" &
    pid=$!
    (sleep "$seconds" && echo "stopped after $seconds s: LIMIT" && kill -TERM -- "-$pid" && sleep 5 && kill -KILL -- "-$pid") 2>/dev/null &
    timer=$!
    set +m
    wait "$pid" || status=$?
    kill -- "-$timer" 2>/dev/null && wait "$timer" 2>/dev/null
    return "$status"
}
run() { if [ "${LIMIT:-0}" -gt 0 ] && [ "${DRY:-0}" = 0 ]; then limited "$1"; else "step_$1"; fi; }

failed=()
for step in "${steps[@]}"; do
    begin=$SECONDS
    printf '\n######## %s\n' "$step"
    # Lines of `several` are printed as they come, since it takes minutes.
    if [ "$step" = several ] || [ "${DRY:-0}" = 1 ]; then
        run "$step" 2>&1 | tee "$out/$step.log" || failed+=("$step")
    else
        run "$step" >"$out/$step.log" 2>&1 || failed+=("$step")
        tail -n "${TAIL:-12}" "$out/$step.log"
    fi
    echo "######## $step: $((SECONDS - begin)) s"
    [ -z "${PACK:-}" ] || tar -czf "$PACK" -C "$out" .
done
[ ${#failed[@]} -eq 0 ] || { echo "FAILED: ${failed[*]}"; exit 1; }
echo "all steps passed"
