"""`nnue report`: what is read of runs, sound or not, and what the page shows."""

from __future__ import annotations

import json
import math
import re
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from analysis_support import recipe
from typed import present

from nnue_trainer import config
from nnue_trainer.analysis import report
from nnue_trainer.analysis.agreement import Agreement, Positions, agreement, built_in_positions
from nnue_trainer.analysis.runs import Records, Run, read_run
from nnue_trainer.errors import UserError
from nnue_trainer.export import net_from_checkpoint
from nnue_trainer.files import checkpoint
from nnue_trainer.files.pages import plots
from nnue_trainer.files.pages.page import MARKER, Page, Section, Table, as_text, check_replaceable, plain, render
from nnue_trainer.files.pages.plots import SERIES, Plot, envelope, histogram, scale_of, thin
from nnue_trainer.training.run_folder import RunFolder

PLOTS = ["Training loss", "Validation loss", "Learning rate", "λ", "Speed", "Passes over the data", "Largest weights"]


def page_of(*runs: Path) -> str:
    return render(report.build(list(runs)))


def self_contained(text: str) -> None:
    """Nothing is loaded from anywhere, and nothing runs."""
    assert "<script" not in text
    for link in re.findall(r"(?:src|href)\s*=\s*\"([^\"]*)\"", text):
        assert link.startswith(("#", "data:")), link
    assert not re.search(r"@import|url\((?!#)", text)


def test_a_run_is_read_as_it_was_written(trained):
    folder = trained()
    run = read_run(folder)
    assert run.notes == []
    assert (run.step, run.steps) == (90, 90)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    train = [record for record in records if record["event"] == "train"]
    assert run.train["loss"].tolist() == [record["loss"] for record in train]
    assert run.positions(run.train)[-1] == 9000
    assert run.positions(run.validation).tolist() == [3000, 6000, 9000]
    assert run.best is not None
    assert run.best.name == "best.safetensors"
    assert run.field("data.batch_size") == 100
    assert run.field("data.nothing") is None
    assert run.seconds() == pytest.approx(sum(100 / record["positions_per_second"] for record in train), rel=1e-3)


def test_the_page_holds_everything(trained):
    text = page_of(trained())
    self_contained(text)
    for title in PLOTS:
        assert f"<h3>{title}</h3>" in text
    assert text.count("<svg ") == text.count("</svg>") >= len(PLOTS)
    for words in ("finished", "val.binpack", "Float model and integers", "CPU, ", "90 of 90"):
        assert words in text
    ids = re.findall(r'\sid="([^"]*)"', text)
    assert len(ids) == len(set(ids))


def test_what_a_file_says_is_escaped(trained):
    folder = trained("<img src=x onerror=alert(1)>&\x1b[31m")
    other = trained("b")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"event": "validation", "step": 90, "loss": 1.0, "reach/<script>alert(2)</script>": 0.5}\n')
    (folder / "recipe.yaml").write_text("model: {kind: '<script>alert(3)</script>'}\nweird: $x$\n")
    text = page_of(folder, other)
    self_contained(text)
    assert "<img src=x" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;&amp;\\x1b[31m" in text
    assert "&lt;script&gt;alert(2)" in text
    assert "&lt;script&gt;alert(3)" in text


def test_damaged_metrics_are_shown_as_far_as_they_go(trained):
    folder = trained()
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    damaged = [
        *lines[:20],
        b"\xff\xfe no json\n",
        b'{"event": "train", "step": -3}\n',
        b'{"event": "train", "step": 21, "loss": "text", "lr": 1e999, "lambda": null, "positions": 2100}\n',
        b"[[[[[" * 40_000 + b"\n",
        *lines[22:30],
        lines[30][:25],
    ]
    (folder / "metrics.jsonl").write_bytes(b"".join(damaged))
    run = read_run(folder)
    assert run.notes[0] == "metrics.jsonl: 4 damaged lines left out"
    assert len(run.train) == 29
    assert np.isnan(run.train["loss"][20])
    assert "4 damaged lines left out" in page_of(folder)


def test_each_missing_part_is_one_line(trained, tmp_path):
    folder = trained()
    for name, note in (
        ("recipe.yaml", "the recipe shown is that of the last checkpoint"),
        ("metrics.jsonl", "no records of metrics yet"),
    ):
        (folder / name).unlink()
        assert any(line.startswith(note) for line in read_run(folder).notes)
        self_contained(page_of(folder))
    checkpoints = folder / "checkpoints"
    for path in checkpoints.iterdir():
        path.write_bytes(path.read_bytes()[:1000])
    text = page_of(folder)
    assert "not a readable safetensors checkpoint" in text
    for path in checkpoints.iterdir():
        path.unlink()
    assert "no checkpoint yet" in read_run(folder).notes
    assert "no checkpoint yet" in page_of(folder)


def test_a_run_of_an_early_version(trained):
    """Its records have neither figures of the net nor passes, its checkpoints no environment."""
    folder = trained()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    known = ("event", "step", "time", "epoch", "positions", "loss", "lr", "lambda", "positions_per_second", "best")
    old = [{key: value for key, value in line.items() if key in known} for line in lines]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in old))
    run = read_run(folder)
    assert any("earlier version" in note for note in run.notes)
    text = page_of(folder)
    assert "<h3>Validation loss</h3>" in text
    assert "<h3>Dead neurons</h3>" not in text
    assert "earlier version" in text


