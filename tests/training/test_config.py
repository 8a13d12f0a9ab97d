"""Recipes: what is read, what is refused and in which words."""

from pathlib import Path

import pytest

from nnue_trainer import config, schema
from nnue_trainer.errors import UserError

MINIMAL = {"model": {"kind": "simple"}, "data": {"train": ["a.binpack"]}, "loss": {"kind": "sigmoid"}}


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def message(*overrides: str, data: object = MINIMAL) -> str:
    with pytest.raises(UserError) as caught:
        config.parse(data, overrides, "r.yaml")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_recipe_is_read_with_overrides(tmp_path):
    path = write(
        tmp_path / "r.yaml",
        "model: {kind: sfnnv5, l1: 64}\ndata: {train: [a.binpack]}\nloss: {kind: win_rate}\noptimizer: {lr: 1e-3}\n",
    )
    recipe = config.load(path, ["optimizer.eps=2e-7", "data.train=[b, c]", "schedule={kind: step, epochs: 3}"])
    assert recipe.model.l1 == 64
    assert recipe.optimizer.lr == 1e-3
    assert recipe.optimizer.eps == 2e-7
    assert recipe.optimizer.betas == (0.9, 0.999)
    assert recipe.data.train == ["b", "c"]
    assert recipe.schedule.epochs == 3


def test_a_recipe_survives_being_written(tmp_path):
    recipe = config.parse(MINIMAL, ["optimizer.lr=3e-5", "schedule={kind: cosine, final_lr: 1e-9}"])
    assert config.load(write(tmp_path / "r.yaml", config.to_yaml(recipe))) == recipe
    assert config.parse(schema.to_data(recipe)) == recipe


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("optimizer.lrr=1", "override 'optimizer.lrr=1': optimizer.lrr: unknown key (did you mean 'lr'?)"),
        ("optim.lr=1", "override 'optim.lr=1': optim: unknown key (did you mean 'optimizer'?)"),
        ("loss.zzz=1", "loss.zzz: unknown key (expected one of start_wdl, end_wdl, wdl_steps, scale, power)"),
        ("optimizer.lr=-1", "optimizer.lr: found -1, expected greater than 0"),
        ("optimizer.lr=.nan", "optimizer.lr: found NaN, expected"),
        ("loss.scale=.inf", "loss.scale: found Infinity, expected a finite number"),
        ("optimizer.lr=fast", 'optimizer.lr: found "fast", expected a valid number'),
        ("optimizer.lr='1'", 'optimizer.lr: found "1", expected a valid number'),
        ("optimizer=3", "optimizer: found 3, expected a section of keys"),
        ("optimizer.betas=[1.5, 0.9]", "optimizer.betas.0: found 1.5, expected less than 1"),
        ("optimizer.betas=[0.9]", "optimizer.betas: found [0.9], expected more items"),
        ("training.epochs=1.5", "training.epochs: found 1.5, expected a valid integer"),
        ("training.deterministic=1", "training.deterministic: found 1, expected a valid boolean"),
        ("training.device=gpu", 'training.device: found "gpu", expected text that matches'),
        ("training.precision=fp16", "training.precision: found \"fp16\", expected 'fp32', 'tf32' or 'bf16'"),
        ("data.train=[]", "data.train: found [], expected at least 1 item"),
        ("data.train=[1]", "data.train.0: found 1, expected a valid string"),
        ("schedule={kind: step}", "schedule.epochs: missing, and it has no default"),
        (
            "schedule.kind=cos",
            'schedule.kind: found "cos", expected one of constant, exponential, step, linear, cosine',
        ),
        ("schedule={gamma: 1}", "schedule.kind: missing, expected one of constant, exponential"),
        ("model.hidden=7", "override 'model.hidden=7': model.hidden: found 7, expected"),
        ("model=null", "model: found null, expected a section of keys"),
        ("training.seed=2024-99-99", "override 'training.seed=2024-99-99': month must be in 1..12"),
        ("data.train=&a [*a]", "override 'data.train=&a [*a]': Circular reference detected"),
        ("data.threads=100000", "data.threads: found 100000, expected less than or equal to 1024"),
        ("lr", "override 'lr': expected key=value, such as optimizer.lr=1e-3"),
        ("a..b=1", "override 'a..b=1': expected key=value"),
        ("optimizer.lr={", "override 'optimizer.lr={':1:2: expected the node content"),
    ],
)
def test_wrong_overrides(override, expected):
    assert expected in message(override)


def test_the_file_is_blamed_for_what_is_in_it():
    wrong = {**MINIMAL, "optimizer": {"learning_rate": 1}}
    assert message("optimizer.lr=1", data=wrong).startswith("r.yaml: optimizer.learning_rate: unknown key")
    assert message(data={**MINIMAL, "model": {"kind": "simple", "l1": 8}}).startswith("r.yaml: model.l1: unknown key")
    assert message(data={"data": {}}) == "r.yaml: model: missing, and it has no default (and 2 more)"
    assert message(data=[]) == "r.yaml: found list, expected the sections of a recipe"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\na: 2\n", "r.yaml:2:1: key 'a' is given twice"),
        ("a: [1\n", "r.yaml:2:1: expected ',' or ']'"),
        ("? [a]\n: 1\n", "r.yaml:1:3: a key must be a word"),
        ("", "r.yaml: found NoneType, expected the sections of a recipe"),
    ],
)
def test_wrong_yaml(tmp_path, text, expected):
    with pytest.raises(UserError) as caught:
        config.load(write(tmp_path / "r.yaml", text))
    assert expected in str(caught.value)


def test_unreadable_files(tmp_path):
    with pytest.raises(UserError, match=r"none\.yaml: No such file or directory"):
        config.load(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"model: \xff")
    with pytest.raises(UserError, match=r"binary\.yaml: byte 7 is not UTF-8"):
        config.load(tmp_path / "binary.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 1e-3), ("1E5", 1e5), ("-2.5e+2", -250.0), (".5", 0.5), ("3.", 3.0), ("7", 7), ("1e", "1e")],
)
def test_numbers_are_read_as_people_write_them(text, value):
    got = config._read_yaml(text, "test")
    assert got == value
    assert type(got) is type(value)


def test_every_field_is_documented():
    undocumented = [
        key for key, _, _, text in schema.describe(config.Recipe) if not text and not key.startswith("model.")
    ]
    assert undocumented == []
    reference = config.reference()
    assert "schedule.kind = cosine" in reference
    assert "data.batch_size: int > 0, ≤ 16777216 [16384]\n    positions in a step" in reference
