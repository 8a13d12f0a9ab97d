"""The plots of `nnue report`: curves of one or several runs, and scores of the float model against the integers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nnue_trainer.analysis import smoothing
from nnue_trainer.analysis.agreement import Agreement, scores_against
from nnue_trainer.analysis.runs import Records, Run
from nnue_trainer.base.arrays import Floats
from nnue_trainer.files.pages.page import Section
from nnue_trainer.files.pages.plots import INK, SERIES, SOFT, Draw, Plot, envelope, scale_of, thin

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_TENSORS = len(SERIES)


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


def _draw(
    curves: Sequence[Curve],
    label: str,
    line: Callable[[Axes, Curve, float], None],
    fitted: Callable[[Floats], Floats] | None = None,
) -> Draw:
    """Draws each curve by `line`. `fitted`: the values of a curve that `_fit` limits the axis to."""

    def draw(axes: Axes) -> None:
        divisor, word = scale_of(max((float(np.nanmax(curve.x)) for curve in curves), default=1))
        for curve in curves:
            line(axes, curve, divisor)
        axes.set(xlabel=f"positions{f', {word}' if word else ''}", ylabel=label)
        axes.margins(x=0.02)
        if fitted is not None:
            _fit(axes, [fitted(curve.y) for curve in curves])

    return draw


def _as_it_is(values: Floats) -> Floats:
    return values


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


def loss_plots(runs: Sequence[Run]) -> Iterator[Plot]:
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

        yield Plot(
            "Training loss",
            _draw(train, "training loss", loss, _as_it_is),
            note=f"Faint: each record. Line: exponentially weighted mean, span {words} records. It moves with λ.",
            legend=_legend(train, runs),
        )

        def rolling(axes: Axes, curve: Curve, divisor: float) -> None:
            mean, deviation = smoothing.band(curve.y, smoothing.window_for(len(curve.y)))
            x, middle, spread = thin(curve.x / divisor, mean, deviation, most=300)
            axes.fill_between(x, middle - spread, middle + spread, color=curve.color, alpha=0.18, linewidth=0)
            axes.plot(x, middle, color=curve.color)

        def rolled(values: Floats) -> Floats:
            return smoothing.band(values, smoothing.window_for(len(values)))[0]

        if max(len(curve.y) for curve in train) >= 10:
            yield Plot(
                "Training loss and its noise",
                _draw(train, "training loss", rolling, rolled),
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

        yield Plot(
            "Validation loss",
            _draw(validation, "validation loss", held_out, _as_it_is),
            note="The star is the best one. Compare runs only if loss, final λ and held-out positions are the same.",
            legend=_legend(validation, runs),
        )


def both_losses_plot(run: Run) -> Iterator[Plot]:
    """Training and validation loss of a run on one axis."""
    train, validation = (_curves([run], kind, "loss") for kind in ("train", "validation"))
    if not train or not validation:
        return
    curves = [train[0], Curve(run, SERIES[1], validation[0].x, validation[0].y)]

    def line(axes: Axes, curve: Curve, divisor: float) -> None:
        x, y = thin(curve.x / divisor, smoothing.middle(curve.y, min(5, len(curve.y))))
        axes.plot(x, y, color=curve.color, marker="o" if len(x) == 1 else "")

    yield Plot(
        "Training and validation loss",
        _draw(curves, "loss", line, _as_it_is),
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


def course_plots(runs: Sequence[Run]) -> Iterator[Plot]:
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


def match_plots(runs: Sequence[Run]) -> Iterator[Plot]:
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


def net_plots(runs: Sequence[Run]) -> Iterator[Plot]:
    for name, title, label, note in _NEURON_FIGURES:
        if all(np.nanmax(run.validation[name], initial=0) == 0 for run in runs if name in run.validation):
            continue  # the text lists it
        yield from _plain_plot(runs, "validation", name, title, label, note=note, factor=100, zero=True)
    for run in runs:
        of = f" of {run.name}" if len(runs) > 1 else ""
        reach = "Weights are clipped at 100 %, the largest integer."
        yield from _tensor_plot(run, "reach/", f"Largest weights{of}", "% of the limit", reach, limit=100)
        at_limit = "Share of weights at their limit."
        yield from _tensor_plot(run, "at_limit/", f"Clipped weights{of}", "% of the tensor", at_limit)


def _tensor_plot(
    run: Run, prefix: str, title: str, label: str, note: str, limit: float | None = None
) -> Iterator[Plot]:
    """The tensors with the largest figures of a kind, in per cent; nothing if all are 0."""
    found = {name: 100 * values for name, values in run.validation.named(prefix).items() if np.isfinite(values).any()}
    if not any(np.nanmax(values) > 0 for values in found.values()):
        return
    largest = sorted(found, key=lambda name: -float(np.nanmax(found[name])))[:_MOST_TENSORS]
    left = len(found) - len(largest)
    x = run.positions(run.validation)
    curves = [Curve(run, SERIES[number], x, found[name]) for number, name in enumerate(largest)]

    def line(axes: Axes, curve: Curve, divisor: float) -> None:
        marker = "o" if len(curve.y) == 1 else ""
        axes.plot(curve.x / divisor, curve.y, marker=marker, color=curve.color, linewidth=1.3)

    def draw(axes: Axes) -> None:
        _draw(curves, label, line)(axes)
        axes.set_ylim(bottom=0)
        if limit is not None:
            axes.axhline(limit, color=SOFT, linewidth=0.8, linestyle="dashed")

    yield Plot(
        title,
        draw,
        note=note + (f" {left} more tensors stay lower." if left else ""),
        legend=[(name, curve.color) for name, curve in zip(largest, curves, strict=True)],
    )


def net_words(runs: Sequence[Run]) -> str:
    """A sentence about the figures that were zero in all runs and so have no plot; "" without such figures."""
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


def curve_sections(runs: Sequence[Run]) -> list[Section]:
    """The sections of the pages with curves of runs; some may have no plots."""
    both = both_losses_plot(runs[0]) if len(runs) == 1 else ()
    return [
        Section("Loss", plots=[*both, *loss_plots(runs)]),
        Section("Matches", plots=list(match_plots(runs))),
        Section("Course", plots=list(course_plots(runs))),
        Section("Weights and neurons", text=net_words(runs), plots=list(net_plots(runs))),
    ]


def agreement_plots(found: Agreement, of: str, color: str) -> Iterator[Plot]:
    def histogram(axes: Axes) -> None:
        difference = found.difference
        most = max(1.0, float(np.quantile(np.abs(difference), 0.995)) * 1.1)
        axes.hist(np.clip(difference, -most, most), bins=41, range=(-most, most), color=color, linewidth=0)
        axes.axvline(0, color=INK, linewidth=0.7)
        axes.set(xlabel="integers − float model, engine units", ylabel="positions")

    scatter = scores_against(found.floats, found.integers, "float model, engine units", "integers, engine units", color)
    yield Plot(f"Scores{of}", scatter, note="One dot per position, from the side to move.")
    yield Plot(
        f"Differences{of}",
        histogram,
        note="The outer bins include all values beyond them. Rounding causes some spread; a bias is a fault.",
    )
