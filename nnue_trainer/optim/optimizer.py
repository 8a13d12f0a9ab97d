"""The optimiser: a rule with the layers around it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from nnue_trainer.errors import UserError
from nnue_trainer.modules import PerspectiveTransformer, StackedLinear
from nnue_trainer.nets.base import NnueModel, WeightBound
from nnue_trainer.optim import per_group
from nnue_trainer.optim.base import Layer, OptimizerConfig, Rule, Settings, Work, check_state
from nnue_trainer.optim.bounds import Bounds
from nnue_trainer.optim.clip import Clip
from nnue_trainer.optim.guard import Guard
from nnue_trainer.optim.parts import LARGEST_COPY
from nnue_trainer.optim.virtual_rows import SharedRows

_log = logging.getLogger(__name__)


class Optimizer:
    """Trains all parameters of `model` by the rule of `config`. Nothing waits for the device, unless the rule keeps
    something in host memory.

    A step with a non-finite loss or gradient changes nothing, and neither does any later one: weights stay those of the
    last good step, and `failed()` reports it. `bounds`, `shared_rows` and `guard` are the classes of the layers.

    `late`: rows of feature transformers are updated when they are needed, if the rule can do so: bit for bit the same
    training. On a GPU only ranges of many rows are updated so, of more rows with large batches: `positions` in each, 0
    if unknown. Parameters that are read through their module are up to date; a reference to a parameter that was taken
    before a step may be behind. On a CPU gradients of these parameters are sparse tensors, of the batch's rows.

    `copies`: training reads 16-bit copies of the feature transformers' weights, if the rule can write them along with
    the weights. These stay fp32, and so do the sums and the state; a gradient has the range of fp32.

    `averages`: keep an average of the weights. Then the net, which `with_net` puts in their place, is the average. It
    is another one than the weights for a schedule-free rule, too.

    Raises:
        UserError: `averages` with a schedule-free rule, groups that do not fit the model's parameters, or a rule that
            does not fit them.
    """

    def __init__(
        self,
        model: NnueModel,
        config: OptimizerConfig,
        *,
        bounds: type[Bounds] = Bounds,
        shared_rows: type[SharedRows] = SharedRows,
        guard: type[Guard] = Guard,
        late: bool = False,
        positions: int = 0,
        copies: bool = False,
        averages: bool = False,
    ) -> None:
        parameters = dict(model.named_parameters())
        self.device = next(iter(parameters.values())).device
        self.lr = torch.tensor(config.lr, dtype=torch.float32, device=self.device)
        self._last_lr = config.lr
        self._failed = torch.zeros((), dtype=torch.float32, device=self.device)
        self._good_steps = torch.zeros((), dtype=torch.int64, device=self.device)
        settings = config.group_settings(parameters)
        frozen = {name for name, each in settings.items() if each.frozen}
        limits = tuple(
            bound
            for bound in (*(model.weight_bounds() if config.clip_weights else ()), *_limits(parameters, settings))
            if not any(bound.parameter is parameters[name] for name in frozen)
        )
        factorised = model.factorised() if config.factoriser else {}
        transformers = {
            f"{name}.weight".removeprefix("."): module
            for name, module in model.named_modules()
            if isinstance(module, PerspectiveTransformer)
        }
        # A rule does the work of the layers as they are here; with one of another class it is a rule and no more.
        ours = (bounds, shared_rows, guard) == (Bounds, SharedRows, Guard)
        replaces = per_group.replaces(config) if ours else frozenset()
        late = late and "virtual_rows" in replaces
        # bfloat16: a gradient has the dtype of its tensor, and in float16 most gradients would be zero.
        self._copies = {
            name: parameters[name].detach().to(torch.bfloat16).requires_grad_()
            for name in (transformers if copies and "virtual_rows" in replaces else ())
        }
        # A fused rule clips rows that share virtual rows all alike. A bound of some of them takes a separate pass.
        apart = [
            (name, bound)
            for name, ranges in factorised.items()
            for bound in limits
            if bound.parameter is parameters[name] and any(bound.covers_only_some_of(rows) for rows in ranges)
        ]
        self._clipped_apart = {name for name, _ in apart}  # a bound may have another name than its parameter
        outer = bounds(() if "bounds" in replaces else limits)
        shared = shared_rows(parameters, {} if "virtual_rows" in replaces else factorised, outer)
        matrices = frozenset(_matrices(model))
        work = Work(
            parameters=parameters | shared.parameters,
            lr=self.lr,
            failed=self._failed,
            virtual=frozenset(shared.parameters),
            factorised=factorised if "virtual_rows" in replaces else {},
            bounds=limits if "bounds" in replaces else (),
            covered=model.covered_gradients(),
            transformers=frozenset(transformers),
            late=frozenset(transformers) - self._clipped_apart if late else frozenset(),
            positions=positions,
            copies=self._copies,
            settings=settings | {name: settings[of] for name, of in shared.owners.items() if of in settings},
            matrices=matrices | {name for name, of in shared.owners.items() if of in matrices},
        )
        self.rule = per_group.make(config, work, rehearsed=not {"virtual_rows", "bounds"} & replaces)
        self._rule_takes_lr = type(self.rule).set_lr is not Rule.set_lr
        for name, late_rows in self.rule.late_rows.items():
            transformers[name].update_late(late_rows)
        if self.rule.is_ours and "bounds" in replaces:
            outer = bounds(bound for _, bound in apart)
        for name, copy in self._copies.items():
            transformers[name].train_with(copy)
        self._transformers, self._clips = transformers, config.clip_weights
        self._weights = {name: parameter.detach() for name, parameter in parameters.items()}
        self._average = {name: weight.clone() for name, weight in self._weights.items()} if averages else {}
        self._trained: dict[str, Tensor] | None = None  # the weights, while the net is in their place
        self.average_begun = averages
        """whether the net is the average already"""
        if averages and self.rule.averages_weights:
            raise UserError(
                "average: found an average with the optimizer schedule_free, which averages weights itself; remove "
                "the average"
            )
        self._layers: list[Layer] = []  # from the inside out, those that have work
        if "clip" not in replaces and (config.max_norm is not None or config.max_value is not None):
            self._layers.append(Clip(work.parameters, config.max_norm, config.max_value))
        if "guard" not in replaces:
            watched = [(parameter, rows) for name, parameter in parameters.items() for rows in shared.uncovered(name)]
            watched += [(parameter, slice(None)) for parameter in shared.parameters.values()]
            self._layers.append(guard(self.rule, self._failed, watched))
        self._layers += [shared] if shared.parameters or not ours else []
        self._layers += [outer] if outer or not ours else []
        self._frozen = [owner[name] for name in frozen for owner in (work.parameters, self._copies) if name in owner]
        self._takers = [*work.parameters.values(), *self._copies.values()]  # of gradients

    @torch.no_grad()
    def step(self, loss: Tensor) -> None:
        """One update from the gradients in place, which are freed. Only the guard uses `loss`, an fp32 scalar."""
        for tensor in self._frozen:
            tensor.grad = None
        self.rule.loss = loss
        act: Callable[[], None] = self.rule.step
        for layer in self._layers:
            act = partial(layer.step, loss, act)
        act()
        if self._clipped_apart:
            self.rule.write_copies(self._clipped_apart)
        self.rule.loss = None
        if self.rule.step_count is None:
            self._good_steps += self._failed == 0
        for tensor in self._takers:
            tensor.grad = None

    @property
    def has_copies(self) -> bool:
        """Whether training reads 16-bit copies."""
        return bool(self._copies)

    def free_gradients(self) -> None:
        """Gradients are set anew in each step."""
        for tensor in self._takers:
            tensor.grad = None

    @torch.no_grad()
    def average(self, share: float) -> None:
        """Moves the average towards the weights by this share of the way."""
        self.rule.settle()
        average, weights = list(self._average.values()), list(self._weights.values())
        if share == 1:
            torch._foreach_copy_(average, weights)
        else:
            torch._foreach_lerp_(average, weights, share)

    @contextmanager
    def with_net(self) -> Iterator[None]:
        """Within the block, the parameters are the net's: the average, or the mean of a schedule-free rule.
        Without either, they always are."""
        net = None if self._trained is not None else self._net()
        if net is None:
            yield
            return
        self._trained = {name: weight.clone() for name, weight in self._weights.items()}
        self._put(net)
        try:
            yield
        finally:
            self._put(self._trained)
            self._trained = None

    @torch.no_grad()
    def _net(self) -> dict[str, Tensor] | None:
        self.rule.settle()
        if self._average:
            return self._average if self.average_begun else None
        return {name: self.rule.net(name) for name in self._weights} if self.rule.averages_weights else None

    @torch.no_grad()
    def _put(self, weights: Mapping[str, Tensor]) -> None:
        for name, tensor in weights.items():
            self._weights[name].copy_(tensor)
        self.rule.write_copies()

    def copy_in_steps(self, steps: Mapping[str, float]) -> None:
        """From now on the copies of these parameters hold integers, this many in 1.0, and all others the weights
        themselves (`FusedOptimizer.copy_in_steps`). Without `clip_weights` all hold the weights."""
        for name, copy in self._copies.items():
            own = steps.get(name, 0.0) if self._clips else 0.0
            clipped = self.rule.copy_in_steps(name, own)
            self._transformers[name].train_with(copy, own)
            if clipped:
                _log.warning(
                    "%s: clipped %s weights to ±%s, the limit of quantisation-aware training in mixed precision; "
                    "training.precision: fp32 has a wider one",
                    name, f"{clipped:,}", f"{LARGEST_COPY / own:g}",
                )  # fmt: skip

    def gradients(self) -> list[Tensor]:
        """The gradients of the next step: of the parameters, or of their 16-bit copies where there are any."""
        own = {name: self._copies.get(name, tensor) for name, tensor in self.rule.work.parameters.items()}
        return [tensor.grad for tensor in own.values() if tensor.grad is not None]

    def set_lr(self, lr: float) -> None:
        """The learning rate of the next step. Nothing is launched if the device already has this value: many schedules
        change it only between epochs."""
        if lr != self._last_lr:
            self.lr.fill_(lr)
            self._last_lr = lr
        if self._rule_takes_lr:
            self.rule.set_lr(lr)

    def failed(self) -> bool:
        """Whether a step met a loss or gradient that is not finite. Waits for the device."""
        return bool(self._failed.item())

    def finite(self) -> bool:
        """Whether all weights and all state are finite numbers: an update may overflow from finite gradients. Waits for
        the device, and reads everything once."""
        tensors = [*self.rule.state_dict().values(), *(p.detach() for p in self.rule.work.parameters.values())]
        extremes = [torch.stack(torch.aminmax(t)) for t in tensors if t.numel() and t.is_floating_point()]
        return all(bool(extreme.isfinite().all()) for extreme in extremes)

    def good_steps(self) -> int:
        """The number of updates, including those before `load_state_dict`. A fused rule counts those that it began: one
        too many if it found only while it wrote that a gradient is not finite. Waits for the device."""
        count = self._good_steps if self.rule.step_count is None else self.rule.step_count
        return int(count.item())

    def state_dict(self) -> dict[str, Tensor]:
        """The state of the rule, by moment and parameter, such as `exp_avg/NAME`; virtual rows are `NAME.virtual`.
        Where the net is another one than the weights, also `trained/NAME`, the weights, and `average/NAME`. Not a copy.
        """
        state = dict(self.rule.state_dict())
        if self._average or self.rule.averages_weights:
            weights = self._weights if self._trained is None else self._trained
            state |= {f"{_TRAINED}{name}": tensor for name, tensor in weights.items()}
        return state | {f"{_AVERAGE}{name}": tensor for name, tensor in self._average.items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor], *, good_steps: int = 0, from_net: bool = False) -> None:
        """Loads the state of an optimiser that had made `good_steps` updates. The parameters must hold its net; they
        become its weights, unless `from_net`: then an average begins at the net. ValueError naming a tensor that is
        missing, unknown or misshapen."""
        trained = _take(state, _TRAINED)
        average = _take(state, _AVERAGE)
        self.rule.load_state_dict(
            {name: tensor for name, tensor in state.items() if not name.startswith((_TRAINED, _AVERAGE))}
        )
        self._good_steps.fill_(good_steps)
        if trained and not from_net:
            check_state(self._weights, trained)
            self._put(trained)
        else:
            self.rule.write_copies()
        if average and self._average and not from_net:
            check_state(self._average, average)
        else:
            average = self._weights
        for name, tensor in self._average.items():
            tensor.copy_(average[name])


_TRAINED, _AVERAGE = "trained/", "average/"


def _take(state: Mapping[str, Tensor], group: str) -> dict[str, Tensor]:
    return {name.removeprefix(group): tensor for name, tensor in state.items() if name.startswith(group)}


def _limits(parameters: Mapping[str, nn.Parameter], settings: Mapping[str, Settings]) -> list[WeightBound]:
    """The bounds of weights that groups set."""
    return [
        WeightBound(name, parameters[name], each.low, each.high)
        for name, each in settings.items()
        if (each.low, each.high) != (-math.inf, math.inf)
    ]


def _matrices(model: nn.Module) -> list[str]:
    """Names of the weights of linear layers."""
    found = ((name, module) for name, module in model.named_modules() if isinstance(module, StackedLinear | nn.Linear))
    return [f"{name}.weight".removeprefix(".") for name, _ in found]
