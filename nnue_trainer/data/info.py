"""The contents of a data file: counts, histograms, duplicates; as numbers and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Unpack

import numpy as np

from nnue_trainer import _data
from nnue_trainer.base.arrays import Records
from nnue_trainer.base.progress import counted
from nnue_trainer.data.fields import NO_SCORE
from nnue_trainer.data.files import Progress, StrPath
from nnue_trainer.data.many_files import FileBlocks, read_blocks
from nnue_trainer.data.reading import ReadingOptions
from nnue_trainer.data.score_units import Sample, Units
from nnue_trainer.errors import shown
from nnue_trainer.files.pages.page import Page, Section
from nnue_trainer.files.pages.plots import Plot, histogram

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCORE_BIN, PLY_BIN = 100, 8  # widths of the histograms' bins; data_loader/formats/statistics.h


@dataclass
class FileInfo:
    """The output of `nnue data info`.

    `chunks`, `chains` and `single_position_chains` are those of a binpack, else 0. `statistics`: counts, sums and
    histograms over all positions. `king_buckets`: how often each of the 32 king buckets of HalfKAv2_hm is used, by both
    perspectives. `distinct`: different boards (with side to move, castling and en passant), `duplicate_share` the share
    of positions whose board had occurred before; exact if `duplicates_exact`, else estimated within 0.3 %.
    `score_per_pawn`: the median score per pawn of material, and `fitted_scale`: 1/(1 + e^(−score/scale)) fits the
    results best; both by a sample, None if it does not decide them. `notes`: decisions and omissions of the reader.
    """

    path: str
    size: int
    format: str = ""
    compression: str | None = None
    chunks: int = 0
    chains: int = 0
    single_position_chains: int = 0
    distinct: int = 0
    duplicate_share: float = 0.0
    duplicates_exact: bool = True
    score_per_pawn: float | None = None
    fitted_scale: float | None = None
    notes: list[str] = field(default_factory=list)
    king_buckets: list[int] = field(default_factory=list)
    statistics: _data.Statistics = field(default_factory=_data.Statistics)

    def as_dict(self) -> dict[str, Any]:
        """All fields as plain data for JSON; `statistics` by the names of its properties."""
        names = [name for name, kind in vars(_data.Statistics).items() if isinstance(kind, property)]
        return vars(self) | {"statistics": {name: getattr(self.statistics, name) for name in names}}


class HasDuplicates(Protocol):
    distinct: int
    duplicate_share: float
    duplicates_exact: bool


def king_bucket(square: int) -> int:
    """The bucket of HalfKAv2_hm for a king on `square`, seen from its own side: h8 0, g8 1 … e1 31, mirrored."""
    rank, file = divmod(square, 8)
    return 4 * (7 - rank) + (7 - max(file, 7 - file))


def file_info(
    path: StrPath, progress: Progress | None = None, threads: int = 1, **scores: Unpack[ReadingOptions]
) -> FileInfo:
    """Reads the whole file, in any format; `progress(bytes done, bytes in all)` is called now and then. `threads` do
    not change the result. `scores`: how scores and results are read."""
    return read_blocks(path, lambda blocks: _info(path, blocks, progress), threads, **scores)


def _statistics(records: Records) -> _data.Statistics:
    statistics = _data.Statistics()
    statistics.add(records)
    return statistics


def _info(path: StrPath, blocks: FileBlocks, progress: Progress | None) -> FileInfo:
    statistics, duplicates, sample = _data.Statistics(), _data.DuplicateEstimator(), Sample()
    reader = blocks.reader
    info = FileInfo(str(path), reader.size, reader.format, reader.compression, statistics=statistics)
    for records, part in blocks.each(_statistics):
        statistics.join(part)
        duplicates.add(records)
        sample.add_runs(records)
        if progress:
            progress(reader.done, reader.size)
    info.chunks, info.chains, info.single_position_chains = reader.chunks, reader.chains, reader.single_chains
    info.notes = reader.notes + reader.unit_notes
    if units := sample.units():
        info.score_per_pawn, info.fitted_scale = units.pawn, units.scale
    info.duplicate_share = duplicates.duplicate_share
    info.distinct = different_boards(info.statistics.positions, info.duplicate_share)
    info.duplicates_exact = duplicates.exact
    info.king_buckets = [0] * 32
    for square in range(64):
        info.king_buckets[king_bucket(square)] += (
            info.statistics.white_king_squares[square] + info.statistics.black_king_squares[square ^ 56]
        )
    return info


def different_boards(positions: int, duplicate_share: float) -> int:
    """The number of different boards that matches the share of duplicates. A separate estimate from the sample would
    have a different error, and the two would contradict each other."""
    return round(positions * (1 - duplicate_share))


def duplicates_text(found: HasDuplicates) -> str:
    about = "" if found.duplicates_exact else "about "
    return f"{about}{found.duplicate_share:.2%} ({about}{found.distinct:,} different boards)"


# --- what is shown ---------------------------------------------------------------------------------------------------


def size_texts(size: int, positions: int) -> tuple[str, list[tuple[str, str]]]:
    """The size of a file for the headline of a page, and the fact "bytes per position". Both are empty for a pipe, of
    unknown size."""
    headline = f"{size:,} bytes, " if size or not positions else ""
    return headline, [("bytes per position", f"{size / positions:.2f}")] if size and positions else []


def page(info: FileInfo) -> Page:
    """The page of a file; for a file without positions it has only plots."""
    s, n = info.statistics, info.statistics.positions
    half, longest = len(s.score_histogram) // 2, PLY_BIN * (len(s.ply_histogram) - 1)
    # The bins at the ends hold everything beyond.
    scores = [f"≤ {-half}", *(f"{i:+d}" for i in range(1 - half, half)), f"≥ {half:+d}"]
    score_counts = [*s.score_histogram[:-1], s.score_histogram[-1] - s.score_none]
    about_scores = "Internal units, side to move's view" + (", without 32002 (none)." if s.score_none else ".")
    plies = [*(f"{ply} … {ply + PLY_BIN - 1}" for ply in range(0, longest, PLY_BIN)), f"≥ {longest}"]
    buckets = [str(bucket) for bucket in range(32)]
    plots = [
        histogram(f"score / {SCORE_BIN}", scores, score_counts, about_scores, log=n > 0),
        histogram("result", ["loss", "draw", "win"], [s.losses, s.draws, s.wins], "Side to move's view."),
        histogram("ply", plies, s.ply_histogram, "Plies played."),
        histogram("pieces", [str(i) for i in range(33)], s.piece_histogram),
        histogram("king buckets of HalfKAv2_hm", buckets, info.king_buckets, "Kings of both sides; h8 is 0, e1 is 31."),
        king_map("white king, %", s.white_king_squares),
        king_map("black king, %", s.black_king_squares),
    ]
    packed = f", {info.compression}-compressed" if info.compression else ""
    chains = f"{counted(info.chunks, 'chunk')}, {counted(info.chains, 'chain')} "
    chains += f"({info.single_position_chains:,} of one position), "
    sized, _ = size_texts(info.size, n)
    return Page(
        shown(Path(info.path).name),
        f"{n:,} positions",
        [Section("Overview", facts=_facts(info) if n else ()), Section("Histograms", plots=plots)],
        headline=f"{info.path}: {info.format}{packed}, {sized}{chains if info.chunks else ''}{n:,} positions",
    )


def _facts(info: FileInfo) -> list[tuple[str, str]]:
    s, n = info.statistics, info.statistics.positions

    def share(count: int) -> str:
        return f"{count:,} ({count / n:.2%})"

    scored = n - s.score_none
    mean = f"{(s.sum_score - NO_SCORE * s.score_none) / scored:.1f}" if scored else "unknown"
    scores = f"{s.min_score:,} to {s.max_score:,}, mean {mean}{' without none' if s.score_none else ''}"
    unit = [("unit of scores", str(Units(info.score_per_pawn, info.fitted_scale)))] if info.score_per_pawn else []
    return [
        *size_texts(info.size, n)[1],
        ("result (own view)", f"win {share(s.wins)}, draw {share(s.draws)}, loss {share(s.losses)}"),
        ("score", f"{scores}; zero {share(s.score_zero)}, none (32002) {share(s.score_none)}"),
        *unit,
        ("ply", f"up to {s.max_ply}, mean {s.sum_ply / n:.1f}"),
        ("rule 50", f"up to {s.max_rule50}, mean {s.sum_rule50 / n:.1f}"),
        ("pieces", f"mean {s.sum_pieces / n:.1f}"),
        ("black to move", share(s.black_to_move)),
        ("in check", share(s.in_check)),
        ("captures", share(s.captures)),
        ("quiet", f"{share(s.quiet)}  (not in check, no capture, a score)"),
        ("castlings", share(s.castlings)),
        ("en passant", f"{share(s.en_passants)}; en-passant square {share(s.ep_squares)}"),
        ("promotions", share(s.promotions)),
        ("null moves", share(s.null_moves)),
        ("duplicates", duplicates_text(info)),
    ]


def king_map(title: str, counts: Sequence[int]) -> Plot:
    """A board with the share of each square in per cent."""

    def draw(axes: Axes) -> None:
        board = np.asarray(counts, dtype=float).reshape(8, 8) * (100 / max(1, sum(counts)))
        axes.imshow(np.sqrt(board), origin="lower", cmap="Blues", aspect="equal")
        for (rank, file), share in np.ndenumerate(board):
            if share >= 0.05:
                color = "white" if share > board.max() / 3 else "black"
                text = f"{share:.1f}" if share < 9.95 else f"{share:.0f}"
                axes.text(file, rank, text, ha="center", va="center", fontsize=6.5, color=color)
        axes.set_xticks(range(8), list("abcdefgh"))
        axes.set_yticks(range(8), [str(i + 1) for i in range(8)])
        axes.tick_params(length=0)

    return Plot(title, draw, plain=True, height=2.8)