def test_a_net_that_is_not_installed_here(trained):
    folder = trained()
    recipe_file = folder / "recipe.yaml"
    recipe_file.write_text(recipe_file.read_text().replace("kind: layered", "kind: theirs.py:Net"))
    run = read_run(folder)
    assert any("the recipe is shown as it stands" in note for note in run.notes)
    assert run.field("data.batch_size") == 100
    assert "theirs.py:Net" in page_of(folder)


def test_differences_between_recipes(trained):
    one, two = trained("one"), trained("two", "optimizer.lr=5e-3", "data.validation=[]")
    runs = [read_run(one), read_run(two)]
    rows = {row[0]: row[1:] for row in report.recipe_differences(runs)}
    assert rows["optimizer.lr"][1] == "0.005"
    assert rows["data.validation"][1] == "none"
    assert "training.epochs" not in rows
    assert any("no validation yet" in note for note in runs[1].notes)
    text = page_of(one, two)
    self_contained(text)
    assert "what differs" in text
    assert text.count('background:var(--s1)"></i>two') >= 4  # legends


def test_runs_of_one_name_are_told_apart(trained):
    one, two = trained("same"), trained("same")
    text = page_of(one, two)
    assert str(one) in text
    assert str(two) in text


def test_a_folder_that_is_no_run(trained, tmp_path, nnue):
    (tmp_path / "empty").mkdir()
    status, _, err = nnue("report", tmp_path / "empty")
    assert (status, err.count("\n")) == (1, 1)
    assert "not the folder of a run" in err
    assert "no such folder" in nnue("report", tmp_path / "mistyped")[2]
    assert not (tmp_path / "mistyped").exists()
    text = page_of(trained(), tmp_path / "empty")
    assert "not the folder of a run" in text


@pytest.mark.slow
def test_the_command_replaces_its_own_pages_only(trained, tmp_path, nnue):
    folder = trained()
    status, out, err = nnue("report", folder)
    assert (status, err) == (0, "")
    assert MARKER in (folder / "report.html").read_text()
    assert out.startswith(f"{folder}/report.html: ")
    assert nnue("report", folder)[0] == 0
    page = tmp_path / "mine.html"
    page.write_text("<html>mine</html>")
    status, _, err = nnue("report", folder, "--out", page)
    assert status == 1
    assert "mine.html: exists already and was not written by this program" in err
    assert page.read_text() == "<html>mine</html>"
    assert nnue("report", folder, "--out", page, "--overwrite")[0] == 0
    check_replaceable(page)


def write_recipe(path: Path, project_root: Path, *overrides: str) -> Path:
    path.write_text(config.to_yaml(recipe(project_root, *overrides)))
    return path


def test_training_writes_the_page_at_its_end(tmp_path, project_root, nnue):
    path, run = write_recipe(tmp_path / "r.yaml", project_root), tmp_path / "run"
    status, _, err = nnue("train", path, "--run-dir", run, "--report", "training.epochs=1")
    assert status == 0
    assert f"report           {run}/report.html" in err
    assert "finished" in (run / "report.html").read_text()
    with RunFolder(run) as folder:
        assert folder.owns(run / "report.html")
    assert nnue("train", path, "--run-dir", run, "--overwrite", "training.epochs=1")[0] == 0
    assert not (run / "report.html").exists()


@pytest.mark.slow
def test_training_writes_the_page_when_it_is_interrupted(tmp_path, project_root, nnue, monkeypatch):
    from nnue_trainer.training.trainer import Trainer

    advance = Trainer.advance

    def interrupted(self):
        advance(self)
        if self.step == 40:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Trainer, "advance", interrupted)
    assert threading.current_thread() is threading.main_thread()
    path, run = write_recipe(tmp_path / "r.yaml", project_root), tmp_path / "run"
    status, _, _ = nnue("train", path, "--run-dir", run, "--report")
    assert status == 130
    assert "stopped or still running, 44%" in (run / "report.html").read_text()
    # A page that the command wrote beside it does not stop the run when it continues.
    monkeypatch.setattr(Trainer, "advance", advance)
    (run / "report.html").unlink()
    assert nnue("report", run)[0] == 0
    assert nnue("train", "--resume", run, "--report")[0] == 0
    assert "finished" in (run / "report.html").read_text()


