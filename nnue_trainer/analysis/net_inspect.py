"""`nnue inspect`: the contents of a net or a checkpoint, and how it behaves on real positions.

Everything comes from a net's own description: its integers with scales and limits (`Net.tensors`), its float model, and
the features of its first layer. For a piece-square part, the piece of each plane and the bucket of each king square are
found by expanding positions with one more piece, so this works for feature sets from outside as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from nnue_trainer import config, data, nets
from nnue_trainer.analysis.agreement import (
    Agreement,
    Positions,
    batches,
    built_in_positions,
    check_same,
    float_scores,
    integer_scores,
    model_of,
)
from nnue_trainer.base.progress import size as bytes_of
from nnue_trainer.data.feature_match import piece_square_table, settings_of
from nnue_trainer.data.features import FeaturePart, feature_set, outside_set
from nnue_trainer.errors import UserError, shown
from nnue_trainer.export import QuantizedNet, checkpoint_from_net, net_from_checkpoint, read_net
from nnue_trainer.export.convert import accumulator_bound
from nnue_trainer.files import checkpoint as checkpoints
from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.modules import PerspectiveTransformer
from nnue_trainer.nets.activity import ActivityMeter, FirstLayerActivity, LayerInputs, LayerMeter
from nnue_trainer.nets.base import Net, NetTensor, NnueModel
from nnue_trainer.pages.page import Page, Section, Table
from nnue_trainer.pages.plots import BAD, GRID, INK, SERIES, Plot, thin
from nnue_trainer.stats.matrix import norms, transpose
from nnue_trainer.training.run import neuron_sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]

BINS = 61
_CHUNK = 1 << 22  # elements at a time
_MOST_WATCHED = 1 << 14  # positions whose inputs of all layers are in memory
_SQUARES = 64
_OWN = ("own pawn", "own knight", "own bishop", "own rook", "own queen", "own king")
_PIECES = (*_OWN, *(name.replace("own", "enemy") for name in _OWN))
_LETTERS = "PNBRQKpnbrqk"
_BY_CODE = [name for pair in zip(_PIECES[:6], _PIECES[6:], strict=True) for name in pair]


@dataclass(frozen=True)
class TensorFacts:
    """One tensor of the net's integers. Values are integer steps: whole numbers of a net, and what a checkpoint's
    floats are before they are rounded. `beyond` counts values that do not fit; `histogram` has `BINS` bins over
    [−`span`, `span`]."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    scale: float
    limit: int
    low: float
    high: float
    mean: float
    deviation: float
    zeros: float
    at_limit: float
    beyond: int
    span: float
    histogram: list[int]

    @property
    def reach(self) -> float:
        """Largest magnitude in units of the limit."""
        return max(abs(self.low), abs(self.high)) / self.limit


@dataclass(frozen=True)
class WeightMap:
    """Mean magnitude of a piece-square part's weights over all neurons, fp64 [buckets, planes, 64], in units of the
    float model; `planes` gives the piece of each plane, `king_buckets` [64] the bucket of an own king on each
    square, −1 where none was found; `states` names the states of a king bucket, whose buckets follow one another."""

    part: str
    sizes: Floats
    planes: list[str]
    king_buckets: npt.NDArray[np.int64]
    states: list[str]


@dataclass(frozen=True)
class FirstLayer:
    """The first layer as a whole: per neuron, fp64 [N], the norms of its weights, in units of the float model."""

    features: int
    neurons: int
    l1: Floats
    l2: Floats
    largest: Floats
    maps: list[WeightMap]


@dataclass(frozen=True)
class Difference:
    """The difference of two nets of one architecture, in integer steps: `changed` is the share of values that differ by
    half a step or more."""

    name: str
    mean: float
    largest: float
    changed: float
    correlation: float


@dataclass
class Inspection:
    """What `nnue inspect` shows."""

    path: str
    net: Net
    quantized: QuantizedNet | None
    model: NnueModel
    bytes: int
    tensors: list[TensorFacts]
    first: FirstLayer | None
    activity: FirstLayerActivity | None
    accumulator_scale: float
    """integer steps in 1.0 of an accumulator"""
    layers: list[LayerInputs]
    positions: Positions
    agreement: Agreement | None
    scores: Floats
    """scores of the positions in engine units, computed with the integers, or with the float model if it does not fit
    into integers"""
    warnings: list[str] = field(default_factory=list)
    against: str = ""
    differences: list[Difference] = field(default_factory=list)
    other_scores: Floats | None = None

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())


@dataclass
class _Opened:
    where: str
    net: Net
    quantized: QuantizedNet | None
    checkpoint: Checkpoint
    model: NnueModel
    bytes: int
    warnings: list[str]

    def steps(self, tensor: NetTensor) -> npt.NDArray[Any]:
        """The tensor in integer steps: its integers for a net, floats otherwise."""
        if self.quantized is not None and "step" not in self.checkpoint.state:
            steps = self.quantized.tensors[tensor.name]
            return steps if tensor.columns is None else steps[..., : tensor.columns]
        first, (rows, *_) = tensor.first_row, tensor.source_shape
        values = self.checkpoint.tensors["model"][tensor.source_parameter][first : first + rows].float().numpy()
        values = values if tensor.source is None else values[tensor.source]
        return np.asarray(values * np.float32(tensor.scale))


