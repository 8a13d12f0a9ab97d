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

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from nnue_trainer.data.batch import Batch
from nnue_trainer.errors import UserError
from nnue_trainer.losses.base import mean
from nnue_trainer.modules.layer_stacks import LayerStacks
from nnue_trainer.modules.perspective_transformer import PerspectiveTransformer
from nnue_trainer.nets.base import NnueModel, StackedModel
from nnue_trainer.optim import Optimizer
from nnue_trainer.optim.parts import Moments, Norm, Part
from nnue_trainer.training.parallel.ranks import Ranks
from nnue_trainer.training.parallel.split import Split, cut, padded

if TYPE_CHECKING:
    from nnue_trainer.training.fused_parts import Found, FusedTransformer, Inputs, Rows, Stacks


class Share(NamedTuple):
    """Positions that a rank copies to its device, and where they are in the batch that its step gets."""

    positions: Any
    """a batch, or packed records"""
    ranks: Ranks | None = None
    """those that copy the others; each has as many, one rank's after the other's. None: there are no others"""
    begin: int = 0
    size: int | None = None
    """of that batch; None: it has no other positions"""


class Unsharded:
    """A single process trains the whole net. The other shardings override these methods."""

    name = "whole"
    why_not_fused: str | None = None
    """why no fused step trains a net so divided"""

    def __init__(self, ranks: Ranks, model: NnueModel):
        self.ranks, self.model = ranks, model

    def share_of(self, fresh: Any) -> Share:
        """The positions that this rank copies to its device. `fresh`: what the loader yields, a batch or its packed
        records: the whole of it, or this rank's share."""
        return Share(fresh)

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

    def part_of(self, each: Any) -> Any:
        """This rank's share of what the whole batch has: one for each position, or a scalar for all."""
        return each

    # ---- the two exchanges of a step with autograd ----

    def objective(self, weighted: Tensor, weights: Tensor, penalty: Tensor | None, positions: int) -> Tensor:
        """The number that this rank differentiates. `weighted` and `weights`: `Loss.terms` of its `positions`."""
        loss = mean(weighted, weights)
        return loss if penalty is None else loss + penalty

    def joined(self, objective: Tensor, weights: Tensor, gradients: Callable[[], Sequence[Tensor]]) -> Tensor:
        """Makes the gradients of all positions of those of this rank's. Returns the loss of the whole batch."""
        return objective.detach()

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
        """Combines the figures of neurons and weights of all ranks into the whole net's."""
        return figures


class _Shared(Unsharded):
    """Each rank has a share of the positions of each batch."""

    def __init__(self, ranks: Ranks, model: NnueModel, batch_size: int):
        super().__init__(ranks, model)
        self._batch_size = batch_size
        self._begin, self._end, self._most = share(batch_size, ranks)

    def part_of(self, each: Any) -> Any:
        if isinstance(each, Batch):
            return each.part(self._begin, self._end)
        return each[self._begin : self._end] if each.dim() else each


class ShardedPositions(_Shared):
    """Data parallel: each rank has the whole net and a share of the positions of each batch."""

    name = "positions"
    why_not_fused = "processes that share the positions of a batch add up whole gradients"

    def share_of(self, fresh: Any) -> Share:
        is_own = len(fresh) == self._end - self._begin  # the loader has read this share alone
        return Share(fresh if is_own else self.part_of(fresh))

    def validates(self, number: int) -> bool:
        return number % self.ranks.size == self.ranks.rank

    def of_all(self, part: Tensor) -> Tensor:
        return self.ranks.all_gather(part)

    def objective(self, weighted: Tensor, weights: Tensor, penalty: Tensor | None, positions: int) -> Tensor:
        if penalty is None:
            return weighted
        # It counts by positions, whatever these weigh; `joined` divides everything by all weights.
        whole = self.ranks.all_reduce(weights.detach().float().clone())  # which is overwritten
        return weighted + penalty * whole * (positions / self._batch_size)

    def joined(self, objective: Tensor, weights: Tensor, gradients: Callable[[], Sequence[Tensor]]) -> Tensor:
        totals = self.ranks.all_reduce(torch.stack([objective.detach().float(), weights.detach().float()]))
        factor = mean(torch.ones_like(totals[0]), totals[1])
        for gradient in gradients():
            # 16-bit gradients are added in fp32, so that their sum is rounded only once.
            total = self.ranks.all_reduce(gradient.float() if gradient.dtype.itemsize < 4 else gradient)
            gradient.copy_(total * factor)
        return mean(totals[0], totals[1])


