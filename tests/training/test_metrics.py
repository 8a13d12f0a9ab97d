"""The progress line."""

from nnue_trainer.training import metrics


def test_an_epoch_lasts_until_its_last_step(monkeypatch, capsys):
    """At the end of an epoch the line still names it: the validation that follows belongs to it."""
    monkeypatch.setattr(metrics, "PLAIN_LINE_EVERY", 0.0)
    progress = metrics.ProgressLine(steps=6, steps_per_epoch=3, batch_size=10, step=0)
    for step in range(1, 7):
        progress.update(step)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/2"] * 3 + ["epoch 2/2"] * 3
