"""Recipes and checkpoints of the first release: read, reported, resumed to the bit."""

import logging

import pytest
import torch
from made_up import MadeUpSource, trainer

from nnue_trainer import checkpoint, config, schema
from nnue_trainer.errors import UserError
from nnue_trainer.first_release import translate_saved
from nnue_trainer.training.run import check_resumable

REST = {"model": {"kind": "simple"}, "data": {"train": ["a.binpack"]}}


@pytest.mark.parametrize(
    ("loss", "kind", "values"),
    [
        ({"kind": "win_rate", "start_lambda": 1.0, "end_lambda": 1.0}, "constant", {"value": 1.0}),
        ({"kind": "win_rate", "end_lambda": 0.75}, "linear", {"start": 1.0, "end": 0.75, "steps": None, "bump": 0.0}),
        (
            {"kind": "win_rate", "start_lambda": 0.5, "end_lambda": 0.5, "lambda_steps": 9, "lambda_bump": 0.2},
            "linear",
            {"start": 0.5, "end": 0.5, "steps": 9, "bump": 0.2},
        ),
        ({"kind": "sigmoid", "start_wdl": 0.3, "end_wdl": 0.3}, "constant", {"value": 0.7}),
        (
            {"kind": "sigmoid", "end_wdl": 0.9, "wdl_steps": 5},
            "linear",
            {"start": 1.0, "end": 0.1, "steps": 5, "bump": 0},
        ),
    ],
)
def test_lambda_has_moved_out_of_the_loss(loss, kind, values, caplog):
    with caplog.at_level(logging.WARNING):
        recipe = config.parse({**REST, "loss": loss}, (), "old.yaml")
    assert recipe.lambda_.kind == kind
    found = schema.to_data(recipe.lambda_)
    assert {key: found[key] for key in values} == values
    (note,) = [record.getMessage() for record in caplog.records]
    assert note.startswith("old.yaml: loss.")
    assert f"of the first release: read as lambda: {{kind: {kind}, " in note


def test_an_override_of_the_first_release(caplog):
    recipe = config.parse({**REST, "loss": {"kind": "win_rate"}}, ["loss.end_lambda=0.5"])
    assert recipe.lambda_.final_lambda(10, 10) == 0.5
    assert len(caplog.records) == 1


def test_a_recipe_of_today_is_told_nothing(caplog):
    config.parse({**REST, "loss": {"kind": "win_rate"}, "lambda": {"kind": "constant"}})
    assert not caplog.records


def test_keys_of_both_are_refused():
    both = {**REST, "loss": {"kind": "win_rate", "end_lambda": 0.5}, "lambda": {"kind": "constant"}}
    with pytest.raises(
        UserError, match=r"^r\.yaml: loss\.end_lambda has moved to the section lambda, which this recipe"
    ):
        config.parse(both, (), "r.yaml")


def test_wrong_values_are_still_refused():
    with pytest.raises(UserError, match=r'lambda\.start: found "x"'):
        config.parse({**REST, "loss": {"kind": "sigmoid", "start_wdl": "x"}})
    with pytest.raises(UserError, match=r"lambda\.end: found -1"):
        config.parse({**REST, "loss": {"kind": "sigmoid", "end_wdl": 2}})


def first_release(saved: checkpoint.Checkpoint) -> checkpoint.Checkpoint:
    """The checkpoint as the first release wrote it."""
    assert saved.recipe is not None
    lam = saved.recipe.pop("lambda")
    saved.recipe["loss"] |= {"start_wdl": 1 - lam["start"], "end_wdl": 1 - lam["end"], "wdl_steps": lam["steps"]}
    del saved.recipe["optimizer"]["kind"]
    saved.state.pop("plugins", None)
    return saved


def test_a_checkpoint_of_the_first_release_resumes_to_the_bit(tmp_path, capsys):
    trainer(tmp_path / "whole").train()
    path = tmp_path / "whole" / "checkpoints" / "epoch-0003.safetensors"
    old = tmp_path / "old.safetensors"
    checkpoint.save(old, first_release(checkpoint.load(path)))

    saved = checkpoint.load(old)
    capsys.readouterr()  # the output of the first run
    second = trainer(tmp_path / "parts", source=MadeUpSource())
    check_resumable(second.recipe, saved, old)
    assert capsys.readouterr().err == "", "nothing has changed but the words"
    assert config.parse(saved.recipe) == second.recipe
    second.resume(saved, old)
    second.train()
    whole, parts = (
        checkpoint.load(tmp_path / name / "checkpoints" / "last.safetensors") for name in ("whole", "parts")
    )
    for group, tensors in whole.tensors.items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, parts.tensors[group][name]), f"{group}/{name}"


def test_a_recipe_of_today_is_not_translated(tmp_path):
    data = schema.to_data(trainer(tmp_path).recipe)
    assert translate_saved(data) == data
