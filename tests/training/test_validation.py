"""The section validation: its own loss, λ, filters and sets, and figures that mean the same in every run."""

import json
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from command import nnue
from small_runs import split_sample, written
from torch import Tensor

from nnue_trainer import config
from nnue_trainer.errors import UserError
from nnue_trainer.files import checkpoint
from nnue_trainer.training import figures as figures_module
from nnue_trainer.training.figures import FIGURES, Figures, alone, in_order, ranks
from nnue_trainer.training.validator import Validator


@pytest.fixture(scope="module")
def data(project_root, tmp_path_factory) -> Path:
    return split_sample(project_root, tmp_path_factory.mktemp("positions"), 4_000, 2_000)


@pytest.fixture
def recipe(tmp_path, data) -> Path:
    return written(tmp_path / "mine.yaml", data)


def validations(folder: Path) -> list[dict[str, float]]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if record["event"] == "validation"]


@pytest.mark.parametrize("size", [2, 3, 7])
def test_processes_that_validate_some_of_the_batches_find_the_same_bits(size: int) -> None:
    """Sums run in the order of the batches, and of the scored positions the same ones are ranked."""
    g = torch.Generator().manual_seed(1)
    batches = [
        (torch.randn(n, generator=g) * 200, torch.randint(-300, 300, (n,), generator=g), torch.arange(n) % 3 - 1)
        for n in (40, 40, 40, 40, 13)
    ]
    for _, score, _ in batches:
        score[::7] = 32002

    def found(rank: int, size: int, of_all: Callable[[Tensor], Tensor]) -> tuple[Any, dict[str, float]]:
        figures, sums = Figures(torch.device("cpu"), 361.0), []
        for number, (net, score, result) in enumerate(batches):
            own = number % size == rank
            sums.append(net[:2].double() / 3 if own else torch.zeros(2, dtype=torch.float64))
            figures.add(net, score, result) if own else figures.skip()
        return in_order(sums, of_all)[0], figures.result(of_all)

    before, figures_module._RANKED = figures_module._RANKED, 100  # within the third batch
    try:
        parts: list[Tensor] = [torch.empty(0)] * size
        barrier = threading.Barrier(size)

        def of_all(rank: int, part: Tensor) -> Tensor:
            parts[rank] = part
            barrier.wait(60)
            every = torch.stack(parts)
            barrier.wait(60)
            return every

        with ThreadPoolExecutor(size) as pool:
            several = list(pool.map(lambda rank: found(rank, size, partial(of_all, rank)), range(size)))
        assert several == [found(0, 1, alone)] * size
    finally:
        figures_module._RANKED = before
    assert several[0][1].keys() == FIGURES.keys()


def test_figures_by_hand() -> None:
    figures = Figures(torch.device("cpu"), 100.0)
    net, score = torch.tensor([100.0, -50.0, 200.0, 10.0, 10.0]), torch.tensor([0, 30, 300, -20, 32002])
    result = torch.tensor([1, 1, -1, 0, -1])
    figures.add(net[:2], score[:2], result[:2])
    figures.add(net[2:], score[2:], result[2:])
    found = figures.result()

    def entropy(logit: float, target: float) -> float:
        p = 1 / (1 + math.exp(-logit))
        return -target * math.log(p) - (1 - target) * math.log(1 - p)

    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    logits = [1.0, -0.5, 2.0, 0.1, 0.1]
    by_score = [entropy(x, sigmoid(s / 100)) for x, s in zip(logits, [0, 30, 300, -20], strict=False)]
    by_result = [entropy(x, t) for x, t in zip(logits, [1, 1, 0, 0.5, 0], strict=True)]
    assert found["score_cross_entropy"] == pytest.approx(sum(by_score) / 4, rel=1e-12)
    assert found["result_cross_entropy"] == pytest.approx(sum(by_result) / 5, rel=1e-12)
    assert found["result_accuracy"] == 0.25
    # Ranks of 100, −50, 200, 10 are 3, 1, 4, 2; of 0, 30, 300, −20 are 2, 3, 4, 1: 1 − 6·6/(4·15).
    assert found["rank_correlation"] == pytest.approx(1 - 6 * (1 + 4 + 0 + 1) / (4 * 15), rel=1e-12)
    # Only the scores 0, 30 and −20 are within ±100·ln 2: ranks of 100, −50, 10 are 3, 1, 2, of the scores 2, 3, 1.
    assert found["even_rank_correlation"] == pytest.approx(1 - 6 * (1 + 4 + 1) / (3 * 8), rel=1e-12)
    assert Figures(torch.device("cpu"), 100.0).result() == {}
    assert ranks(torch.tensor([5.0, 1.0, 5.0, 2.0])).tolist() == [3.5, 1, 3.5, 2]


