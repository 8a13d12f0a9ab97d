"""Estimates of `nnue explain --gpu`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nnue_trainer.cli.main import app
from nnue_trainer.training.estimate import CARDS, estimate

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import estimate as benchmark


def test_measured_steps_are_estimated_within_15_percent() -> None:
    steps = benchmark.measured()
    assert {(step.card, step.kernels) for step in steps} >= {("H100", "portable"), ("H200", "hopper")}
    for step in steps:
        found = estimate(step.work, CARDS[step.card])
        assert found.seconds == pytest.approx(step.seconds, rel=0.15), step.recipe


def test_the_guide_has_the_numbers_of_the_table(project_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They change with the presets and with the estimates."""
    benchmark.table()
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    rates = {name: dict(zip(lines[0][1:], values, strict=True)) for name, *values in lines if name in CARDS}
    guide = " ".join((project_root / "docs" / "performance.md").read_text().split())
    first, second, third = (rates[name]["sfnnv16"] for name in ("RTX 3060", "RTX 4090", "H100"))
    assert (
        f"SFNNv16 reaches {first} on an RTX 3060, {second} on an RTX 4090 and {third} on an H100, and needs "
        f"{rates['H100']['sfnnv16 needs']}."
    ) in guide
    t4 = rates["T4"]
    assert (
        f"`simple` reaches {t4['simple']}, `buckets` {t4['buckets']}, SFNNv5 {t4['sfnnv5']}, SFNNv16 {t4['sfnnv16']}."
    ) in guide


def test_less_bandwidth_takes_longer() -> None:
    work = benchmark.work_for("sfnnv5", 16_384, 86)
    assert work is not None
    card = CARDS["RTX 3090"]
    slow = estimate(work, card._replace(memory_bandwidth=card.memory_bandwidth / 2))
    fast = estimate(work, card)
    assert slow.update == pytest.approx(2 * fast.update)
    assert slow.layers == fast.layers
    assert slow.seconds > fast.seconds


def explained(*words: str) -> str:
    result = CliRunner().invoke(app, ["explain", "--preset", "simple", *words])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_card_is_named_or_described() -> None:
    named = explained("--gpu", "nvidia geforce rtx 3060").splitlines()
    described = explained("--gpu", "8.6:28", "--memory-bandwidth", "360").splitlines()
    assert named == described
    assert "M positions/s" in named[-2]
    assert "GiB" in named[-1]
    assert "estimated" not in explained("--gpu", "8.6")
    assert "M positions/s" in explained("--gpu", "T4")
    assert "unknown" in explained("--gpu", "7.0", "--memory-bandwidth", "900")  # without kernels


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--gpu", "RTX 1"), "one of T4"),
        (("--memory-bandwidth", "300"), "expected --gpu X.Y"),
        (("--gpu", "L4", "--memory-bandwidth", "300"), "which has one"),
    ],
)
def test_wrong_options(words: tuple[str, ...], expected: str) -> None:
    result = CliRunner().invoke(app, ["explain", "--preset", "simple", *words])
    assert result.exit_code != 0
    assert expected in str(result.exception) + result.output
