"""How several ranks divide the training of one net. The trainer uses one of three classes:

- `Unsharded`: a single process trains everything.
- `ShardedColumns`: each rank owns some columns of the feature transformer, the weights of the next layer for these
  inputs, and the optimiser's state of both. It computes its columns for the whole batch. Then the ranks add up their
  partial sums of the next layer, and each rank computes the rest of the net and the loss for its share of the
  positions. The ranks exchange these sums, the gradients with respect to them and to the PSQT outputs, and the
  gradients of the small parameters that all ranks have.
- `ShardedPositions`: each rank has the whole net and computes its share of the positions; the gradients are added up.
  This is for nets and optimisers that `ShardedColumns` does not support.

The loader of a rank yields whole batches or, with shards, this rank's share of each; `share_of` defines how
they are used. The order of positions is the same for every number of ranks. Every sum over ranks has a fixed order,
so runs with the same number of ranks give the same bits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from nnue_trainer.data.batch import Batch
from nnue_trainer.errors import UserError
from nnue_trainer.losses.base import mean
from nnue_trainer.modules.layer_stacks import LayerStacks, Targets, give_gradients
from nnue_trainer.nets.base import NnueModel, StackedModel
from nnue_trainer.optim import Optimizer
from nnue_trainer.optim.parts import Moments, Norm, Part
from nnue_trainer.parallel.ranks import Ranks
from nnue_trainer.parallel.split import Split, cut, padded

if TYPE_CHECKING:
    from nnue_trainer.training.step_loss import StepLoss


class Share(NamedTuple):
    """Positions that a rank copies to its device, and where they are in the batch of `Unsharded.backward`."""

    positions: Any
    """a batch, or packed records"""
    ranks: Ranks | None = None
    """those that copy the others; each has as many, one rank's after the other's. None: there are no others"""

    @property
    def begin(self) -> int:
        return 0 if self.ranks is None else self.ranks.rank * len(self.positions)

    @property
    def of(self) -> int:
        """Positions of the whole batch."""
        return len(self.positions) * (1 if self.ranks is None else self.ranks.size)


class Unsharded:
    """A single process trains the whole net. The other shardings override these methods."""

    name = "whole"

    def __init__(self, ranks: Ranks, model: NnueModel):
        self.ranks, self.model = ranks, model
        self._ones: Tensor | None = None

    def share_of(self, fresh: Any) -> Share:
        """The positions that this rank copies to its device. `fresh`: what the loader yields, a batch or its packed
        records: the whole of it, or this rank's share."""
        return Share(fresh)

    def prepare(self, batch: Batch) -> Batch:
        """Computes ahead what the forward pass needs and what depends on the batch alone: `NnueModel.prepare`."""
        return self.model.prepare(batch)

    def forward(self, batch: Batch) -> Tensor:
        """`NnueModel.outputs` for a whole batch: fp32 [B], or [B, n]; call it under `torch.no_grad`. All ranks must
        call it together."""
        return self.model.outputs(batch)

    def validates(self, number: int) -> bool:
        """Whether this rank computes batch `number` of a validation, from 0 on. Where it does not, another rank does,
        and `of_all` puts together what they have found."""
        return True

    def of_all(self, part: Tensor) -> Tensor:
        """The results of each rank in the batches that it validates, [ranks, …]; one where every rank validates all."""
        return part.unsqueeze(0)

    def backward(self, step: StepLoss, batch: Batch) -> Tensor:
        """Computes the gradients of this rank's parameters, and returns the mean loss of the whole batch, a scalar
        without a graph. `batch` is made from the positions of `share_of`, and by `prepare`. All ranks must call it
        together."""
        loss = step.loss(batch)
        # Tensor.backward would import torch's compiler because of the gradient that it gets, which takes seconds.
        torch.ops.aten._backward(loss, [], self._one(loss))
        return loss.detach()

    def _one(self, loss: Tensor) -> Tensor:
        """The derivative of the loss by itself, which torch would fill in anew for each step."""
        if self._ones is None:
            self._ones = torch.ones_like(loss)
        return self._ones

    def adopt(self, optimizer: Optimizer) -> None:
        """Must be called once with the optimiser that trains the model, before the first step."""

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """From this rank's parameters or optimiser state: the whole tensors, as a single process would have them. All
        ranks must call it together; only the result on rank 0 is complete."""
        return dict(tensors)

    def own(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inverse of `whole`: this rank's part of the whole parameters, or of the whole optimiser state."""
        return dict(tensors)

    def figures(self, figures: dict[str, float]) -> dict[str, float]:
        """Combines the figures of neurons and weights of all ranks into those of the whole net."""
        return figures


class _Shared(Unsharded):
    """Each rank has a share of the positions of each batch."""

    def __init__(self, ranks: Ranks, model: NnueModel, batch_size: int):
        super().__init__(ranks, model)
        self._batch_size = batch_size
        self._begin, self._end, self._most = share(batch_size, ranks)

    def _of_share(self, each: Any) -> Any:
        """The share of what the whole batch has: one for each position, or a scalar for all."""
        if isinstance(each, Batch):
            return each.part(self._begin, self._end)
        return each[self._begin : self._end] if each.dim() else each


class ShardedPositions(_Shared):
    """Data parallel: each rank has the whole net and a share of the positions of each batch."""

    name = "positions"
    _optimizer: Optimizer | None = None

    def share_of(self, fresh: Any) -> Share:
        is_own = len(fresh) == self._end - self._begin  # the loader has read this share alone
        return Share(fresh if is_own else self._of_share(fresh))

    def validates(self, number: int) -> bool:
        return number % self.ranks.size == self.ranks.rank

    def of_all(self, part: Tensor) -> Tensor:
        return self.ranks.all_gather(part)

    def backward(self, step: StepLoss, batch: Batch) -> Tensor:
        assert self._optimizer is not None
        weighted, weights = step.terms(batch, self._of_share(step.lambda_values(batch)))
        if (penalty := step.penalty(batch)) is not None:
            # It counts by positions, whatever these weigh; below, everything is divided by all weights.
            whole = self.ranks.all_reduce(weights.detach().float().clone())  # which is overwritten
            weighted = weighted + penalty * whole * (len(batch) / self._batch_size)
        weighted.backward()  # type: ignore[no-untyped-call]
        totals = self.ranks.all_reduce(torch.stack([weighted.detach().float(), weights.detach().float()]))
        factor = mean(torch.ones_like(totals[0]), totals[1])
        for gradient in self._optimizer.gradients():
            # 16-bit gradients are added in fp32, so that their sum is rounded only once.
            total = self.ranks.all_reduce(gradient.float() if gradient.dtype.itemsize < 4 else gradient)
            gradient.copy_(total * factor)
        return mean(totals[0], totals[1])

    def adopt(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer


class ShardedColumns(_Shared):
    """Column parallel: each rank has some columns of the feature transformer and computes them for the whole batch. The
    constructor changes the whole model that it gets: it keeps only this rank's columns."""

    name = "columns"
    model: StackedModel

    def __init__(self, ranks: Ranks, model: StackedModel, batch_size: int):
        super().__init__(ranks, model, batch_size)
        first = model.first_layer()
        assert first is not None
        groups = 2 if first.activation == "pairwise" else 1
        cuts = cut(first.weight.shape[1] // groups, ranks.size)
        linear = model.linears()[0]
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        # The activated vector is the two perspectives, one after the other, and a pairwise product multiplies the same
        # column of both halves of the accumulator. So a rank that owns the same columns of each half computes exactly
        # those columns of each perspective.
        splits = [
            (first, "weight", Split(1, groups, cuts)),
            (first, "bias", Split(0, groups, cuts)),
            (linear, "weight", Split(linear.weight.dim() - 1, 2, cuts)),  # type: ignore[operator]
        ]
        self.splits: dict[str, Split] = {}
        for module, attribute, split in splits:
            whole = getattr(module, attribute)
            self.splits[names[id(whole)]] = split
            own = nn.Parameter(split.take(whole.detach(), ranks.rank))
            setattr(module, attribute, own)
        if isinstance(linear, nn.Linear):
            linear.in_features = linear.weight.shape[1]
        model.stacks = replace(model.stacks, inputs=first.num_outputs)

    def share_of(self, fresh: Any) -> Share:
        return Share(fresh, None if len(fresh) == self._batch_size else self.ranks)

    def prepare(self, batch: Batch) -> Batch:
        batch = self.model.prepare(batch)
        stacks = self.model.stacks_in_use()
        if stacks is None or not stacks.may_be_fused(batch.white.device):
            return batch
        bucket = self._of_share(self.model.buckets_of(batch))
        return replace(batch, plans=(*batch.plans, stacks.plan(batch, bucket, of_share=True)))

    def forward(self, batch: Batch) -> Tensor:
        model, stacks, bucket = self.model, self._stacks(), self.model.buckets_of(batch)
        with self._autocast(batch, nullcontext()):
            _, outputs = model.first_of(batch, bucket)
            layers = model.layers_for(bucket, stacks.order_of(batch))
            first = layers.first(None, outputs)
            return layers.from_sums(self.ranks.all_reduce(first.sums), first.psqt)

    def _stacks(self) -> LayerStacks:
        stacks = self.model.stacks_in_use()
        assert stacks is not None  # see why_not_columns
        return stacks

    def _autocast(self, batch: Batch, usual: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
        """The context of the forward pass: the usual one, but integers stay what they are."""
        return usual if self.model.rounded is None else torch.autocast(batch.white.device.type, enabled=False)

    def backward(self, step: StepLoss, batch: Batch) -> Tensor:
        model, ranks, positions = self.model, self.ranks, len(batch)
        stacks, bucket, loss = self._stacks(), model.buckets_of(batch), step.loss_kind
        layers = model.layers_for(bucket, stacks.order_of(batch), loss_is_known=loss.kernel() is not None)
        with self._autocast(batch, step.autocast()):
            call, outputs = model.first_of(batch, bucket, psqt_apart=True)
            first = layers.first(call, outputs)
        own, lam = self._of_share, self._of_share(step.lambda_values(batch))
        with ranks.reduce_scatter(padded(first.sums.detach(), ranks.size * self._most)) as own_sums:
            psqt = None if first.psqt is None else own(first.psqt.detach())
            if call is not None and call.leaves_psqt:
                psqt = call.psqt_output(self._begin, self._end)
        with self._autocast(batch, step.autocast()):
            order = stacks.order_of(batch, of_share=True)
            targets = Targets(own(batch.score), own(batch.result), lam, loss.kernel(), model.score_scale)
            mine = replace(layers, bucket=own(bucket), prepared=order)
            rest = mine.after_first(own_sums[: self._end - self._begin], psqt, targets, loss)
        # One exchange sends everything that the other ranks need about these positions. The gradients by the
        # sums and by PSQT come one after the other, since each rank has other positions; those by the parameters are
        # added up.
        parts = [padded(part.float(), self._most) for part in rest.by_position]
        *found, shares = ranks.all_gather_each([*parts, rest.share])
        totals, gradients = layers.add_shares(shares)
        grad_weight = first.backward([part.flatten(0, 1)[:positions] for part in found], (self._one(totals[2]), totals))
        give_gradients(layers.parameters, [grad_weight, *gradients])
        return totals[2]

    def adopt(self, optimizer: Optimizer) -> None:
        optimizer.take_norm(self._norm)

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = dict(tensors)
        for name, tensor in tensors.items():
            if (split := self._split_of(name)) is not None and split.is_of(tensor, self.ranks.rank):
                parts = self.ranks.gather(split.padded(tensor.detach(), self.ranks.rank))
                # Each tensor is moved to the host immediately, so that the device never holds all of them.
                found[name] = tensor if parts is None else split.join([part.cpu() for part in parts])
        return found

    def own(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = dict(tensors)
        for name, tensor in tensors.items():
            if (split := self._split_of(name)) is not None and split.is_of(tensor):
                found[name] = split.take(tensor, self.ranks.rank)
        return found

    def figures(self, figures: dict[str, float]) -> dict[str, float]:
        every = self.ranks.all_gather(torch.tensor(list(figures.values()), dtype=torch.float64))
        cuts = next(iter(self.splits.values())).cuts
        widths = torch.tensor(cuts, dtype=torch.float64).diff()
        shares = (every * widths.unsqueeze(1)).sum(0) / widths.sum()
        found: dict[str, float] = {}
        for number, name in enumerate(figures):
            group, _, of = name.partition("/")
            if of and not any(of.startswith(split) for split in self.splits):
                found[name] = float(every[0, number])  # every rank has the whole parameter
            else:
                found[name] = float(every[:, number].max() if group == "reach" else shares[number])
        return found

    def _split_of(self, name: str) -> Split | None:
        """The split of a parameter `NAME`, or of the optimiser's state `KEY/NAME` or `KEY/NAME.virtual[.N]`; None if
        the tensor is not split."""
        return self.splits.get(re.sub(r"\.virtual(\.\d+)?$", "", name.rpartition("/")[2]))

    def _norm(self, guarded: Sequence[tuple[Part, Moments, Tensor]], norm: Norm) -> Tensor:
        """Numbers, fp32, whose norm is the norm of all gradients of all ranks, including those of virtual rows. They
        are bit-identical on all ranks. `guarded`: this rank's parts of parameters, with their gradients; `norm`: that
        of some of them."""
        kinds = [[each for each in guarded if (each[0].name in self.splits) == split] for split in (False, True)]
        every = self.ranks.all_gather(torch.stack([norm(kind) for kind in kinds]))
        return torch.cat([every[:1, 0], every[:, 1]]).float()


def shard(ranks: Ranks, model: NnueModel, recipe: Any) -> tuple[Unsharded, str]:
    """Chooses how `ranks` divide the training of `model`. Returns the sharding and one line about it for the user,
    which is empty for a single process. `ShardedColumns` changes the model, so call this after the weights have been
    initialised and before the optimiser is made. `recipe` is a `config.Recipe`. UserError if the batch is too small for
    the ranks."""
    if not ranks.several:
        return Unsharded(ranks, model), ""
    size = recipe.data.batch_size
    reason = why_not_columns(model, recipe, ranks)
    if reason is None:
        assert isinstance(model, StackedModel)
        columns = ShardedColumns(ranks, model, size)
        split = next(iter(columns.splits.values()))
        widths = sorted({split.groups * split.width(rank) for rank in range(ranks.size)})
        own = " to ".join(str(width) for width in (widths[0], widths[-1])[: len(widths)])
        of = f"{own} of {split.groups * split.cuts[-1]}"
        return columns, f"{ranks.size} processes, each with {of} columns of the feature transformer"
    positions = ShardedPositions(ranks, model, size)
    return positions, f"{ranks.size} processes, each with the whole net and a share of the positions ({reason})"


def why_not_columns(model: NnueModel, recipe: Any, ranks: Ranks) -> str | None:
    """The reason, in words, why `ShardedColumns` cannot train this model; None if it can."""
    if not isinstance(model, StackedModel) or type(model).forward is not StackedModel.forward:
        return "the net has its own forward pass"
    if model.num_outputs > 1:
        return "the net has several outputs"
    first = model.first_layer()
    if first is None or len(model.linears()) != len(model.stacks.hidden) + 1:
        return "the net has no first layer that can be divided"
    if recipe.model.qat_config.qat and model.rounded_forward().stacks is None:
        return "the engine's rounding needs the whole net"
    if recipe.training.compile:
        return "the compiler needs the whole net"
    if recipe.position_weight is not None:
        return "positions have weights"
    if recipe.training.penalties:
        return "there are penalties"
    if not recipe.optimizer.by_value():
        return f"the optimizer {recipe.optimizer.kind!r} may use more than one value of a weight at a time"
    if first.weight.shape[1] // (2 if first.activation == "pairwise" else 1) < ranks.size:
        return "the feature transformer has too few columns"
    of_bias = [bound for bound in model.weight_bounds() if bound.parameter is first.bias]
    if any(bound.rows is not None or bound.first_row for bound in of_bias):
        return "the columns of the feature transformer have several bounds"
    layers = {id(parameter) for layer in (first, *model.linears()) for parameter in layer.parameters(recurse=False)}
    if layers != {id(parameter) for parameter in model.parameters()}:
        return "the net has parameters beside its layers"
    return None


def share(positions: int, ranks: Ranks) -> tuple[int, int, int]:
    """This rank's share of the positions of a batch, as [begin, end), and the size of the largest share. UserError if
    a rank would have none."""
    most = -(-positions // ranks.size)
    if most * (ranks.size - 1) >= positions:
        raise UserError(
            f"data.batch_size: found {positions:,}, too few for {ranks.size} processes; raise it or use fewer"
        )
    return min(ranks.rank * most, positions), min((ranks.rank + 1) * most, positions), most