def test_figures_do_not_depend_on_what_a_run_is_trained_with(tmp_path: Path, recipe: Path) -> None:
    """Before the first step two nets are the same, so their figures are, whatever their loss and λ."""
    tiny = ["optimizer.lr=1e-30", "optimizer.weight_decay=0.0", "training.epochs=1"]
    nnue("train", recipe, "--run-dir", tmp_path / "a", *tiny)
    nnue(
        "train",
        recipe,
        "--run-dir",
        tmp_path / "b",
        *tiny,
        "loss={kind: win_rate}",
        "lambda={kind: constant, value: 0.2}",
    )
    (one,), (other,) = validations(tmp_path / "a"), validations(tmp_path / "b")
    assert one["loss"] != other["loss"]
    for name in FIGURES:
        assert one[name] == other[name]


def test_loss_and_lambda_of_validation(tmp_path: Path, recipe: Path) -> None:
    training = ["lambda={kind: linear, start: 1.0, end: 0.0}", "logging.every_steps=4"]

    def losses(name: str, *overrides: str) -> list[float]:
        nnue("train", recipe, "--run-dir", tmp_path / name, *training, *overrides)
        return [record["loss"] for record in validations(tmp_path / name)]

    end, number = losses("end"), losses("number", "validation.lambda=0")
    assert end == number
    follow = losses("follow", "validation.lambda=follow")
    assert all(a != b for a, b in zip(end, follow, strict=True))
    assert [record["lambda"] for record in validations(tmp_path / "follow")] == pytest.approx([9 / 12, 5 / 12, 1 / 12])
    assert "lambda" not in validations(tmp_path / "end")[0]
    assert follow[0] == pytest.approx(losses("start", "validation.lambda=0.75")[0])  # λ of the fourth of twelve steps
    other = losses("loss", "validation.loss={kind: sigmoid, scale: 200}")
    assert other != end
    # Training is the same with all of them.
    states = [nnue_state(tmp_path / name) for name in ("end", "follow", "loss")]
    assert all(torch.equal(states[0][key], state[key]) for state in states[1:] for key in state)


def nnue_state(folder: Path) -> dict[str, torch.Tensor]:
    from small_runs import last

    return last(folder).tensors["model"]


def test_sets_and_samples(tmp_path: Path, recipe: Path, data: Path) -> None:
    sets = (
        f"validation.sets=[{{name: same, files: {data}/val.*, positions: 2000}}, "
        f"{{name: spread, files: ['{data}/val.binpack'], positions: 300, sample: spread}}, "
        f"{{name: quiet, files: ['{data}/val.binpack'], filters: {{quiet: true}}}}]"
    )
    output = nnue("train", recipe, "--run-dir", tmp_path / "run", sets, "data.validation_positions=2000")
    assert f"validation.sets.same.files: {data}/val.*: 1 file" in output
    for record in validations(tmp_path / "run"):
        assert record["same/loss"] == record["loss"]
        assert record["same/rank_correlation"] == record["rank_correlation"]
        assert len({record["loss"], record["spread/loss"], record["quiet/loss"]}) == 3
    assert f", same {validations(tmp_path / 'run')[-1]['loss']:.6f}, spread " in output
    # A spread sample is the same every time and in every run, and not the first positions.
    nnue("train", recipe, "--run-dir", tmp_path / "b", "validation.sample=spread", "data.validation_positions=300")
    spread = [record["spread/loss"] for record in validations(tmp_path / "run")]
    assert [record["loss"] for record in validations(tmp_path / "b")] == spread
    nnue("train", recipe, "--run-dir", tmp_path / "c", "data.validation_positions=300")
    assert [record["loss"] for record in validations(tmp_path / "c")] != spread