def test_a_page_that_cannot_be_written_does_not_fail_the_training(tmp_path, project_root, nnue):
    path, run = write_recipe(tmp_path / "r.yaml", project_root), tmp_path / "run"
    run.mkdir()
    (run / "report.html").write_text("mine")
    status, _, err = nnue("train", path, "--run-dir", run, "--report", "training.epochs=1")
    assert status == 0
    assert "no report: " in err
    assert (run / "report.html").read_text() == "mine"


def test_float_and_integers_are_compared_on_the_same_positions(trained):
    from nnue_trainer import data
    from nnue_trainer.export import evaluate
    from nnue_trainer.files import checkpoint

    path = trained() / "checkpoints" / "last.safetensors"
    positions = built_in_positions()
    found = agreement(path, positions)
    net = net_from_checkpoint(checkpoint.load(path), "last")
    expected = evaluate(net, data.expand(positions.records, net.net.integer_feature_set)).score
    assert np.array_equal(found.integers, expected)
    assert np.abs(found.difference).max() < 15
    assert np.corrcoef(found.floats, found.integers)[0, 1] > 0.99


@pytest.mark.parametrize(("bias", "warns"), [(-20.0, True), (20.0, True), (-3.0, False)])
def test_integers_that_are_off_on_average_are_a_warning(trained, monkeypatch, bias, warns):
    def biased(path: Path, positions: Positions) -> Agreement:
        found = agreement(path, positions)
        return Agreement(found.floats, found.floats + bias)

    monkeypatch.setattr(report, "agreement", biased)
    section = report._agreement_section([read_run(trained())])
    assert section is not None
    assert [f"are {bias:+.1f} engine units off on average" in line for line in section.warnings] == [True] * warns
    if warns:
        best = checkpoint.load(trained() / "checkpoints" / "best.safetensors", groups=()).state["step"]
        assert f"on average at step {best}, expected within ±10" in section.warnings[0]


def test_a_verdict_needs_evidence():
    noise = np.random.default_rng(0).normal(0, 0.01, 600)
    assert present(report.verdict(0.5 + noise)).word == "flat within its noise"
    falling = present(report.verdict(0.5 + noise - np.linspace(0, 0.1, 600)))
    assert falling.word == "still falling"
    assert falling.change == pytest.approx(-0.1 / 3, rel=0.3)
    assert present(report.verdict(0.5 + noise + np.linspace(0, 0.1, 600))).word == "rising"
    assert report.verdict(noise[:60]) is None
    assert report.verdict(np.where(np.arange(600) % 2, np.nan, noise)) is not None


def test_curves_keep_their_extremes():
    y = np.zeros(10_000)
    y[1234], y[4321] = 7.0, -7.0
    x, kept = envelope(np.arange(10_000), y)
    assert len(x) < 1000
    assert (kept.max(), kept.min()) == (7.0, -7.0)
    assert 1234 in x
    few, last = thin(np.arange(10_000), y)
    assert len(few) <= 802
    assert few[-1] == 9999
    assert len(last) == len(few)
    assert scale_of(5e6) == (1e6, "M")


def test_plots_follow_the_colours_of_the_page():
    plot = Plot("<b>", lambda axes: axes.plot([1, 2], [3, 4], color=SERIES[1]), legend=[("<i>", SERIES[1])])
    text = render(Page("t", sections=[Section("s", plots=[plot, plot], tables=[Table(["<u>"], [["</td>"]])])]))
    assert "var(--s1)" in text
    assert SERIES[1] not in text.partition("</style>")[2]
    assert "<b>" not in text
    assert "&lt;u&gt;" in text
    assert "&lt;/td&gt;" in text
    assert render(Page("t", sections=[Section("s", plots=[plot, plot], tables=[])])) != text


def test_another_process_draws_the_same_plots(trained, monkeypatch):
    page = report.build([trained()])
    assert render(page, apart=True) == render(page)
    monkeypatch.setattr(plots, "_DRAW", "raise SystemExit(3)")
    with pytest.raises(UserError, match="the process that draws the plots ended with status 3"):
        render(page, apart=True)


def test_a_page_needs_its_own_template_only(tmp_path):
    with pytest.raises(UserError, match="report: no runs"):
        report.build([])


