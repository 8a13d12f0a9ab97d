"""From a recipe into an engine, for nets that public descriptions of engines have: two epochs of training, export,
`nnue eval` and `nnue.h`, which give the same scores, and the raw file read back."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from command import nnue
from inference_support import built, positions, program_scores, scores
from small_runs import split_sample, written

pytestmark = pytest.mark.compiler

BUCKETS = [0, 1, 2, 3] + [4, 4, 5, 5] + [6] * 8 + [7] * 16
FLOATS = {"type": "f32", "activation": "crelu"}
# By a property of an engine: the net, and the format of its raw file.
ENGINES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "relu without an upper clip": (
        {"hidden": 32, "activation": "crelu", "quantisation": {"first": {"scale": 64, "clip": 32767, "limit": 2000}}},
        {},
    ),
    "qa 256, squares, bullet's padding": (
        {"hidden": 48, "quantisation": {"first": {"scale": 256}}, "output_buckets": {"count": 8, "rule": "bullet"}},
        {"padding": "bullet"},
    ),
    "weights beyond two, bytes in front": (
        {"hidden": 40, "quantisation": {"first": {"limit": 8000}, "output": {"limit": 8000}}},
        {"skip": 128},
    ),
    "floats behind bytes": (
        {
            "hidden": 64,
            "activation": "pairwise",
            "layers": [
                {"outputs": 16, "activation": "dual", "type": "i8", "bias_type": "f32"},
                {"outputs": 32, **FLOATS},
            ],
            "quantisation": {"first": {"product_shift": 9}, "output": {"type": "f32"}},
            "output_buckets": {"count": 4, "rule": "weights", "weights": [0, 1, 1, 2, 4]},
        },
        {},
    ),
    "enemy planes first, king buckets": (
        {"inputs": {"kings": BUCKETS, "mirror": "a-d", "order": "enemy-first"}, "hidden": 32},
        {},
    ),
    "white's view only": ({"hidden": 32, "perspectives": "white", "activation": "crelu"}, {}),
    "the mover's view, floats only": (
        {
            "hidden": 32,
            "perspectives": "mover",
            "activation": "crelu",
            "layers": [{"outputs": 8, **FLOATS}],
            "quantisation": {"output": {"type": "f32"}},
        },
        {"skip": 7, "align": 1},
    ),
}


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("engine", ENGINES)
def test_from_a_recipe_into_an_engine(engine: str, project_root: Path, tmp_path: Path) -> None:
    model, raw = ENGINES[engine]
    folder = split_sample(project_root, tmp_path, 2_000, 250)
    recipe = written(tmp_path / "r.yaml", folder, model={"kind": "layered", **model}, training={"epochs": 2})
    nnue("train", "--config", recipe, "--run-dir", tmp_path / "run")
    nnue("export", tmp_path / "run", tmp_path / "net.nnue")
    form = tmp_path / "raw.yaml"
    form.write_text(yaml.safe_dump({"kind": "raw", **raw}))
    net = tmp_path / "net.bin"
    nnue("export", tmp_path / "run", net, "--format", form, "--header")
    fens = positions("val.binpack", 200, tmp_path / "fens.txt")
    expected = scores(tmp_path / "net.nnue", fens)
    assert len(set(expected)) > 20
    assert program_scores(built("eval", net, "-O1 -march=native"), net, fens) == expected

    form.write_text(yaml.safe_dump({"kind": "raw", **raw, "model": {"kind": "layered", **model}}))
    nnue("import", net, tmp_path / "again.safetensors", "--format", form)
    nnue("export", tmp_path / "again.safetensors", tmp_path / "again.bin", "--format", form)
    assert (tmp_path / "again.bin").read_bytes() == net.read_bytes()
