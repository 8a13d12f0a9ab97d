"""The progress line."""

import pytest

from nnue_trainer.errors import UserError
from nnue_trainer.training import metrics


def test_an_epoch_lasts_until_its_last_step(monkeypatch, capsys):
    """At the end of an epoch the line still names it: the validation that follows belongs to it."""
    monkeypatch.setattr(metrics, "PLAIN_LINE_EVERY", 0.0)
    progress = metrics.ProgressLine(steps=6, steps_per_epoch=3, batch_size=10, step=0)
    for step in range(1, 7):
        progress.update(step)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/2"] * 3 + ["epoch 2/2"] * 3


def test_a_resumed_run_keeps_what_came_before_it(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste', encoding="utf-8")
    metrics.MetricsWriter(tmp_path, step=2, tensorboard=False).close()
    assert path.read_text(encoding="utf-8") == '{"step": 1}\n{"step": 2}\n'


@pytest.mark.parametrize("line", ["garbage", "[1]", '{"loss": 1}', '{"step": "x"}'])
def test_a_foreign_line_is_named_and_nothing_is_lost(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"metrics\.jsonl:2: found .*, expected a record"):
        metrics.MetricsWriter(tmp_path, step=2, tensorboard=False)
    assert path.read_text(encoding="utf-8") == f'{{"step": 1}}\n{line}\n'
