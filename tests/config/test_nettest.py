"""Recipes of nettest, read as recipes of ours."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import nnue
from typed import instance

from nnue_trainer import config, schema
from nnue_trainer.config import nettest
from nnue_trainer.errors import UserError
from nnue_trainer.files import presets
from nnue_trainer.losses.win_rate import WinRateLoss
from nnue_trainer.nets.stockfish_net import StockfishNet
from nnue_trainer.optim.averages.swa import Swa

# The options of the recipe of September 2026, as the specification has them; the second step halves the batch by a key
# that is spelt in another way.
RECIPE = """
training:
  steps:
    - run: &first
        resume: none
        max_epochs: 4500
        binpacks: [data/train.binpack]
        options: &options
          features: Full_Threats+PP_3Wide+HalfKAv2_hm^
          l1: 1024
          l2: 32
          optimizer-name: adamw
          epoch-size: 134217728
          batch-size: 131072
          validation-size: 268435456
          validation-data: data/validation.binpack
          random-fen-skipping: 10
          early-fen-skipping: 18
          soft-early-fen-skipping: 32
          pc-y0: -0.20
          pc-y1: 0.45
          pc-y2: 1.0
          pc-y3: 0.95
          pc-y4: 0.75
          ply-x1: 0
          ply-y1: 0.025
          ply-x2: 22
          ply-y2: 0.05
          ply-x3: 25.5
          ply-y3: 0.20
          ply-x4: 29.5
          ply-y4: 0.80
          pow-exp: 2.4340402395048404
          qp-asymmetry: 0.22866886710086187
          in-scaling: 295.6539508488627
          in-offset: 285.2706341467852
          out-scaling: 379.98724077106635
          out-offset: 289.1258344152218
          w1: 0
          w2: 0.5
          lr: 0.4e-3
          one-cycle-steps: 5108000
          one-cycle-warmup-pct: 0.05
          one-cycle-final-div: 1e3
          start-lambda: 1.0
          end-lambda: 1.0
          lambda-schedule-steps: 5052000
          lambda-cycle-delta: -0.3
          lambda-cycle-warmup-pct: 0.25
          lambda-cycle-jitter: true
          jitter-lambda-sample: 0.0035
          jitter-lambda-batch: 0.0070
          jitter-lambda-decay: 0.999
          factorized-weight-decay: 4e-5
    - run:
        <<: *first
        resume: previous_checkpoint
        max_epochs: 4750
        options:
          <<: *options
          batch_size: 65536
"""


def read(tmp_path: Path, text: str) -> tuple[config.Recipe, list[str]]:
    path = tmp_path / "threats.yaml"
    path.write_text(text, encoding="utf-8")
    data, notes = nettest.translate(config.read_yaml(path), str(path))
    return config.parse(data), notes


def test_the_published_recipe_is_the_preset(tmp_path: Path) -> None:
    found, notes = read(tmp_path, RECIPE)
    preset = config.load(presets.path("nettest"))
    ours = {"training": {"validate_every", "checkpoint_every"}, "data": {"shuffle_buffer"}}
    for one, other in zip(config.stage_recipes(found), config.stage_recipes(preset), strict=True):
        a, b = schema.to_data(one), schema.to_data(other)
        for section, keys in ours.items():
            for key in keys:
                a[section].pop(key), b[section].pop(key)
        for section in ("model", "data", "loss", "lambda", "optimizer", "training"):
            assert a[section] == b[section], section
        assert a["schedule"].keys() == b["schedule"].keys()
        for key in ("kind", "steps", "rise", "warmup_steps", "stairs"):
            assert a["schedule"][key] == b["schedule"][key]
        assert a["schedule"]["start_lr"] == pytest.approx(1.6e-5)
        assert a["schedule"]["final_lr"] == pytest.approx(1.6e-8)
    assert found.stages[1].carry == "optimizer"
    assert notes == []


@pytest.mark.parametrize("seed", ["9007199254740993", "'9007199254740993'"])
def test_seeds_are_read_exactly(tmp_path: Path, seed: str) -> None:
    step = f"{{run: {{max_epochs: 1, binpacks: [a.binpack], options: {{seed: {seed}, l1: 1.024e3}}}}}}"
    found, _ = read(tmp_path, f"training: {{steps: [{step}]}}")
    assert found.training.seed == 2**53 + 1
    assert schema.to_data(found.model)["l1"] == 1024


@pytest.mark.parametrize("before", ["--lr, '0.1'", "--lr=0.1", "--lr 0.1"])
def test_a_flag_has_one_value(tmp_path: Path, before: str) -> None:
    step = f"{{run: {{max_epochs: 1, binpacks: [a.binpack], options: [{before}, stray]}}}}"
    with pytest.raises(UserError, match=r"step 1: options: found .stray., expected a flag, such as --lr=0\.001"):
        read(tmp_path, f"training: {{steps: [{step}]}}")


def test_steps_that_repeat_the_last_one(tmp_path: Path) -> None:
    text = """
