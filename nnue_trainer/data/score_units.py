"""The unit of scores, measured: the score of a pawn of material, and the scale that fits scores to results. Files, or
parts of a file, in different units are found by comparing both. docs/data-verdict.md, "Units"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from nnue_trainer import _data
from nnue_trainer.base.arrays import Floats, Records
from nnue_trainer.data import fields
from nnue_trainer.data.calibration import fit_curve
from nnue_trainer.data.fields import NO_SCORE
from nnue_trainer.data.reading import DEFAULT_PAWN, FORMATS_IN_PAWNS

RUN, MOST_RUNS, RUNS_FOR_UNITS = 1024, 96, 16
"""Positions that are taken one after the other, so that games show; the most such runs that are kept of a file that is
judged, and of one whose unit is compared beside other work."""
MOST_COMPARED = 64
"""Runs that are kept of all files together for positions that two of them have: 2 MiB, however many files there are."""
FEWEST = 500
"""Positions below which nothing is judged."""
PROVEN = 30_000
OTHER_UNIT = 1.4
"""Scores that are larger by this factor, by both measures, are in another unit."""

_PIECE_VALUES = np.array([0, 1, -1, 3, -3, 3, -3, 5, -5, 9, -9, 0, 0], np.int8)
_SEPARATED = 4.0
"""Standard deviations between the units of two parts of a file."""
_FEWEST_OF_RUN = 50
_FEWEST_COMMON, _LEAST_COMMON = 20, 20
"""Positions that two files have, and the size of their scores, from which their unit shows."""
_LEAST_SPREAD = 0.1
"""Least standard deviation of the logarithm of a pawn's score in a run, of which few may be known."""


class Sample:
    """Runs of positions spread evenly over a stream, in bounded memory, and its duplicates.

    `add` takes positions in order. Every n-th run of the stream is kept; n doubles when there are too many."""

    def __init__(self, most: int = MOST_RUNS) -> None:
        # In one piece: runs between the blocks that a tool reads would keep the heap from shrinking.
        self._memory = np.empty((most + 1, RUN, 32), np.uint8)
        self._lengths: list[int] = []
        self._every, self._next = 1, 0

    @cached_property
    def duplicates(self) -> _data.DuplicateEstimator:
        """Counts the duplicates among what `add` takes; 16 MiB."""
        return _data.DuplicateEstimator()

    def add(self, records: Records) -> None:
        self.duplicates.add(records)
        self.add_runs(records)

    def add_runs(self, records: Records) -> None:
        """Like `add`, without counting duplicates, which takes memory."""
        for begin in range(0, len(records), RUN):
            if self._next % self._every == 0:
                run = records[begin : begin + RUN]
                self._memory[len(self._lengths), : len(run)] = run
                self._lengths.append(len(run))
                if len(self._lengths) == len(self._memory):
                    self._lengths = self._lengths[::2]
                    self._memory[: len(self._lengths)] = self._memory[::2].copy()
                    self._every *= 2
            self._next += 1

    @property
    def runs(self) -> list[Records]:
        """The runs, views into the sample's memory."""
        return [run[:length] for run, length in zip(self._memory, self._lengths, strict=False)]

    @property
    def records(self) -> Records:
        """All runs."""
        return np.concatenate([np.zeros((0, 32), np.uint8), *self.runs])

    def units(self) -> Units | None:
        """The unit of the scores; None if there are too few."""
        records = self.records
        return units_of(ScoredPositions(records)) if len(records) else None


