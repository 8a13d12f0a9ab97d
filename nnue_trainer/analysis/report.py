"""`nnue report`: a page about one or several runs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from nnue_trainer.analysis import smoothing
from nnue_trainer.analysis.agreement import agreement, some_positions
from nnue_trainer.analysis.report_plots import agreement_plots, curve_sections
from nnue_trainer.analysis.runs import Records, Run, folder_of, read_run
from nnue_trainer.base.arrays import Floats
from nnue_trainer.base.progress import duration, positions, size
from nnue_trainer.errors import UserError
from nnue_trainer.files import checkpoint as checkpoints
from nnue_trainer.files.pages.page import Page, Section, Table, check_replaceable, save
from nnue_trainer.files.pages.plots import SERIES
from nnue_trainer.training.run_folder import RunFolder

POSITIONS = 512  # for float against integers

# ---- is a curve falling? ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """Whether a curve still moves: `change` is what its last third gains (negative: falls) by a line through the means
    of eight equal parts, `error` the standard error of that. The parts are long, so that the correlation of
    neighbouring records does not count as evidence."""

    change: float
    error: float

    @property
    def word(self) -> str:
        if abs(self.change) <= 3 * self.error:
            return "flat within its noise"
        return "still falling" if self.change < 0 else "rising"


def verdict(values: npt.ArrayLike) -> Verdict | None:
    """The verdict on the last third of a curve; None if fewer than 24 of its values are finite."""
    array = np.asarray(values, np.float64)
    array = array[len(array) - len(array) // 3 :]
    array = array[np.isfinite(array)]
    parts = 8
    if len(array) < 3 * parts:
        return None
    means = np.array([part.mean() for part in np.array_split(array, parts)])
    at = np.linspace(-0.5, 0.5, parts)
    slope = float(at @ means / (at @ at))
    rest = means - means.mean() - slope * at
    return Verdict(slope, float(np.sqrt(rest @ rest / (parts - 2) / (at @ at))))


_FAR_ABOVE = {"validation": 1.25, "training": 2.0}
"""How many times its best value the last loss may be. That of training moves with λ and with each batch."""
_BIAS = 10.0  # engine units


def _comparable(run: Run, kind: str) -> tuple[Floats, Floats]:
    """The steps and losses of "train" or "validation": those of validation that are of the same kind as the last one,
    by their `figure`."""
    records: Records = getattr(run, kind)
    steps, losses, figures = records["step"], records["loss"], records["figure"]
    if kind == "validation" and len(records) and np.isfinite(figures[-1]):
        same = figures == figures[-1]
        steps, losses = steps[same], losses[same]
    return steps, losses


def judge(run: Run) -> list[str]:
    """A line for each way in which a run went wrong by its records, with the step."""
    found = []
    for name, kind in (("training", "train"), ("validation", "validation")):
        steps, losses = _comparable(run, kind)
        finite = np.isfinite(losses)
        if not finite.all():
            found.append(f"The {name} loss is not finite at step {steps[~finite][0]:,.0f}.")
        steps, losses = steps[finite], losses[finite]
        if not len(losses):
            continue
        course = verdict(losses)
        if name == "training":
            losses = smoothing.middle(losses, min(5, len(losses)))
        lowest = int(np.nanargmin(losses))
        if losses[-1] > _FAR_ABOVE[name] * losses[lowest] > 0:  # a loss below 0 has no scale
            times = losses[-1] / losses[lowest]
            found.append(
                f"The {name} loss is {losses[-1]:.4g} at step {steps[-1]:,.0f}, {times:.3g} times the best, "
                f"{losses[lowest]:.4g} at step {steps[lowest]:,.0f}."
            )
        elif course is not None and course.word == "rising":
            found.append(f"The {name} loss is rising over the last third of the records, up to step {steps[-1]:,.0f}.")
    return found


# ---- sections --------------------------------------------------------------------------------------------------------


def number(value: float, form: str) -> str:
    """A figure in a format; a dash if it is not finite."""
    return format(value, form) if math.isfinite(value) else "–"


def _status(run: Run) -> str:
    if run.steps is None:
        return f"step {run.step:,}"
    if run.is_finished:
        return "finished"
    return f"stopped or still running, {run.step / run.steps:.0%}"


def _overview(runs: Sequence[Run], failures: Sequence[str]) -> Section:
    several = len(runs) > 1
    warnings = [*failures, *(f"{run.name}: {note}" if several else note for run in runs for note in run.notes)]
    rows = []
    for run in runs:
        speed = run.train["positions_per_second"]
        trained = float(run.positions(run.train)[-1]) if len(run.train) else float(run.step)
        rows.append(
            {
                "run": run.name,
                "state": _status(run),
                "net": str(run.field("model.kind", str) or "–"),
                "step": f"{run.step:,}" + (f" of {run.steps:,}" if run.steps else ""),
                "positions": positions(trained) if len(run.train) else "–",
                "best validation loss": number(run.lowest_validation_loss, ".6f"),
                "last validation loss": number(run.validation.last("loss"), ".6f"),
                "last training loss": number(run.train.last("loss"), ".6f"),
                "positions/s, median": positions(float(np.nanmedian(speed))) if np.isfinite(speed).any() else "–",
                "time in steps": duration(run.seconds()) if math.isfinite(run.seconds()) else "–",
                "whole passes over the data": number(run.train.last("pass") - 1, ".0f"),
                "most memory": size(run.train.last("peak_memory_bytes")) if "peak_memory_bytes" in run.train else "–",
            }
        )
    good: list[str] = []
    for run in runs:
        of = f"{run.name}: " if several else ""
        judged = judge(run)
        warnings += [f"{of}{line}" for line in judged]
        for kind, name in (("train", "training loss"), ("validation", "validation loss")):
            found = verdict(_comparable(run, kind)[1])
            if found is not None and not any(name in line for line in judged):
                good.append(
                    f"{of}Over the last third of the records the {name} is {found.word} "
                    f"({found.change:+.2g} ± {found.error:.1g})."
                )
    facts = [] if several else list(rows[0].items())[1:]
    tables = [Table(list(rows[0]), [list(row.values()) for row in rows], numbers=3)] if several else []
    return Section("Overview", facts=facts, warnings=warnings, good=good, tables=tables)


def _data_section(runs: Sequence[Run]) -> Section | None:
    tables: list[Table] = []
    warnings: list[str] = []
    for run in runs:
        facts = list(_data_rows(run))
        if facts:
            tables.append(
                Table(["", "file", "bytes", "now"], facts, numbers=2, title=run.name if len(runs) > 1 else "")
            )
        counted = run.train.last("bad_chunks")
        if math.isfinite(counted) and counted > 0:
            warnings.append(f"{run.name}: {counted:,.0f} damaged chunks of data were left out")
    keys = ("batch_size", "shuffle_buffer", "validation_positions")
    rows = [(run.name, *(_shown(run.field(f"data.{key}", object)) for key in keys)) for run in runs if run.recipe]
    if rows:
        tables.append(Table(["run", "batch", "shuffle buffer", "validation positions"], rows))
    filters = [(run.name, _shown(run.field("data.filters", dict))) for run in runs if run.field("data.filters", dict)]
    if filters:
        tables.append(Table(["run", "filters"], filters, numbers=9, title="Filters", fold=True))
    return Section("Data", tables=tables, warnings=warnings) if tables else None


def _data_rows(run: Run) -> Iterator[tuple[str, str, str, str]]:
    state = run.state
    order = state.get("batches", {}).get("order", {}) if isinstance(state.get("batches"), dict) else {}
    for what, files, key in (
        ("training", order.get("files") if isinstance(order, dict) else None, "data.train"),
        ("validation", state.get("validation_files"), "data.validation"),
    ):
        named = run.files(key)
        entries = files if isinstance(files, list) and files else [[name] for name in named]
        for number, entry in enumerate(entries):
            entry = entry if isinstance(entry, list) else [entry]
            name = str(entry[0]) if entry else "?"
            known = entry[1] if len(entry) > 1 and isinstance(entry[1], int) else None
            path = Path(named[number]) if number < len(named) else Path(name)
            yield what, name, "–" if known is None else f"{known:,}", _now(path, known)


def _now(path: Path, known: int | None) -> str:
    try:
        found = path.stat().st_size
    except (OSError, ValueError):
        return "not found from here"
    return "there" if known in (None, found) else f"another size, {found:,}"


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_shown(inner)}" for key, inner in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def flatten(value: Any, key: str = "") -> dict[str, Any]:
    """Plain data by dotted keys."""
    if isinstance(value, dict) and (value or not key):
        found: dict[str, Any] = {}
        for name, inner in value.items():
            found |= flatten(inner, f"{key}.{name}" if key else str(name))
        return found
    return {key: value}


def recipe_differences(runs: Sequence[Run]) -> list[list[str]]:
    """A row for each dotted key of the recipes that is not the same in all of them: the key, then each run's value, ""
    where a recipe does not have it."""
    flat = [flatten(run.recipe) for run in runs]
    rows = []
    for key in dict.fromkeys(key for recipe in flat for key in recipe):
        values = [recipe.get(key, _ABSENT) for recipe in flat]
        if any(value != values[0] for value in values):
            rows.append([key, *("" if value is _ABSENT else _shown(value) for value in values)])
    return rows


_ABSENT = object()


def _recipe_section(runs: Sequence[Run]) -> Section | None:
    known = [run for run in runs if run.recipe]
    if not known:
        return None
    listings = [yaml.safe_dump(run.recipe, sort_keys=False, allow_unicode=True, width=100) for run in known]
    if len(known) == 1:
        return Section("Recipe", listing=listings[0], listing_title="all fields")
    listing = "\n".join(f"# {run.name}\n{text}" for run, text in zip(known, listings, strict=True))
    rows, head = recipe_differences(known), ["what differs", *(run.name for run in known)]
    shared, others = ([row for row in rows if all(row) is of_all] for of_all in (True, False))
    tables = [
        Table(head, shared, numbers=len(head)),
        Table(head, others, numbers=len(head), title="fields that only some of them have", fold=True),
    ]
    return Section(
        "Recipes",
        text="" if rows else "The recipes are the same.",
        tables=[table for table in tables if table.rows],
        listing=listing,
        listing_title="all fields of each",
    )


def _environment_section(runs: Sequence[Run]) -> Section | None:
    found = []
    for run in runs:
        environment = run.state.get("environment")
        known = dict(environment) if isinstance(environment, dict) else {}
        if not known and run.state.get("device"):
            known = {"device": str(run.state["device"])}
        found.append({str(name): _shown(value) for name, value in known.items()})
    names = list(dict.fromkeys(name for known in found for name in known))
    if not names:
        return None
    if len(runs) == 1:
        return Section("Environment", facts=list(found[0].items()))
    rows = [[run.name, *(known.get(name, "–") for name in names)] for run, known in zip(runs, found, strict=True)]
    return Section("Environment", tables=[Table(["run", *names], rows, numbers=9)])


def _agreement_section(runs: Sequence[Run]) -> Section | None:
    rows, warnings, plots = [], [], []
    for number, run in enumerate(runs):
        if run.best is None:
            continue
        try:
            chosen = some_positions(run.files("data.validation"), POSITIONS)
            found = agreement(run.best, chosen)
            step = checkpoints.load(run.best, groups=()).state.get("step", run.step)
        except UserError as error:
            warnings.append(f"{run.name}: {error}")
            continue
        difference = np.abs(found.difference)
        if abs(found.difference.mean()) > _BIAS:
            warnings.append(
                f"{run.name}: the integers of {run.best.name} are {found.difference.mean():+.1f} engine units off on "
                f"average at step {step:,}, expected within ±{_BIAS:.0f}"
            )
        rows.append(
            (
                run.name,
                run.best.name,
                chosen.origin,
                f"{found.difference.mean():+.2f}",
                f"{difference.mean():.2f}",
                f"{np.quantile(difference, 0.95):.1f}",
                f"{difference.max():.0f}",
                f"{np.abs(found.floats).mean():.0f}",
            )
        )
        of = f" of {run.name}" if len(runs) > 1 else ""
        plots += list(agreement_plots(found, of, SERIES[number % len(SERIES)]))
    if not rows and not warnings:
        return None
    head = ["run", "checkpoint", "on", "mean", "mean size", "95 % within", "largest", "mean |score|"]
    return Section(
        "Float model and integers",
        text="What the exported net computes in integers, less what the float model computes, in engine units.",
        warnings=warnings,
        tables=[Table(head, rows, numbers=3)] if rows else [],
        plots=plots,
    )


def build(paths: Sequence[Path]) -> Page:
    """The page of the runs in the folders `paths`. A folder without a run is one line of the page; UserError if none
    is."""
    runs, failures = [], []
    for path in paths:
        try:
            runs.append(read_run(path))
        except UserError as error:
            failures.append(str(error))
    if not runs:
        raise UserError(failures[0] if failures else "report: no runs")
    names = [run.name for run in runs]
    for run in runs:
        if names.count(run.path.name) > 1:
            run.label = str(run.path)
    title = ", ".join(run.name for run in runs) if len(runs) < 4 else f"{len(runs)} runs"
    sections = [
        _overview(runs, failures),
        *(section for section in curve_sections(runs) if section.plots),
        _agreement_section(runs),
        _data_section(runs),
        _recipe_section(runs),
        _environment_section(runs),
    ]
    subtitle = time.strftime("NNUE training, as of %Y-%m-%d %H:%M UTC", time.gmtime())
    return Page(title, subtitle, [section for section in sections if section is not None])


def write(paths: Sequence[Path], out: Path | None = None, overwrite: bool = False, *, apart: bool = False) -> Path:
    """Writes the HTML page of `nnue report` about one run or several, and returns its path. Without `out`: report.html
    in the folder of the run, or in the working directory for several. `apart`: another process draws the plots, so
    that no process needs the memory of torch and of matplotlib."""
    target = out or Path("report.html")
    if out is None and len(paths) == 1:
        read_run(paths[0])  # a mistyped folder is not made
        target = folder_of(paths[0]) / target
    check_replaceable(target, overwrite)
    save(build(paths), target, apart)
    return target


def write_for_training(run_dir: Path) -> Path:
    """Writes the page into the folder of a run that has just ended, as one of its files."""
    folder = RunFolder(run_dir)
    target = run_dir / "report.html"
    check_replaceable(target)
    page = build([run_dir])
    with folder:
        if not target.exists():
            folder.will_write(target)
        save(page, target)
    return target
