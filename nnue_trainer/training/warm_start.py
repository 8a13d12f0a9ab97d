"""Initialises a net with the weights of another net, whose architecture may be different.

Each net describes what each index of its parameters stands for: a feature, a bucket or a unit (nets/meaning.py). A
weight is copied if the source has one of the same meaning. An output bucket gets the weights of the source's bucket for
the same numbers of pieces, and a feature those of the same feature in the source (data/feature_match.py).

A new unit keeps its random weights, but known units of the next layer have weights of 0 for it. The weights of a new
feature for known units are 0, too. So a net that only has more units or features starts with the evaluations of the
source. The report lists for each tensor how many values were copied, and states how far the evaluations of the two nets
differ on some positions.

The target is the net that is initialised; the source is the net that the weights come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from nnue_trainer import data, nets
from nnue_trainer.data.feature_match import FeatureMatch, match_features
from nnue_trainer.errors import UserError, shown
from nnue_trainer.export import checkpoint_from_net, read_net
from nnue_trainer.export.check_positions import CHECK_POSITIONS
from nnue_trainer.files import checkpoint
from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.files.pages.page import Table, aligned
from nnue_trainer.nets.base import Net, NnueModel, build
from nnue_trainer.nets.integer_forward import MATERIALS
from nnue_trainer.nets.meaning import Axis, Buckets, Features, Key, Meaning, Units

_CHUNK = 4096  # rows of a parameter that are copied at once, to limit the memory of temporary tensors


def start_from(path: Path, model: NnueModel, note: Callable[[str], None]) -> list[str]:
    """Initialises `model` with the weights of another net.

    Args:
        path: a checkpoint, a run folder (its best checkpoint, or its last if there is no best one) or a net file.
        model: a newly built model on the CPU; its parameters are changed in place.
        note: is called with a message for each assumption that was needed to read a net file.

    Returns:
        The lines of the report: what was copied, what could not be kept, and how far the evaluations differ.

    Raises:
        UserError: `path` is not a net, or it has nothing in common with `model`.
    """
    path = checkpoint.of_run(path) if path.is_dir() else path
    source = _load(path, note)
    tensors = source.tensors.get("model", {})
    if source.architecture == model.architecture or model.net is None:
        return _all_of(tensors, model, path)
    before = nets.parse(source.architecture, str(path))
    if before.architecture == model.architecture:  # the same, but as an earlier version wrote it
        return _all_of(tensors, model, path)
    old_model = _built(before)
    checkpoint.load_into(tensors, old_model, path)
    lines = [f"initial weights: from {path} ({before.name}) to another architecture ({model.net.name})"]
    lines += transfer(before, dict(old_model.named_parameters()), model, str(path))
    return [*lines, _compared(old_model, model)]


def _all_of(tensors: Mapping[str, Tensor], model: NnueModel, path: Path) -> list[str]:
    """Takes all weights of the same architecture. Those beyond the net's limits, which training would clip after its
    first step, are clipped now and counted."""
    checkpoint.load_into(tensors, model, path)
    before = _check_scores(model) if model.net is not None else None
    clipped = _clip(model)
    if not clipped or before is None:
        return [f"initial weights: all of {path}", *clipped]
    lines = [f"initial weights: all of {path}, except values beyond the limits of the net's integers", *clipped]
    return [*lines, _difference(before, _check_scores(model))]


def _load(path: Path, note: Callable[[str], None]) -> Checkpoint:
    """Reads a checkpoint (only its model) or a net file. A net file's integers become floats."""
    if path.suffix == ".safetensors" or not path.is_file() or _is_safetensors(path):
        return checkpoint.load(path, ("model",))
    return checkpoint_from_net(read_net(path, note=note), str(path))