class ScoredPositions:
    """Positions as arrays [n]: scores, results and material from the side to move's view, and whether a score is an
    evaluation (`usual`): neither missing nor proven."""

    def __init__(self, records: Records) -> None:
        self.scores, self.results = fields.scores(records), fields.results(records)
        self.black = fields.black_to_move(records)
        self.boards = fields.boards(records)
        # In blocks, because an index array takes eight bytes per square while it is used.
        blocks = np.array_split(self.boards, 1 + len(records) // 4096)
        material = np.concatenate([_PIECE_VALUES[block].sum(1, dtype=np.int32) for block in blocks])
        self.material = np.where(self.black, -material, material)
        self.usual = (self.scores != NO_SCORE) & (np.abs(self.scores) <= PROVEN)
        self._per_pawn = np.divide(self.scores, self.material, where=self.material != 0, out=np.zeros(len(records)))
        self.near = self.usual & (np.abs(self.material) >= 1) & (np.abs(self.material) <= 6) & (self.scores != 0)

    def per_pawn(self, where: npt.NDArray[np.bool_] | slice = slice(None)) -> Floats:
        """The scores per pawn of the positions with a small material difference among those of `where`."""
        return np.asarray(self._per_pawn[where][self.near[where]])

    def by_score(self, where: npt.NDArray[np.bool_] | slice = slice(None)) -> tuple[Floats, Floats, Floats]:
        """Different scores, the mean points of each, and the number of its positions, as float64."""
        known = self.usual[where]
        values, inverse = np.unique(self.scores[where][known], return_inverse=True)
        counts = np.bincount(inverse, minlength=len(values)).astype(np.float64)
        points = np.bincount(inverse, (self.results[where][known] + 1) / 2, len(values)) / np.maximum(counts, 1)
        return values.astype(np.float64), points, counts


@dataclass(frozen=True)
class Units:
    """`pawn`: the median score per pawn of material. `scale`: 1/(1 + e^(−score/scale)) fits the results best; None if
    they do not decide it."""

    pawn: float
    scale: float | None

    def __str__(self) -> str:
        fitted = f", and 1/(1 + e^(−score/{self.scale:.0f})) fits the results" if self.scale else ""
        return f"a pawn is worth {self.pawn:.0f}{fitted}"


def units_of(positions: ScoredPositions, where: npt.NDArray[np.bool_] | slice = slice(None)) -> Units | None:
    """The unit of the positions' scores, or of those of `where`; None if there are too few, or if scores do not grow
    with material."""
    per_pawn = positions.per_pawn(where)
    if len(per_pawn) < FEWEST or (pawn := float(np.median(per_pawn))) <= 0:
        return None
    curve = fit_curve(*positions.by_score(where), with_offset=False)
    return Units(pawn, curve.scale if curve else None)


def factor_between(one: Units | None, other: Units | None) -> float | None:
    """How many times larger the scores of `other` are, if that is another unit; None if it is the same, or unknown.

    The scale alone depends on the strength of play, and the pawn alone on the evaluation; so their mean decides."""
    if one is None or other is None:
        return None
    pawn = np.log(other.pawn / one.pawn)
    scale = np.log(other.scale / one.scale) if one.scale and other.scale else pawn
    if pawn * scale < 0 or min(abs(pawn), abs(pawn + scale) / 2) < np.log(OTHER_UNIT):
        return None
    return float(np.exp(pawn))


def parts(positions: ScoredPositions, lengths: Sequence[int]) -> str:
    """The parts of a sample whose scores are in different units, in words; "": none. `lengths`: positions in each run
    of the sample."""
    ends = np.cumsum(lengths)
    runs = [slice(int(end - length), int(end)) for end, length in zip(ends, lengths, strict=True)]
    known, values = [], []
    for run in runs:
        ratios = positions.per_pawn(run)
        if len(ratios) >= _FEWEST_OF_RUN and (median := float(np.median(ratios))) > 0:
            known.append(run)
            values.append(np.log(median))
    group = _groups(np.array(values))
    if group is None:
        return ""
    found = []
    for number in (0, 1):
        where = np.zeros(int(ends[-1]), bool)
        for run, own in zip(known, group, strict=True):
            where[run] |= own == number
        found.append(units_of(positions, where))
    factor = factor_between(*found)
    if factor is None:
        return ""
    places = [_places(group == number) for number in (0, 1)]
    return f"in {places[0]} of the file, {found[0]}; in {places[1]}, {found[1]} (factor {factor:.2f})"


def _groups(values: Floats) -> npt.NDArray[np.int64] | None:
    """Two groups (0, 1) of values that are far apart: those on both sides of a threshold, or of one or two places in
    their order. None if there are none."""
    count = len(values)
    if count < 2:
        return None
    order = np.argsort(values, kind="stable")
    candidates = [np.isin(np.arange(count), order[at:]) for at in range(1, count)]
    places = [*range(0, count, max(1, count // 24)), count]
    candidates += [(np.arange(count) >= a) & (np.arange(count) < b) for a in places for b in places if a < b]
    steps = np.abs(np.diff(values)) / np.sqrt(2)
    noise = max(_LEAST_SPREAD, float(np.median(steps)) / 0.6745) if count > 3 else 2 * _LEAST_SPREAD
    best, chosen = 0.0, None
    for number, one in enumerate(candidates):
        size = int(one.sum())
        if not 0 < size < count:
            continue
        gap = abs(float(np.median(values[one]) - np.median(values[~one])))
        if gap < np.log(OTHER_UNIT):
            continue
        if number < count - 1:  # by size: the groups themselves must be narrow
            within = (values[one].var() * size + values[~one].var() * (count - size)) / count
            spread = max(_LEAST_SPREAD, float(np.sqrt(within)))
            certainty = gap / spread if min(size, count - size) >= 0.05 * count else 0.0
        else:
            certainty = gap * float(np.sqrt(size * (count - size) / count)) / noise
        if certainty > max(best, _SEPARATED):
            best, chosen = certainty, one
    return None if chosen is None else chosen.astype(np.int64)


def _places(own: npt.NDArray[np.bool_]) -> str:
    """Where a group lies in a file, in percent of it."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], own, [False]]).astype(np.int8)))
    stretches = [(int(100 * a / len(own)), int(100 * b / len(own))) for a, b in edges.reshape(-1, 2)]
    if len(stretches) > 3:
        return f"{own.mean():.0%}"
    return "the part " + " and ".join(f"from {a} to {b} %" for a, b in stretches)


@dataclass(frozen=True)
class FileUnits:
    """The unit of a file's scores, under the name and the format of the file. `pawn`: what a user set for a format in
    pawns. `runs`: positions of the file, for positions that other files have, too."""

    name: str
    format: str
    units: Units | None
    pawn: float | None = None
    runs: list[Records] = field(default_factory=list)

    def factor_to(self, other: FileUnits) -> float | None:
        """How many times larger the scores of `other` are, if that is another unit; None if it is the same, or
        unknown."""
        common = None
        if self.runs and other.runs:
            common = factor_of_common(np.concatenate(self.runs), np.concatenate(other.runs))
        return factor_between(self.units, other.units) if common is None else common


class ComparedFiles:
    """Files whose units are compared, with MOST_COMPARED runs of positions in all."""

    def __init__(self) -> None:
        self.files: list[FileUnits] = []

    def add(self, file: FileUnits, sample: Sample) -> None:
        """Adds a file with a part of its sample, and keeps less of the files before it."""
        self.files.append(file)
        most = MOST_COMPARED // len(self.files)
        file.runs[:] = sample.runs
        for each in self.files:
            while len(each.runs) > most:  # each second run, so that the same ones stay of files of one size
                each.runs[:] = each.runs[::2] if most else []
        file.runs[:] = [run.copy() for run in file.runs]  # they were views of the sample's memory


def factor_of_common(one: Records, other: Records) -> float | None:
    """How many times larger the scores of `other` are in positions that both have, if it is about the same number in
    all of them and not 1; None otherwise, as for scores of two engines."""
    mine, theirs = (np.ascontiguousarray(records[:, :24]).view("S24").ravel() for records in (one, other))
    _, first, second = np.intersect1d(mine, theirs, return_indices=True)
    x, y = fields.scores(one)[first].astype(np.float64), fields.scores(other)[second].astype(np.float64)
    sized = (np.abs(x) >= _LEAST_COMMON) & (np.abs(y) >= _LEAST_COMMON) & (x != NO_SCORE) & (y != NO_SCORE)
    sized &= (np.abs(x) <= PROVEN) & (np.abs(y) <= PROVEN)
    if sized.sum() < _FEWEST_COMMON:
        return None
    low, factor, high = np.quantile(y[sized] / x[sized], (0.1, 0.5, 0.9))
    if low <= 0 or high / low > 1.2 or abs(np.log(factor)) < np.log(1.2):
        return None
    return float(factor)


def differences(files: Sequence[FileUnits], most: int = 5) -> list[str]:
    """A line for each file whose scores are in another unit than those of a file of the largest group; and one if some
    of the files state a unit and others do not, so that the unit of the former was assumed."""
    groups: list[list[FileUnits]] = []
    for file in files:
        for group in groups:
            if _other_unit(group, file) is None:
                group.append(file)
                break
        else:
            groups.append([file])
    groups.sort(key=len, reverse=True)
    lines = []
    for group in groups[1:]:
        for file in group:
            differs = next(filter(None, (_other_unit(other, file) for other in groups if other is not group)), None)
            if differs is None:
                continue
            one, factor = differs
            found = f"{file.units}; there {one.units}" if file.units and one.units else "in positions that both have"
            lines.append(
                f"{file.name} ({file.format}): scores are {factor:.2f} times as large as in {one.name} ({one.format}), "
                f"which is another unit: {found}: {_remedy(file, one, factor)}"
            )
    if len(lines) > most:
        lines = [*lines[:most], f"{len(lines) - most} more files are in another unit"]
    stated = [file for file in files if file.format in FORMATS_IN_PAWNS and file.pawn is None]
    stored = [file for file in files if file.format not in FORMATS_IN_PAWNS]
    if stated and stored and not lines:
        lines.append(
            f"{stated[0].name} ({stated[0].format}) states pawns, which were converted with {DEFAULT_PAWN:g} internal "
            f"units each; {stored[0].name} ({stored[0].format}) stores numbers without a unit: if these are not such "
            "internal units, set --pawn (100 for centipawns) or --score-scale"
        )
    return lines


def _other_unit(group: Sequence[FileUnits], file: FileUnits) -> tuple[FileUnits, float] | None:
    """The first file of a group that is known to be in another unit than `file`, and how many times larger the scores
    of `file` are. A file of few positions has no unit of its own, so the others with positions are compared, too."""
    known = next((each for each in group if each.units), None)
    for one in group:
        if (one is known or one.runs) and (factor := one.factor_to(file)) is not None:
            return one, factor
    return None


def _remedy(file: FileUnits, one: FileUnits, factor: float) -> str:
    """The options that bring both files to one unit."""
    for each, ratio in ((file, 1 / factor), (one, factor)):
        if each.format in FORMATS_IN_PAWNS:
            pawn = f"{(each.pawn or DEFAULT_PAWN) * ratio:.4g}"
            return f"read {each.name} with --pawn {pawn} (data.formats: [{{kind: {each.format}, pawn: {pawn}}}])"
    return (
        f"multiply its scores by {1 / factor:.3g} (`nnue data convert --score-scale`), or the other's by {factor:.3g}"
    )
