"""Fused steps in the emulator; and the operators that they call for layers and loss, as one differentiable function."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from nnue_trainer.base import _registration
from nnue_trainer.data import Batch
from nnue_trainer.losses import Loss
from nnue_trainer.modules import layer_stacks, straight_through
from nnue_trainer.modules.layer_stacks import FirstOutputs, LayerCall
from nnue_trainer.modules.straight_through import Places
from nnue_trainer.nets.base import StackedModel
from nnue_trainer.ops import capabilities
from nnue_trainer.ops.perspectives import TransformerCall
from nnue_trainer.optim import Optimizer
from nnue_trainer.training import fused_parts
from nnue_trainer.training.fused_parts import FusedTransformer, StackKernels
from nnue_trainer.training.parallel.sharding import ShardedColumns
from nnue_trainer.training.step import FusedStep


@contextmanager
def memory_of_nan() -> Iterator[None]:
    """Within the block, new tensors hold NaN until they are written."""
    before = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=True)
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)  # noqa: B010 (the type lacks it)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        setattr(torch.utils.deterministic, "fill_uninitialized_memory", before)  # noqa: B010


def loss_of(
    layers: LayerCall, first: FirstOutputs | TransformerCall, targets: tuple[Tensor, Tensor, Tensor], loss: Loss,
    score_scale: float, *, leaves_unused: bool = False,
) -> Tensor:  # fmt: skip
    """The mean loss, a scalar. `first`: the inputs of the layers, or the call that computes them, through which the
    backward of the layers then continues. `targets`: score, result and λ."""
    kernel, operators, description = loss.kernel(), layer_stacks._operators, layers.of.description
    assert kernel is not None
    call = first if isinstance(first, TransformerCall) else None
    sources: tuple[Tensor | None, ...] = first[:2]  # type: ignore[assignment]
    if call is not None:
        weight, bias, psqt, leaf, _ = call.parameters
        sources = weight if leaf is None else leaf, bias, psqt

    def run(needs: Sequence[bool]) -> Any:
        x, psqt, rows = call.run(operators, save=True) if call is not None else (*sources, None)
        totals, *grads = operators._layer_stacks_loss(
            x, layers.order, layers.parameters, psqt, list(targets), description, kernel.kind,
            [score_scale, *kernel.constants],
        )  # fmt: skip

        def backward(saved: Sequence[Any], grad_loss: Tensor) -> tuple[Tensor | None, ...]:
            x, rows, totals, by_sums, by_output, partials, *parameters = saved
            is_needed = needs[len(sources) - 1] or (call is not None and not layers.of.hidden)
            dtype = x.dtype if needs[0] else None
            through: tuple[Any, ...] = ([],)
            if call is not None:
                transformer, range, dtype = call.transformer, call.range, sources[0].dtype  # type: ignore[union-attr]
                through = [rows, layers.bucket, *call.batch], transformer, range, leaves_unused
            *found, of_weight, flat = operators._layer_stacks_gradients(
                x, layers.order, parameters, by_sums, partials, by_output if is_needed else None, [grad_loss, totals],
                description, dtype, *through,
            )  # fmt: skip
            given = found if call is not None else (found[0] if needs[0] else None, found[2])
            of_sources = [each if needed else None for each, needed in zip(given, needs, strict=False)]
            return *of_sources, of_weight, *Places(parameters[1:], 4).cut(flat)

        return totals[2], (x, rows, totals, *grads, *layers.parameters), backward

    return _registration.differentiable(run, *sources, *layers.parameters)


def loss_of_model(model: StackedModel, batch: Batch, loss: Loss, lam: Tensor) -> Tensor:
    """`loss_of` of the layers after a model's first one, as it computes now, with or without rounding."""
    rounded, bucket, first = model.rounded, model.buckets_of(batch), model.first_of(batch)
    stacks = model.stacks_in_use()
    assert stacks is not None
    order = stacks.order_of(batch)
    if rounded is None:
        layers = stacks.call(model.linears(), bucket, order)
    else:
        layers = LayerCall(stacks, rounded._parameters(model), bucket, order)
    assert layers._is_fused(first.x, first.psqt)
    return loss_of(layers, first, (batch.score, batch.result, lam), loss, model.score_scale)


def on_gpu(monkeypatch: pytest.MonkeyPatch, capability: int = 90, operators: Any = torch.ops.nnue_emulated) -> None:
    """Parts of a step that are made from now on take CPU tensors as if they were on a GPU; in the emulator."""
    monkeypatch.setattr(fused_parts, "operators", operators)
    monkeypatch.setattr(straight_through, "_operators", operators)
    monkeypatch.setattr(capabilities, "machine_of", lambda device: capabilities.gpu(capability))


def step_of(
    model: Any, loss: Loss, lam: float, optimizer: Optimizer, exchange: ShardedColumns | None = None
) -> tuple[FusedStep, StackKernels]:
    """A step by the operators of a GPU."""
    divided = exchange is not None
    first = FusedTransformer(model, model.feature_transformer, "plain", psqt_apart=divided)
    stacks = StackKernels(model, loss, first, "plain", divided=divided)
    lam_of = torch.tensor(lam, device=next(model.parameters()).device)
    return FusedStep(model, first, stacks, exchange, optimizer, defaultdict(lambda: lam_of)), stacks
