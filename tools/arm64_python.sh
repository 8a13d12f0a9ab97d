#!/usr/bin/env bash
# Makes a folder with a Python for arm64 that runs under qemu-user, for tools/arm64.sh: Debian's Python 3.11, and torch
# 2.10, whose package for arm64 is without CUDA. 300 MB of downloads; needs debootstrap (and root for it).
# Arguments: the folder; the folder of pip.
set -euo pipefail
folder=$(realpath -m "$1")
bin=$(realpath "${2:-$(dirname "$0")/../.venv/bin}")
mkdir -p "$folder"
debootstrap --foreign --arch=arm64 --variant=minbase --include=python3,python3-dev,libgfortran5 bookworm "$folder/debian" >"$folder/log"
# Only the files: nothing of the system is configured or started.
for package in "$folder"/debian/var/cache/apt/archives/*.deb; do dpkg-deb -x "$package" "$folder/debian"; done

# pip would read the conditions of dependencies as those of this processor, so all packages are named.
packages=(torch==2.10.0 numpy safetensors pydantic pydantic-core annotated-types typing-inspection typing-extensions pyyaml)
packages+=(sympy mpmath networkx jinja2 markupsafe fsspec filelock typer rich pygments markdown-it-py mdurl shellingham zstandard)
platforms=(--platform manylinux_2_28_aarch64 --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 --platform any)
"$bin/pip" install --disable-pip-version-check --quiet --no-deps --only-binary :all: --python-version 3.11 \
    "${platforms[@]}" --target "$folder/site" "${packages[@]}"
echo "arm64: Python in $folder"