training:
  steps:
    - run:
        resume: none
        max_epochs: 10
        binpacks: [a.binpack]
        other_options:
          - --features=Full_Threats+HalfKAv2_hm^
          - --l1=1024
          - --l2=31
          - --batch-size=65536
          - --start-lambda=1.0
          - --end-lambda=0.75
          - --swa-start-epoch=8
          - --factorized-weight-decay=1e-3
          - --optimizer-name=rangerlite
    - <repeat_last>:
        run:
          resume: previous_model
          binpacks: [b.binpack, c.binpack]
          other_options: [--lr=0.001, --pow-exp=2.44]
    - <repeat_last>:
"""
    found, _ = read(tmp_path, text)
    first, second, third = config.stage_recipes(found)
    assert first.model.kind == "sfnnv14.1"
    assert (first.data.train, second.data.train, third.data.train) == (["a.binpack"], *[["b.binpack", "c.binpack"]] * 2)
    assert (first.optimizer.lr, second.optimizer.lr, third.optimizer.lr) == (8.75e-4, 0.001, 0.001)
    assert instance(WinRateLoss, second.loss).power == 2.44
    assert first.average == Swa(start_epoch=8)
    assert found.average is None
    assert schema.to_data(first.optimizer)["stable_decay"]
    assert schema.to_data(third.lambda_)["end"] == 0.75
    assert [stage.carry for stage in found.stages] == ["weights"] * 3
    assert first.training.positions_per_epoch == 1525 * 65536


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "threats.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    output = nnue("config", "--from", path, "model.l1=128")
    assert "fc0.weight" in output
    (tmp_path / "ours.yaml").write_text(output, encoding="utf-8")
    assert instance(StockfishNet, config.load(tmp_path / "ours.yaml").model).l1 == 128
    for text, message in (
        ("a: 1", "training.steps: found nothing, expected the steps of a nettest recipe"),
        ("training: {steps: [{<repeat_last>: }]}", "step 1: <repeat_last>, but there is no step before it"),
        ("training: {steps: [{run: {options: {features: X}}}]}", "step 1: features 'X', expected one of Full_Thr"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=message):
            nnue("config", "--from", path)


def steps(*options: object, **run: object) -> dict[str, Any]:
    return {"training": {"steps": [{"run": {"binpacks": ["a.binpack"], "options": each, **run}} for each in options]}}


def test_flags_and_their_values_in_every_form_of_a_command_line() -> None:
    forms = [
        ["--lr=0.002", "--l1=512", "--no-filtered", "--pc-y0=-0.2", "--validation-data=my data/v.binpack"],
        ["--lr", "0.002", "--l1", 512, "--no_filtered", "--pc-y0", "-0.2", "--validation-data", "my data/v.binpack"],
        ["--lr 0.002", "--l1 512", "--no-filtered=true", "--pc_y0 -0.2", "--validation-data my data/v.binpack"],
        {"lr": "2e-3", "l1": "512", "no-filtered": True, "pc-y0": -0.2, "validation-data": "my data/v.binpack"},
    ]
    found = [nettest.translate(steps(form), "x") for form in forms]
    assert found[0][0]["optimizer"]["lr"] == 0.002
    assert found[0][0]["data"]["validation"] == ["my data/v.binpack"]
    assert all(each == found[0] for each in found)


def test_a_recipe_with_any_wrong_value_is_refused_in_one_line() -> None:
    """None of these is an internal error, and none is read as another value."""
    whole = yaml.safe_load(RECIPE)
    options = whole["training"]["steps"][0]["run"]["options"]
    texts = {"features", "optimizer-name", "validation-data"}
    wrong_values: tuple[object, ...] = ("many", [1], {}, None, math.nan, "inf", "")
    for name in options.keys() - texts:
        for value in wrong_values:
            with pytest.raises(UserError, match=rf"^x: step 1: {name}: found .*, expected (a number|true or false)"):
                nettest.translate(steps(options | {name: value}), "x")
    for wrong, message in (
        (steps(["--lr"]), "step 1: lr: found 'True', expected a number"),
        (steps(["0.002"]), "options: found '0.002', expected a flag"),
        (steps({"batch-size": 0}), "batch-size: found '0', expected a number above 0"),
        (steps({"batch-size": 10**400}), "expected a number above 0"),
        (steps({"one-cycle-steps": 9, "one-cycle-final-div": 0}), "one-cycle-final-div: found '0'"),
        (steps({"l1": 512.5}), "l1: found 512.5, expected an integer"),
        (steps({}, max_epochs="long"), "max_epochs: found 'long'"),
        (steps({}, binpacks=7), "binpacks: found '7', expected a list of files"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            nettest.translate(wrong, "x")
    assert nettest.translate(steps({}, binpacks="one.binpack"), "x")[0]["data"]["train"] == ["one.binpack"]
