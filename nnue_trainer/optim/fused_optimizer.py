"""State and step of all weights, with the fused operators."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field, replace

import torch
from torch import Tensor

from nnue_trainer.optim import fused_operators
from nnue_trainer.optim.late_rows import HostLateRows, LateRows
from nnue_trainer.optim.parts import LARGEST_COPY, Moments, NormOf, Numbers, Part, write_copy
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
    norm_of: NormOf | None = None
    """None: this process has all gradients."""
    pairs: list[tuple[Part, Moments]] = field(init=False)
    step_count: Tensor = field(init=False)
    failed: Tensor = field(init=False)
    numbers: Tensor = field(init=False)
    state: dict[str, Tensor] = field(init=False, default_factory=dict)
    """Moments by name: exp_avg/NAME, exp_avg_sq/NAME and the same of NAME.virtual; exp_avg_2/… is the second average
    of a rule that has two, z/NAME that of a schedule-free one, slow/NAME are the slow weights of lookahead."""

    def __post_init__(self, flag: Tensor | None, late: Iterable[str]) -> None:
        device = self.lr.device
        self.failed = torch.zeros((), dtype=torch.float32, device=device) if flag is None else flag
        betas = [part.betas or self.rule.betas for part in self.parts]
        by_betas = {
            each: Numbers(
                replace(self.rule, betas=each),
                torch.zeros((), dtype=torch.int64, device=device),
                self.failed,
                torch.zeros(fused_operators.NUMBERS, dtype=torch.float64, device=device),
            )
            for each in dict.fromkeys([self.rule.betas, *betas])
        }
        self._numbers = list(by_betas.values())
        self.step_count, self.numbers = self._numbers[0].step_count, self._numbers[0].numbers
        self._no_marks = self.numbers.new_empty(0, dtype=torch.uint8)
        self.pairs = [
            (part, self._make_moments(part, by_betas[own])) for part, own in zip(self.parts, betas, strict=True)
        ]
        kind = HostLateRows if device.type == "cpu" else LateRows
        made = {name: kind(self, name) for name in late}
        self.late_rows = {name: rows for name, rows in made.items() if rows.parts}
        """by name of the parameter"""

    def _make_moments(self, part: Part, numbers: Numbers) -> Moments:
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
            numbers=numbers,
            own=[of_parameter(name) for name in names],
            shared=[of_virtual(name) for name in names],
            slow=of_parameter("slow") if self.rule.lookahead_every else None,
            copy=nothing if part.copy is None else part.rows(part.copy.detach()),
        )

    @torch.no_grad()
    def step(self, loss: Tensor, covered: Iterable[str] = (), also: Sequence[tuple[Tensor, int]] = ()) -> None:
        """One update from the gradients in place. `loss` is used only by the guard, as are all gradients but those of
        the parameters named in `covered`, for which others stand: each of their terms is one of another gradient, too.
        A parameter without a gradient is left out. With a norm to clip to, all gradients are read. `also`: other
        gradients for the guard and the norm, each with its number of virtual rows (0: none).
        """
        for late in self.late_rows.values():
            late.before_step()
        active = [(part, moments, gradient) for part, moments in self.pairs if (gradient := part.gradient) is not None]
        everything = math.isfinite(self.max_norm) or self.rule.stable_decay
        left_out = set() if everything else set(covered)
        guarded = [each for each in active if each[0].name not in left_out]
        read = [(gradient, part.virtual_rows if everything else 0) for part, _, gradient in guarded]
        rows = self._marks(guarded) + [self._no_marks] * len(also)
        if everything and self.norm_of is not None:
            read, rows = [(self.norm_of(guarded, self._norm), 0)], []
        read += also
        if self.rule.stable_decay:
            elements = sum(moments.weight.numel() + moments.shared[-1].numel() for _, moments, _ in active)
            for each in self._numbers:
                each.constants = each.rule.constants(elements + sum(g.numel() + v * g[0].numel() for g, v in also))
        for each in self._numbers:
            gradients, shared_rows = [gradient for gradient, _ in read], [shared for _, shared in read]
            fused_operators.namespace._optimizer_begin(
                gradients, shared_rows, loss.detach(), self.lr, each.state, each.rule.number, each.constants,
                self.max_norm, rows,
            )  # fmt: skip
            read, rows = [(self.numbers[fused_operators.NORM][None], 0)], []
        # Autograd must treat a graph that was made before the step as out of date.
        torch.autograd.graph.increment_version([part.parameter for part, _, _ in active])
        for each in self._numbers:
            own = [found for found in active if found[1].late is None and found[1].numbers is each]
            fused_operators.namespace._optimizer_update(
                [moments.weight for _, moments, _ in own],
                [gradient for _, _, gradient in own],
                [moment for _, moments, _ in own for moment in moments.all()],
                [moments.copy for _, moments, _ in own],
                each.state,
                [number for part, moments, _ in own for number in part.settings(moments.steps)],
                each.rule.number,
                each.constants,
                follows_begin=len(self._numbers) == 1,  # nothing has come between the two
            )
        for late in self.late_rows.values():
            late.step()

    def _norm(self, guarded: Sequence[tuple[Part, Moments, Tensor]]) -> Tensor:
        """The norm of the gradients of these parts, those of virtual rows included, float64; NaN: not finite."""
        numbers = self._numbers[0]
        state = [torch.zeros_like(tensor) for tensor in numbers.state]
        gradients, shared = [gradient for *_, gradient in guarded], [part.virtual_rows for part, *_ in guarded]
        fused_operators.namespace._optimizer_begin(
            gradients, shared, torch.zeros_like(self.lr), self.lr, state, numbers.rule.number, numbers.constants,
            math.inf, self._marks(guarded),
        )  # fmt: skip
        return torch.where(state[1] == 0, state[2][fused_operators.NORM], math.nan)

    def _marks(self, guarded: Sequence[tuple[Part, Moments, Tensor]]) -> list[Tensor]:
        """Of each gradient, uint8: the rows that may be other than zeros; no elements: all."""
        return [self._no_marks if m.late is None else m.late.marks_of(part) for part, m, _ in guarded]

    @property
    def kept(self) -> dict[str, Tensor]:
        """Numbers that later steps depend on beside the moments, of rules that have such; views."""
        if self.rule.kind != "schedule_free" and not self.rule.stable_decay:
            return {}
        return {f"numbers/{i}": each.numbers[fused_operators.KEPT] for i, each in enumerate(self._numbers)}

    def set_step_count(self, count: int) -> None:
        """Goes on counting from there."""
        for numbers in self._numbers:
            numbers.step_count.fill_(count)

    @torch.no_grad()
    def averaged(self, parameter: str) -> Tensor | None:
        """The weights at which a schedule-free rule has its net, x, in a new tensor; None for the other rules, whose
        parameters hold it. They are within the limits of the parts."""
        if self.rule.kind != "schedule_free":
            return None
        pairs = [(part, moments) for part, moments in self.pairs if part.name == parameter]
        found = pairs[0][0].parameter.detach().clone()
        for part, moments in pairs:
            beta = moments.numbers.rule.betas[0]
            # With beta1 = 0 gradients are taken at z, and x is not known. OptimizerConfig excludes it.
            x = torch.lerp(moments.own[0].double(), moments.weight.double(), 1 / beta)
            _, _, low, high, _ = part.settings(moments.steps)
            part.rows(found).copy_(x).clamp_(low, high)
        return found

    @torch.no_grad()
    def copy_in_steps(self, name: str, steps: float) -> int:
        """From now on the copies of the parameter hold its integers, `steps` of them in 1.0, as float16: other bits in
        the memory of a bfloat16 copy. Its weights are clipped to ±LARGEST_COPY of them, which float16 holds exactly. 0:
        they hold the weight again. Writes the copies, and returns how many weights it has clipped."""
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
        self.write_copies()
        return clipped

    @torch.no_grad()
    def write_copies(self) -> None:
        """Makes the copies anew, of weights that something else than a step has changed."""
        for part, moments in self.pairs:
            if part.copy is not None:
                write_copy(moments.copy, moments.weight, moments.steps)

    @torch.no_grad()
    def clip(self, part: Part) -> None:
        """Clips the weights of some rows of a parameter to the bounds of `part`, which is none of `parts`."""
        rows = part.rows(part.parameter.detach()).clamp_(part.low, part.high)
        if part.copy is None:
            return
        steps = next(moments.steps for own, moments in self.pairs if own.name == part.name)
        copy = part.rows(part.copy.detach())
        write_copy(copy.view(torch.float16) if steps else copy, rows, steps)

    def settle(self) -> None:
        """Brings all rows that are updated late up to date."""
        for late in self.late_rows.values():
            late.settle()