def of_losses(kind: str, losses: list[float], figures: list[int] | None = None) -> Run:
    run = Run(Path("run"))
    columns = {"step": np.arange(1, len(losses) + 1) * 10.0, "loss": np.array(losses)}
    if figures is not None:
        columns["figure"] = np.array(figures, float)
    setattr(run, kind, Records(columns))
    return run


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ([0.1, 0.02, 0.25], r"validation loss is 0\.25 at step 30, 12\.5 times the best, 0\.02 at step 20"),
        ([0.1, 1e30, math.nan], r"validation loss is not finite at step 30"),
        ([0.1] * 36 + [0.1 + 0.0005 * step for step in range(36)], r"validation loss is rising .* up to step 720"),
        ([0.1, 0.09, 0.08, 0.085], None),
        ([0.5, -1.0, -0.9], None),
        ([0.1, 0.0, 0.0], None),
        ([], None),
    ],
)
def test_a_run_that_went_wrong_is_judged_so(losses, words):
    found = report.judge(of_losses("validation", losses))
    assert not found if words is None else any(re.search(words, line) for line in found), found


def test_losses_that_do_not_compare_are_not_judged_together():
    assert not report.judge(of_losses("validation", [0.02, 0.019, 0.25, 0.24], [1, 1, 2, 2]))
    assert report.judge(of_losses("validation", [0.02, 0.019, 0.25, 0.24], [1, 1, 1, 1]))


def test_no_rising_loss_is_among_the_good_news():
    """The course is that of the losses which compare with the last one."""
    rising = [0.1 + 0.0005 * step for step in range(36)]
    for losses, figures in (([0.1] * 36 + rising, [1] * 72), ([*rising, *[0.05] * 72], [1] * 36 + [2] * 72)):
        run = of_losses("validation", losses, figures)
        section = report._overview([run], [])
        assert not any("rising" in line for line in section.good)
        assert any("rising" in line for line in section.warnings) == (figures[-1] == 1)


def test_one_noisy_batch_is_no_verdict_on_a_training():
    assert not report.judge(of_losses("train", [0.1] * 30 + [0.5]))
    assert report.judge(of_losses("train", [0.02] * 30 + [0.25] * 10))


def test_the_page_warns_of_a_run_that_went_wrong(tmp_path):
    losses = [0.1, 0.02, 0.25]
    records = [
        {"event": "validation", "step": 10 * (number + 1), "loss": loss, "figure": 7}
        for number, loss in enumerate(losses)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (section, *_) = report.build([tmp_path]).sections
    assert any("12.5 times the best" in line for line in section.warnings)
    assert not any("validation" in line for line in section.good)


def test_both_losses_are_on_one_axis(tmp_path):
    records = [
        {"event": kind, "step": step, "loss": 0.1 / step} for kind in ("train", "validation") for step in range(1, 9)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    page = report.build([tmp_path])
    plots = [plot for section in page.sections for plot in section.plots]
    assert plots[0].title == "Training and validation loss"
    assert [name for name, _ in plots[0].legend] == ["training", "validation"]
    assert "Training and validation loss" in render(page)


def test_the_text_and_the_data_of_a_page():
    bars = histogram("size", [str(i) for i in range(70)], [0, 1, *[0] * 66, 3, 0])
    table = Table(["net", "kind", "share"], [["a", "x", "5%"], ["longer", "y\n", "17%"]], numbers=2)
    sections = [
        Section("Overview", "Words.", facts=[("a", "1"), ("long", "2")], warnings=["too\nlate"], good=["Fine."]),
        Section("Plots", plots=[Plot("curve", lambda axes: None)]),
        Section("More", tables=[table], plots=[bars]),
    ]
    assert as_text(Page("Title", "subtitle", sections, headline="a.net: 3 bytes")).splitlines() == [
        "a.net: 3 bytes",
        "  Words.",
        "  Fine.",
        "",
        "  a     1",
        "  long  2",
        "",
        "More",
        "  net     kind  share",
        "  a       x        5%",
        "  longer  y\\n     17%",
        "",
        "size",
        "    1 … 3   25.0%  █████████████",
        *(f"  {label:>7}    0.0%  " for label in [f"{i} … {i + 2}" for i in range(4, 67, 3)]),
        "  67 … 68   75.0%  " + 40 * "█",
        "",
        "  note: too\\nlate",
    ]
    found = plain({0.5: np.array([1, np.nan]), "t": (torch.ones(1), math.inf), "table": table, "none": None})
    assert found["0.5"] == [1.0, None]
    assert found["t"] == [[1.0], None]
    assert found["table"]["rows"][1] == ["longer", "y\n", "17%"]
    assert found["none"] is None
