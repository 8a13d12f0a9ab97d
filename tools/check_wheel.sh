#!/usr/bin/env bash
# Checks the wheel in dist/: its parts, its size, no paths of this machine, and training and export in a fresh
# environment without a compiler.
set -euo pipefail
cd "$(dirname "$0")/.."
wheel=$(ls -t dist/torch_nnue-*.whl | head -n 1)
grep -q -- "-manylinux_2_35_$(uname -m)\.whl$" <<<"$wheel" || { echo "$wheel: no tag manylinux_2_35: make wheel sets it"; exit 1; }
# The whole list first: `grep -q` behind a pipe would end zipfile early, which pipefail reports as an error.
names=$(.venv/bin/python -m zipfile -l "$wheel")
for recipe in nnue_trainer/presets/*.yaml; do
    grep -q "$recipe" <<<"$names" || { echo "$wheel: no $recipe in it"; exit 1; }
done
for part in _ops_cpu _stats_cpu _data $([ "${FORCE_CUDA:-}" != 0 ] && command -v nvcc >/dev/null && echo _ops_cuda _stats_cuda); do
    grep -q "nnue_trainer/$part.*\.so" <<<"$names" || { echo "$wheel: no $part in it"; exit 1; }
done
for part in lib/libnnue_data.a lib/libnnue_data.so include/nnue/data.h include/nnue/operators.h include/nnue/step.h \
    include/nnue/operator_calls.h include/pipeline/loader.h cmake/nnue_trainer-config.cmake examples/libtorch/train.cpp \
    examples/engine/nnue.h examples/extending/my_net.py; do
    grep -q "nnue_trainer/$part" <<<"$names" || { echo "$wheel: no $part in it"; exit 1; }
done
bytes=$(stat -c %s "$wheel")
limit=$((17 << 20)) # of which 1 MB is code for compute capability 7.5
[ "$bytes" -le "$limit" ] || { echo "$wheel: $bytes bytes, expected at most $limit"; exit 1; }
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
# Isolated: a fresh environment with this wheel, a PATH without a compiler, an empty home. Not isolated: torch and the
# other packages that the wheel needs come from .venv, since downloading them takes minutes. Only its installed packages
# are found: the line for this checkout, in a .pth file there, is not read.
checkout=$PWD
.venv/bin/python -m venv --without-pip "$place/venv"
packages=$("$place/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
.venv/bin/pip --python "$place/venv/bin/python" install --disable-pip-version-check --quiet --no-deps --no-index "$wheel"
.venv/bin/python -c 'import sys, pathlib; print(*sorted({str(p) for p in map(pathlib.Path, sys.path) if p.name == "site-packages"}), sep="\n")' >"$packages/borrowed.pth"
# Paths of the build machine would appear in users' error messages.
for library in "$packages"/nnue_trainer/*.so; do
    paths=$(strings -n 6 "$library" | grep -E '(^|[^A-Za-z0-9_.])/(home|root|work|tmp|build|opt|usr/(src|local))/' | head -n 3 || true)
    [ -z "$paths" ] || { echo "$wheel: $(basename "$library") holds paths of this machine: $paths"; exit 1; }
    ! readelf -S "$library" | grep -qE '\.(symtab|debug_info)' || { echo "$wheel: $(basename "$library") is not stripped"; exit 1; }
    # The newest symbols that manylinux_2_35 allows, the tag of the wheel.
    for family in GLIBC:2.35 GLIBCXX:3.4.30; do
        newest=$(readelf -V "$library" | { grep -oE "${family%:*}_[0-9.]+" || true; } | sed 's/.*_//' | sort -uV | tail -n 1)
        [ "$(printf '%s\n' "${newest:-0}" "${family#*:}" | sort -V | tail -n 1)" = "${family#*:}" ] || {
            echo "$wheel: $(basename "$library") needs ${family%:*} $newest, expected at most ${family#*:}"
            exit 1
        }
    done
done
mkdir "$place/run"
cd "$place/run"
alone() { env -i PATH="$place/venv/bin" HOME="$place/run" LANG=C.UTF-8 "$@"; }
alone python - "$packages" <<'PY'
import shutil
import sys, torch, nnue_trainer
assert nnue_trainer.__file__.startswith(sys.argv[1]), nnue_trainer.__file__
layer = nnue_trainer.FeatureTransformer(10, 8)
out = layer(torch.tensor([[1, 2, -1]], dtype=torch.int32))
expected = layer.bias + layer.weight[1] + layer.weight[2]
assert torch.allclose(out[0], expected), (out, expected)
for program in ("cc", "c++", "gcc", "g++", "clang", "nvcc", "make", "ninja"):
    assert shutil.which(program) is None, f"{program} is on PATH"
print("the installed wheel computes", tuple(out.shape))
PY
alone nnue info
alone nnue train --preset quickstart "data.train=[$checkout/samples/train.binpack]" \
    "data.validation=[$checkout/samples/val.binpack]" data.validation_positions=2000 data.shuffle_buffer=8192 model.l1=128 \
    training.epochs=1 training.positions_per_epoch=4096 --run-dir run
alone nnue export run/checkpoints/best.safetensors net.nnue
[ -s net.nnue ] || { echo "$wheel: nnue export wrote no net"; exit 1; }
echo "$wheel: $(du -h "$checkout/$wheel" | cut -f1), all parts present"
# The commands on the pages that tests run, with this package instead of the checkout; some need a compiler.
if ! "$place/venv/bin/python" -c 'import pytest, hypothesis' 2>/dev/null; then
    echo "SKIPPED: commands of the pages, as pytest is not installed (make .venv/.dev)"
    [ -z "${NNUE_REQUIRE_ALL:-}" ] || exit 1
    exit
fi
PYTHONDONTWRITEBYTECODE=1 XDG_CACHE_HOME=$place/run "$place/venv/bin/python" - "$packages" -q -p no:cacheprovider \
    "$checkout"/tests/{documents/test_code_in_documents,engine/test_documentation}.py <<'PY'
import sys, pytest, nnue_trainer
assert nnue_trainer.__file__.startswith(sys.argv[1]), nnue_trainer.__file__
sys.exit(pytest.main(sys.argv[2:]))
PY