def _open(path: Path, arch: str | None, note: Callable[[str], None]) -> _Opened:
    if path.is_dir():
        candidates = [path / "checkpoints" / f"{name}.safetensors" for name in ("best", "last")]
        chosen = next((file for file in candidates if file.is_file()), None)
        if chosen is None:
            raise UserError(f"{path}: a folder without checkpoints/last.safetensors, so no run to inspect")
        path = chosen
    warnings: list[str] = []
    quantized: QuantizedNet | None
    if path.suffix == ".safetensors":
        checkpoint = checkpoints.load(path, ("model", "net"))
        net = nets.parse(checkpoint.architecture, str(path))
        model = model_of(checkpoint, str(path))
        try:
            quantized = net_from_checkpoint(checkpoint, str(path), any_l1=True)
        except UserError as error:
            quantized = None
            warnings.append(f"does not fit the integers of its net: {error}")
    else:
        quantized = read_net(path, arch, note)
        net = quantized.net
        checkpoint = checkpoint_from_net(quantized, str(path))
        model = model_of(checkpoint, str(path))
    return _Opened(str(path), net, quantized, checkpoint, model, path.stat().st_size, warnings)


def _validated_on(opened: _Opened, note: Callable[[str], None]) -> Positions:
    saved = opened.checkpoint.recipe
    if saved and (saved.get("data") or {}).get("validation"):
        try:
            recipe = config.parse(saved, (), opened.where)
            records = neuron_sample(recipe)
            names = ", ".join(Path(file).name for file in recipe.data.validation)
            if len(records):
                return Positions(records, f"{len(records):,} validation positions of {names}")
        except UserError as error:
            note(f"neurons are counted on built-in positions: {error}")
    return built_in_positions()


def inspect(
    path: Path,
    positions: Positions | None = None,
    *,
    against: Path | None = None,
    arch: str | None = None,
    note: Callable[[str], None] = lambda _: None,
    progress: Callable[[int, int], None] | None = None,
) -> Inspection:
    """Inspects the net, checkpoint or run folder `path`, on `positions`; `progress(done, of)` counts tensors and
    positions. Without `positions`: those that a validation of the checkpoint's recipe counts neurons on, so that the
    figures equal those of its run; built-in ones for nets, and where these files cannot be read. UserError for anything
    else."""
    tell = progress or (lambda done, of: None)
    opened = _open(path, arch, note)
    positions = positions or _validated_on(opened, note)
    tensors = list(opened.net.tensors())
    total = len(tensors) + 3
    facts = []
    for number, tensor in enumerate(tensors):
        facts.append(tensor_facts(tensor, opened.steps(tensor)))
        tell(number + 1, total)
    warnings = list(opened.warnings)
    warnings += [
        f"{fact.name}: {fact.beyond:,} values beyond the limit {fact.limit:,}" for fact in facts if fact.beyond
    ]
    first, scale = _first_layer(opened)
    tell(total - 2, total)
    activity, layers, floats = _activity(opened.model, positions)
    found = None
    scores = floats
    if opened.quantized is not None:
        found = Agreement(floats, integer_scores(opened.quantized, positions.records))
        scores = found.integers
    inspection = Inspection(
        path=opened.where,
        net=opened.net,
        quantized=opened.quantized,
        model=opened.model,
        bytes=opened.bytes,
        tensors=facts,
        first=first,
        activity=activity,
        accumulator_scale=scale,
        layers=layers,
        positions=positions,
        agreement=found,
        scores=scores,
        warnings=warnings,
    )
    tell(total - 1, total)
    _judge(inspection)
    if against is not None:
        _compare(inspection, opened, _open(against, arch, note))
    tell(total, total)
    return inspection


def tensor_facts(tensor: NetTensor, steps: npt.NDArray[Any]) -> TensorFacts:
    flat = steps.reshape(-1)
    low = high = total = squares = 0.0
    zeros = at_limit = beyond = 0
    if flat.size:
        low, high = float(flat.min()), float(flat.max())
    span = max(abs(low), abs(high), 1.0) * 1.0001
    histogram = np.zeros(BINS, np.int64)
    for begin in range(0, flat.size, _CHUNK):
        part = flat[begin : begin + _CHUNK].astype(np.float64)
        rounded = np.abs(np.rint(part))
        total, squares = total + float(part.sum()), squares + float(part @ part)
        zeros += int((rounded == 0).sum())
        at_limit += int((rounded == tensor.limit).sum())
        beyond += int((~(rounded <= tensor.limit)).sum())
        histogram += np.histogram(part, bins=BINS, range=(-span, span))[0]
    count = max(flat.size, 1)
    mean = total / count
    return TensorFacts(
        tensor.name,
        f"i{8 * int(tensor.dtype[-1])}",
        tuple(steps.shape),
        tensor.scale,
        tensor.limit,
        low,
        high,
        mean,
        float(np.sqrt(max(squares / count - mean**2, 0))),
        zeros / count,
        at_limit / count,
        beyond,
        span,
        histogram.tolist(),
    )


