"""Starting from the weights of another net: one of the same architecture, or one that shares parts of it.

Every net says what its parameters stand for (nets/meaning.py): features, buckets, units. What has the same meaning in
both nets is copied. A bucket takes the weights of the bucket that its positions had, and a feature those of the feature
that it was (data/feature_match.py). A new unit keeps its fresh weights, but nothing looks at it yet, and a new feature
adds nothing to the units that were there: so a larger net begins with the evaluations of the smaller one. What became
of each tensor is a table, and how far the evaluations differ is measured, not promised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from nnue_trainer import checkpoint, data, nets
from nnue_trainer.checkpoint import Checkpoint
from nnue_trainer.data.feature_match import FeatureMatch, match_features
from nnue_trainer.errors import UserError, shown
from nnue_trainer.export import checkpoint_from_net, read_net
from nnue_trainer.export.check_positions import CHECK_POSITIONS
from nnue_trainer.nets.base import Net, NnueModel
from nnue_trainer.nets.meaning import Axis, Buckets, Features, Key, Meaning, Units

_CHUNK = 4096  # rows of a first layer that are copied at once


def start_from(path: Path, model: NnueModel, note: Callable[[str], None]) -> list[str]:
    """Gives `model`, which is on the CPU, the weights of a checkpoint, of a run (of its best checkpoint, or else its
    last) or of a net file. Returns lines that say what became of each tensor, and what cannot be kept; `note` is told
    what was assumed of a file. UserError where that is no net, or has nothing in common with `model`."""
    path = checkpoint.of_run(path) if path.is_dir() else path
    source = _load(path, note)
    tensors = source.tensors.get("model", {})
    if source.architecture == model.architecture or model.net is None:
        checkpoint.load_into(tensors, model, path)
        return [f"initial weights: all of {path}"]
    before = nets.parse(source.architecture, str(path))
    if before.architecture == model.architecture:  # written by an earlier release, in other words
        checkpoint.load_into(tensors, model, path)
        return [f"initial weights: all of {path}"]
    old_model = _built(before)
    checkpoint.load_into(tensors, old_model, path)
    lines = [f"initial weights: from {path} ({before.name}) to another architecture ({model.net.name})"]
    lines += transfer(before, dict(old_model.named_parameters()), model, str(path))
    return [*lines, _compared(old_model, model)]


def _load(path: Path, note: Callable[[str], None]) -> Checkpoint:
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
    """A model of its own, without touching the random numbers that training draws."""
    with torch.random.fork_rng(devices=[]):
        return net.model()


# ---- what matches what -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Match:
    """Along one axis: `source` int64 [n] is the index in the source of each index in the target, −1 where that is new.
    `straight` bool [n]: where it is new, its weights start at 0, although they are those of outputs. `left_out`: how
    many indices of the source are not used."""

    source: np.ndarray
    is_output: bool
    straight: np.ndarray
    left_out: int
    features: FeatureMatch | None = None

    @property
    def known(self) -> np.ndarray:
        return np.asarray(self.source >= 0)

    @property
    def repeats(self) -> int:
        """Indices that a source index is used for again."""
        known = self.source[self.known]
        return int(known.size - np.unique(known).size)

    @property
    def means(self) -> int:
        return 0 if self.features is None else len(np.unique(self.features.averaged[0]))


def _match(target: Axis, source: Axis, stale: set[object]) -> _Match | None:
    """None for axes of different kinds. `stale` layers are those whose units are not what they were."""
    if isinstance(target, Features) and isinstance(source, Features):
        found = match_features(target.name, source.name)
        rows = found.source
        return _Match(rows, False, np.zeros(len(rows), bool), found.num_sources - found.used, found)
    if isinstance(target, Buckets) and isinstance(source, Buckets):
        rows = np.array([_usual(bucket, target, source)[0] for bucket in range(target.count)])
        return _Match(rows, False, np.zeros(len(rows), bool), source.count - len(np.unique(rows)))
    if isinstance(target, Units) and isinstance(source, Units):
        place: dict[Key, int] = {key: index for index, key in enumerate(source.keys) if key[0] not in stale}
        rows = np.array([place.get(key, -1) for key in target.keys], np.int64)
        straight = np.array([key in target.straight for key in target.keys], bool)
        return _Match(rows, target.outputs, straight, len(source.keys) - int((rows >= 0).sum()))
    return None


def _usual(bucket: int, target: Buckets, source: Buckets) -> tuple[int, bool]:
    """The bucket of the source that most numbers of pieces of a bucket had, and whether all had it."""
    had = [source.by_pieces[pieces] for pieces in range(2, 33) if target.by_pieces[pieces] == bucket]
    if not had:
        return min(bucket, source.count - 1), True
    return max(sorted(set(had)), key=had.count), len(set(had)) == 1


# ---- copying ---------------------------------------------------------------------------------------------------------


def transfer(source: Net, tensors: Mapping[str, Tensor], model: NnueModel, where: str) -> list[str]:
    """Copies what `tensors`, the parameters of `source`, and the fresh `model` have in common; returns the table and
    what cannot be kept, in lines. UserError that begins with `where` if a net does not say what its weights mean."""
    assert model.net is not None
    new, old = model.net.meaning(), source.meaning()
    for net, found in ((model.net, new), (source, old)):
        if found is None:
            raise UserError(
                f"{where}: is {source.name}, the recipe says {model.net.name}, and {net.name} does not say what its "
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
            kept += counts[0]
            outputs = [axis for axis in meaning.axes if isinstance(axis, Units) and axis.outputs]
            if not counts[0] and name.endswith("weight"):
                stale |= {key[0] for axis in outputs for key in axis.keys}
            shape = " × ".join(map(str, parameter.shape))
            table.append((name, shape, *(f"{count:,}" if count else "–" for count in counts)))
    if not kept:
        raise UserError(f"{where}: is {source.name}, which has nothing in common with {model.net.name}")
    lines = _aligned(table)
    features = next((match.features for match in matches if match.features), None)
    if features is not None:
        lines += [f"inputs: {shown(text)}" for text in features.notes]
    lines += _bucket_lines(new.parameters, old.parameters)
    lines += [f"left out: {origin} of the source, which is not in this net" for origin in by_role.values()]
    for fact in sorted(new.facts.keys() & old.facts.keys()):
        if new.facts[fact] != old.facts[fact]:
            lines.append(f"{fact} was {old.facts[fact]}, is {new.facts[fact]}: the same weights give other evaluations")
    clipped = _clip(model)
    return lines + ([f"clipped: {clipped:,} values to what the exported net can hold"] if clipped else [])


def _fill(
    parameter: Tensor, meaning: Meaning, tensor: Tensor | None, old: Meaning | None, stale: set[object]
) -> tuple[tuple[int, int, int, int, int, int], list[_Match]]:
    """Fills one parameter. Numbers of its values that are copied, repeated, means, zero and fresh, and of values of the
    source that are left out."""
    size, nothing = parameter.numel(), 0 if tensor is None else tensor.numel()
    matches: list[_Match] = []
    if old is not None and len(old.axes) == len(meaning.axes):
        found = [_match(axis, other, stale) for axis, other in zip(meaning.axes, old.axes, strict=True)]
        matches = [match for match in found if match is not None and match.known.any()]
    if tensor is None or old is None or len(matches) < len(meaning.axes):
        if meaning.straight:
            parameter.zero_()
        return (0, 0, 0, *((size, 0) if meaning.straight else (0, size)), nothing), []
    shape = [len(match.source) for match in matches]
    into, values = parameter.view(shape), tensor.detach().view([_size(axis) for axis in old.axes])
    for begin in range(0, shape[0], _CHUNK):
        rows = slice(begin, min(begin + _CHUNK, shape[0]))
        part = _rows(values, matches[0], rows)
        for dimension, match in enumerate(matches[1:], 1):
            part = part.index_select(dimension, torch.from_numpy(match.source.clip(0)))
        # Where an input is new, what it adds to known outputs is 0; new outputs are fresh, but for those that have a
        # say at once.
        outputs, inputs, straight = torch.tensor(True), torch.tensor(True), torch.tensor(False)
        for dimension, match in enumerate(matches):
            here = rows if dimension == 0 else slice(None)
            view = [-1 if other == dimension else 1 for other in range(len(matches))]
            known = torch.from_numpy(match.known[here]).view(view)
            straight = straight | torch.from_numpy(match.straight[here]).view(view)
            if match.is_output:
                outputs = outputs & known
            else:
                inputs = inputs & known
        fresh = torch.where(outputs | straight, 0.0, into[rows])
        into[rows] = torch.where(outputs & inputs, part, fresh)
    return _counts(matches, nothing), matches


def _rows(values: Tensor, match: _Match, rows: slice) -> Tensor:
    """Those of the source that a range of rows of the target takes; a row that stands for several is their mean."""
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
    if isinstance(axis, Features):
        return data.feature_set(axis.name).num_features
    return axis.count if isinstance(axis, Buckets) else len(axis.keys)


def _counts(matches: list[_Match], total: int) -> tuple[int, int, int, int, int, int]:
    known = prod(int(match.known.sum()) for match in matches)
    means = matches[0].means * prod(int(match.known.sum()) for match in matches[1:])
    once = prod(int(match.known.sum()) - match.means - _repeats(match) for match in matches)
    straight = sum(int((match.straight & ~match.known).sum()) for match in matches)
    size = prod(len(match.source) for match in matches)
    rows = prod(len(match.source) for match in matches if not match.is_output)
    outputs = prod(int(match.known.sum()) for match in matches if match.is_output)
    zero = rows * (outputs + straight) - known
    used = prod(_used(match) for match in matches)
    return once, known - means - once, means, zero, size - known - zero, total - used


def _repeats(match: _Match) -> int:
    if match.features is None:
        return match.repeats
    single = np.setdiff1d(np.flatnonzero(match.known), match.features.averaged[0])
    return int(single.size - np.unique(match.source[single]).size)


def _used(match: _Match) -> int:
    return match.features.used if match.features else int(np.unique(match.source[match.known]).size)


def _bucket_lines(new: Mapping[str, Meaning], old: Mapping[str, Meaning]) -> list[str]:
    """What cannot be the same where output buckets are cut otherwise."""

    def of(meanings: Mapping[str, Meaning]) -> set[Buckets]:
        return {axis for meaning in meanings.values() for axis in meaning.axes if isinstance(axis, Buckets)}

    mixed = [
        str(bucket)
        for target in of(new)
        for source in of(old)
        for bucket in range(target.count)
        if not _usual(bucket, target, source)[1]
    ]
    if not mixed:
        return []
    return [f"output buckets {', '.join(mixed)}: positions came from several; the weights are of the one that most had"]


def _clip(model: NnueModel) -> int:
    clipped = 0
    with torch.no_grad():
        for bound in model.weight_bounds():
            rows = bound.parameter[bound.first_row :][: bound.rows]
            clipped += int(((rows < bound.low) | (rows > bound.high)).sum())
            rows.clamp_(bound.low, bound.high)
    return clipped


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Columns, the first two from the left, numbers from the right; columns without a number are left out."""
    shown_columns = [column for column in zip(*table, strict=True) if any(cell != "–" for cell in column[1:])]
    widths = [max(map(len, column)) for column in shown_columns]
    lines = []
    for row in zip(*shown_columns, strict=True):
        cells = [
            cell.ljust(width) if number < 2 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines


# ---- the proof -------------------------------------------------------------------------------------------------------


def _compared(before: NnueModel, after: nn.Module) -> str:
    """How far the evaluations are apart, in engine units of the source."""
    assert isinstance(after, NnueModel)
    records = data.records_from_fens(list(CHECK_POSITIONS))
    with torch.no_grad():
        old, new = (
            model(data.expand(records, model.feature_set)).double() * model.score_scale for model in (before, after)
        )
    largest, spread = float((new - old).abs().max()), float(old.std())
    if largest <= 1e-3 * max(spread, 1.0):
        return f"evaluations of {len(old)} positions: those of the source (largest difference {largest:.2g})"
    rms = float((new - old).square().mean().sqrt())
    correlation = float(torch.corrcoef(torch.stack([old, new]))[0, 1])
    return (
        f"evaluations of {len(old)} positions: not those of the source, rms difference {rms:.1f} engine units, "
        f"correlation {correlation:.3f}"
    )