class _SplitMatrix(NamedTuple):
    """`optim.parts.Columns` of a weight whose last dimension is split."""

    split: Split
    ranks: Ranks

    @property
    def all_columns(self) -> int:
        return self.split.groups * self.split.cuts[-1]

    def whole(self, own: Tensor) -> Tensor:
        return self.split.join(list(self.ranks.all_gather(self.split.padded(own, self.ranks.rank).contiguous())))

    def own(self, whole: Tensor) -> Tensor:
        return self.split.take(whole, self.ranks.rank)


class ShardedColumns(_Shared):
    """Column parallel: each rank has some columns of the feature transformer and computes them for the whole batch. The
    constructor changes the whole model that it gets: it keeps only this rank's columns."""

    name = "columns"
    model: StackedModel

    def __init__(self, ranks: Ranks, model: StackedModel, batch_size: int):
        super().__init__(ranks, model, batch_size)
        first = model.first_layer()
        assert first is not None
        groups = _groups(first)
        cuts = cut(first.weight.shape[1] // groups, ranks.size)
        linear = model.linears()[0]
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        # The activated vector is the two perspectives, one after the other. A rank that owns the same columns of each
        # group computes exactly those columns of each perspective.
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
        own, ranks = len(fresh), self.ranks
        return Share(fresh) if own == self._batch_size else Share(fresh, ranks, ranks.rank * own, ranks.size * own)

    def forward(self, batch: Batch) -> Tensor:
        model, bucket = self.model, self.model.buckets_of(batch)
        with self._exact(batch):
            first = model.first_of(batch)
            layers = model.layers_for(bucket, self._stacks().order_of(batch))
            return layers.from_sums(self.ranks.all_reduce(layers.sums(first.x)), first.psqt)

    def _stacks(self) -> LayerStacks:
        stacks = self.model.stacks_in_use()
        assert stacks is not None  # see why_not_columns
        return stacks

    def _exact(self, batch: Batch) -> AbstractContextManager[Any]:
        """A context in which integers stay what they are."""
        exact = self.model.rounded is not None
        return torch.autocast(batch.white.device.type, enabled=False) if exact else nullcontext()

    # ---- the two exchanges of a fused step ----

    def sums(self, inputs: Inputs, order: Tensor, stacks: Stacks, first: FusedTransformer, rows: Rows) -> Inputs:
        """The inputs of the layers after the transformer on this rank. `inputs`: those of the whole batch, from this
        rank's columns; `order`: that of this rank's positions."""
        own, begin, end, psqt = self.part_of, self._begin, self._end, inputs.psqt
        sums = stacks.first_sums(inputs.x, inputs.order, inputs.bucket)
        with self.ranks.reduce_scatter(padded(sums, self.ranks.size * self._most)) as own_sums:
            if psqt is not None:
                psqt = first.psqt_of(rows, begin, end) if first.psqt_apart else own(psqt)
        bucket, score, result, lam = (own(each) for each in (inputs.bucket, inputs.score, inputs.result, inputs.lam))
        spare = None if inputs.spare is None else own(inputs.spare)
        return type(inputs)(own_sums[: end - begin], psqt, bucket, order, score, result, lam, spare, is_sums=True)

    def gradients(self, found: Found, stacks: Stacks, order: Tensor, positions: int) -> Found:
        """The gradients of the whole batch, of `positions`, from those of this rank's positions. `order`: theirs."""
        # One exchange sends everything that the other ranks need about these positions. The gradients by the
        # sums and by PSQT come one after the other, since each rank has other positions; those by the parameters are
        # added up.
        by_position = [found.by_x] if found.by_output is None else [found.by_x, found.by_output]
        parts = [padded(part.float(), self._most) for part in by_position]
        *every, shares = self.ranks.all_gather_each([*parts, stacks.share(found, order)])
        totals, others = stacks.add_shares(shares)
        by_x, *by_output = [part.flatten(0, 1)[:positions] for part in every]
        return type(found)(totals, by_x, by_output[0] if by_output else None, None, others)

    def adopt(self, optimizer: Optimizer) -> None:
        optimizer.rule.take_norm(self._norm)
        optimizer.rule.take_columns({name: _SplitMatrix(split, self.ranks) for name, split in self.splits.items()})

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
        every = self.ranks.all_gather(torch.tensor(list(figures.values()), dtype=torch.float64, device="cpu"))
        cuts = next(iter(self.splits.values())).cuts
        widths = torch.tensor(cuts, dtype=torch.float64, device="cpu").diff()
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


def shard(ranks: Ranks, model: NnueModel, batch_size: int, why_positions: str | None) -> tuple[Unsharded, str]:
    """How `ranks` divide the training of `model`, and one line about it for the user, which is empty for a single
    process. `why_positions`: the reason why columns cannot be divided, in words; None: they can. `ShardedColumns`
    changes the model, so call this after the weights have been initialised and before the optimiser is made. UserError
    if the batch is too small for the ranks."""
    if not ranks.several:
        return Unsharded(ranks, model), ""
    if why_positions is None:
        assert isinstance(model, StackedModel)
        columns = ShardedColumns(ranks, model, batch_size)
        split = next(iter(columns.splits.values()))
        widths = sorted({split.groups * split.width(rank) for rank in range(ranks.size)})
        own = " to ".join(str(width) for width in (widths[0], widths[-1])[: len(widths)])
        of = f"{own} of {split.groups * split.cuts[-1]}"
        return columns, f"{ranks.size} processes, each with {of} columns of the feature transformer"
    positions = ShardedPositions(ranks, model, batch_size)
    return positions, f"{ranks.size} processes, each with the whole net and a share of the positions ({why_positions})"


def why_not_columns(model: StackedModel, first: PerspectiveTransformer, ranks: Ranks) -> str | None:
    """The reason, in words, why `ShardedColumns` cannot divide the layers of this model; None if it can."""
    if len(model.linears()) != len(model.stacks.hidden) + 1:
        return "the net has no first layer that can be divided"
    if first.weight.shape[1] // _groups(first) < ranks.size:
        return "the feature transformer has too few columns"
    of_bias = [bound for bound in model.weight_bounds() if bound.parameter is first.bias]
    if any(bound.rows is not None or bound.first_row for bound in of_bias):
        return "the columns of the feature transformer have several bounds"
    return None


def _groups(first: PerspectiveTransformer) -> int:
    """A pairwise product multiplies the same column of both halves of the accumulator."""
    return 2 if first.activation == "pairwise" else 1


def widths_of(first: PerspectiveTransformer, ranks: Ranks) -> list[int]:
    """The number of columns that each rank has of the feature transformer, without repetitions."""
    groups = _groups(first)
    cuts = cut(first.weight.shape[1] // groups, ranks.size)
    return sorted({groups * (end - begin) for begin, end in itertools.pairwise(cuts)})


def share(positions: int, ranks: Ranks) -> tuple[int, int, int]:
    """This rank's share of the positions of a batch, as [begin, end), and the size of the largest share. UserError if
    a rank would have none."""
    most = -(-positions // ranks.size)
    if most * (ranks.size - 1) >= positions:
        raise UserError(
            f"data.batch_size: found {positions:,}, too few for {ranks.size} processes; raise it or use fewer"
        )
    return min(ranks.rank * most, positions), min((ranks.rank + 1) * most, positions), most
