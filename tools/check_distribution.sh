#!/usr/bin/env bash
# Checks dist/ with the usual tools for packages, in the version numbers below, which it installs in build/checkers. Tried
# on 2026-11-28; pyroma misses the address of a project page and of an author, which do not exist yet.
set -euo pipefail
cd "$(dirname "$0")/.."
environment=build/checkers
[ -x "$environment/bin/zizmor" ] || {
    "${PYTHON:-python3}" -m venv "$environment"
    "$environment/bin/pip" install --disable-pip-version-check --quiet twine==7.0.0 check-wheel-contents==0.6.3 \
        pyroma==5.0.1 check-manifest==0.51 zizmor==1.32.0 'setuptools>=77'
}
export NNUE_NO_EXTENSIONS=1  # pyroma and check-manifest build metadata
"$environment/bin/twine" check --strict dist/*
"$environment/bin/check-manifest" --no-build-isolation
"$environment/bin/pyroma" --min=9 .
"$environment/bin/zizmor" --offline --quiet .github/workflows
for wheel in dist/*.whl; do
    # W002: equal files, which are the empty __init__.py
    "$environment/bin/check-wheel-contents" --ignore W002 "$wheel"
done
