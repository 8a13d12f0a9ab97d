"""Recipes of several stages: what a stage changes and takes over, and that a stop anywhere changes nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from command import nnue
from small_runs import last, split_sample, written
from typed import present

from nnue_trainer import config
from nnue_trainer.errors import UserError
from nnue_trainer.files import checkpoint, presets
from nnue_trainer.training import run as runs
from nnue_trainer.training.assembly import idle_averages, stages_of
from nnue_trainer.training.trainer import Trainer

STAGES: list[dict[str, Any]] = [
    {"name": "first", "training": {"epochs": 2}},
    {"name": "second", "carry": "optimizer", "training": {"epochs": 1}, "data": {"batch_size": 125}},
    {
        "name": "third",
        "take": "best",
        "training": {"epochs": 2},
        "optimizer": {"kind": "ranger_lite", "lr": 0.001},
        "schedule": {"kind": "one_cycle", "start_lr": 1e-4, "final_lr": 1e-5},
        "lambda": {"kind": "constant", "value": 0.5, "batch_jitter": 0.1},
        "data": {"filters": {"piece_counts": True}, "weights": [2.0]},
    },
]


@pytest.fixture(scope="module")
def data(project_root, tmp_path_factory) -> Path:
    return split_sample(project_root, tmp_path_factory.mktemp("positions"), 4_000, 500)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory, data) -> Path:
    """Stages of 2 epochs of 4 steps, 1 epoch of 8 steps and 2 epochs of 4 steps."""
    tmp_path = tmp_path_factory.mktemp("recipe")
    sections = {"schedule": {"kind": "cosine", "final_lr": 0.0}, "lambda": {"kind": "linear", "end": 0.5}}
    path = written(tmp_path / "mine.yaml", data, training={"keep_last": 99}, **sections)
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"stages": STAGES}))
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory, recipe) -> Path:
    """The run that nothing ended."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    nnue("train", "--config", recipe, "--run-dir", folder)
    return folder


def contents(folder: Path) -> dict[str, Any]:
    """Tensors and state of every checkpoint, and the metrics without times."""
    found: dict[str, Any] = {}
    for path in sorted((folder / "checkpoints").iterdir()):
        saved = checkpoint.load(path)
        found[path.name] = saved
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    measured = {"time", "positions_per_second", "run_positions_per_second", "peak_memory_bytes"}
    found["metrics"] = [{key: value for key, value in record.items() if key not in measured} for record in metrics]
    return found


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    assert one["metrics"] == other["metrics"]
    for name in one.keys() - {"metrics"}:
        a, b = one[name], other[name]
        assert {k: v for k, v in a.state.items() if k != "environment"} == {
            k: v for k, v in b.state.items() if k != "environment"
        }, name
        for group, tensors in a.tensors.items():
            for key, tensor in tensors.items():
                assert torch.equal(tensor, b.tensors[group][key]), f"{name}: {group}/{key}"


def test_places_of_stages(recipe: Path) -> None:
    first, second, third = stages_of(config.load(recipe))
    assert [(s.first_step, s.end, s.first_epoch, s.first_positions) for s in (first, second, third)] == [
        (0, 8, 0, 0),
        (8, 16, 2, 2000),
        (16, 24, 3, 3000),
    ]
    # The second continues to count, the third begins again.
    assert [s.now(s.first_step).step for s in (first, second, third)] == [0, 8, 0]
    assert [s.now(s.first_step).epoch for s in (first, second, third)] == [0, 2, 0]
    assert [s.now(s.first_step).steps for s in (first, second, third)] == [16, 16, 8]
    assert len({s.recipe.training.seed for s in (first, second, third)}) == 3
    assert first.jitter_seed == second.jitter_seed != third.jitter_seed


def test_a_run_of_stages(tmp_path: Path, recipe: Path) -> None:
    folder = tmp_path / "run"
    output = nnue("train", "--config", recipe, "--run-dir", folder)
    assert "finished step 24 of 24" in output
    assert "stage 2/3 second: simple" in output
    assert f"from the weights and optimizer of {folder / 'checkpoints' / 'last.safetensors'}" in output
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    trained = {record["step"]: record for record in records if record["event"] == "train"}
    assert list(trained) == list(range(2, 25, 2))
    assert [trained[step]["epoch"] for step in (8, 10, 16, 18, 24)] == [2, 3, 3, 4, 5]
    assert [trained[step]["positions"] for step in (8, 10, 16, 24)] == [2000, 2250, 3000, 5000]
    assert trained[10]["lambda"] == pytest.approx(1 - 0.5 * 9 / 16)
    assert trained[24]["lambda"] == 0.5
    saved = last(folder)
    assert len(present(saved.recipe)["stages"]) == 3
    assert {path.stem for path in (folder / "checkpoints").glob("stage-*")} == {"stage-first", "stage-second"}
    second = checkpoint.load(folder / "checkpoints" / "stage-second.safetensors")
    assert {int(t) for name, t in second.tensors["optimizer"].items() if name.startswith("step/")} == {16}
    assert {int(t) for name, t in saved.tensors["optimizer"].items() if name.startswith("step/")} == {8}


