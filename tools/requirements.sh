#!/usr/bin/env bash
# Writes requirements/*.txt: the packages of requirements/*.in and their dependencies, pinned with hashes. Pinned versions
# stay if they still fit; --upgrade takes the newest. torch and its dependencies are left out: torch.txt pins torch.
set -euo pipefail
cd "$(dirname "$0")/../requirements"
bin=$(realpath "${BIN:-../.venv/bin}")
command -v "$bin/uv" >/dev/null || "$bin/pip" install --disable-pip-version-check --quiet uv==0.9.30
without_torch=$(mktemp)
trap 'rm -f "$without_torch"' EXIT
printf 'torch ; python_version < "3"\n' >"$without_torch"
options=(--universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --overrides "$without_torch")
options+=(--custom-compile-command "tools/requirements.sh" --quiet "$@")
for name in build runtime dev docs mike; do
    constraints=()
    [ "$name" = build ] || constraints=(-c build.txt)
    [ "$name" = runtime ] || [ "$name" = build ] || constraints+=(-c runtime.txt)
    "$bin/uv" pip compile "$name.in" -o "$name.txt" "${options[@]}" "${constraints[@]}"
    echo "requirements/$name.txt: $(grep -c '==' "$name.txt") packages"
done
