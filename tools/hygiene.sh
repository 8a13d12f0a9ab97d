#!/usr/bin/env bash
# Finds files that must never be committed: build products, big files, paths of somebody's machine, pickled tensors.
set -euo pipefail
cd "$(dirname "$0")/.."
bad=0
complain() { echo "hygiene: $1"; bad=1; }

paths=$(git grep -nIE '(^|[^A-Za-z0-9_.$/-])/(work|farm|root|home)/[A-Za-z]' -- . ':!tools/hygiene.sh' || true)
[ -z "$paths" ] || complain "paths of a machine:
$paths"
hosts=$(git grep -nIE 'pypi\.org|pythonhosted|download\.pytorch|deb\.debian\.org' -- . ':!tools/hygiene.sh' || true)
[ -z "$hosts" ] || complain "a package registry's host:
$hosts"
big=$(git ls-files -z | xargs -0 -r du -k 2>/dev/null | awk '$1 > 4096' || true)
[ -z "$big" ] || complain "files over 4 MiB:
$big"
products=$(git ls-files -- '*.so' '*.o' '*.whl' '*.nnue' '*.pyc' '*.pt' '*.pkl' || true)
[ -z "$products" ] || complain "build products:
$products"
# A compiler's a.out has no extension; every committed program is a script.
programs=$(git ls-files -s | awk '$1 == 100755' | cut -f 2 | while read -r file; do
    [ ! -e "$file" ] || head -c 2 "$file" | grep -q '^#!' || echo "$file"
done)
[ -z "$programs" ] || complain "executable files that are no scripts:
$programs"
# Behind `#pragma GCC target` these are not defined where a compiler gets preprocessed text, as from ccache.
levels=$(git grep -nE '\b__(AVX[A-Z0-9_]*|BMI2?|FMA|SSE[0-9_]*)__\b' -- data_loader csrc ':!*kernels_x86.h' || true)
[ -z "$levels" ] || complain "an instruction set taken from the compiler's macros (see pipeline/kernels_x86.h):
$levels"
pickles=$(git grep -nE '\bpickle\.load|torch\.load\(' -- '*.py' | grep -v 'weights_only=True' || true)
[ -z "$pickles" ] || complain "pickle from disk:
$pickles"
# English and long functions: tools of their own, which print what to do. Spelling where codespell is installed.
python=.venv/bin/python
[ -x "$python" ] || python=python3
prose=$("$python" tools/prose.py) || complain "English (tools/prose.py):
$prose"
long=$("$python" tools/long_functions.py) || complain "long functions (tools/long_functions.py):
$long"
if [ -x .venv/bin/codespell ]; then
    words=$(git ls-files '*.md' '*.py' '*.h' '*.c' '*.cpp' '*.cu' '*.cuh' '*.sh' '*.yaml' '*.yml' '*.toml' | xargs .venv/bin/codespell) ||
        complain "spelling:
$words"
fi
# REUSE-IgnoreStart: the patterns below are no licence of this file.
licences=$(git grep -nI 'SPDX-License-Identifier:' -- . ':!tools/hygiene.sh' | grep -v 'SPDX-License-Identifier: MIT' || true)
[ -z "$licences" ] || complain "a licence other than MIT:
$licences"
grep -q '^path = "\*\*"' REUSE.toml && grep -q '^SPDX-License-Identifier = "MIT"' REUSE.toml || complain "REUSE.toml does not cover every file"
for file in examples/engine/{nnue.h,nnue.rs,engine.c}; do
    grep -q "^// SPDX-License-Identifier: MIT" "$file" || complain "$file has no licence, and users copy it"
done
# REUSE-IgnoreEnd
[ "$bad" -eq 0 ] && echo "hygiene: clean"
exit "$bad"
