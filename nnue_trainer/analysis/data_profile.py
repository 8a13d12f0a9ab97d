"""`nnue data profile`: how a data file changes along its length, and how its scores relate to its results.

One pass and bounded memory: the data library counts blocks of equal size (data_loader/formats/profile.h), and
everything here is arithmetic on at most 1024 of them.

docs/analysis.md ("Data") has the rules for drift and duplicates.

Proven wins and losses (a magnitude above 30,000: mates and tablebases) are counted apart and are not scores here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from nnue_trainer import _data
from nnue_trainer.analysis.smoothing import band
from nnue_trainer.base.arrays import Floats, Records
from nnue_trainer.base.progress import positions as counted
from nnue_trainer.data.calibration import Curve, fit_curve
from nnue_trainer.data.files import Progress, StrPath
from nnue_trainer.data.info import different_boards, duplicates_text, size_texts
from nnue_trainer.data.many_files import FileBlocks, read_blocks
from nnue_trainer.data.reading import ReadingOptions
from nnue_trainer.data.score_units import Sample
from nnue_trainer.data.verdict import Verdict, judge
from nnue_trainer.errors import UserError, shown
from nnue_trainer.files.pages.page import Page, Section, Table, plain
from nnue_trainer.files.pages.plots import GRID, SERIES, SOFT, Plot, scale_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Blocks = Mapping[str, npt.NDArray[Any]] | npt.NDArray[np.void]
"""Fields of data_loader/formats/profile.h, with a row for each block."""

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
PHASES = ("25 to 32 pieces", "13 to 24 pieces", "2 to 12 pieces")

DRIFT_Z = 4.0
DRIFT_EFFECT = 0.1
MOST_BLOCKS, FEWEST_BLOCKS, SMALLEST_BLOCK = 128, 16, 2048
DUPLICATES, DUPLICATES_OF_BLOCK = 0.05, 0.10

_EXACT, _PER_OCTAVE = 128, 64  # of data_loader/formats/profile.h


def bin_values(bins: int) -> Floats:
    """The middle of each bin of magnitudes: 0 … 127 exactly, then 64 bins for each power of two."""
    at = np.arange(bins)
    octave = np.maximum(at - _EXACT, 0) // _PER_OCTAVE
    width = np.where(at < _EXACT, 1, 2 << octave)
    low = np.where(at < _EXACT, at, (_PER_OCTAVE + (at - _EXACT) % _PER_OCTAVE) * width)
    return np.asarray(low + (width - 1) / 2, np.float64)


def score_values(bins: int) -> Floats:
    """The middle of each bin of scores."""
    positive = bin_values((bins + 1) // 2)
    return np.concatenate([-positive[:0:-1], positive])


@dataclass(frozen=True)
class Series:
    """One quantity along the file, by blocks. `deviation` is that of single positions in a block; `quantiles` maps q to
    values; empty if it makes no sense."""

    name: str
    unit: str
    mean: Floats
    deviation: Floats
    quantiles: dict[float, Floats] = field(default_factory=dict)


@dataclass(frozen=True)
class Drift:
    """`z`, and `moved`: how far the rolling mean goes in standard deviations of single positions. `at`: the position
    where the file before and after differ most."""

    name: str
    z: float
    moved: float
    at: int
    before: float
    behind: float

    @property
    def flagged(self) -> bool:
        return self.z > DRIFT_Z and self.moved > DRIFT_EFFECT


@dataclass(frozen=True)
class Calibration:
    """Expected points of the side to move by its score. Rows are groups of scores: `score` their means, `points` wins
    plus half the draws per position, `low` and `high` two standard errors around them (each position taken as a game of
    its own, so they are too narrow where games lie whole in the file), `draws` the share of draws, `count`. `curve`
    makes points = 1 / (1 + exp(−(score − offset) / scale)) fit best (maximum likelihood), `centred` does with the
    offset 0; None if nothing does."""

    name: str
    score: Floats
    points: Floats
    low: Floats
    high: Floats
    draws: Floats
    count: Floats
    curve: Curve | None
    centred: Curve | None


@dataclass
class DataProfile:
    """The figures of `nnue data profile`. `ends` holds, for each block, the number of positions up to its end."""

    path: str
    size: int
    format: str
    compression: str | None
    positions: int
    scored: int
    proven: int
    results: tuple[int, int, int]
    block_size: int
    ends: Floats
    series: list[Series]
    drifts: list[Drift]
    too_short: bool
    duplicate_share: float
    distinct: int
    duplicates_exact: bool
    repeated: Floats
    """share of positions of each block whose board occurred before, NaN where none was checked"""
    repeated_blocks: list[int]
    """blocks with far more of those than the file"""
    calibrations: list[Calibration]
    totals: dict[str, dict[str, float]]
    verdict: Verdict
    notes: list[str]
    """decisions and omissions of the reader"""

    def warnings(self) -> list[str]:
        """Everything that is flagged, one line each."""
        judged = (*self.verdict.contradictions, *self.verdict.doubts)
        # Duplicates and scores are counted over the whole file below.
        lines = [found.text for found in judged if found.name not in ("duplicates", "no_score")]
        lines += [
            f"{drift.name} drifts: {drift.before:.4g} on average up to position {drift.at:,}, {drift.behind:.4g} "
            f"after it (z {drift.z:.1f}, the rolling mean moves by {drift.moved:.2f} standard deviations)"
            for drift in self.drifts
            if drift.flagged
        ]
        if self.duplicate_share > DUPLICATES:
            lines.append(
                f"duplicates: {self.duplicate_share:.1%} of the positions have a board that occurred before "
                f"({self.distinct:,} different boards); above {DUPLICATES:.0%}"
            )
        if self.repeated_blocks:
            first = self.repeated_blocks[0]
            begin = int(self.ends[first - 1]) if first else 0
            lines.append(
                f"repeated stretches: {len(self.repeated_blocks)} of {len(self.ends)} blocks repeat earlier boards far "
                f"more often than the file, the first from position {begin:,} ({self.repeated[first]:.0%})"
            )
        unscored = self.positions - self.scored - self.proven
        if unscored:
            lines.append(f"{unscored:,} positions ({unscored / self.positions:.1%}) have no score (32002)")
        return lines


def data_profile(
    path: StrPath, progress: Progress | None = None, threads: int = 1, **scores: Unpack[ReadingOptions]
) -> DataProfile:
    """Reads the whole file, in any format; `progress(bytes done, bytes in all)` is called now and then. `threads` do
    not change the result. `scores`: how scores and results are read. UserError for a file without positions."""
    return read_blocks(path, lambda blocks: _profile_of(path, blocks, progress), threads, **scores)


def _profile_of(path: StrPath, file: FileBlocks, progress: Progress | None) -> DataProfile:
    native, sample, reader = _data.Profile(), Sample(), file.reader

    block_size = native.block_size  # the current one or, in another thread, an earlier one

    def counted_part(records: Records) -> _data.Profile:
        part = _data.Profile()
        part.add_part(records, block_size)
        return part

    for records, part in file.each(counted_part):
        native.join(part, records)
        block_size = native.block_size
        sample.add_runs(records)
        if progress:
            progress(reader.done, reader.size)
    blocks = native.blocks
    count = blocks["positions"].astype(np.float64)
    if not count.sum():
        raise UserError(f"{path}: no positions")
    drifts, too_short = _drifts(blocks, native.block_size)
    looked_at, repeated = blocks["looked_at"].astype(np.float64), blocks["repeated"].astype(np.float64)
    share = np.divide(repeated, looked_at, out=np.full(len(count), np.nan), where=looked_at > 0)
    total_share = native.duplicate_share
    error = np.sqrt(np.maximum(total_share * (1 - total_share), 1e-6) / np.maximum(looked_at, 1))
    far = (
        (share > DUPLICATES_OF_BLOCK)
        & (share > 2 * total_share)
        & (share > total_share + 5 * error)
        & (looked_at >= 50)
    )
    return DataProfile(
        path=str(path),
        size=reader.size,
        format=reader.format,
        compression=reader.compression,
        positions=int(count.sum()),
        scored=int(blocks["scored"].sum()),
        proven=int(blocks["proven"].sum()),
        results=tuple(int(n) for n in blocks["results"].sum(0)),  # type: ignore[arg-type]
        block_size=native.block_size,
        ends=np.cumsum(count),
        series=list(_series(blocks)),
        drifts=drifts,
        too_short=too_short,
        duplicate_share=total_share,
        distinct=different_boards(int(count.sum()), total_share),
        duplicates_exact=native.duplicates_exact,
        repeated=share,
        repeated_blocks=np.flatnonzero(far).tolist(),
        calibrations=_calibrations(native.calibration),
        totals=_totals(blocks),
        verdict=judge(sample, reader.format, duplicate_share=total_share),
        notes=reader.notes + reader.unit_notes,
    )


def _quantiles(histogram: npt.NDArray[Any], values: Floats) -> dict[float, Floats]:
    """The quantiles of each row of a histogram: the middle of the bin in which each falls."""
    cumulated = np.cumsum(histogram, axis=1, dtype=np.float64)
    total = cumulated[:, -1:]
    found = {}
    for q in QUANTILES:
        at = (cumulated < np.maximum(q * total, 0.5)).sum(axis=1)
        found[q] = np.where(total[:, 0] > 0, values[np.minimum(at, len(values) - 1)], np.nan)
    return found


def _moments(total: Floats, squares: Floats, count: Floats) -> tuple[Floats, Floats]:
    safe = np.where(count > 0, count, np.nan)
    mean = total / safe
    return mean, np.sqrt(np.maximum(squares / safe - mean**2, 0))


def _series(blocks: Blocks) -> Iterator[Series]:
    def sums(name: str) -> Floats:
        return np.asarray(blocks[name], np.float64)

    count, scored, results = sums("positions"), sums("scored"), sums("results")
    mean, deviation = _moments(sums("sum_score"), sums("sum_score_squared"), scored)
    yield Series(
        "score", "engine units", mean, deviation, _quantiles(blocks["scores"], score_values(blocks["scores"].shape[1]))
    )
    mean, deviation = _moments(sums("sum_magnitude"), sums("sum_score_squared"), scored)
    yield Series("size of the score", "engine units", mean, deviation)
    mean, deviation = _moments(results[:, 2] - results[:, 0], results[:, 2] + results[:, 0], count)
    yield Series("result", "of the side to move, −1 to 1", mean, deviation)
    mean, deviation = _moments(results[:, 1], results[:, 1], count)
    yield Series("draws", "share of positions", mean, deviation)
    mean, deviation = _moments(sums("sum_ply"), sums("sum_ply_squared"), count)
    yield Series(
        "ply", "plies played", mean, deviation, _quantiles(blocks["plies"], bin_values(blocks["plies"].shape[1]))
    )
    mean, deviation = _moments(sums("sum_pieces"), sums("sum_pieces_squared"), count)
    pieces = np.arange(blocks["pieces"].shape[1], dtype=np.float64)
    yield Series("piece count", "pieces", mean, deviation, _quantiles(blocks["pieces"], pieces))


def _totals(blocks: npt.NDArray[np.void]) -> dict[str, dict[str, float]]:
    whole = {name: blocks[name].sum(0, keepdims=True) for name in blocks.dtype.names or ()}
    totals = {}
    for series in _series(whole):
        quantiles = {f"{q:.0%}": float(values[0]) for q, values in series.quantiles.items()}
        totals[series.name] = {"mean": float(series.mean[0]), "deviation": float(series.deviation[0]), **quantiles}
    return totals


# ---- drift -----------------------------------------------------------------------------------------------------------


def drift_of(name: str, means: Floats, ends: Floats, deviation: float) -> Drift | None:
    """The drift, by the rule of docs/analysis.md, of the means of blocks of equal size, whose ends are at `ends`;
    `deviation` is the one of single positions. None if nothing varies."""
    n = len(means)
    centred = means - means.mean()
    total = float(centred @ centred)
    if n < 3 or total <= 0 or not np.isfinite(total) or deviation <= 0:
        return None
    steps = np.diff(means)
    ratio = float(steps @ steps) / 2 / total
    z = (1 - ratio) / np.sqrt((n - 2) / (n**2 - 1))
    rolled, _ = band(means, max(2, n // 8))
    moved = float(np.nanmax(rolled) - np.nanmin(rolled)) / deviation
    sums = np.cumsum(centred)[:-1]
    split = int(np.abs(sums / np.sqrt(np.arange(1, n) * np.arange(n - 1, 0, -1))).argmax()) + 1
    return Drift(name, float(z), moved, int(ends[split - 1]), float(means[:split].mean()), float(means[split:].mean()))


def _drifts(blocks: npt.NDArray[np.void], block_size: int) -> tuple[list[Drift], bool]:
    """The drift of every quantity, and whether the file is too short for a verdict."""
    full = int((blocks["positions"] == block_size).sum())  # the last block is shorter, as a rule
    joined = max(1, -(-SMALLEST_BLOCK // block_size))
    while full // joined > MOST_BLOCKS:
        joined *= 2
    n = full // joined
    if n < FEWEST_BLOCKS:
        return [], True
    parts = {
        name: blocks[name][: n * joined].reshape(n, joined, *blocks[name].shape[1:]).sum(1)
        for name in blocks.dtype.names or ()
    }
    totals = _totals(blocks)
    ends = np.cumsum(parts["positions"], dtype=np.float64)
    found = []
    for series in _series(parts):
        drift = drift_of(series.name, series.mean, ends, totals[series.name]["deviation"])
        if drift is not None:
            found.append(drift)
    return found, False


# ---- calibration -----------------------------------------------------------------------------------------------------


def _calibrations(table: npt.NDArray[Any]) -> list[Calibration]:
    table = table.astype(np.float64)
    every = [("all positions", table.sum(0)), *zip(PHASES, table, strict=True)]
    return [found for name, counts in every if (found := _calibration(name, counts)) is not None]


def _calibration(name: str, counts: Floats) -> Calibration | None:
    """`counts` [score bins, 3]: losses, draws, wins. Bins are joined to groups of scores with enough positions each."""
    values, count = score_values(len(counts)), counts.sum(1)
    if count.sum() < 200:
        return None
    points = np.divide(counts[:, 2] + counts[:, 1] / 2, count, out=np.zeros(len(count)), where=count > 0)
    groups = _groups(count, most=60)
    total = np.add.reduceat(count, groups)
    some = total > 0

    def per_group(column: Floats) -> Floats:
        return np.asarray(np.add.reduceat(column, groups)[some] / total[some])

    mean = per_group(counts[:, 2] + counts[:, 1] / 2)
    draws = per_group(counts[:, 1])
    squares = per_group(counts[:, 2] + counts[:, 1] / 4)
    error = np.sqrt(np.maximum(squares - mean**2, 1e-9) / total[some])
    return Calibration(
        name,
        per_group(values * count),
        mean,
        np.clip(mean - 2 * error, 0, 1),
        np.clip(mean + 2 * error, 0, 1),
        draws,
        total[some],
        fit_curve(values, points, count),
        fit_curve(values, points, count, with_offset=False),
    )


def _groups(count: Floats, most: int) -> npt.NDArray[np.intp]:
    """Beginnings of runs of bins that hold about the same number of positions each."""
    cumulated = np.cumsum(count)
    group = np.minimum((cumulated - count / 2) / cumulated[-1] * most, most - 1).astype(np.intp)
    return np.flatnonzero(np.diff(group, prepend=-1))


# ---- what is shown ---------------------------------------------------------------------------------------------------


def as_dict(profile: DataProfile) -> dict[str, Any]:
    """Plain JSON data; NaN becomes None."""
    found: dict[str, Any] = plain(profile)
    found["drifts"] = [plain(drift) | {"flagged": drift.flagged} for drift in profile.drifts]
    return found | {"warnings": profile.warnings(), "verdict": profile.verdict.as_dict()}


def _axis(profile: DataProfile) -> tuple[Floats, float, str]:
    """The middle of each block, the positions in 1.0 of them, and a label."""
    divisor, word = scale_of(float(profile.ends[-1]))
    middle = profile.ends - np.diff(profile.ends, prepend=0) / 2
    return middle / divisor, divisor, f"position in the file{f', {word}' if word else ''}"


def _along(profile: DataProfile, series: Series) -> Plot:
    x, divisor, label = _axis(profile)
    window = max(5, len(x) // 32)
    drift = next((drift for drift in profile.drifts if drift.name == series.name), None)

    def draw(axes: Axes) -> None:
        color = SERIES[0]
        if series.quantiles and len(x) > 1:
            rolled = {q: band(values, window)[0] for q, values in series.quantiles.items()}
            axes.fill_between(x, rolled[0.05], rolled[0.95], color=color, alpha=0.10, linewidth=0)
            axes.fill_between(x, rolled[0.25], rolled[0.75], color=color, alpha=0.18, linewidth=0)
            axes.plot(x, rolled[0.5], color=color, linewidth=1, linestyle=(0, (4, 2)))
        axes.plot(x, series.mean, ("o" if len(x) == 1 else "-"), color=color, alpha=0.35, linewidth=0.7, markersize=3)
        if len(x) > 2:
            axes.plot(x, band(series.mean, window)[0], color=color)
        if drift is not None and drift.flagged:
            axes.axvline(drift.at / divisor, color=SERIES[1], linewidth=1, linestyle=(0, (4, 3)))
        axes.set(xlabel=label, ylabel=series.unit)
        axes.margins(x=0.01)

    total = profile.totals[series.name]
    bands = " Dashed: median; bands: 25 to 75 % and 5 to 95 %." if series.quantiles else ""
    verdict = ""
    if drift is not None:
        verdict = f" Drift: z {drift.z:.1f}, moves by {drift.moved:.2f} deviations" + (
            ", flagged; the red line is where." if drift.flagged else "."
        )
    return Plot(
        f"{series.name[0].upper()}{series.name[1:]}",
        draw,
        note=f"Line: rolling mean over {window} blocks.{bands} Mean {total['mean']:.4g}, deviation "
        f"{total['deviation']:.4g}.{verdict}",
    )


def _repeats(profile: DataProfile) -> Plot:
    x, _, label = _axis(profile)

    def draw(axes: Axes) -> None:
        axes.plot(x, 100 * profile.repeated, "o" if len(x) == 1 else "-", color=SERIES[0], linewidth=1)
        axes.axhline(100 * DUPLICATES, color=SOFT, linewidth=0.8, linestyle=(0, (4, 3)))
        for block in profile.repeated_blocks:
            axes.plot(x[block], 100 * profile.repeated[block], "o", color=SERIES[1], markersize=3)
        axes.set_ylim(bottom=0)
        axes.set(xlabel=label, ylabel="% of the block")

    return Plot(
        "Boards that occurred before",
        draw,
        note=f"{profile.duplicate_share:.2%} of the file. Dashed: where the file would be flagged. Red: blocks far "
        "above the file.",
    )


def _phase_colors(profile: DataProfile) -> list[tuple[Calibration, str]]:
    return list(zip(profile.calibrations, SERIES, strict=False))


def _score_limit(profile: DataProfile) -> float:
    """The limit of the axis of scores: beyond six scales the curve is flat."""
    most = float(np.abs(profile.calibrations[0].score).max(initial=1))
    curve = profile.calibrations[0].curve
    return most if curve is None else min(most, 6 * curve.scale + abs(curve.offset))


def _calibration_plot(
    profile: DataProfile, title: str, note: str, label: str, line: Callable[[Axes, Calibration, str], None]
) -> Plot:
    def draw(axes: Axes) -> None:
        for found, color in _phase_colors(profile):
            line(axes, found, color)
        limit = _score_limit(profile)
        axes.set(xlim=(-limit, limit), xlabel="score, engine units, side to move", ylabel=label)

    legend = [(found.name, color) for found, color in _phase_colors(profile)]
    return Plot(title, draw, note=note, legend=legend)


def _win_rate(profile: DataProfile) -> Plot:
    def line(axes: Axes, found: Calibration, color: str) -> None:
        axes.plot(found.score, found.points, "o", color=color, markersize=2.2)
        if found.curve is not None:
            x = np.linspace(-_score_limit(profile), _score_limit(profile), 200)
            axes.plot(x, found.curve(x), color=color, linewidth=1.1)

    curve = profile.calibrations[0].curve
    fitted = "no curve fits"
    if curve is not None:
        fitted = f"the best for all positions has the scale {curve.scale:.0f} and the offset {curve.offset:.0f}"
    return _calibration_plot(
        profile,
        "Points by score",
        f"Dots: wins plus half the draws. Lines: 1 / (1 + exp(−(score − offset) / scale)); {fitted}.",
        "points per position",
        line,
    )


def _residuals(profile: DataProfile) -> Plot:
    def line(axes: Axes, found: Calibration, color: str) -> None:
        axes.axhline(0, color=GRID, linewidth=1)
        if found.curve is None:
            return
        expected = found.curve(found.score)
        axes.fill_between(found.score, found.low - expected, found.high - expected, color=color, alpha=0.2, linewidth=0)
        axes.plot(found.score, found.points - expected, color=color, linewidth=1)

    return _calibration_plot(
        profile,
        "What the curve misses",
        "Points less the curve, with two standard errors. A slope or bend means that scores and results disagree: "
        "too sure or too timid scores, or another shape than the logistic.",
        "points − curve",
        line,
    )


def _draws(profile: DataProfile) -> Plot:
    def line(axes: Axes, found: Calibration, color: str) -> None:
        axes.plot(found.score, 100 * found.draws, color=color, linewidth=1.2)
        axes.update_datalim([(0.0, 0.0)])

    return _calibration_plot(profile, "Draws by score", "Share of drawn games.", "% of positions", line)


def page(profile: DataProfile) -> Page:
    lost, drawn, won = profile.results
    n = profile.positions
    packed = f", {profile.compression}-compressed" if profile.compression else ""
    sized, density = size_texts(profile.size, n)
    flagged = profile.warnings()
    totals = [
        [
            name,
            f"{total['mean']:.3f}",
            f"{total['deviation']:.3f}",
            *(f"{total[f'{q:.0%}']:.0f}" if f"{q:.0%}" in total else "" for q in QUANTILES),
        ]
        for name, total in profile.totals.items()
    ]
    overview = Section(
        "Overview",
        warnings=flagged,
        good=[] if flagged or profile.too_short else ["No drift, and few duplicates."],
        facts=[
            ("verdict", profile.verdict.word),
            ("format", f"{profile.format}{packed}"),
            *density,
            ("win / draw / loss", f"{won / n:.2%} / {drawn / n:.2%} / {lost / n:.2%} (own view)"),
            ("proven wins, losses", f"{profile.proven / n:.2%}"),
            ("duplicates", duplicates_text(profile)),
            ("blocks", f"{len(profile.ends):,} of {profile.block_size:,} positions"),
        ],
        tables=[Table(["", "mean", "deviation", *(f"{q:.0%}" for q in QUANTILES)], totals)],
    )
    if profile.too_short:
        overview.text = f"Too short to judge drift: {FEWEST_BLOCKS * SMALLEST_BLOCK:,} positions are needed."
    along = [*(_along(profile, series) for series in profile.series), _repeats(profile)]
    sections = [overview, Section("Along the file", plots=along)]
    if profile.calibrations:
        head = ["positions with", "number", "draws", "scale", "offset", "scale with offset 0", "nats lost"]
        sections.append(
            Section(
                "Scores and results",
                "Results are most likely with points = 1 / (1 + exp(−(score − offset) / scale)).",
                tables=[Table(head, [_curve_row(found) for found in profile.calibrations])],
                plots=[_win_rate(profile), _residuals(profile), _draws(profile)],
            )
        )
    return Page(
        shown(profile.path.rpartition("/")[2]),
        f"Data profile of {n:,} positions ({counted(n)})",
        sections,
        headline=f"{profile.path}: {profile.format}{packed}, {sized}{n:,} positions",
    )


def _curve_row(found: Calibration) -> list[str]:
    row = [found.name, f"{found.count.sum():,.0f}", f"{found.draws @ found.count / found.count.sum():.1%}"]
    if found.curve is None or found.centred is None:
        return [*row, "–", "–", "–", "–"]
    lost = found.curve.likelihood - found.centred.likelihood
    return [
        *row,
        f"{found.curve.scale:.1f}",
        f"{found.curve.offset:.1f}",
        f"{found.centred.scale:.1f}",
        f"{lost:,.1f}",
    ]