# ---- the first layer -------------------------------------------------------------------------------------------------


def _first_layer(opened: _Opened) -> tuple[FirstLayer | None, float]:
    named = [(name, layer) for name, layer in opened.model.named_modules() if isinstance(layer, PerspectiveTransformer)]
    if not named:
        return None, 1.0
    name, layer = named[0]
    weight = layer.weight.detach().float()
    one = {tensor.source_parameter: tensor.scale for tensor in opened.net.tensors()}
    # A neuron's weights are a column; some columns at a time become rows.
    step = max(1, _CHUNK // max(len(weight), 1))
    parts = [norms(transpose(weight[:, i : i + step])) for i in range(0, weight.shape[1], step)]
    l1, l2, largest = (torch.cat(norm).double().numpy() for norm in zip(*parts, strict=True))
    maps = [weight_map(part, weight) for part in feature_set(opened.model.feature_set).parts if _is_piece_square(part)]
    first = FirstLayer(weight.shape[0], weight.shape[1], l1, l2, largest, [m for m in maps if m])
    return first, one.get(f"{name}.weight" if name else "weight", 1.0)


def _is_piece_square(part: FeaturePart) -> bool:
    planes = part.bucket_size // _SQUARES
    return part.bucket_size > 0 and planes in range(6, 14) and part.bucket_size % _SQUARES in (0, 1)


def weight_map(part: FeaturePart, weight: torch.Tensor) -> WeightMap:
    """`weight` [F, N] is that of the whole first layer."""
    buckets = part.num_features // part.bucket_size
    sizes = np.empty((buckets, part.bucket_size))
    for bucket in range(buckets):
        begin = part.first_feature + bucket * part.bucket_size
        sizes[bucket] = weight[begin : begin + part.bucket_size].abs().mean(1, dtype=torch.float64).numpy()
    # Bucket sizes that are no multiple of 64 begin with an unused slot.
    boards = sizes[:, part.bucket_size % _SQUARES :].reshape(buckets, -1, _SQUARES)
    states = state_names(part)
    return WeightMap(part.name, boards, plane_names(part), king_buckets(part, len(states)), states)


def _indices(part: FeaturePart, fen_board: str) -> set[int]:
    """White's features of a board, white to move."""
    batch = data.expand(data.records_from_fens([f"{fen_board} w - - 0 1"]), part.name)
    row = batch.white[0].tolist()
    return {index for index in row if index >= 0}


def _board(pieces: dict[int, str]) -> str:
    ranks = []
    for rank in range(7, -1, -1):
        row = "".join(pieces.get(8 * rank + file, "1") for file in range(8))
        ranks.append(row)
    return "/".join(ranks)


_E1, _E8, _D4, _G8 = 4, 60, 27, 62


def plane_names(part: FeaturePart) -> list[str]:
    """What each plane of 64 squares stands for, found by expanding positions with one piece more."""
    planes = part.bucket_size // _SQUARES
    meanings: list[list[str]] = [[] for _ in range(planes)]

    def plane_of(place: int) -> int:
        return (place - part.bucket_size % _SQUARES) // _SQUARES

    def places(pieces: dict[int, str]) -> set[int]:
        """Places in a bucket, whichever it is: a piece may move the position to another one."""
        return {index % part.bucket_size for index in _indices(part, _board(pieces))}

    kings = {_E1: "K", _E8: "k"}
    try:
        base = places(kings)
        for letter, name in zip(_LETTERS, _PIECES, strict=True):
            if letter in "Kk":
                continue
            for place in places(kings | {_D4: letter}) - base:
                meanings[plane_of(place)].append(name)
        moved = places({_E1: "K", _G8: "k"})
        for place in moved - base:
            meanings[plane_of(place)].append("enemy king")
        for place in moved & base:
            meanings[plane_of(place)].append("own king")
    except (UserError, IndexError):
        pass
    return [" and ".join(sorted(set(names), key=names.index)) or f"plane {i}" for i, names in enumerate(meanings)]


def king_buckets(part: FeaturePart, num_states: int) -> npt.NDArray[np.int64]:
    """The king bucket for an own king on each square, int64 [64], of which each has `num_states` buckets; −1 where no
    position has features that show it."""
    found = np.full(_SQUARES, -1, np.int64)
    for square in range(_SQUARES):
        far = 63 if square % 8 < 4 else 56
        far = far if square < 32 else far - 56
        pawn = 27 if square != 27 else 28
        try:
            indices = _indices(part, _board({square: "K", far: "k", pawn: "P"}))
        except UserError:
            continue
        if indices:
            found[square] = min(indices) // part.bucket_size // num_states
    return found


def state_names(part: FeaturePart) -> list[str]:
    """What each state of a king bucket stands for, such as "enemy queens 0" and "enemy queens 1+"; [""] if there is
    only one. The states of a set from outside are found by expanding positions."""
    if outside_set(part.name) is not None:
        return _states_seen(part)
    names = [""]
    for pieces, most in part.states:
        counted = " and ".join(f"{name}s" for code, name in enumerate(_BY_CODE) if pieces >> code & 1)
        digits = [f"{counted} {count}{'+' * (count == most)}" for count in range(most + 1)]
        names = [", ".join(filter(None, (name, digit))) for name in names for digit in digits]
    return names


def _states_seen(part: FeaturePart) -> list[str]:
    """A state for each bucket of a king bucket, if the buckets of a king follow one another: pieces that the board has
    in this state. [""] if buckets depend on the king only, or in another way."""
    settings = tuple(settings_of(part))
    table = piece_square_table(part.name, settings)
    if table is None:
        return [""]
    seen = table.buckets[:, :, :, _BY_CODE.index("own king")]
    total = part.num_features // part.bucket_size
    for count in (count for count in range(2, total + 1) if total % count == 0):
        kings, states = seen // count, seen % count
        if (kings == kings[:, :, :1]).all() and (states == states[:1, :1]).all() and states.any():
            shown = dict(zip(reversed(states[0, 0].tolist()), reversed(settings), strict=True))
            return [_pieces(shown[state]) if state in shown else "no position found" for state in range(count)]
    return [""]


def _pieces(setting: tuple[int, ...]) -> str:
    counts = Counter(_BY_CODE[code] for code in setting)
    return "with " + (", ".join(f"{count} {name}{'s' * (count > 1)}" for name, count in counts.items()) or "neither")


# ---- on positions ----------------------------------------------------------------------------------------------------


def _activity(
    model: NnueModel, positions: Positions
) -> tuple[FirstLayerActivity | None, list[LayerInputs], npt.NDArray[np.float64]]:
    meter, layers = ActivityMeter(model), LayerMeter(model)
    scores = []
    every = -(-len(positions.records) // _MOST_WATCHED)
    with torch.no_grad():
        for number, batch in enumerate(batches(positions.records, model.feature_set)):
            with layers.watching() if number % every == 0 else nullcontext():
                scores.append(model(batch).double().numpy() * model.score_scale)
            meter.add(batch)
    return meter.result(), layers.result(), np.concatenate([*scores, np.zeros(0)])


def _judge(found: Inspection) -> None:
    """Adds warnings for the author of the net."""
    activity = found.activity
    if activity is not None:
        for what, mask in (("never above 0", activity.dead), ("always at their upper limit", activity.stuck)):
            count = int(mask.sum())
            if count:
                first = ", ".join(str(i) for i in mask.nonzero().flatten()[:12].tolist())
                found.warnings.append(
                    f"{count} of {len(mask)} neurons are {what} on these positions: {first}{' …' if count > 12 else ''}"
                )
        largest = float(activity.largest.max()) * found.accumulator_scale
        if largest > found.net.accumulator_limit:
            found.warnings.append(
                f"an accumulator reaches {largest:,.0f} on these positions, but the engine's wrap around beyond "
                f"{found.net.accumulator_limit:,}"
            )


def _compare(found: Inspection, one: _Opened, other: _Opened) -> None:
    found.against = other.where
    if other.quantized is not None and one.quantized is not None:
        found.other_scores = integer_scores(other.quantized, found.positions.records)
    else:
        found.other_scores = float_scores(other.model, found.positions.records)
    if one.net.architecture != other.net.architecture:
        found.warnings.append(
            f"{other.where} is another architecture ({other.net.name}, this is {one.net.name}), so only scores compare"
        )
        return
    for tensor in one.net.tensors():
        first, second = one.steps(tensor).reshape(-1), other.steps(tensor).reshape(-1)
        found.differences.append(_difference(tensor.name, first, second))


def _difference(name: str, first: npt.NDArray[Any], second: npt.NDArray[Any]) -> Difference:
    total = largest = 0.0
    changed = 0
    sums = np.zeros(5)
    for begin in range(0, first.size, _CHUNK):
        x, y = (values[begin : begin + _CHUNK].astype(np.float64) for values in (first, second))
        distance = np.abs(x - y)
        total, largest = total + float(distance.sum()), max(largest, float(distance.max(initial=0)))
        changed += int((distance >= 0.5).sum())
        sums += [x.sum(), y.sum(), x @ x, y @ y, x @ y]
    n = max(first.size, 1)
    covariance = sums[4] - sums[0] * sums[1] / n
    spread = (sums[2] - sums[0] ** 2 / n) * (sums[3] - sums[1] ** 2 / n)
    correlation = float(covariance / np.sqrt(spread)) if spread > 0 else float("nan")
    return Difference(name, total / n, largest, changed / n, correlation)


# ---- what is shown ---------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | torch.Tensor):
        return [_plain(item) for item in value.tolist()]
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value


def as_dict(found: Inspection) -> dict[str, Any]:
    """Plain JSON data."""
    activity = found.activity
    agreement = found.agreement
    return {
        "path": found.path,
        "architecture": found.net.architecture,
        "name": found.net.name,
        "parameters": found.parameters,
        "bytes": found.bytes,
        "warnings": found.warnings,
        "tensors": [_plain(tensor) | {"reach": tensor.reach} for tensor in found.tensors],
        "first_layer": _plain(found.first),
        "accumulators": {
            "limit": found.net.accumulator_limit,
            "bound": accumulator_bound(found.quantized) if found.quantized else None,
            "largest_seen": float(activity.largest.max()) * found.accumulator_scale if activity else None,
        },
        "positions": {"count": len(found.positions.records), "from": found.positions.origin},
        "activity": None
        if activity is None
        else {
            "dead": activity.dead.nonzero().flatten().tolist(),
            "stuck": activity.stuck.nonzero().flatten().tolist(),
            "zeros": activity.zeros,
            "positive": _plain(activity.positive),
            "saturated": _plain(activity.saturated),
        },
        "layers": [_plain(layer) for layer in found.layers],
        "float_against_integers": None
        if agreement is None
        else {
            "mean": _plain(float(agreement.difference.mean())),
            "mean_size": _plain(float(np.abs(agreement.difference).mean())),
            "largest": _plain(float(np.abs(agreement.difference).max(initial=0))),
        },
        "against": None
        if not found.against
        else {
            "path": found.against,
            "tensors": [_plain(difference) for difference in found.differences],
            "scores": None if found.other_scores is None else _score_difference(found),
        },
    }


def _score_difference(found: Inspection) -> dict[str, Any]:
    assert found.other_scores is not None
    distance = found.other_scores - found.scores
    return {
        "mean": _plain(float(distance.mean())),
        "mean_size": _plain(float(np.abs(distance).mean())),
        "largest": _plain(float(np.abs(distance).max(initial=0))),
        "correlation": _plain(check_same([found.scores, found.other_scores])),
    }


def _tensor_rows(found: Inspection) -> list[list[str]]:
    return [
        [
            fact.name,
            f"{fact.dtype} {'×'.join(map(str, fact.shape))}",
            f"{fact.low:,.0f} … {fact.high:,.0f}",
            f"{fact.limit:,}",
            f"{fact.reach:.1%}",
            f"{fact.at_limit:.3%}",
            f"{fact.zeros:.1%}",
            f"{fact.deviation / fact.scale:.4g}",
        ]
        for fact in found.tensors
    ]


_TENSOR_HEAD = ["tensor", "type and shape", "integers", "limit", "reach", "at limit", "zeros", "deviation"]


def _facts(found: Inspection) -> list[tuple[str, str]]:
    facts = [
        ("net", found.net.name),
        ("input features", found.net.feature_set),
        ("parameters", f"{found.parameters:,}"),
        ("file", bytes_of(found.bytes)),
        ("layer stacks", str(found.net.num_stacks)),
    ]
    activity = found.activity
    if activity is not None:
        largest = float(activity.largest.max()) * found.accumulator_scale
        facts += [
            ("accumulators reach", f"{largest:,.0f} of {found.net.accumulator_limit:,}"),
            ("dead neurons", f"{int(activity.dead.sum()):,} of {len(activity.positive):,}"),
            ("saturated accumulators", f"{float(activity.saturated.mean()):.1%}"),
            ("zeros the layers see", f"{activity.zeros:.1%}"),
        ]
    if found.quantized is not None:
        facts.append(("accumulators cannot pass", f"{accumulator_bound(found.quantized):,}"))
    if found.agreement is not None and len(found.agreement.floats):
        difference = np.abs(found.agreement.difference)
        facts.append(("integers − float", f"mean size {difference.mean():.2f}, largest {difference.max():.0f}"))
    facts.append(("positions", found.positions.origin))
    return facts


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  " + "  ".join(cells).rstrip()


def text(found: Inspection) -> str:
    lines = [shown(found.path)]
    lines += [f"  {name:28} {shown(value)}" for name, value in _facts(found)]
    lines += ["", *_aligned([_TENSOR_HEAD, *_tensor_rows(found)])]
    if found.layers:
        lines += ["", *_aligned([_LAYER_HEAD, *_layer_rows(found)])]
    if found.first is not None:
        words = ("least", "5 %", "median", "95 %", "most")
        values = np.quantile(found.first.l2, [0, 0.05, 0.5, 0.95, 1])
        norms = ", ".join(f"{word} {value:.3g}" for word, value in zip(words, values, strict=True))
        lines += ["", f"  norm of a neuron's weights (L2): {norms}"]
    if found.against:
        lines += ["", f"  against {shown(found.against)}"]
        if found.differences:
            lines += _aligned([_DIFFERENCE_HEAD, *_difference_rows(found)])
        scores = _score_difference(found)
        lines.append(
            f"  scores: {scores['mean']:+.2f} on average, {scores['mean_size']:.2f} in size, largest "
            f"{scores['largest']:.0f}"
        )
    lines += [f"  note: {shown(line)}" for line in found.warnings]
    return "\n".join(lines)


_LAYER_HEAD = ["layer", "inputs that are", "zero", "at the top", "dead"]


def _layer_rows(found: Inspection) -> list[list[str]]:
    return [
        [layer.name, "", f"{layer.zeros:.1%}", f"{layer.at_top:.2%}", f"{layer.dead} of {layer.inputs}"]
        for layer in found.layers
    ]


_DIFFERENCE_HEAD = ["tensor", "steps apart", "mean", "largest", "changed", "correlation"]


def _difference_rows(found: Inspection) -> list[list[str]]:
    return [
        [
            difference.name,
            "",
            f"{difference.mean:.3f}",
            f"{difference.largest:,.1f}",
            f"{difference.changed:.1%}",
            f"{difference.correlation:.4f}" if np.isfinite(difference.correlation) else "–",
        ]
        for difference in found.differences
    ]


def plots(found: Inspection, neurons: Sequence[int] = ()) -> list[Plot]:
    return [
        *_neuron_plots(found),
        *_map_plots(found),
        *_single_neurons(found, neurons),
        *_score_plots(found),
        *(_histogram(fact) for fact in found.tensors),
    ]


def _histogram(fact: TensorFacts) -> Plot:
    def draw(axes: Axes) -> None:
        edges = np.linspace(-fact.span, fact.span, BINS + 1)
        axes.bar(
            edges[:-1], np.maximum(fact.histogram, 0), width=np.diff(edges), align="edge", color=SERIES[0], linewidth=0
        )
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylim(bottom=0)
        if fact.reach > 0.4:
            for side in (-fact.limit, fact.limit):
                axes.axvline(side, color=BAD, linewidth=1, linestyle=(0, (4, 3)))
        axes.set_xlabel("integer steps")
        axes.set_ylabel("values")

    return Plot(
        fact.name,
        draw,
        note=f"1.0 is {fact.scale:.6g} steps; limit ±{fact.limit:,}; {fact.zeros:.1%} zeros, {fact.at_limit:.2%} at "
        "the limit.",
        height=2.1,
    )


def _neuron_plots(found: Inspection) -> Iterator[Plot]:
    first, activity = found.first, found.activity
    if first is not None:

        def norms(axes: Axes) -> None:
            x = np.arange(first.neurons)
            for values, color in ((first.l2, SERIES[0]), (first.largest, SERIES[1])):
                ordered = np.sort(values)[::-1]
                axes.plot(*thin(x, ordered, most=400), color=color)
            axes.set_yscale("log" if (first.l2 > 0).all() and (first.largest > 0).all() else "linear")
            axes.set_xlabel("neurons, sorted separately for each curve")
            axes.set_ylabel("in units of 1.0")

        yield Plot(
            "Weights of each neuron",
            norms,
            note="A sharp drop on the right shows neurons that training has not used.",
            legend=[("norm (L2)", SERIES[0]), ("largest weight", SERIES[1])],
        )
    if activity is not None:

        def shares(axes: Axes) -> None:
            x = np.arange(len(activity.positive))
            for tensor, color in ((activity.positive, SERIES[0]), (activity.saturated, SERIES[1])):
                axes.plot(*thin(x, 100 * np.sort(tensor.numpy())[::-1], most=400), color=color)
            axes.set_ylim(-2, 102)
            axes.set_xlabel("neurons, sorted separately for each curve")
            axes.set_ylabel("% of accumulators")

        yield Plot(
            "How often neurons are active",
            shares,
            note=f"Over {found.positions.origin}, both perspectives. At 0 % a neuron is dead, at 100 % a constant.",
            legend=[("above 0", SERIES[0]), ("at the upper limit", SERIES[1])],
        )

        def reach(axes: Axes) -> None:
            largest = activity.largest.numpy() * found.accumulator_scale
            axes.hist(largest, bins=40, color=SERIES[0], linewidth=0)
            if largest.max(initial=0) > 0.5 * found.net.accumulator_limit:
                axes.axvline(found.net.accumulator_limit, color=BAD, linewidth=1, linestyle=(0, (4, 3)))
            axes.set_xlabel("largest accumulator, integer steps")
            axes.set_ylabel("neurons")

        yield Plot("Reach of accumulators", reach, note=f"The engine holds {found.net.accumulator_limit:,}.")


def _compose(boards: Floats, columns: int) -> Floats:
    """Boards [n, 64] side by side with a gap between them, a1 at the lower left of each."""
    rows = -(-len(boards) // columns)
    picture = np.full((rows * 10, columns * 9 - 1), np.nan)
    for number, board in enumerate(boards):
        row, column = divmod(number, columns)
        top = (rows - 1 - row) * 10
        picture[top : top + 8, column * 9 : column * 9 + 8] = board.reshape(8, 8)
    return picture


def _boards(axes: Axes, boards: Floats, names: Sequence[str], signed: bool) -> None:
    import matplotlib

    columns = 6 if len(boards) > 6 else len(boards)
    picture = _compose(boards, columns)
    most = float(np.nanmax(np.abs(picture))) or 1.0
    colormap = matplotlib.colormaps["RdBu_r" if signed else "viridis"].with_extremes(bad=(0, 0, 0, 0))
    low = -most if signed else float(np.nanmin(picture))
    image = axes.imshow(picture, origin="lower", cmap=colormap, vmin=low, vmax=most, interpolation="nearest")
    rows = len(picture) // 10
    for number, name in enumerate(names):
        row, column = divmod(number, columns)
        axes.text(
            column * 9 + 3.5,
            (rows - 1 - row) * 10 + 8.2,
            _short(name),
            ha="center",
            va="bottom",
            fontsize=6,
            color=INK,
        )
    bar = axes.figure.colorbar(image, ax=axes, orientation="horizontal", fraction=0.05, pad=0.02, aspect=50)
    bar.ax.tick_params(labelsize=7, length=2)
    bar.outline.set_visible(False)


def _short(name: str) -> str:
    return "kings" if " and " in name else name


def _ordered(names: Sequence[str]) -> list[int]:
    """Planes in the order of the board's pieces: own first."""
    rank = {name: number for number, name in enumerate(_PIECES)}
    return sorted(range(len(names)), key=lambda i: (rank.get(names[i].split(" and ")[0], 99), i))


def _map_plots(found: Inspection) -> Iterator[Plot]:
    for each in found.first.maps if found.first is not None else ():
        order = _ordered(each.planes)
        several = len(each.sizes) > 1

        def pieces(axes: Axes, each: WeightMap = each, order: Sequence[int] = tuple(order)) -> None:
            _boards(axes, each.sizes.mean(0)[list(order)], [each.planes[i] for i in order], signed=False)

        yield Plot(
            f"Size of weights by piece and square: {each.part}",
            pieces,
            note="Mean magnitude over all neurons" + (" and buckets" if several else "") + ", own side below.",
            plain=True,
            height=1.75,
        )
        if not several:
            continue

        def kings(axes: Axes, each: WeightMap = each) -> None:
            by_bucket = each.sizes.mean((1, 2)).reshape(-1, len(each.states)).mean(1)
            board = np.where(each.king_buckets >= 0, by_bucket[np.maximum(each.king_buckets, 0)], np.nan).reshape(8, 8)
            image = axes.imshow(board, origin="lower", cmap="viridis", aspect="equal")
            middle = (np.nanmin(board) + np.nanmax(board)) / 2
            for square, bucket in enumerate(each.king_buckets.tolist()):
                if bucket >= 0:
                    rank, file = divmod(square, 8)
                    color = "white" if board[rank, file] < middle else "black"
                    axes.text(file, rank, str(bucket), ha="center", va="center", fontsize=6.5, color=color)
            axes.set_xticks(range(8), list("abcdefgh"))
            axes.set_yticks(range(8), [str(rank + 1) for rank in range(8)])
            axes.tick_params(length=0)
            axes.figure.colorbar(image, ax=axes, shrink=0.9).outline.set_visible(False)

        yield Plot(
            f"Size of weights by king: {each.part}",
            kings,
            note="Numbers are king buckets. Small weights belong to king squares that are rare in the training data.",
            plain=True,
            height=2.8,
        )

        def table(axes: Axes, each: WeightMap = each, order: Sequence[int] = tuple(order)) -> None:
            image = axes.imshow(each.sizes.mean(2)[:, list(order)].T, cmap="viridis", aspect="auto")
            axes.set_yticks(range(len(order)), [_short(each.planes[i]) for i in order])
            axes.tick_params(length=0, labelsize=6.5)
            states = len(each.states)
            axes.set_xlabel("king bucket" if states == 1 else "king bucket, state")
            ticks = range(0, len(each.sizes), max(1, len(each.sizes) // 8))
            axes.set_xticks(ticks, [str(i) if states == 1 else f"{i // states}, {i % states}" for i in ticks])
            axes.figure.colorbar(image, ax=axes, shrink=0.9).outline.set_visible(False)

        states = "; ".join(f"{number}: {name}" for number, name in enumerate(each.states) if name)
        yield Plot(
            f"Size of weights by king bucket and piece: {each.part}",
            table,
            note=f"States: {states}." if states else "",
            plain=True,
            height=2.6,
        )


def check_neurons(found: Inspection, neurons: Sequence[int]) -> None:
    """UserError for a number that the net's first layer does not have."""
    count = found.first.neurons if found.first is not None else 0
    for neuron in neurons:
        if not 0 <= neuron < count:
            raise UserError(f"--neuron {neuron}: the first layer has {count} neurons, expected 0 … {count - 1}")


def _single_neurons(found: Inspection, neurons: Sequence[int]) -> Iterator[Plot]:
    """Plots of the neurons that were requested, or else of the six with the largest weights."""
    first = found.first
    if first is None or not first.maps:
        return
    part = next(part for part in feature_set(found.model.feature_set).parts if part.name == first.maps[0].part)
    layer = next(module for module in found.model.modules() if isinstance(module, PerspectiveTransformer))
    chosen = list(neurons) or np.argsort(-first.l2, kind="stable")[:6].tolist()
    names = first.maps[0].planes
    order = _ordered(names)
    for neuron in chosen:
        column = layer.weight.detach()[part.first_feature : part.first_feature + part.num_features, neuron]
        buckets = column.double().numpy().reshape(-1, part.bucket_size)[:, part.bucket_size % _SQUARES :]
        boards = buckets.reshape(len(buckets), -1, _SQUARES).mean(0)[order]
        draw = partial(_boards, boards=boards, names=[names[i] for i in order], signed=True)
        over = ", mean over king buckets" if len(buckets) > 1 else ""
        active = ""
        if found.activity is not None:
            active = f" Above 0 in {float(found.activity.positive[neuron]):.0%} of the accumulators."
        yield Plot(
            f"Neuron {neuron}",
            draw,
            note=f"Weights{over}: red raises, blue lowers.{active}",
            plain=True,
            height=1.75,
        )


def _score_plots(found: Inspection) -> Iterator[Plot]:
    def against(x: Floats, y: Floats, across: str, up: str) -> Callable[[Axes], None]:
        def draw(axes: Axes) -> None:
            most = float(np.abs(np.concatenate([x, y])).max(initial=1)) * 1.05
            axes.plot([-most, most], [-most, most], color=GRID, linewidth=1)
            axes.plot(x, y, "o", color=SERIES[0], markersize=2.2, alpha=0.5, markeredgewidth=0)
            axes.set_xlim(-most, most)
            axes.set_ylim(-most, most)
            axes.set_xlabel(across)
            axes.set_ylabel(up)

        return draw

    if found.agreement is not None and len(found.agreement.floats):
        floats, integers = thin(found.agreement.floats, found.agreement.integers)
        difference = np.abs(found.agreement.difference)
        yield Plot(
            "Float model and integers",
            against(floats, integers, "float model, engine units", "integers"),
            note=f"Differences: {difference.mean():.2f} in size on average, {difference.max():.0f} at most.",
        )
    if found.other_scores is not None and len(found.other_scores):
        mine, other = thin(found.scores, found.other_scores)
        scores = _score_difference(found)
        yield Plot(
            "Scores of both nets",
            against(mine, other, "this net, engine units", "the other net"),
            note=f"Differences: {scores['mean_size']:.2f} in size on average, {scores['largest']:.0f} at most.",
        )


def page(found: Inspection, neurons: Sequence[int] = ()) -> Page:
    path = Path(found.path)
    name = f"{path.parent.parent.name}: {path.name}" if path.parent.name == "checkpoints" else path.name
    overview = Section("Overview", facts=_facts(found), warnings=found.warnings)
    sections = [overview]
    if found.against:
        head = [_DIFFERENCE_HEAD[0], *_DIFFERENCE_HEAD[2:]]
        rows = [[row[0], *row[2:]] for row in _difference_rows(found)]
        sections.append(
            Section(
                "Difference",
                text=f"Against {found.against}, in integer steps; changed: by half a step or more.",
                tables=[Table(head, rows)] if rows else [],
                plots=[plot for plot in _score_plots(found) if plot.title == "Scores of both nets"],
            )
        )
    neurons_seen = [*_neuron_plots(found), *(p for p in _score_plots(found) if p.title != "Scores of both nets")]
    tables = []
    if found.layers:
        rows = [[row[0], *row[2:]] for row in _layer_rows(found)]
        tables = [Table(["what a layer sees", "zeros", "at the top", "dead"], rows)]
    sections.append(Section("Neurons", tables=tables, plots=neurons_seen))
    maps = [*_map_plots(found), *_single_neurons(found, neurons)]
    if maps:
        sections.append(Section("Weight maps of the first layer", plots=maps))
    sections.append(
        Section(
            "Tensors",
            tables=[Table(_TENSOR_HEAD, _tensor_rows(found), numbers=2)],
            plots=[_histogram(fact) for fact in found.tensors],
        )
    )
    return Page(shown(name), f"{found.net.name}, {found.parameters:,} parameters", sections)