def test_a_stage_continues_from_the_best_with_its_optimizer(tmp_path: Path, recipe: Path, monkeypatch) -> None:
    """The second of the two epochs is worse than the first."""
    losses = iter([0.1, 0.3, 0.2])
    monkeypatch.setattr(Trainer, "validate", lambda self: next(losses))
    stages = [STAGES[0], {"name": "second", "take": "best", "carry": "optimizer", "training": {"epochs": 1}}]
    folder = tmp_path / "run"
    output = nnue("train", "--config", recipe, "--run-dir", folder, f"stages={json.dumps(stages)}")
    assert f"from the weights and optimizer of {folder / 'checkpoints' / 'best.safetensors'}" in output
    saved = last(folder)
    assert saved.state["step"] == 12
    assert {int(t) for name, t in saved.tensors["optimizer"].items() if name.startswith("step/")} == {8}


@pytest.mark.parametrize("kept", [1, 99])
def test_an_added_stage_that_needs_the_optimizer_of_best(tmp_path: Path, recipe: Path, monkeypatch, kept: int) -> None:
    """`best` has none in a run that began without the stage. Where the epoch is kept it gets one; elsewhere the resume
    ends before it trains."""
    losses = iter([0.1, 0.3, 0.2])
    monkeypatch.setattr(Trainer, "validate", lambda self: next(losses))
    folder = tmp_path / "run"
    run = ["train", "--config", recipe, "--run-dir", folder, f"training.keep_last={kept}", "--resume", "auto"]
    nnue(*run, f"stages={json.dumps(STAGES[:1])}")
    added = [STAGES[0], {"name": "second", "take": "best", "carry": "optimizer", "training": {"epochs": 1}}]
    before = (folder / "metrics.jsonl").read_bytes()
    if kept == 1:
        with pytest.raises(UserError, match=r"best\.safetensors: found no state of the optimizer, which stage second"):
            nnue(*run, f"stages={json.dumps(added)}")
        assert (folder / "metrics.jsonl").read_bytes() == before
        return
    output = nnue(*run, f"stages={json.dumps(added)}")
    assert f"from the weights and optimizer of {folder / 'checkpoints' / 'best.safetensors'}" in output
    assert {int(t) for name, t in last(folder).tensors["optimizer"].items() if name.startswith("step/")} == {8}


def test_max_time_is_of_all_stages(tmp_path: Path, recipe: Path, monkeypatch) -> None:
    """A stage does not begin to count anew; a resumed run does."""
    clock, advance = [0.0], Trainer.advance

    def hour(self: Trainer) -> None:
        advance(self)
        clock[0] += 3600.0

    now = time.monotonic
    monkeypatch.setattr(Trainer, "advance", hour)
    monkeypatch.setattr(time, "monotonic", lambda: now() + clock[0])
    folder = tmp_path / "run"
    for steps in (10, 20):
        nnue("train", "--config", recipe, "--run-dir", folder, "--resume", "auto", "training.max_time=9.5")
        assert last(folder).state["step"] == steps


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 8, 9, 16, 17, 23])
def test_a_stop_in_any_stage_changes_nothing(tmp_path: Path, recipe: Path, whole: Path, monkeypatch, step: int) -> None:
    parts = tmp_path / "parts"
    advance = Trainer.advance

    def stopping(self: Trainer) -> None:
        advance(self)
        if self.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "advance", stopping)
        nnue("train", "--config", recipe, "--run-dir", parts)
    assert last(parts).state["step"] == step
    nnue("train", "--resume", parts)
    assert_same(contents(parts), contents(whole))


