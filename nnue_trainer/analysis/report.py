"""`nnue report`: what one or several runs did, on one page."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import yaml

from nnue_trainer.analysis import smoothing
from nnue_trainer.analysis.agreement import Agreement, Positions, agreement, some_positions
from nnue_trainer.analysis.runs import Records, Run, read_run
from nnue_trainer.base.arrays import Floats
from nnue_trainer.base.progress import duration, positions, size
from nnue_trainer.errors import UserError
from nnue_trainer.files import checkpoint as checkpoints
from nnue_trainer.pages.page import Page, Section, Table, check_replaceable, save
from nnue_trainer.pages.plots import GRID, INK, SERIES, SOFT, Plot, envelope, scale_of, thin
from nnue_trainer.training.run_folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes


POSITIONS = 512  # for float against integers
_MOST_TENSORS = len(SERIES)


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
    """None if there are fewer than 24 finite values in the last third."""
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


# ---- plots -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    run: Run
    color: str
    x: Floats
    y: Floats


def _curves(runs: Sequence[Run], kind: str, name: str) -> list[Curve]:
    curves = []
    for number, run in enumerate(runs):
        records: Records = getattr(run, kind)
        if name in records:
            color = SERIES[number % len(SERIES)]
            curves.append(Curve(run, color, run.positions(records), records[name]))
    return curves


def _legend(curves: Sequence[Curve], runs: Sequence[Run]) -> list[tuple[str, str]]:
    return [(curve.run.name, curve.color) for curve in curves] if len(runs) > 1 else []


def _draw(curves: Sequence[Curve], label: str, line: Callable[[Axes, Curve, float], None]) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        divisor, word = scale_of(max((float(np.nanmax(curve.x)) for curve in curves), default=1))
        for curve in curves:
            line(axes, curve, divisor)
        axes.set_xlabel(f"positions{f', {word}' if word else ''}")
        axes.set_ylabel(label)
        axes.margins(x=0.02)

    return draw


def _raw(axes: Axes, curve: Curve, divisor: float, alpha: float = 0.3) -> None:
    x, y = envelope(curve.x / divisor, curve.y)
    if len(x) == 1:
        axes.plot(x, y, "o", color=curve.color, markersize=4)
    else:
        axes.plot(x, y, color=curve.color, alpha=alpha, linewidth=0.8)


def _fit(axes: Axes, values: Sequence[Floats]) -> None:
    """Limits the axis to the values after the first twentieth of a training, if those before are far above them."""
    every = np.concatenate([value[np.isfinite(value)] for value in values]) if values else np.zeros(0)
    settled = [value[max(1, len(value) // 20) :] for value in values if len(value) >= 20]
    if not settled or len(every) < 20:
        return
    late = np.concatenate([value[np.isfinite(value)] for value in settled])
    if len(late) < 10:
        return
    low, high = float(late.min()), float(late.max())
    room = 0.08 * (high - low) or abs(high) * 0.05 or 1.0
    if every.max() > high + 4 * (high - low + room):
        axes.set_ylim(min(low, float(every.min())) - room, high + room)


def _loss_plots(runs: Sequence[Run]) -> Iterator[Plot]:
    train, validation = _curves(runs, "train", "loss"), _curves(runs, "validation", "loss")
    if train:
        windows = sorted({smoothing.window_for(len(curve.y)) for curve in train})
        words = f"{windows[0]}" if len(windows) == 1 else f"{windows[0]} to {windows[-1]}"

        def loss(axes: Axes, curve: Curve, divisor: float) -> None:
            _raw(axes, curve, divisor)
            smooth = smoothing.trend(curve.y, smoothing.window_for(len(curve.y)))
            x, y = thin(curve.x / divisor, smooth)
            if len(x) > 1:
                axes.plot(x, y, color=curve.color)

        def drawn(axes: Axes) -> None:
            _draw(train, "training loss", loss)(axes)
            _fit(axes, [curve.y for curve in train])

        yield Plot(
            "Training loss",
            drawn,
            note=f"Faint: each record. Line: exponentially weighted mean, span {words} records. It moves with λ.",
            legend=_legend(train, runs),
        )

        def rolling(axes: Axes, curve: Curve, divisor: float) -> None:
            mean, deviation = smoothing.band(curve.y, smoothing.window_for(len(curve.y)))
            x, middle, spread = thin(curve.x / divisor, mean, deviation, most=300)
            axes.fill_between(x, middle - spread, middle + spread, color=curve.color, alpha=0.18, linewidth=0)
            axes.plot(x, middle, color=curve.color)

        def rolled(axes: Axes) -> None:
            _draw(train, "training loss", rolling)(axes)
            _fit(axes, [smoothing.band(curve.y, smoothing.window_for(len(curve.y)))[0] for curve in train])

        if max(len(curve.y) for curve in train) >= 10:
            yield Plot(
                "Training loss and its noise",
                rolled,
                note=f"Rolling mean over {words} records, and one standard deviation of a record to each side.",
                legend=_legend(train, runs),
            )
    if validation:

        def held_out(axes: Axes, curve: Curve, divisor: float) -> None:
            many = len(curve.y) >= 12
            _raw(axes, curve, divisor, 0.3 if many else 1.0)
            if many:
                x, y = thin(curve.x / divisor, smoothing.trend(curve.y, max(4, len(curve.y) // 12)))
                axes.plot(x, y, color=curve.color)
            elif len(curve.y) > 1:
                axes.plot(curve.x / divisor, curve.y, "o", color=curve.color, markersize=3)
            if np.isfinite(curve.y).any():
                best = int(np.nanargmin(curve.y))
                axes.plot(curve.x[best] / divisor, curve.y[best], "*", color=curve.color, markersize=10)

        def shown(axes: Axes) -> None:
            _draw(validation, "validation loss", held_out)(axes)
            _fit(axes, [curve.y for curve in validation])

        yield Plot(
            "Validation loss",
            shown,
            note="The star is the best one. Compare runs only if loss, final λ and held-out positions are the same.",
            legend=_legend(validation, runs),
        )


def _both_losses_plot(run: Run) -> Iterator[Plot]:
    """Training and validation loss of a run on one axis."""
    train, validation = (_curves([run], kind, "loss") for kind in ("train", "validation"))
    if not train or not validation:
        return
    curves = [train[0], Curve(run, SERIES[1], validation[0].x, validation[0].y)]

    def line(axes: Axes, curve: Curve, divisor: float) -> None:
        x, y = thin(curve.x / divisor, smoothing.middle(curve.y, min(5, len(curve.y))))
        axes.plot(x, y, color=curve.color, marker="o" if len(x) == 1 else "")

    def both(axes: Axes) -> None:
        _draw(curves, "loss", line)(axes)
        _fit(axes, [curve.y for curve in curves])

    yield Plot(
        "Training and validation loss",
        both,
        note="Medians of five records. The training loss uses the λ of its step, the validation loss the final λ.",
        legend=[("training", curves[0].color), ("validation", curves[1].color)],
    )


def _plain_plot(
    runs: Sequence[Run],
    kind: str,
    name: str,
    title: str,
    label: str,
    *,
    note: str = "",
    factor: float = 1.0,
    offset: float = 0.0,
    log: bool = False,
    steps: bool = False,
    smooth: bool = False,
    zero: bool = False,
) -> Iterator[Plot]:
    curves = [Curve(c.run, c.color, c.x, c.y * factor + offset) for c in _curves(runs, kind, name)]
    if not curves:
        return
    logarithmic = (
        log
        and all(np.nanmin(curve.y) > 0 for curve in curves)
        and (max(np.nanmax(curve.y) for curve in curves) > 3 * min(np.nanmin(curve.y) for curve in curves))
    )

    def line(axes: Axes, curve: Curve, divisor: float) -> None:
        if len(curve.y) == 1:
            _raw(axes, curve, divisor)
            return
        if smooth:
            _raw(axes, curve, divisor)
        y = smoothing.middle(curve.y, smoothing.window_for(len(curve.y))) if smooth else curve.y
        x, y = thin(curve.x / divisor, y)
        axes.plot(x, y, color=curve.color, drawstyle="steps-post" if steps else "default")

    def draw(axes: Axes) -> None:
        _draw(curves, label, line)(axes)
        if logarithmic:
            axes.set_yscale("log")
        elif zero:
            axes.set_ylim(bottom=0)
        elif len({float(value) for curve in curves for value in curve.y[np.isfinite(curve.y)]}) == 1:
            value = float(curves[0].y[np.isfinite(curves[0].y)][0])
            axes.set_ylim(0, 2 * value if value else 1)

    yield Plot(title, draw, note=note, legend=_legend(curves, runs))


def _course_plots(runs: Sequence[Run]) -> Iterator[Plot]:
    yield from _plain_plot(runs, "train", "lr", "Learning rate", "learning rate", log=True)
    yield from _plain_plot(
        runs,
        "train",
        "lambda",
        "λ",
        "share of the score",
        note="Share of the score in the target; the share of the result is 1 − λ.",
    )
    yield from _plain_plot(
        runs, "train", "positions_per_second", "Speed", "positions per second", smooth=True, zero=True,
        note="Faint: each record. Line: rolling median.",
    )  # fmt: skip
    yield from _plain_plot(
        runs, "train", "pass", "Passes over the data", "whole passes", offset=-1, steps=True, zero=True,
        note="Above 1, positions repeat.",
    )  # fmt: skip
    yield from _plain_plot(
        runs, "train", "peak_memory_bytes", "Memory", "GiB, most so far", factor=1 / 2**30, zero=True,
        note="On a CPU: memory of the process. On a GPU: memory of the device.",
    )  # fmt: skip
    if any(np.nanmax(run.train["bad_chunks"], initial=0) > 0 for run in runs if "bad_chunks" in run.train):
        yield from _plain_plot(runs, "train", "bad_chunks", "Damaged chunks", "left out so far", steps=True, zero=True)


_NEURON_FIGURES = (
    (
        "dead_neurons",
        "Dead neurons",
        "% of first-layer neurons",
        "Neurons that are never above 0 on the measured positions.",
    ),
    ("saturated", "Saturation", "% of accumulators", "At or above the upper limit of the activation."),
    (
        "zero_activations",
        "Zero activations",
        "% of what the layers see",
        "Engines skip zeros, so a larger share is faster.",
    ),
    (
        "stuck_neurons",
        "Stuck neurons",
        "% of first-layer neurons",
        "Always at the upper limit, so they carry no information.",
    ),
)


def _match_plots(runs: Sequence[Run]) -> Iterator[Plot]:
    curves = _curves(runs, "match", "elo")
    if not curves:
        return

    def line(axes: Axes, curve: Curve, divisor: float) -> None:
        records = curve.run.match
        error = records["elo_error"] if "elo_error" in records else np.zeros(len(curve.y))
        axes.errorbar(
            curve.x / divisor, curve.y, np.nan_to_num(error), fmt="o-", color=curve.color, markersize=3, elinewidth=0.8
        )

    yield Plot(
        "Elo",
        _draw(curves, "Elo", line),
        note="Elo above the first net: each match is against the last net that passed, whose Elo is added. "
        "Bars: 95 % of each match.",
        legend=_legend(curves, runs),
    )


def _net_plots(runs: Sequence[Run]) -> Iterator[Plot]:
    for name, title, label, note in _NEURON_FIGURES:
        if all(np.nanmax(run.validation[name], initial=0) == 0 for run in runs if name in run.validation):
            continue  # the text lists it
        yield from _plain_plot(runs, "validation", name, title, label, note=note, factor=100, zero=True)
    for run in runs:
        of = f" of {run.name}" if len(runs) > 1 else ""
        for prefix, title, label, note, factor in (
            ("reach/", "Largest weights", "% of the limit", "Weights are clipped at 100 %, the largest integer.", 100),
            ("at_limit/", "Clipped weights", "% of the tensor", "Share of weights at their limit.", 100),
        ):
            found = {name: values * factor for name, values in run.validation.named(prefix).items()}
            found = {name: values for name, values in found.items() if np.isfinite(values).any()}
            if not any(np.nanmax(values) > 0 for values in found.values()):
                continue
            largest = sorted(found, key=lambda name: -float(np.nanmax(found[name])))[:_MOST_TENSORS]
            left = len(found) - len(largest)
            lines = [
                Curve(run, SERIES[number], run.positions(run.validation), found[name])
                for number, name in enumerate(largest)
            ]

            def line(axes: Axes, curve: Curve, divisor: float) -> None:
                marker = "o" if len(curve.y) == 1 else ""
                axes.plot(curve.x / divisor, curve.y, marker=marker, color=curve.color, linewidth=1.3)

            def draw(
                axes: Axes, lines: Sequence[Curve] = tuple(lines), label: str = label, full: bool = prefix == "reach/"
            ) -> None:
                _draw(lines, label, line)(axes)
                axes.set_ylim(bottom=0)
                if full:
                    axes.axhline(100, color=SOFT, linewidth=0.8, linestyle=(0, (4, 3)))

            yield Plot(
                f"{title}{of}",
                draw,
                note=note + (f" {left} more tensors stay lower." if left else ""),
                legend=[(name, curve.color) for name, curve in zip(largest, lines, strict=True)],
            )


def _net_words(runs: Sequence[Run]) -> str:
    """What is zero from beginning to end needs no plot."""
    seen = [run.validation for run in runs if "dead_neurons" in run.validation]
    if not seen:
        return ""
    never = [
        words
        for words, names in (
            ("no neuron was dead", ["dead_neurons"]),
            ("no neuron was stuck at its upper limit", ["stuck_neurons"]),
            ("no weight was at its limit", [n for v in seen for n in v.columns if n.startswith("at_limit/")]),
        )
        if all(np.nanmax(validation[name], initial=0) == 0 for validation in seen for name in names)
    ]
    return f"At every validation: {', '.join(never)}." if never else ""


def _agreement_plots(found: Agreement, of: str, color: str) -> Iterator[Plot]:
    def scatter(axes: Axes) -> None:
        most = float(np.abs(np.concatenate([found.floats, found.integers])).max(initial=1)) * 1.05
        axes.plot([-most, most], [-most, most], color=GRID, linewidth=1)
        axes.plot(found.floats, found.integers, "o", color=color, markersize=2.2, alpha=0.55, markeredgewidth=0)
        axes.set_xlim(-most, most)
        axes.set_ylim(-most, most)
        axes.set_xlabel("float model, engine units")
        axes.set_ylabel("integers, engine units")

    def histogram(axes: Axes) -> None:
        difference = found.difference
        most = max(1.0, float(np.quantile(np.abs(difference), 0.995)) * 1.1)
        axes.hist(np.clip(difference, -most, most), bins=41, range=(-most, most), color=color, linewidth=0)
        axes.axvline(0, color=INK, linewidth=0.7)
        axes.set_xlabel("integers − float model, engine units")
        axes.set_ylabel("positions")

    yield Plot(f"Scores{of}", scatter, note="One dot per position, from the side to move.")
    yield Plot(
        f"Differences{of}",
        histogram,
        note="The outer bins include all values beyond them. Rounding causes some spread; a bias is a fault.",
    )


# ---- sections --------------------------------------------------------------------------------------------------------


def _number(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "–"


def _status(run: Run) -> str:
    if run.steps is None:
        return f"step {run.step:,}"
    if run.step >= run.steps and not run.state.get("epoch_end_pending"):
        return "finished"
    return f"stopped or still running, {run.step / run.steps:.0%}"


def _overview(runs: Sequence[Run], failures: Sequence[str]) -> Section:
    several = len(runs) > 1
    section = Section(
        "Overview",
        warnings=[*failures, *(f"{run.name}: {note}" if several else note for run in runs for note in run.notes)],
    )
    rows = []
    for run in runs:
        best = run.validation["loss"]
        lowest = float(np.nanmin(best)) if np.isfinite(best).any() else math.nan
        speed = run.train["positions_per_second"]
        trained = float(run.positions(run.train)[-1]) if len(run.train) else float(run.step)
        rows.append(
            {
                "run": run.name,
                "state": _status(run),
                "net": str(run.field("model.kind", str) or "–"),
                "step": f"{run.step:,}" + (f" of {run.steps:,}" if run.steps else ""),
                "positions": positions(trained) if len(run.train) else "–",
                "best validation loss": _number(lowest, ".6f"),
                "last validation loss": _number(run.validation.last("loss"), ".6f"),
                "last training loss": _number(run.train.last("loss"), ".6f"),
                "positions/s, median": positions(float(np.nanmedian(speed))) if np.isfinite(speed).any() else "–",
                "time in steps": duration(run.seconds()) if math.isfinite(run.seconds()) else "–",
                "whole passes over the data": _number(run.train.last("pass") - 1, ".0f"),
                "most memory": size(run.train.last("peak_memory_bytes")) if "peak_memory_bytes" in run.train else "–",
            }
        )
    if several:
        section.tables = [Table(list(rows[0]), [list(row.values()) for row in rows], numbers=3)]
    else:
        section.facts = list(rows[0].items())[1:]
    good: list[str] = []
    for run in runs:
        of = f"{run.name}: " if several else ""
        judged = judge(run)
        section.warnings = [*section.warnings, *(f"{of}{line}" for line in judged)]
        for kind, name in (("train", "training loss"), ("validation", "validation loss")):
            found = verdict(_comparable(run, kind)[1])
            if found is not None and not any(name in line for line in judged):
                good.append(
                    f"{of}Over the last third of the records the {name} is {found.word} "
                    f"({found.change:+.2g} ± {found.error:.1g})."
                )
    section.good = good
    return section


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
    rows = [
        (run.name, *(_shown(run.field(f"data.{key}", object)) for key in keys))
        for keys in [("batch_size", "shuffle_buffer", "validation_positions")]
        for run in runs
        if run.recipe
    ]
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
        named = run.field(key, list) or []
        entries = files if isinstance(files, list) and files else [[name] for name in named]
        for number, entry in enumerate(entries):
            entry = entry if isinstance(entry, list) else [entry]
            name = str(entry[0]) if entry else "?"
            known = entry[1] if len(entry) > 1 and isinstance(entry[1], int) else None
            path = Path(str(named[number])) if number < len(named) else Path(name)
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
    section = Section("Recipe")
    if len(known) > 1:
        rows = recipe_differences(known)
        section.title = "Recipes"
        if rows:
            head = ["what differs", *(run.name for run in known)]
            shared = [row for row in rows if all(row)]
            others = [row for row in rows if not all(row)]
            tables = [
                Table(head, shared, numbers=len(head)),
                Table(head, others, numbers=len(head), title="fields that only some of them have", fold=True),
            ]
            section.tables = [table for table in tables if table.rows]
        else:
            section.text = "The recipes are the same."
    section.listing = "\n".join(
        (f"# {run.name}\n" if len(known) > 1 else "")
        + yaml.safe_dump(run.recipe, sort_keys=False, allow_unicode=True, width=100)
        for run in known
    )
    section.listing_title = "all fields" if len(known) == 1 else "all fields of each"
    return section


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
            chosen = positions_of(run)
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
        plots += list(_agreement_plots(found, of, SERIES[number % len(SERIES)]))
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


def positions_of(run: Run) -> Positions:
    """What the run was validated on, if it can be found from here; else positions that are built in."""
    return some_positions(run.field("data.validation", list) or [], POSITIONS)


def build(paths: Sequence[Path]) -> Page:
    """The page of the runs in the folders `paths`. A folder that is no run is one line of the page; UserError if none
    is."""
    runs, failures = [], []
    for path in paths:
        try:
            runs.append(read_run(path))
        except UserError as error:
            failures.append(str(error))
    if not runs:
        raise UserError(failures[0] if failures else "report: no runs")
    _tell_apart(runs)
    page = Page(", ".join(run.name for run in runs) if len(runs) < 4 else f"{len(runs)} runs")
    page.subtitle = time.strftime("NNUE training, as of %Y-%m-%d %H:%M UTC", time.gmtime())
    page.sections.append(_overview(runs, failures))
    for title, plots in (
        ("Loss", [*(_both_losses_plot(runs[0]) if len(runs) == 1 else ()), *_loss_plots(runs)]),
        ("Matches", list(_match_plots(runs))),
        ("Course", list(_course_plots(runs))),
        ("Weights and neurons", list(_net_plots(runs))),
    ):
        if plots:
            words = _net_words(runs) if title == "Weights and neurons" else ""
            page.sections.append(Section(title, text=words, plots=plots))
    for section in (
        _agreement_section(runs),
        _data_section(runs),
        _recipe_section(runs),
        _environment_section(runs),
    ):
        if section is not None:
            page.sections.append(section)
    return page


def _tell_apart(runs: Sequence[Run]) -> None:
    names = [run.name for run in runs]
    for run in runs:
        if names.count(run.path.name) > 1:
            run.label = str(run.path)


def write(paths: Sequence[Path], out: Path | None, overwrite: bool = False) -> Path:
    """Builds and saves the page; returns where it is. Without `out`: report.html in the folder of the one run, or in
    the working directory for several."""
    target = out or (_inside(paths[0]) if len(paths) == 1 else Path("report.html"))
    check_replaceable(target, overwrite)
    save(build(paths), target)
    return target


def _inside(path: Path) -> Path:
    if path.suffix == ".safetensors" and path.parent.name == "checkpoints":
        path = path.parent.parent
    read_run(path)  # a mistyped folder is not made
    return path / "report.html"


def write_for_training(run_dir: Path) -> Path:
    """The same page in the folder of a run that has just ended, as one of its files."""
    folder = RunFolder(run_dir)
    target = run_dir / "report.html"
    check_replaceable(target)
    page = build([run_dir])
    with folder:
        if not target.exists():
            folder.will_write(target)
        save(page, target)
    return target
