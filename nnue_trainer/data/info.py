"""The contents of a data file: counts, histograms, duplicates; as numbers and as a page of plots."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from nnue_trainer import _data
from nnue_trainer.data.files import PositionReader, Progress, StrPath
from nnue_trainer.data.reading import ReadingOptions
from nnue_trainer.data.score_units import Sample
from nnue_trainer.errors import shown
from nnue_trainer.files.atomic import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


def king_bucket(square: int) -> int:
    """The bucket of HalfKAv2_hm for a king on `square`, seen from its own side: h8 0, g8 1 … e1 31, mirrored."""
    rank, file = divmod(square, 8)
    return 4 * (7 - rank) + (7 - max(file, 7 - file))


def file_info(path: StrPath, progress: Progress | None = None, **scores: Unpack[ReadingOptions]) -> FileInfo:
    """Reads the whole file, in any format; `progress(bytes done, bytes in all)` is called now and then. `scores`: how
    scores and results are read."""
    statistics, duplicates, sample = _data.Statistics(), _data.DuplicateEstimator(), Sample()
    with PositionReader(path, **scores) as reader:
        info = FileInfo(str(path), reader.size, reader.format, reader.compression, statistics=statistics)
        for records in reader:
            statistics.add(records)
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


def describe_duplicates(info: FileInfo) -> str:
    about = "" if info.duplicates_exact else "about "
    return f"{about}{info.duplicate_share:.2%} ({about}{info.distinct:,} different boards)"


# --- the page of plots ---------------------------------------------------------------------------------------------

_BLUE, _GREY, _INK = "#3a6ea5", "#9aa3ad", "#20262d"
_WIN, _DRAW, _LOSS = "#4f9d69", "#b9bec5", "#c8553d"


def _bars(axes: Axes, x: Any, counts: Any, width: float, title: str, label: str) -> None:
    total = max(1, int(np.sum(counts)))
    axes.bar(x, np.asarray(counts) * (100 / total), width=width, color=_BLUE, linewidth=0)
    axes.set_title(title, loc="left", fontsize=10, color=_INK)
    axes.set_xlabel(label, fontsize=8)
    axes.set_ylabel("% of positions", fontsize=8)
    axes.margins(x=0.01)


def _king_map(axes: Axes, counts: list[int], title: str) -> None:
    board = np.asarray(counts, dtype=float).reshape(8, 8) * (100 / max(1, sum(counts)))
    axes.imshow(np.sqrt(board), origin="lower", cmap="Blues", aspect="equal")
    for rank in range(8):
        for file in range(8):
            share = board[rank, file]
            if share >= 0.05:
                color = "white" if share > board.max() / 3 else _INK
                text = f"{share:.1f}" if share < 9.95 else f"{share:.0f}"
                axes.text(file, rank, text, ha="center", va="center", fontsize=6.5, color=color)
    axes.set_xticks(range(8), list("abcdefgh"))
    axes.set_yticks(range(8), [str(i + 1) for i in range(8)])
    axes.tick_params(length=0)
    axes.set_title(title, loc="left", fontsize=10, color=_INK)


def save_page(info: FileInfo, path: StrPath) -> None:
    """One page of plots as a PNG file, which is complete or absent."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    matplotlib.rcParams["font.family"] = "DejaVu Sans"
    s = info.statistics
    figure = Figure(figsize=(13, 9.2), dpi=120, facecolor="white", layout="constrained")
    grid = figure.add_gridspec(4, 4, height_ratios=[0.16, 1, 1, 1.15])
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.10)  # type: ignore[union-attr,call-arg]
    figure.suptitle(
        f"{shown(Path(info.path).name)}   ·   {s.positions:,} positions",
        x=0.012,
        ha="left",
        fontsize=15,
        color=_INK,
        parse_math=False,  # a file's name may hold dollar signs
    )

    _results(figure.add_subplot(grid[0, :]), s)
    _figures(figure.add_subplot(grid[1, :2]), info)
    scores = s.score_histogram
    half = len(scores) // 2
    axes = figure.add_subplot(grid[1, 2:])
    _bars(
        axes, [SCORE_BIN * (i - half) for i in range(len(scores))], scores, 0.9 * SCORE_BIN, "score", "internal units"
    )
    if s.positions:
        axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("internal units, side to move's view; the outer bins include all values beyond", fontsize=8)

    plies = s.ply_histogram[: min(s.max_ply // PLY_BIN + 1, len(s.ply_histogram))]
    _bars(
        figure.add_subplot(grid[2, :2]),
        [PLY_BIN * (i + 0.5) for i in range(len(plies))],
        plies,
        0.9 * PLY_BIN,
        "ply",
        "plies played; the last bin includes all longer games",
    )
    _bars(figure.add_subplot(grid[2, 2:]), range(2, 33), s.piece_histogram[2:], 0.85, "pieces", "on the board")
    _king_map(figure.add_subplot(grid[3, 0]), s.white_king_squares, "white king, %")
    _king_map(figure.add_subplot(grid[3, 1]), s.black_king_squares, "black king, %")
    axes = figure.add_subplot(grid[3, 2:])
    _bars(axes, range(32), info.king_buckets, 0.85, "king buckets of HalfKAv2_hm, both perspectives", "bucket")
    axes.set_xticks(range(0, 32, 4), [f"{i}\n{name}" for i, name in zip(range(0, 32, 4), _BUCKET_RANKS, strict=True)])
    axes.set_ylabel("% of kings", fontsize=8)
    _style(figure)
    with replacing(path) as output:
        figure.savefig(output.file, format="png")


def _results(axes: Axes, s: _data.Statistics) -> None:
    """The results as one bar over the page."""
    n = max(1, s.positions)
    left = 0.0
    for name, key, color in (("win", "wins", _WIN), ("draw", "draws", _DRAW), ("loss", "losses", _LOSS)):
        share = 100 * getattr(s, key) / n
        axes.barh([0], [share], left=left, color=color)
        if share > 4:
            ink = _INK if color == _DRAW else "white"
            axes.text(left + share / 2, 0, f"{name} {share:.1f} %", ha="center", va="center", color=ink, fontsize=9)
        left += share
    axes.set_xlim(0, 100)
    axes.axis("off")
    axes.set_title("result, side to move's view", loc="left", fontsize=10, color=_INK)


def _figures(axes: Axes, info: FileInfo) -> None:
    """The table of figures."""
    s = info.statistics
    n = max(1, s.positions)
    axes.axis("off")
    packed = f" · {info.compression}" if info.compression else ""
    chains = (
        f"{info.chunks:,} / {info.chains:,} ({info.single_position_chains:,} of one position)" if info.chunks else "–"
    )
    rows = [
        ("format", f"{info.format}{packed}"),
        ("size", f"{info.size:,} bytes, {info.size / n:.2f} per position"),
        ("chunks / chains", chains),
        ("score", f"{s.min_score:,} to {s.max_score:,}, mean {s.sum_score / n:.1f}"),
        ("score 0 / none", f"{s.score_zero / n:.2%} / {s.score_none / n:.2%}"),
        ("ply", f"up to {s.max_ply}, mean {s.sum_ply / n:.1f}"),
        ("rule 50", f"up to {s.max_rule50}, mean {s.sum_rule50 / n:.1f}"),
        ("pieces", f"mean {s.sum_pieces / n:.2f}"),
        ("in check / captures / quiet", f"{s.in_check / n:.2%} / {s.captures / n:.2%} / {s.quiet / n:.2%}"),
        (
            "castlings / en passant / promotions",
            f"{s.castlings / n:.2%} / {s.en_passants / n:.3%} / {s.promotions / n:.2%}",
        ),
        ("no move", f"{s.null_moves / n:.2%}"),
        ("duplicates", describe_duplicates(info)),
    ]
    for i, (name, value) in enumerate(rows):
        y = 1 - (i + 0.5) / len(rows)
        axes.text(0.0, y, name, fontsize=8.5, color="#5c6670", va="center", transform=axes.transAxes)
        axes.text(0.40, y, value, fontsize=8.5, color=_INK, va="center", transform=axes.transAxes)


def _style(figure: Figure) -> None:
    for axes in figure.axes:
        axes.tick_params(labelsize=7.5, colors="#5c6670")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        for side in ("left", "bottom"):
            axes.spines[side].set_color(_GREY)


_BUCKET_RANKS = [f"rank {8 - i}" for i in range(8)]
