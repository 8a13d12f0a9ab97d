"""Is a data file plausible? A verdict from a sample that is spread over it: `nnue data validate`, `nnue data profile`
and the start of a training.

Three witnesses are compared for each side to move: scores, results and material. Where two agree and the third does
not, the third is wrong, and the way in which it is wrong names the cause. docs/data-verdict.md has every rule, and how
the limits were chosen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from nnue_trainer import _data
from nnue_trainer.base.arrays import Floats, Records
from nnue_trainer.data import fields
from nnue_trainer.data.calibration import fit_curve
from nnue_trainer.data.fields import NO_SCORE
from nnue_trainer.data.filters import Filters
from nnue_trainer.data.reading import DEFAULT_PAWN, FORMATS_IN_PAWNS, FORMATS_WITHOUT_SIDES
from nnue_trainer.data.score_units import FEWEST, PROVEN, Sample, ScoredPositions, Units, parts, units_of
from nnue_trainer.errors import UserError

RELATED = 0.15
"""A correlation of at least this is agreement; of at most −this, contradiction."""
CLAMPED, CLAMPED_SHARE = 32_767, 0.001
DUPLICATES = 0.25
NEIGHBOURS = 0.5
LARGE_UNITS = 600.0
"""Score per pawn of material above which scores have been multiplied."""
MISFIT = 3.5
"""Scores that would have to be multiplied by more than this, or divided by it, to fit the loss, are in another unit.
Usual recipes are within it: bullet's scale of 400 with centipawns, which 130 to 240 fits, and Stockfish's losses with
internal units, which 260 to 870 fits."""
COMB, COMB_PER_POSITION = 40.0, 0.001
"""The log likelihood ratio from which scores count as scaled after they had been rounded: this, and as much for each
position of the sample."""

_SIDES = ("white", "black")

Level = Literal["contradiction", "doubt", "fact"]


@dataclass(frozen=True)
class Finding:
    """`level`: contradiction: the file cannot be right. doubt: it is probably a mistake. fact: for information.
    `name` identifies the kind; `text` gives what was found, its likely cause and what mends it."""

    level: Level
    name: str
    text: str


@dataclass
class Verdict:
    """The findings, the worst first, and the figures behind them."""

    positions: int
    findings: list[Finding] = field(default_factory=list)
    figures: dict[str, float | None] = field(default_factory=dict)
    units: Units | None = None
    """the unit of the scores; None if it is unknown, or not the same in the whole file"""

    @property
    def contradictions(self) -> list[Finding]:
        return [found for found in self.findings if found.level == "contradiction"]

    @property
    def doubts(self) -> list[Finding]:
        return [found for found in self.findings if found.level == "doubt"]

    @property
    def word(self) -> str:
        if not self.positions:
            return "no positions"
        return "contradicts itself" if self.contradictions else "doubtful" if self.doubts else "plausible"

    def lines(self) -> list[str]:
        """For a terminal: the word, then one line for each finding."""
        seen = f", by {self.positions:,} positions spread over the file" if self.positions else ""
        head = f"verdict: {self.word}{seen}"
        return [head, *(f"  {found.level}: {found.text}" for found in self.findings)]

    def as_dict(self) -> dict[str, Any]:
        found = [asdict(each) for each in self.findings]
        return {"verdict": self.word, "sample": self.positions, "findings": found, "figures": self.figures}


def sample_of(file: _data.DataFile, chunks: int) -> Sample:
    """A sample of an opened file, from that many of its chunks. A damaged chunk is left out: who reads the file will
    find it."""
    sample = Sample()
    count = min(file.num_chunks, chunks)
    for i in range(count):
        with contextlib.suppress(UserError):
            sample.add(file.decode(file.num_chunks * i // count))
    return sample


@dataclass(frozen=True)
class LossCurve:
    """The meaning of the data's scores in a loss: `points` gives expected points, float64 [n], for scores, float64 [n].
    `scale`: the field `scale` of the loss, if it has one."""

    points: Callable[[Floats], Floats]
    scale: float | None = None


def _rounded(number: float) -> str:
    """Three digits of a number, without an exponent below a million."""
    return f"{float(f'{number:.3g}'):g}"


def judge(
    sample: Sample,
    format: str = "",
    filters: Filters | None = None,
    duplicate_share: float = -1.0,
    loss: LossCurve | None = None,
    pawn: float | None = None,
) -> Verdict:
    """The verdict on a sample of a file in `format` (for what the format cannot hold); with `filters`, also on what
    they would leave, and with `loss`, on whether it expects scores of this size. `duplicate_share`: of the whole file,
    where that is known; else the sample's. `pawn`: the internal units per pawn with which a format in pawns was read;
    None: the default."""
    records = np.concatenate([np.zeros((0, 32), np.uint8), *sample.runs])
    verdict = Verdict(len(records))
    if len(records):
        share = duplicate_share if duplicate_share >= 0 else float(sample.duplicates.duplicate_share)
        _Judge(verdict, records, sample.runs, format, loss, pawn or DEFAULT_PAWN).run(share, filters)
        order = {"contradiction": 0, "doubt": 1, "fact": 2}
        verdict.findings.sort(key=lambda found: order[found.level])
    return verdict


class _Judge:
    def __init__(
        self,
        verdict: Verdict,
        records: Records,
        runs: list[Records],
        format: str,
        loss: LossCurve | None,
        pawn: float,
    ) -> None:
        self.verdict, self.records, self.format, self.loss, self.pawn = verdict, records, format, loss, pawn
        self.positions = ScoredPositions(records)
        self.scores, self.results = self.positions.scores, self.positions.results
        self.plies, self.black = fields.plies(records), self.positions.black
        self.boards, self.material = self.positions.boards, self.positions.material
        self.scored = self.scores != NO_SCORE
        self.lengths = [len(run) for run in runs]
        # False at the end of a run: the next position is elsewhere in the file.
        self.has_next = np.ones(len(records), bool)
        self.has_next[np.cumsum(self.lengths) - 1] = False

    def say(self, level: Level, name: str, text: str) -> None:
        self.verdict.findings.append(Finding(level, name, text))

    def figure(self, name: str, value: float | None) -> None:
        self.verdict.figures[name] = None if value is None or not np.isfinite(value) else round(float(value), 6)

    def run(self, duplicate_share: float, filters: Filters | None) -> None:
        self.shares(duplicate_share)
        constant = self.constant()
        self.games()
        self.views(constant)
        if not constant and not self.verdict.contradictions:
            self.units(duplicate_share)
        if filters is not None:
            self.filters(filters)

    # ---- shares ------------------------------------------------------------------------------------------------------

    def shares(self, duplicate_share: float) -> None:
        unscored = 1 - float(self.scored.mean())
        clamped = float((self.scored & (np.abs(self.scores) >= CLAMPED)).mean())
        black = float(self.black.mean())
        self.figure("no_score", unscored)
        self.figure("clamped", clamped)
        self.figure("black_to_move", black)
        self.figure("duplicates", duplicate_share)
        if unscored:
            level: Level = "doubt" if unscored > 0.5 else "fact"
            self.say(level, "no_score", f"{unscored:.1%} of the positions have no score (32002)")
        if clamped:
            level = "doubt" if clamped > CLAMPED_SHARE else "fact"
            text = f"{clamped:.2%} of the scores are ±32767: they were clipped, as after a multiplication"
            self.say(level, "clamped", text)
        if self.format not in FORMATS_WITHOUT_SIDES and len(self.black) >= FEWEST and not 0.005 <= black <= 0.995:
            missing, side = ("black", "white") if black < 0.5 else ("white", "black")
            self.say(
                "doubt",
                "side",
                f"almost no position has {missing} to move ({side}: {max(black, 1 - black):.1%}): a filter or "
                "converter has dropped a side; convert its source again",
            )
        if duplicate_share > DUPLICATES:
            self.say(
                "doubt",
                "duplicates",
                f"{duplicate_share:.0%} of the positions are repetitions, each board comes "
                f"{1 / max(1 - duplicate_share, 1e-9):.1f} times on average: files were joined twice, or games "
                "repeat; drop them with `nnue data dedup`",
            )
        if not self.plies.any():
            self.say("fact", "plies", "every ply is 0: filters by ply (min_ply, soft_ply, wdl) cannot work")

    def constant(self) -> bool:
        """Whether all scores, or all results, are one value."""
        known = self.scores[self.scored]
        if len(known) < FEWEST:
            return True
        values, counts = np.unique(known, return_counts=True)
        same = float(counts.max() / len(known))
        self.figure("most_frequent_score", same)
        if same > 0.98:
            self.say(
                "doubt",
                "constant_scores",
                f"{same:.1%} of the scores are {values[counts.argmax()]:,}: the file has no evaluations; score it with "
                "`nnue data rescore`, or train on results (lambda 0)",
            )
        for value, word in ((1, "wins of the side to move"), (0, "draws"), (-1, "losses of the side to move")):
            share = float((self.results == value).mean())
            if share > 0.999:
                self.say(
                    "doubt",
                    "constant_results",
                    f"{share:.1%} of the results are {word}: the file has no results; train on scores (lambda 1)",
                )
        return same > 0.98

    # ---- games -------------------------------------------------------------------------------------------------------

    def games(self) -> None:
        """Whether positions that follow each other belong to one game, and whether the result stays the same there."""
        step = self.has_next & (np.roll(self.plies, -1) == self.plies + 1) & (np.roll(self.black, -1) != self.black)
        at = np.flatnonzero(step)
        # A move changes two squares; castling and en passant more.
        changed = (self.boards[at] != self.boards[at + 1]).sum(1)
        step[at[(changed < 2) | (changed > 4)]] = False
        pairs = int(self.has_next.sum())
        share = float(step.sum() / pairs) if pairs else 0.0
        self.figure("neighbours", share)
        if self.plies.any():
            order = "whole games in order" if share > NEIGHBOURS else "shuffled" if share < 0.02 else "partly in order"
            self.say("fact", "order", f"{order}: {share:.1%} of the positions follow the one before them")
        at = np.flatnonzero(step)
        at = at[(self.results[at] != 0) | (self.results[at + 1] != 0)]
        if len(at) < 100:
            return
        turned = float((self.results[at + 1] != -self.results[at]).mean())
        self.figure("result_flips", turned)
        if turned > 0.5:
            self.say(
                "contradiction",
                "result_flips",
                f"in {turned:.0%} of the moves of decided games the winner changes: results look like one "
                "player's view for both sides; negate black's with `nnue data convert --result-view white`",
            )
        elif turned > 0.02:
            self.say("doubt", "result_flips", f"in {turned:.1%} of the moves of decided games the result changes")

    # ---- views -------------------------------------------------------------------------------------------------------

    def related(self, first: Floats, second: Floats) -> int:
        """1 where they agree, −1 where they contradict each other, 0 where neither is certain."""
        if len(first) < FEWEST or first.std() == 0 or second.std() == 0:
            return 0
        value = float(np.corrcoef(first, second)[0, 1])
        certain = abs(value) > RELATED and abs(value) * len(first) ** 0.5 > 6
        return int(np.sign(value)) if certain else 0

    def views(self, constant: bool) -> None:
        squeezed = np.tanh(self.scores / 600.0)
        by_side: dict[str, list[int]] = {"scores": [], "results": []}
        sides = [np.zeros(len(self.black), bool)] if self.format in FORMATS_WITHOUT_SIDES else [self.black, ~self.black]
        for number, other in enumerate(sides):
            mine = ~other
            known = mine & self.scored
            scores, results = squeezed[known], self.results[known].astype(np.float64)
            if not constant and len(scores) >= FEWEST and scores.std() and results.std():
                name = _SIDES[number] if len(sides) > 1 else "side_to_move"
                self.figure(f"correlation_{name}", float(np.corrcoef(scores, results)[0, 1]))
            material = np.clip(self.material, -9, 9).astype(np.float64)
            by_side["scores"].append(0 if constant else self.related(scores, material[known]))
            by_side["results"].append(self.related(self.results[mine].astype(np.float64), material[mine]))
            if not constant:
                self.both_agree(number, self.related(scores, results), by_side)
        for what, option in (("scores", "--score-view"), ("results", "--result-view")):
            self.view(what, option, by_side[what])
        if not constant:
            self.mixed(squeezed)
            self.proven()

    def both_agree(self, number: int, agreement: int, by_side: dict[str, list[int]]) -> None:
        """Scores and results that contradict each other, where material does not show which is wrong."""
        if agreement < 0 and by_side["scores"][number] >= 0 and by_side["results"][number] >= 0:
            self.say(
                "contradiction",
                "scores_and_results",
                f"scores and results of {_SIDES[number]} contradict each other, and the material does not show "
                "which are wrong: compare positions with `nnue data head`",
            )

    def view(self, what: str, option: str, found: list[int]) -> None:
        """`found`: by side whether they go with the material."""
        if len(found) == 1:
            if found[0] < 0:
                text = f"{what} contradict the material: they look like the opponent's view; negate them with "
                self.say("contradiction", f"{what}_opponent", f"{text}`nnue data convert {option} opponent`")
            return
        wrong = [side for side, sign in zip(_SIDES, found, strict=True) if sign < 0]
        if len(wrong) == 2:
            text = f"{what} of both sides contradict the material: they look like the opponent's view; negate all with "
            self.say("contradiction", f"{what}_opponent", f"{text}`nnue data convert {option} opponent`")
        elif wrong:
            view = "white" if wrong[0] == "black" else "black"
            text = f"{wrong[0]}'s {what} contradict the material, {view}'s do not: {what} look like {view}'s view; "
            text += f"negate {wrong[0]}'s with `nnue data convert {option} {view}`"
            self.say("contradiction", f"{what}_{view}", text)

    def mixed(self, squeezed: Floats) -> None:
        """Scores of the right size and of either sign: a view that was lost, in a format without sides."""
        known = self.scored & (self.material != 0) & (self.scores != 0)
        if known.sum() < FEWEST or any(found.level == "contradiction" for found in self.verdict.findings):
            return
        scores, material = squeezed[known], np.clip(self.material[known], -9, 9).astype(np.float64)
        for name, values in (("scores", scores), ("results", self.results[known].astype(np.float64))):
            if values.std() == 0:
                continue
            large = (np.abs(material) >= 3) & (np.abs(values) > np.median(np.abs(values)) - 1e-9) & (values != 0)
            if large.sum() < 200:
                continue
            agree = float((np.sign(values) == np.sign(material))[large].mean())
            self.figure(f"{name}_with_material", agree)
            sizes = 1.0 if name == "results" else float(np.corrcoef(np.abs(values), np.abs(material))[0, 1])
            if 0.4 < agree < 0.6 and sizes > RELATED:
                self.say(
                    "contradiction",
                    f"{name}_mixed",
                    f"half of the large {name} have the wrong sign ({agree:.0%} go with the material): they look like "
                    f"white's view, and the file has no side to move; convert its source again with "
                    f"{'--score-view' if name == 'scores' else '--result-view'} white",
                )
        if any(found.level == "contradiction" for found in self.verdict.findings):
            return
        known = self.scored
        results = self.results[known].astype(np.float64)
        if known.sum() >= FEWEST and squeezed[known].std() and results.std():
            value = float(np.corrcoef(squeezed[known], results)[0, 1])
            if value < RELATED / 3:
                self.say(
                    "doubt",
                    "unrelated",
                    f"scores and results have nothing in common (correlation {value:.2f}): they may belong to other "
                    "positions",
                )

    def proven(self) -> None:
        mates = self.scored & (np.abs(self.scores) > PROVEN) & (np.abs(self.scores) < CLAMPED)
        count = int(mates.sum())
        self.figure("proven", count / len(mates))
        if count < 20:
            return
        against = float((np.sign(self.scores[mates]) == -self.results[mates]).mean())
        self.figure("proven_against_result", against)
        if against > 0.02:
            level: Level = "contradiction" if against > 0.2 else "doubt"
            text = f"{against:.0%} of {count:,} proven scores (mates, tablebases) contradict the result of their game"
            self.say(level, "proven", text)

    # ---- units -------------------------------------------------------------------------------------------------------

    def units(self, duplicate_share: float) -> None:
        """The score of a pawn, the scale of scores against results, whether rounded scores were scaled, and whether all
        scores are in one unit, which the loss expects."""
        found = units_of(self.positions)
        by_score = self.positions.by_score()
        curve = fit_curve(*by_score)
        self.figure("score_per_pawn", found.pawn if found else None)
        self.figure("scale", found.scale if found else None)
        self.figure("offset", curve.offset if curve else None)
        usual = self.scores[self.positions.usual]
        factor, ratio, share = comb(usual)
        # Repetitions make every deviation count several times.
        is_scaled = ratio * (1 - duplicate_share) > max(COMB, COMB_PER_POSITION * len(usual))
        self.figure("scaled_by", factor if is_scaled else 1.0)
        different = parts(self.positions, self.lengths)
        if not different and is_scaled and share < 1:
            different = f"about {share:.0%} of the scores look multiplied by {factor:.3g} after they had been rounded, "
            different += "the others do not"
        if different:
            text = f"scores are in different units: {different}; no single factor mends the file: read each of its "
            self.say(
                "doubt", "mixed_units", text + "sources in its own unit (--pawn, --score-scale), and join them again"
            )
            return
        if found is None:
            return
        self.verdict.units = found
        self.say("fact", "unit", f"{found}" + ("; compare that with loss.scale" if self.loss is None else ""))
        if self.loss is not None:
            self.misfit(self.loss, found, by_score)
        else:
            self.too_large(found.pawn, factor if is_scaled and factor > 1 and on_comb(usual, factor) > 0.98 else None)

    def too_large(self, pawn: float, factor: float | None) -> None:
        """Whether scores were multiplied so that they are larger than in any engine, or were clipped. `factor`: their
        values show this one."""
        large = pawn > LARGE_UNITS
        if not large and not (factor and (self.verdict.figures["clamped"] or 0) > CLAMPED_SHARE):
            return
        text = f"a pawn is worth {pawn:.0f}{', more than in any engine' if large else ''}: scores look multiplied"
        if factor:
            text += f" by {factor:.3g}: undo it with `nnue data convert --score-scale {1 / factor:.3g}`"
        else:
            text += ": divide them with `nnue data convert --score-scale`"
        self.say("doubt", "units", text)

    def misfit(self, loss: LossCurve, found: Units, by_score: tuple[Floats, Floats, Floats]) -> None:
        """Whether the loss expects scores of another size."""
        factor = best_factor(loss.points, *by_score)
        self.figure("factor_of_loss", factor)
        if factor is None or 1 / MISFIT <= factor <= MISFIT:
            return
        own = f"loss.scale is {loss.scale:g}" if loss.scale else "the loss expects other scores"
        text = f"{own}, but {found}, so scores would have to be {factor:.3g} times as large; "
        if self.format in FORMATS_IN_PAWNS:
            remedy = f"read them with {factor:.3g} times their pawn (data.formats: [{{kind: {self.format}, pawn: "
            remedy += f"{_rounded(self.pawn * factor)}}}] instead of {self.pawn:g})"
        else:
            remedy = f"multiply them (`nnue data convert --score-scale {factor:.3g}`)"
        if loss.scale:
            remedy = f"set loss.scale to {_rounded(loss.scale / factor)}, or {remedy}"
        self.say("doubt", "units", text + remedy)

    # ---- filters -----------------------------------------------------------------------------------------------------

    def filters(self, filters: Filters) -> None:
        # Filters in Python may be slow or have effects: those of the data library are enough for a warning.
        kept, counts = replace(filters, extra=[]).mask(self.records)
        share = float(kept.mean())
        self.figure("kept_by_filters", share)
        if share < 0.005:
            most = max(counts.dropped, key=lambda name: counts.dropped[name])
            why = ", as every ply is 0" if not self.plies.any() and "ply" in most else ""
            self.say(
                "doubt",
                "filters",
                f"the filters leave {share:.2%} of the positions: {most} drops {counts.dropped[most]:,} of "
                f"{len(kept):,}{why}",
            )
            return
        pieces = fields.piece_counts(self.records)
        groups = {
            "with white to move": ~self.black,
            "with black to move": self.black,
            "with 25 pieces or more": pieces >= 25,
            "with 13 to 24 pieces": (pieces >= 13) & (pieces < 25) & (filters.min_pieces <= 24),
            "with 12 pieces or fewer": (pieces < 13) & (filters.min_pieces <= 12),
            "of plies up to 40": (self.plies <= 40) & (filters.min_ply < 40),
            "of plies beyond 40": self.plies > 40,
        }
        for name, group in groups.items():
            if group.mean() >= 0.05 and not kept[group].any():
                self.say("doubt", "filters", f"the filters remove all positions {name}, {group.mean():.0%} of the file")


def best_factor(points: Callable[[Floats], Floats], scores: Floats, results: Floats, count: Floats) -> float | None:
    """The factor of scores with which `points` of them are most likely to give the results, mean points [n] of `count`
    positions each; None if it is beyond a factor of 100."""

    def unlikelihood(logarithm: float) -> float:
        expected = np.clip(points(scores * np.exp(logarithm)), 1e-9, 1 - 1e-9)
        return -float((count * (results * np.log(expected) + (1 - results) * np.log(1 - expected))).sum())

    limit = float(np.log(100))
    grid = np.linspace(-limit, limit, 47)
    best = int(np.argmin([unlikelihood(each) for each in grid]))
    if best in (0, len(grid) - 1):
        return None
    low, high = grid[best - 1], grid[best + 1]
    for _ in range(30):  # ternary search
        first, second = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, second) if unlikelihood(first) < unlikelihood(second) else (first, high)
    return float(np.exp((low + high) / 2))


class Comb(NamedTuple):
    """The factor by which whole scores were most likely multiplied and rounded again, `share` of them, and the
    logarithm of the likelihood ratio against no factor. `share` is 1 unless a mixture is certain."""

    factor: float
    ratio: float
    share: float = 1.0


def comb(scores: npt.NDArray[np.int32]) -> Comb:
    """The traces of a multiplication in scores that were whole numbers. A factor below 1 makes some values twice as
    frequent as their neighbours; one above leaves gaps. Only sizes from 1 to 80 are used, whose true frequencies are
    smooth."""
    most = 80
    sizes = np.abs(scores.astype(np.int64))
    counts = np.bincount(sizes[(sizes > 0) & (sizes <= most)], minlength=most + 1)[1:].astype(np.float64)
    if counts.sum() < 2000:
        return Comb(1.0, 0.0)
    factors = np.exp(np.arange(np.log(0.2), np.log(8), 0.0004))
    factors = factors[(factors < 0.9) | (factors > 1.1)]
    # How many whole numbers become each size: those from (size − ½) / factor to (size + ½) / factor.
    edges = np.ceil((np.arange(1, most + 2) - 0.5) / factors[:, None])
    number = np.maximum(np.diff(edges, axis=1), 0.02)
    smooth = _smooth(counts[None])[0]
    expected = number * (smooth / np.maximum(_smooth(number), 1e-9))
    expected *= (counts.sum() / expected.sum(1))[:, None]
    plain = np.maximum(smooth * (counts.sum() / smooth.sum()), 1e-9)
    expected = np.maximum(expected, 1e-9)
    whole = _most_likely(counts, plain, expected, factors)
    expected, factors = expected[factors > 1], factors[factors > 1]
    # Scores that were multiplied and rounded twice may lie beside the values of one factor.
    beside = np.pad(expected, ((0, 0), (1, 1)), "edge")
    beside = (beside[:, 2:] + beside[:, :-2]) / 2
    others = [
        whole,
        *(_most_likely(counts, plain, (1 - w) * expected + w * beside, factors) for w in (0.15, 0.3, 0.45)),
    ]
    mixed: list[Comb] = []
    for share in (0.1, 0.2, 0.35, 0.5, 0.65, 0.8):
        found = _most_likely(counts, plain, (1 - share) * plain + share * expected, factors)
        # A mixture needs wide gaps, and scores of both kinds.
        (mixed if found.factor > 1.9 and share <= 0.5 else others).append(found._replace(share=share))
    best = max(mixed, key=lambda each: each.ratio, default=whole)
    least = max(each.ratio for each in others) + max(COMB, COMB_PER_POSITION * len(scores))
    return best if best.ratio > least else whole


def _most_likely(counts: Floats, plain: Floats, expected: Floats, factors: Floats) -> Comb:
    """The most likely of `factors`, each with its `expected` frequencies, against the frequencies `plain`."""
    ratios = (counts * (np.log(expected) - np.log(plain))).sum(1)
    best = float(ratios.max())
    # Many a factor gives the same numbers: the middle one.
    return Comb(float(factors[ratios > best - 1e-6].mean()), best)


def on_comb(scores: npt.NDArray[np.int32], factor: float) -> float:
    """The share of the small scores that a multiplication of whole numbers by `factor` > 1 can give."""
    sizes = np.abs(scores[np.abs(scores) <= 80])
    nearest = np.rint(np.rint(sizes / factor) * factor)
    return float((np.abs(nearest - sizes) < 0.5).mean()) if len(sizes) else 0.0


def _smooth(rows: Floats) -> Floats:
    """A moving mean over 11 values, narrower at the ends."""
    padded = np.pad(rows, ((0, 0), (6, 5)))
    sums = padded.cumsum(1)
    ones = np.pad(np.ones((1, rows.shape[1])), ((0, 0), (6, 5))).cumsum(1)
    return np.asarray((sums[:, 11:] - sums[:, :-11]) / (ones[:, 11:] - ones[:, :-11]))
