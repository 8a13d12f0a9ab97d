"""State and step of all weights, with the fused operators."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import InitVar, dataclass, field

import torch
from torch import Tensor

from nnue_trainer.optim import fused_operators
from nnue_trainer.optim.late_rows import HostLateRows, LateRows
from nnue_trainer.optim.parts import LARGEST_COPY, Moments, NormOf, Pair, Part, given, write_copy
from nnue_trainer.optim.update_rule import UpdateRule


@dataclass
class FusedOptimizer:
    """State and step of `parts`, all on one device and of one dtype, float32 or float64.

    `lr` (float32), `step_count` (int64), `failed` (float32) and `numbers` (float64) are tensors on that device. A step
    whose loss or gradients are not finite changes nothing and sets `failed`, and no later step changes anything;
    `flag`, if given, is the tensor to be used for it.

    `max_norm`: gradients are scaled down to this norm, taken over all parts and their virtual rows.
    """

    parts: Sequence[Part]
    rule: UpdateRule
    lr: Tensor
    max_norm: float = math.inf
    flag: InitVar[Tensor | None] = None
    late: InitVar[Iterable[str]] = ()
    """names of parameters whose rows are updated when they are needed, on a GPU those that it pays for: see LateRows"""
    positions: int = 0
    """of a batch; 0: unknown"""
    covered: Iterable[str] = ()
    """names of parameters whose gradients the guard need not read: each of their terms is one of another gradient, too.
    With a norm to clip to, all gradients are read."""
    norm_of: NormOf | None = None
    """None: this process has all gradients."""
    state: dict[str, Tensor] = field(init=False, default_factory=dict)
    """Moments by name: exp_avg/NAME, exp_avg_sq/NAME and the same of NAME.virtual; exp_avg_2/… is the second average
    of a rule that has two, z/NAME that of a schedule-free one, slow/NAME are the slow weights of lookahead."""

    def __post_init__(self, flag: Tensor | None, late: Iterable[str]) -> None:
        device = self.lr.device
        self.failed = torch.zeros((), dtype=torch.float32, device=device) if flag is None else flag
        self._betas = list(dict.fromkeys([self.rule.betas, *(part.betas or self.rule.betas for part in self.parts)]))
        steps = torch.zeros(len(self._betas), dtype=torch.int64, device=device)
        numbers = torch.zeros(len(self._betas), fused_operators.NUMBERS, dtype=torch.float64, device=device)
        self.tensors = [steps, self.failed, numbers]  # the state of all parts, as the operators take it
        self.step_count, self.numbers = steps[0], numbers[0]
        self._nothing = numbers.new_empty(0)
        self.pairs: list[Pair] = [(part, self._make_moments(part)) for part in self.parts]
        kind = HostLateRows if device.type == "cpu" else LateRows
        made = {name: kind(self, name) for name in late}
        self.late_rows = {name: rows for name, rows in made.items() if rows.parts}
        """by name of the parameter"""
        self._sources = [(part, part.is_whole) for part in self.parts]
        self._late = sorted(self.late_rows.values(), key=lambda late: late.first_part)
        self._takes_norm = math.isfinite(self.max_norm) or self.rule.stable_decay
        self.handle, self._given = self._described(), given(self.pairs)
        """`handle`: the number that `_optimizer_describe` gave for this optimiser"""

    def _described(self, name: str = "", steps: float = 0.0) -> int:
        """The number of this optimiser if the copies of the parameter `name` have this many `steps`."""
        numbers = [
            number
            for part, moments in self.pairs
            for number in (
                self._betas.index(part.betas or self.rule.betas), part.name not in self.covered,
                moments.late is not None,
                *part.settings(steps if part.name == name and part.copy is not None else moments.steps),
            )
        ]  # fmt: skip
        handle: int = fused_operators.namespace._optimizer_describe(
            self.lr, self.rule.number, self.rule.constants(self.max_norm), [b for own in self._betas for b in own],
            numbers,
        )  # fmt: skip
        return handle

    def _make_moments(self, part: Part) -> Moments:
        weight = part.parameter.detach()
        nothing = weight.new_empty(0)
        names = self.rule.averages + self.rule.squares

        def of_parameter(name: str) -> Tensor:
            key = f"{name}/{part.name}"
            if key not in self.state:
                self.state[key] = weight.clone() if name in ("slow", "z") else torch.zeros_like(weight)
            return part.rows(self.state[key])

        rows = part.rows(weight)
        virtual = part.virtual_name or f"{part.name}.virtual"

        def of_virtual(name: str) -> Tensor:
            if not part.virtual_rows:
                return nothing
            return self.state.setdefault(f"{name}/{virtual}", rows.new_zeros(part.virtual_rows, *rows.shape[1:]))

        return Moments(
            weight=rows,
            own=[of_parameter(name) for name in names],
            shared=[of_virtual(name) for name in names],
            slow=of_parameter("slow") if self.rule.lookahead_every else None,
            copy=nothing if part.copy is None else part.rows(part.copy.detach()),
        )

    @torch.no_grad()
    def step(self, loss: Tensor, also: Sequence[Tensor] = (), shared: Sequence[int] = ()) -> None:
        """One update from the gradients in place. `loss` is used only by the guard. A parameter without a gradient is
        left out. `also`: other gradients for the guard and the norm; `shared`: the number of virtual rows of each (0:
        none)."""
        gradients: list[Tensor] = []
        moved: list[Tensor] = []
        for part, is_whole in self._sources:
            gradient = None if part.copy is None else part.copy.grad
            gradient = part.parameter.grad if gradient is None else gradient
            if gradient is None:
                gradient = self._nothing
            else:
                moved.append(part.parameter)
                if gradient.is_sparse or not is_whole:
                    gradient = part.rows_of_gradient(gradient)
            gradients.append(gradient)
        rows: list[Tensor] = []
        for late in self._late:
            late.before_step()
            rows += late.rows
        norm = None
        if self.norm_of is not None and self._takes_norm:
            own = [(*pair, g) for pair, g in zip(self.pairs, gradients, strict=True) if g is not self._nothing]
            norm = self.norm_of(own, self._norm)
        # Autograd must treat a graph that was made before the step as out of date.
        torch.autograd.graph.increment_version(moved)
        weights, moments, copies, kept = self._given
        fused_operators.namespace._optimizer_step(
            weights, gradients, moments, copies, kept, rows, self.tensors, loss.detach(), self.lr, also, shared, norm,
            self.handle,
        )  # fmt: skip
        for late in self._late:
            late.after_step()

    def _norm(self, parts: Sequence[tuple[Part, Moments, Tensor]]) -> Tensor:
        """The norm of the gradients of these parts, those of virtual rows included, float64; NaN: not finite."""
        gradients, shared = [gradient for *_, gradient in parts], [part.virtual_rows for part, *_ in parts]
        late = {id(p): rows for late in self._late for (p, _), rows in zip(late.parts, late.rows, strict=True)}
        rows = [late.get(id(part), self._nothing) for part, *_ in parts]
        found = fused_operators.namespace._optimizer_norm(gradients, shared, rows, self.numbers)
        return torch.where(found[0] != 0, found[fused_operators.NORM], math.nan)

    @property
    def kept(self) -> dict[str, Tensor]:
        """Numbers that later steps depend on beside the moments, of rules that have such; views."""
        if self.rule.kind != "schedule_free" and not self.rule.stable_decay:
            return {}
        return {f"numbers/{i}": each[fused_operators.KEPT] for i, each in enumerate(self.tensors[2])}

    @torch.no_grad()
    def copy_in_steps(self, name: str, steps: float) -> int:
        """From now on the copies of the parameter hold its integers, `steps` of them in 1.0, as float16: other bits in
        the memory of a bfloat16 copy. Its weights are clipped to ±LARGEST_COPY of them, which float16 holds exactly. 0:
        they hold the weight again. Writes the copies, and returns how many weights it has clipped."""
        handle = self._described(name, steps)  # an error leaves everything as it is
        self.settle()  # the steps until now have other bounds
        clipped = 0
        for part, moments in self.pairs:
            if part.name != name or part.copy is None:
                continue
            copy, moments.steps = part.rows(part.copy.detach()), steps
            moments.copy = copy.view(torch.float16) if steps else copy
            if steps:
                _, _, low, high, _ = part.settings(steps)
                clipped += int((moments.weight.abs() > LARGEST_COPY / steps).sum().item())
                moments.weight.clamp_(low, high)
        self.handle, self._given = handle, given(self.pairs)
        for late in self.late_rows.values():
            late.take_parts()
        self.write_copies()
        return clipped

    @torch.no_grad()
    def write_copies(self, names: Container[str] | None = None) -> None:
        """Makes the copies anew, of weights that something else than a step has changed: those of these parameters, or
        of all."""
        for part, moments in self.pairs:
            if part.copy is not None and (names is None or part.name in names):
                write_copy(moments.copy, moments.weight, moments.steps)

    def settle(self) -> None:
        """Brings all rows that are updated late up to date."""
        for late in self.late_rows.values():
            late.settle()

    @torch.no_grad()
    def averaged(self, parameter: str) -> Tensor:
        """The weights at which a schedule-free rule has its net, x, in a new tensor. They are within the limits of the
        parts."""
        pairs = [(part, moments) for part, moments in self.pairs if part.name == parameter]
        found = pairs[0][0].parameter.detach().clone()
        for part, moments in pairs:
            beta = (part.betas or self.rule.betas)[0]
            # With beta1 = 0 gradients are taken at z, and x is not known. ScheduleFree excludes it.
            x = torch.lerp(moments.own[0].double(), moments.weight.double(), 1 / beta)
            _, _, low, high, _ = part.settings(moments.steps)
            part.rows(found).copy_(x).clamp_(low, high)
        return found
