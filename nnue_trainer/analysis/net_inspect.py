"""`nnue inspect`: the contents of a net or a checkpoint, and how it behaves on real positions.

Everything comes from a net's own description: its integers with scales and limits (`Net.tensors`), its float model, and
the features of its first layer. `net_page` shows what is found here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nnue_trainer import config, nets, schema
from nnue_trainer.analysis.agreement import (
    Agreement,
    Positions,
    batches,
    built_in_positions,
    float_scores,
    integer_scores,
    model_of,
)
from nnue_trainer.analysis.planes import WeightMap, is_piece_square, weight_map
from nnue_trainer.base.arrays import Floats
from nnue_trainer.config.outline import outline
from nnue_trainer.data.features import feature_set
from nnue_trainer.errors import UserError
from nnue_trainer.export import QuantizedNet, checkpoint_from_net, net_from_checkpoint, read_net
from nnue_trainer.export.bounds import layer_overflows
from nnue_trainer.files import checkpoint as checkpoints
from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.modules import PerspectiveTransformer
from nnue_trainer.nets.activity import ActivityMeter, FirstLayerActivity, LayerInputs, LayerMeter
from nnue_trainer.nets.base import Net, NetTensor, NnueModel
from nnue_trainer.stats.matrix import norms, transpose
from nnue_trainer.training.assembly import neuron_sample

BINS = 61
_CHUNK = 1 << 22  # elements at a time
_MOST_WATCHED = 1 << 14  # positions whose inputs of all layers are in memory


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
class _Opened:
    path: str
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
        values = tensor.rows_of(self.checkpoint.tensors["model"]).float().numpy()
        values = values if tensor.source is None else values[tensor.source]
        return np.asarray(values * np.float32(tensor.scale))


@dataclass
class Inspection(_Opened):
    """The figures of `nnue inspect`."""

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
    against: str = ""
    differences: list[Difference] = field(default_factory=list)
    other_scores: Floats | None = None

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())


def _open(path: Path, arch: str | None, note: Callable[[str], None]) -> _Opened:
    if path.is_dir():
        path = checkpoints.of_run(path)
    warnings: list[str] = []
    quantized: QuantizedNet | None
    if path.suffix == ".safetensors":
        checkpoint = checkpoints.load(path, ("model", "net"))
        net = nets.parse(checkpoint.architecture, str(path))
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
    if saved and schema.value_at(saved, "data.validation", list):
        try:
            recipe = config.parse(saved, (), opened.path)
            records = neuron_sample(recipe)
            names = ", ".join(Path(file).name for file in outline(recipe).validation)
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
    opened.warnings += [
        f"{fact.name}: {fact.beyond:,} values beyond the limit {fact.limit:,}" for fact in facts if fact.beyond
    ]
    first, scale = _first_layer(opened)
    tell(total - 2, total)
    activity, layers, floats = _activity(opened.model, positions)
    agreement = None
    if opened.quantized is not None:
        agreement = Agreement(floats, integer_scores(opened.quantized, positions.records))
    found = Inspection(
        **vars(opened),
        tensors=facts,
        first=first,
        activity=activity,
        accumulator_scale=scale,
        layers=layers,
        positions=positions,
        agreement=agreement,
        scores=floats if agreement is None else agreement.integers,
    )
    tell(total - 1, total)
    _judge(found)
    if against is not None:
        _compare(found, _open(against, arch, note))
    tell(total, total)
    return found


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
    maps = [weight_map(part, weight) for part in feature_set(opened.model.feature_set).parts if is_piece_square(part)]
    first = FirstLayer(weight.shape[0], weight.shape[1], l1, l2, largest, [m for m in maps if m])
    return first, one.get(f"{name}.weight" if name else "weight", 1.0)


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
    for layer in found.layers:
        if layer.dead:
            stacks = found.net.num_stacks > 1
            names = ", ".join(f"{number}{f' of stack {stack}' if stacks else ''}" for stack, number in layer.idle)
            found.warnings.append(
                f"{layer.name}: {layer.dead:,} of {layer.inputs:,} inputs are 0 at all of these positions: "
                f"{names}{' …' if layer.dead > len(layer.idle) else ''}"
            )
    if found.quantized is not None:
        found.warnings += layer_overflows(found.quantized)


def _compare(found: Inspection, other: _Opened) -> None:
    found.against = other.path
    if other.quantized is not None and found.quantized is not None:
        found.other_scores = integer_scores(other.quantized, found.positions.records)
    else:
        found.other_scores = float_scores(other.model, found.positions.records)
    if found.net.architecture != other.net.architecture:
        found.warnings.append(
            f"{other.path} has another architecture ({_architectures(other.net, found.net)}), so only scores compare"
        )
        return
    for tensor in found.net.tensors():
        first, second = found.steps(tensor).reshape(-1), other.steps(tensor).reshape(-1)
        found.differences.append(_difference(tensor.name, first, second))


def _architectures(other: Net, one: Net) -> str:
    """The difference of two architectures in words."""
    if other.name != one.name:
        return f"{other.name} instead of {one.name}"
    theirs, own = other.architecture, one.architecture
    keys = [key for key in dict.fromkeys([*own, *theirs]) if own.get(key) != theirs.get(key)]
    return ", ".join(f"{key} {_short(theirs.get(key))} instead of {_short(own.get(key))}" for key in keys)


def _short(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else text[:40] + "…"


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