@pytest.mark.parametrize("border", [1, 2])
@pytest.mark.parametrize("where", ["before the stage's checkpoint", "after it"])
def test_a_kill_at_a_border_changes_nothing(
    tmp_path: Path, recipe: Path, whole: Path, monkeypatch, border: int, where: str
) -> None:
    class Killed(BaseException):
        pass

    parts = tmp_path / "parts"
    name, original = ("_border", runs._border) if where.startswith("before") else ("_train_stage", runs._train_stage)

    def killed(stage: Any, *arguments: Any) -> Any:
        if stage.index == border - (name == "_border"):
            raise Killed
        return original(stage, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(runs, name, killed)
        with pytest.raises(Killed):
            runs.train(config.load(recipe), parts)
    nnue("train", "--resume", parts)
    assert_same(contents(parts), contents(whole))


def test_going_back_into_an_earlier_stage_keeps_what_came_after(tmp_path: Path, recipe: Path, whole: Path) -> None:
    again = tmp_path / "again"
    nnue("train", "--config", recipe, "--run-dir", again)
    output = nnue("train", "--resume", again / "checkpoints" / "epoch-0001.safetensors")
    assert "records and checkpoints after step 4 are kept" in output
    kept = again / "superseded-1" / "checkpoints"
    assert {path.stem for path in kept.glob("stage-*")} == {"stage-first", "stage-second"}
    found, expected = contents(again), contents(whole)
    assert_same(found, expected)


def test_one_stage_by_itself(tmp_path: Path, recipe: Path) -> None:
    output = nnue("train", "--config", recipe, "--run-dir", tmp_path / "run", "--stage", "third")
    assert "finished step 8 of 8" in output
    assert present(last(tmp_path / "run").recipe)["optimizer"]["kind"] == "ranger_lite"
    with pytest.raises(UserError, match="stage 'fourth': found first, second, third, expected one of them"):
        nnue("train", "--config", recipe, "--run-dir", tmp_path / "other", "--stage", "fourth")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stages.second.data.batch_siz=3", "stage second: data.batch_siz: unknown key .did you mean 'batch_size'"),
        ("stages.1.training.epochs=0", "stage second: training.epochs: found 0, expected greater than 0"),
        ("stages.second.model.hidden=32", "stage second: model: found other values, expected only changes of model.qu"),
        ("stages.second.training.seed=3", "stage second: training.seed belongs to the whole run"),
        ("stages.second.name=first", "stage first: the name is given twice"),
        ("stages.second.optimizer.kind=ranger", "stage second: optimizer.kind: found 'ranger' with carry: optimizer"),
        (
            "stages.first.carry=optimizer",
            "stage first: carry: found optimizer, expected weights, as no stage comes before",
        ),
        ("stages.first.take=best", "stage first: take: found best, expected last, as no stage comes before"),
        ("data.validation=[]", "stage third: take: found best, expected last, as the stage before has no validation"),
        (
            "stages.third.data.weights=[1, 2]",
            "stage third: data.weights: found 2 numbers, expected one for each of the 1",
        ),
    ],
)
def test_what_a_stage_cannot_be(recipe: Path, override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        config.load(recipe, [override])


def test_stages_before_the_one_that_is_resumed_cannot_change(tmp_path: Path, recipe: Path) -> None:
    nnue("train", "--config", recipe, "--run-dir", tmp_path / "run")
    with pytest.raises(UserError, match="stage 3/3 third: began after step 16, now it would begin after step 20"):
        nnue("train", "--resume", tmp_path / "run", "stages.first.training.epochs=3")


def test_a_file_that_a_later_stage_misses_ends_the_run_at_once(tmp_path: Path, recipe: Path) -> None:
    with pytest.raises(UserError, match=r"stage 3/3 third: data\.train: .*none\.binpack: No such file"):
        nnue("train", recipe, "--run-dir", tmp_path / "run", f"stages.third.data.train=[{tmp_path}/none.binpack]")
    with pytest.raises(UserError, match=r"data\.weights: found weights that leave none of the 1 chunks of all files"):
        nnue("train", recipe, "--run-dir", tmp_path / "run", "stages=[]", "data.weights=[0.001]")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.groups=[{match: '*', frozen: true}]", "optimizer.groups: all parameters are frozen"),
        ("optimizer.groups=[{match: other, lr_factor: 2}]", "optimizer.groups.*'other' matches no parameter"),
        (
            "training.penalties=[{kind: weights, factor: 1, parameters: [other]}]",
            "training.penalties.0.parameters: 'other' matches no parameter",
        ),
    ],
)
def test_names_that_a_later_stage_cannot_have_end_the_run_at_once(
    tmp_path: Path, recipe: Path, override: str, message: str
) -> None:
    for name, label in (("first", "stage 1/3 first: "), ("third", "stage 3/3 third: ")):
        with pytest.raises(UserError, match=f"^{label}{message}"):
            nnue("train", recipe, "--run-dir", tmp_path / "run", f"stages.{name}.{override}")
    assert not (tmp_path / "run").exists()