def _is_safetensors(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(9)[8:] == b"{"
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None


def _built(net: Net) -> NnueModel:
    """A new model of the source. The state of torch's random generator, which training uses, is not changed."""
    with torch.random.fork_rng(devices=[]):
        return build(net)


# ---- matching the axes of two parameters -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Match:
    """Matches the n indices of one axis of a target parameter with those of the source parameter. An index that has no
    match is new."""

    source: np.ndarray
    """int64 [n]: the matching index of the source; −1 where the index is new"""
    is_output: bool
    """whether the axis holds outputs of a layer: the weights of a new output stay random, except for `to_output`"""
    to_output: np.ndarray
    """bool [n]: the unit is added directly to the net's output, so its weights start at 0 if it is new"""
    left_out: int
    """how many indices of the source are not used"""
    features: FeatureMatch | None = None
    """for an axis of features: the match of the two feature sets"""

    @property
    def known(self) -> np.ndarray:
        return np.asarray(self.source >= 0)

    @property
    def repeats(self) -> int:
        """How many indices get a source index that an earlier index also gets."""
        known = self.source[self.known]
        return int(known.size - np.unique(known).size)

    @property
    def means(self) -> int:
        """How many features get the mean of several features of the source."""
        return 0 if self.features is None else len(np.unique(self.features.averaged[0]))


def _match(target: Axis, source: Axis, stale: set[object]) -> _Match | None:
    """Matches two axes; None for axes of different kinds. `stale`: the layers whose weights are random. Their units
    compute something new, so they match no unit of the source."""
    if isinstance(target, Features) and isinstance(source, Features):
        found = match_features(target.name, source.name)
        rows = found.source
        return _Match(rows, False, np.zeros(len(rows), bool), found.num_sources - found.used, found)
    if isinstance(target, Buckets) and isinstance(source, Buckets):
        rows = np.array([_most_common_bucket(bucket, target, source)[0] for bucket in range(target.count)])
        return _Match(rows, False, np.zeros(len(rows), bool), source.count - len(np.unique(rows)))
    if isinstance(target, Units) and isinstance(source, Units):
        place: dict[Key, int] = {key: index for index, key in enumerate(source.keys) if key[0] not in stale}
        rows = np.array([place.get(key, -1) for key in target.keys], np.int64)
        to_output = np.array([key in target.to_output for key in target.keys], bool)
        return _Match(rows, target.outputs, to_output, len(source.keys) - int((rows >= 0).sum()))
    return None


def _most_common_bucket(bucket: int, target: Buckets, source: Buckets) -> tuple[int, bool]:
    """For the numbers of pieces and queens that the target puts into `bucket`: the source's bucket of most of them, and
    whether it is the bucket of all of them. Buckets by different weights of pieces are compared by their place."""
    if target.weights != source.weights or len(target.table) != len(source.table):
        return bucket * source.count // target.count, False
    first = 0 if target.weights else 2 * MATERIALS  # no position has fewer pieces
    had = [
        old
        for entry, (new, old) in enumerate(zip(target.table, source.table, strict=True))
        if new == bucket and entry >= first
    ]
    if not had:
        return min(bucket, source.count - 1), True
    return max(sorted(set(had)), key=had.count), len(set(had)) == 1


# ---- copying the weights ---------------------------------------------------------------------------------------------


def transfer(source: Net, tensors: Mapping[str, Tensor], model: NnueModel, where: str) -> list[str]:
    """Copies into `model`, which is newly built, all weights of `source` that have a meaning in both nets.

    Args:
        source: the net that the weights come from.
        tensors: the parameters of `source`, by name.
        model: the target; its parameters are changed in place.
        where: names the source at the beginning of error messages.

    Returns:
        Lines: a table of how many values of each tensor were copied, and a line for each thing that could not be kept.

    Raises:
        UserError: one of the nets has no `Net.meaning()`, or the nets have nothing in common.
    """
    assert model.net is not None
    new, old = model.net.meaning(), source.meaning()
    for net, found in ((model.net, new), (source, old)):
        if found is None:
            raise UserError(
                f"{where}: is {source.name}, the recipe has {model.net.name}, and {net.name} does not define what its "
                "weights mean (Net.meaning): only weights of the same architecture fit"
            )
    assert new is not None
    assert old is not None
    by_role = {meaning.role: name for name, meaning in old.parameters.items()}
    stale: set[object] = set()
    table: list[Sequence[str]] = [("tensor", "shape", "copied", "repeated", "means", "zero", "fresh", "left out")]
    matches: list[_Match] = []
    kept = 0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            meaning = new.parameters[name]
            origin = by_role.pop(meaning.role, None)
            counts, along = _fill(
                parameter,
                meaning,
                None if origin is None else tensors[origin],
                None if origin is None else old.parameters[origin],
                stale,
            )
            matches += along
            values_kept = sum(counts[:3])  # copied, repeated or means
            kept += values_kept
            outputs = [axis for axis in meaning.axes if isinstance(axis, Units) and axis.outputs]
            if not values_kept and name.endswith("weight"):
                stale |= {key[0] for axis in outputs for key in axis.keys}
            shape = " × ".join(map(str, parameter.shape))
            table.append((name, shape, *(f"{count:,}" if count else "–" for count in counts)))
    changed = [
        f"{fact} was {old.facts[fact]}, is {new.facts[fact]}"
        for fact in sorted(new.facts.keys() & old.facts.keys())
        if new.facts[fact] != old.facts[fact]
    ]
    if not kept:
        why = f" ({', '.join(changed)})" if changed else ""
        raise UserError(f"{where}: is {source.name}, which has nothing in common with {model.net.name}{why}")
    lines = _lines(table)
    features = next((match.features for match in matches if match.features), None)
    if features is not None:
        lines += [f"inputs: {shown(text)}" for text in features.notes]
    lines += _bucket_lines(new.parameters, old.parameters)
    lines += [f"left out: {origin} of the source, which is not in this net" for origin in by_role.values()]
    lines += [f"{fact}: the same weights give other evaluations" for fact in changed]
    return lines + _clip(model)


def _fill(
    parameter: Tensor, meaning: Meaning, tensor: Tensor | None, old: Meaning | None, stale: set[object]
) -> tuple[tuple[int, int, int, int, int, int], list[_Match]]:
    """Fills one parameter of the target from `tensor`, the source's parameter of the same role, or None.

    Returns six counts and the matches of the axes. The counts are values of the target that are copied, repeated
    (copies of a value that was copied before), means, zero and fresh (left random), and values of the source that are
    left out. If not all axes match, there are no matches and nothing is copied: the values stay random, or become 0 if
    they are added directly to the net's output."""
    size, nothing = parameter.numel(), 0 if tensor is None else tensor.numel()
    matches: list[_Match] = []
    if old is not None and len(old.axes) == len(meaning.axes):
        found = [_match(axis, other, stale) for axis, other in zip(meaning.axes, old.axes, strict=True)]
        matches = [match for match in found if match is not None and match.known.any()]
    if tensor is None or old is None or len(matches) < len(meaning.axes):
        if meaning.to_output:
            parameter.zero_()
        return (0, 0, 0, *((size, 0) if meaning.to_output else (0, size)), nothing), []
    shape = [len(match.source) for match in matches]
    into, values = parameter.view(shape), tensor.detach().view([_size(axis) for axis in old.axes])
    for begin in range(0, shape[0], _CHUNK):
        rows = slice(begin, min(begin + _CHUNK, shape[0]))
        part = _rows(values, matches[0], rows)
        for dimension, match in enumerate(matches[1:], 1):
            part = part.index_select(dimension, torch.from_numpy(match.source.clip(0)))
        # A known output with a new input: the weight is 0. A new output: the weight stays random, or is 0 if the output
        # is added directly to the net's output.
        outputs, inputs, to_output = torch.tensor([[True], [True], [False]], device="cpu")
        for dimension, match in enumerate(matches):
            here = rows if dimension == 0 else slice(None)
            view = [-1 if other == dimension else 1 for other in range(len(matches))]
            known = torch.from_numpy(match.known[here]).view(view)
            to_output = to_output | torch.from_numpy(match.to_output[here]).view(view)
            if match.is_output:
                outputs = outputs & known
            else:
                inputs = inputs & known
        fresh = torch.where(outputs | to_output, 0.0, into[rows])
        into[rows] = torch.where(outputs & inputs, part, fresh)
    return _counts(matches, nothing), matches


def _rows(values: Tensor, match: _Match, rows: slice) -> Tensor:
    """The source's rows for a range of the target's rows. A row that matches several rows of the source is their
    weighted mean. Rows without a match have undefined values."""
    part = values[torch.from_numpy(match.source[rows].clip(0))]
    if match.features is not None:
        of, sources, shares = match.features.averaged
        begin, end = np.searchsorted(of, (rows.start, rows.stop))
        local = torch.from_numpy(of[begin:end] - rows.start)
        part[local] = 0.0
        share = torch.from_numpy(shares[begin:end]).view(-1, *[1] * (part.ndim - 1))
        part.index_add_(0, local, values[torch.from_numpy(sources[begin:end])] * share)
    return part


def _size(axis: Axis) -> int:
    """How many indices an axis has."""
    if isinstance(axis, Features):
        return data.feature_set(axis.name).num_features
    return axis.count if isinstance(axis, Buckets) else len(axis.keys)


def _counts(matches: list[_Match], total: int) -> tuple[int, int, int, int, int, int]:
    """The six counts of `_fill`; `total` is the number of values in the source's parameter."""
    known = prod(int(match.known.sum()) for match in matches)
    means = matches[0].means * prod(int(match.known.sum()) for match in matches[1:])
    once = prod(int(match.known.sum()) - match.means - _repeats(match) for match in matches)
    to_output = sum(int((match.to_output & ~match.known).sum()) for match in matches)
    size = prod(len(match.source) for match in matches)
    rows = prod(len(match.source) for match in matches if not match.is_output)
    outputs = prod(int(match.known.sum()) for match in matches if match.is_output)
    zero = rows * (outputs + to_output) - known
    used = prod(_used(match) for match in matches)
    return once, known - means - once, means, zero, size - known - zero, total - used


def _repeats(match: _Match) -> int:
    """`_Match.repeats`, without the features that are means."""
    if match.features is None:
        return match.repeats
    single = np.setdiff1d(np.flatnonzero(match.known), match.features.averaged[0])
    return int(single.size - np.unique(match.source[single]).size)


def _used(match: _Match) -> int:
    """How many indices of the source are used."""
    return match.features.used if match.features else int(np.unique(match.source[match.known]).size)


def _bucket_lines(new: Mapping[str, Meaning], old: Mapping[str, Meaning]) -> list[str]:
    """A line that names the output buckets whose positions were in several buckets of the source, if there are any."""

    def of(meanings: Mapping[str, Meaning]) -> set[Buckets]:
        return {axis for meaning in meanings.values() for axis in meaning.axes if isinstance(axis, Buckets)}

    mixed = [
        str(bucket)
        for target in of(new)
        for source in of(old)
        for bucket in range(target.count)
        if not _most_common_bucket(bucket, target, source)[1]
    ]
    if not mixed:
        return []
    return [f"output buckets {', '.join(mixed)}: positions came from several; the weights are of the one that most had"]


def _clip(model: NnueModel) -> list[str]:
    """Clips the parameters to the range of the exported net's integers. Returns a line for each range of which values
    were changed."""
    lines = []
    with torch.no_grad():
        for bound in model.weight_bounds():
            rows = bound.parameter[bound.first_row :][: bound.rows]
            clipped = int(((rows < bound.low) | (rows > bound.high)).sum())
            if clipped:
                largest = float(rows.abs().max())
                lines.append(
                    f"clipped: {clipped:,} of {rows.numel():,} values of {bound.name} to {bound.low:.4g} … "
                    f"{bound.high:.4g}, what the exported net can hold; the largest magnitude was {largest:.4g}"
                )
                rows.clamp_(bound.low, bound.high)
    return lines


def _lines(table: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, without the columns that have no number."""
    columns = [column for column in zip(*table, strict=True) if any(cell != "–" for cell in column[1:])]
    head, *rows = zip(*columns, strict=True)
    return [f"  {line}" for line in aligned(Table(head, rows, numbers=2))]


# ---- comparing the evaluations ---------------------------------------------------------------------------------------


def _compared(before: NnueModel, after: nn.Module) -> str:
    """The last line of the report: how far the evaluations of the two models differ on `CHECK_POSITIONS`. Each model's
    evaluation is in its own engine units."""
    assert isinstance(after, NnueModel)
    return _difference(_check_scores(before), _check_scores(after))


@torch.no_grad()
def _check_scores(model: NnueModel) -> Tensor:
    """The evaluations of `CHECK_POSITIONS` in engine units."""
    records = data.records_from_fens(list(CHECK_POSITIONS))
    scores: Tensor = model(data.expand(records, model.feature_set)).double() * model.score_scale
    return scores


def _difference(old: Tensor, new: Tensor) -> str:
    largest, spread = float((new - old).abs().max()), float(old.std())
    if largest <= 1e-3 * max(spread, 1.0):
        return f"evaluations of {len(old)} positions: those of the source (largest difference {largest:.2g})"
    rms = float((new - old).square().mean().sqrt())
    correlation = float(torch.corrcoef(torch.stack([old, new]))[0, 1])
    return (
        f"evaluations of {len(old)} positions: not those of the source, rms difference {rms:.1f} engine units, "
        f"correlation {correlation:.3f}"
    )