def test_a_set_without_positions_ends_the_run_at_once(tmp_path: Path, recipe: Path, data: Path) -> None:
    few = "{min_pieces: 32, extra: [{kind: pieces, most: 3}]}"
    none = f"validation.sets=[{{name: none, files: {data}/val.binpack, filters: {few}}}]"
    with pytest.raises(UserError, match="only 0 positions pass the filters"):
        nnue("train", recipe, "--run-dir", tmp_path / "run", none)
    assert not (tmp_path / "run").exists()


def test_a_changed_validation_starts_best_anew(tmp_path: Path, recipe: Path) -> None:
    nnue("train", recipe, "--run-dir", tmp_path / "run")
    output = nnue("train", "--resume", tmp_path / "run", "training.epochs=4", "validation.sample=spread")
    assert "validation.sample changed, so validations cannot be compared" in output


def best_step(folder: Path) -> int:
    return checkpoint.load(folder / "checkpoints" / "best.safetensors").state["step"]


@pytest.mark.parametrize(
    ("best_by", "expected"), [("loss", 3), ("rank_correlation", 2), ("result_cross_entropy", 4), ("few/loss", 1)]
)
def test_a_figure_selects_the_best_checkpoint(tmp_path, recipe, data, monkeypatch, best_by, expected) -> None:
    """Also in a run that resumes after its best epoch. Values that are not finite are never the best."""
    losses = [0.4, 0.3, 0.2, 0.5]
    others = [
        {"rank_correlation": 0.5, "result_cross_entropy": 0.3, "few/loss": 0.1},
        {"rank_correlation": 0.7, "result_cross_entropy": 0.3, "few/loss": 0.2},
        {"rank_correlation": 0.6, "few/loss": math.nan},
        {"rank_correlation": math.inf, "result_cross_entropy": 0.1, "few/loss": 0.3},
    ]
    done: list[int] = []

    def validate(self: Validator) -> float:
        epoch = len(done)
        done.append(epoch)
        self.state.fixed_figures = {"few/loss": 1.0} | others[epoch]
        return losses[epoch]

    monkeypatch.setattr(Validator, "validate", validate)
    few = f"validation.sets=[{{name: few, files: {data}/val.binpack}}]"
    run = tmp_path / "run"
    output = nnue("train", recipe, "--run-dir", run, few, f"training.best_by={best_by}", "training.epochs=3")
    output += nnue("train", "--resume", run, "training.epochs=4")
    steps = checkpoint.load(run / "checkpoints" / "last.safetensors").state["step"] // 4
    assert len(done) == 4
    assert best_step(run) == expected * steps
    assert (f"(best by {best_by})" in output) == (best_by != "loss")
    output = nnue("train", "--resume", run, "training.epochs=4", "training.best_by=result_accuracy")
    assert "training.best_by changed, so validations cannot be compared" in output


def test_best_by_names_a_figure(tmp_path: Path, recipe: Path) -> None:
    with pytest.raises(
        UserError, match=r"training\.best_by: found 'few/loss', expected one of loss, score_cross_entropy"
    ):
        nnue("train", recipe, "--run-dir", tmp_path / "run", "training.best_by=few/loss")
    assert not (tmp_path / "run").exists()


def test_names_of_sets(recipe: Path) -> None:
    with pytest.raises(UserError, match=r"validation.sets: found the names \['a', 'a'\], expected different names"):
        config.load(recipe, ["validation.sets=[{name: a, files: x}, {name: a, files: y}]"])
    with pytest.raises(UserError, match=r"validation\.lambda: found 2"):
        config.load(recipe, ["validation.lambda=2"])