IDLE_SWA = "average: swa does not begin within"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["average={kind: swa, start_epoch: 2}"], [f"stage 3/3 third: {IDLE_SWA} 2 epochs"]),
        (["average={kind: swa, start_epoch: 1}"], []),
        (["stages.first.average={kind: swa, start_epoch: 2}"], [f"stage 1/3 first: {IDLE_SWA} 2 epochs"]),
        (
            ["average={kind: swa, start_epoch: 3}", "stages.third.training.epochs=4"],
            [f"stage 2/3 second: {IDLE_SWA} 3"],
        ),
        (["average={kind: ema, every: 9}"], ["stage 3/3 third: average: ema does not move within 8 steps"]),
        (["stages=[]", "average={kind: swa, start_epoch: 3}"], [f"{IDLE_SWA} 3 epochs"]),
        (["stages=[]", "average={kind: ema, every: 13}"], ["average: ema does not move within 12 steps"]),
    ],
)
def test_averages_that_never_begin(recipe: Path, overrides: list[str], expected: list[str]) -> None:
    """If several stages continue an average, it is enough that it begins in one of them."""
    found = idle_averages(stages_of(config.load(recipe, overrides)))
    assert [line[: len(start)] for line, start in zip(found, expected, strict=True)] == expected


def test_files_of_stages_are_found_once(tmp_path: Path, recipe: Path, data: Path) -> None:
    """Patterns in stages become the files that they stand for, with their weights."""
    chosen = config.load(
        recipe, [f"stages.third.data.train=[{data}/train.*, {data}/val.binpack]", "stages.third.data.weights=[1, 3]"]
    )
    chosen, notes = config.with_files(chosen)
    third = config.stage_recipes(chosen)[2].data
    assert third.train == [str(data / "train.binpack"), str(data / "val.binpack")]
    assert third.weights == [1, 3]
    assert len(notes) == 1


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["nettest", "nettest-threats"])
def test_presets_of_stages_train(tmp_path: Path, project_root: Path, monkeypatch, preset: str) -> None:
    """Scaled down, with all of their keys: filters with their curves, λ's cycle and jitter, all stages."""
    monkeypatch.syspath_prepend(str(project_root / "tools"))
    monkeypatch.chdir(project_root)
    from kill_stages import overrides

    output = nnue("train", "--preset", preset, "--run-dir", tmp_path / "run", *overrides(preset, 32))
    assert "finished step 64 of 64" in output
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if record["event"] == "validation"]
    assert all(0 < loss < 0.2 for loss in losses)
    assert len(losses) == (6 if preset == "nettest" else 8)


def test_nettest_is_the_published_recipe() -> None:
    """Lengths and values of the specification: 1,024 and 2,048 steps an epoch, both cycles over both stages."""
    main, half = stages_of(config.load(presets.path("nettest")))
    assert (main.steps_per_epoch, half.steps_per_epoch, main.end, half.end) == (1024, 2048, 4_608_000, 5_120_000)
    rates = [
        s.recipe.schedule.of(s.now(step), 4e-4) for s, step in ((main, 255_399), (half, 5_107_999), (half, 5_119_999))
    ]
    assert rates == pytest.approx([4e-4, 1.6e-8, 1.6e-8], rel=1e-9)
    lambdas = [s.recipe.lambda_.of(s.now(step)) for s, step in ((main, 0), (main, 1_263_000), (half, 5_052_000))]
    assert lambdas == pytest.approx([1.0, 0.7, 1.0], abs=1e-12)
    four = stages_of(config.load(presets.path("nettest-threats")))
    assert [s.end - s.first_step for s in four] == [1525 * epochs for epochs in (250, 950, 3000, 50)]
    assert [s.recipe.schedule.of(s.now(s.end - 1), s.recipe.optimizer.lr) for s in four] == pytest.approx(
        [2.0028217575823307e-06, 2.6e-8, 1.373651610079116e-08, 6.339930508057459e-10], rel=1e-9
    )


@pytest.mark.slow
def test_a_random_recipe_survives_a_kill(project_root: Path) -> None:
    """The tool that kills trainings of random recipes, once."""
    command = [sys.executable, str(project_root / "tools" / "kill_recipes.py"), "--recipes", "1", "--kills", "1"]
    done = subprocess.run([*command, "--seed", "200"], cwd=project_root, capture_output=True, text=True, check=False)
    assert done.stdout == "recipe 200: equal\n", done.stdout + done.stderr
