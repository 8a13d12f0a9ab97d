"""State and step of all weights, with the fused operators, and rows that are updated when they are needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

import torch
from torch import Tensor

from nnue_trainer.data.batch import Plan, plan_of
from nnue_trainer.ops import capabilities
from nnue_trainer.optim import fused_operators
from nnue_trainer.optim.parts import LARGEST_COPY, Moments, NormOf, Pair, Part, given, write_copy
from nnue_trainer.optim.update_rule import UpdateRule

WINDOW = 16
"""Steps that rows updated late may be behind. Each takes as much memory as the virtual rows do."""
DEVICE_WINDOW = 32
"""`WINDOW` on a GPU for rows without virtual rows: kMostWindow of csrc/optimizer.h."""
LEAST_ROW = 32
"""With fewer elements per row the norm reads all rows, not only marked ones: kLeastRow of csrc/optimizer.h."""
LATE_SHARE = 0.45
"""Share of the rows in a batch above which all rows are updated in its step, which is faster then: measured in
benchmarks/NOTEBOOK.md. It changes no bit."""


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
    watched: Sequence[Callable[[], Sequence[tuple[Tensor, int]]]] = ()
    """what gives gradients of other optimisers, for the guard and the norm, as `step` takes them"""
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
                moments.is_late,
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
                dtype = part.average_dtype if name in self.rule.averages else None
                start = weight.clone() if name in ("slow", "z") else torch.zeros_like(weight, dtype=dtype)
                self.state[key] = start
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
    def step(self, loss: Tensor, also: Sequence[tuple[Tensor, int]] = ()) -> None:
        """One update from the gradients in place. `loss` is used only by the guard. A parameter without a gradient is
        left out. `also`: other gradients for the guard and the norm, and the number of virtual rows of each (0: none).
        """
        gradients = self.gradients()
        moved = [
            part.parameter for (part, _), own in zip(self.pairs, gradients, strict=True) if own is not self._nothing
        ]
        rows: list[Tensor] = []
        for late in self._late:
            late.before_step()
            rows += late.rows
        norm = None
        if self.norm_of is not None and self._takes_norm:
            own = [(*pair, g) for pair, g in zip(self.pairs, gradients, strict=True) if g is not self._nothing]
            norm = self.norm_of(own, self._norm)
        also = [*also, *[each for others in self.watched for each in others()]]
        # Autograd must treat a graph that was made before the step as out of date.
        torch.autograd.graph.increment_version(moved)
        weights, moments, copies, kept = self._given
        fused_operators.namespace._optimizer_step(
            weights, gradients, moments, copies, kept, rows, self.tensors, loss.detach(), self.lr,
            [gradient for gradient, _ in also], [virtual for _, virtual in also], norm, self.handle,
        )  # fmt: skip
        for late in self._late:
            late.after_step()

    def gradients(self) -> list[Tensor]:
        """The gradient of each part; one without elements if there is none."""
        gradients: list[Tensor] = []
        for part, is_whole in self._sources:
            gradient = None if part.copy is None else part.copy.grad
            gradient = part.parameter.grad if gradient is None else gradient
            if gradient is None:
                gradient = self._nothing
            elif gradient.is_sparse or not is_whole:
                gradient = sparse_rows(part, gradient)[1] if gradient.is_sparse else part.rows(gradient)
            gradients.append(gradient)
        return gradients

    def _norm(self, parts: Sequence[tuple[Part, Moments, Tensor]]) -> Tensor:
        """The norm of the gradients of these parts, virtual rows included, float64; NaN: not finite."""
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


class LateRows:
    """The rows of one parameter [F, ...], updated when they are needed and not in every step.

    A row that no position of a batch has gets a gradient of zeros. Its steps are made later, one after the other by
    the same code, which gives the same bits for every rule, schedule, bound and norm. It pays because a row that is `k`
    steps behind goes through the memory once and not `k` times.

    Call `catch_up` before the forward pass reads the rows of a batch, and `settle` before anything else reads the
    parameter. A row is never behind by more steps than the window has.

    Virtual rows move in every step. Their changes are kept for the rows that share them and are behind.

    This class is for GPUs: nothing waits for the device, and a step can be recorded.
    """

    parts: list[Pair]
    """those whose rows are updated late"""
    rows: list[Tensor]
    """of each of them, those that may get a gradient in the step that is made, as `_optimizer_step` takes them"""

    _too_many = 1.0
    """the share of the rows in a batch above which all are updated in its step"""
    _takes_sparse = False
    """whether gradients may be sparse"""

    def __init__(self, optimizer: FusedOptimizer, name: str, window: int = DEVICE_WINDOW) -> None:
        """`window`: of rows without virtual rows."""
        self._optimizer = optimizer
        self._parameter = next(part.parameter for part, _ in optimizer.pairs if part.name == name)
        device, rows = self._parameter.device, len(self._parameter)
        machine, positions = capabilities.machine_of(device), optimizer.positions
        own = {
            number: (part, moments)
            for number, (part, moments) in enumerate(optimizer.pairs)
            if part.name == name
            and capabilities.update(machine, len(moments.weight), moments.tensors, positions).kernels == "late"
        }
        self.parts, self._numbers = list(own.values()), list(own)
        self.first_part = self._numbers[0] if own else -1
        self._made = torch.zeros(rows, dtype=torch.int64, device=device)
        self._marked = torch.zeros(rows, dtype=torch.uint8, device=device)
        self._marks_key = ("marks", rows)
        for part, moments in self.parts:
            steps, shared = WINDOW if part.virtual_rows else window, moments.shared[-1]
            changes = shared.new_empty(steps, *shared.shape) if shared.numel() else shared
            history = torch.zeros(steps, fused_operators.NUMBERS, dtype=torch.float64, device=device)
            moments.is_late, moments.kept = True, [part.rows(self._made), changes, history]
        self._marked_rows = [part.rows(self._marked) for part, _ in self.parts]
        self._all_rows = [self._marked[:0]] * len(self.parts)
        self._all_marked = False
        self.rows = self._all_rows
        self._has_gradient = True  # in that step
        self._batches = 0  # calls of `catch_up` for the next step
        self._has_all = sum(len(moments.weight) for _, moments in self.parts) == rows
        self.take_parts()
        self._reads_marked = self._has_all and self._parameter[0].numel() >= LEAST_ROW

    def take_parts(self) -> None:
        """Takes over the parts' copies, which `FusedOptimizer.copy_in_steps` replaces."""
        self._given = given(self.parts)

    def leaves_unused(self) -> bool:
        """Whether the gradient's rows of features that the batch lacks may stay unwritten, if only the next step reads
        the gradient: nothing reads them if all rows are updated late, and the gradient is that of one batch."""
        watched = self._parameter._backward_hooks or self._parameter._post_accumulate_grad_hooks
        of_one_batch = self._batches == 1 and not self._all_marked
        return self._reads_marked and of_one_batch and not watched and not torch.is_anomaly_enabled()

    def catch_up(self, white: Tensor, black: Tensor, plans: tuple[Any, ...] = ()) -> bool:
        """`catch_up_marked` for the rows that the index rows int32 [B, K] name. `plans`: of the batch, perhaps with
        `marks`."""
        marks = plan_of(white, plans, self._marks_key)
        return self.catch_up_marked((self.marks(white, black) if marks is None else marks).data)

    @torch.no_grad()
    def catch_up_marked(self, marks: Tensor) -> bool:
        """Brings the rows with marks, uint8 [F], up to date. Until the next step these, and those of other calls before
        it, are all the rows that may get a gradient. Returns whether the gradient may be sparse: a row that it leaves
        out waits."""
        self._marked |= marks
        self._batches += 1
        if self._too_many < 1 and int(self._marked.sum(dtype=torch.int64)) > self._too_many * len(self._marked):
            self.settle(gradient=True)
        if not self._all_marked:
            self._replay(self._marked_rows)
        return self._takes_sparse and not self._all_marked

    def marks(self, white: Tensor, black: Tensor) -> Plan:
        """The rows that these index rows name, ahead of `catch_up`: uint8 [F], 1 for each of them."""
        found = torch.zeros_like(self._marked)
        fused_operators.namespace._optimizer_mark_rows(white, black, found)
        return Plan(self._marks_key, found, white)

    @torch.no_grad()
    def settle(self, *, gradient: bool = False) -> None:
        """Brings all rows up to date. `gradient`: any row may get a gradient in the next step."""
        self._replay(self._all_rows)
        self._all_marked |= gradient

    def restart(self) -> None:
        """Everything has been replaced, and is up to date."""
        self._made.copy_(self._optimizer.step_count.expand_as(self._made))

    def before_step(self) -> None:
        """The work before the step is counted. Sets `rows`."""
        if self._batches == 0:  # the rows that have a gradient are unknown
            self._all_marked = True
        copy, gradient = self.parts[0][0].copy, self._parameter.grad
        gradient = gradient if copy is None or copy.grad is None else copy.grad
        self._has_gradient = gradient is not None
        if self._all_marked or gradient is None:
            self.settle()
        if gradient is not None and gradient.is_sparse:
            self.rows = [sparse_rows(part, gradient)[0] for part, _ in self.parts]
        else:
            self.rows = self._all_rows if self._all_marked else self._marked_rows

    def after_step(self) -> None:
        """The work after the step was counted, or skipped."""
        if not self._has_gradient:
            self.restart()  # a step without the parameter does not move it
        self._marked.zero_()
        self._all_marked, self._batches = False, 0

    def _replay(self, rows: list[Tensor]) -> None:
        fused_operators.namespace._optimizer_catch_up(
            *self._given, rows, self._optimizer.tensors, self._numbers, self._optimizer.handle
        )


class HostLateRows(LateRows):
    """Late rows on a CPU: all rows of a parameter. The gradient may be sparse, and where most rows are in a batch
    all are updated."""

    _too_many = LATE_SHARE

    def __init__(self, optimizer: FusedOptimizer, name: str) -> None:
        super().__init__(optimizer, name, WINDOW)
        if not self._has_all:
            raise ValueError(f"{name}: its parts do not cover its {len(self._parameter)} rows")
        if any(part.copy is not None for part, _ in self.parts):
            raise ValueError(f"{name}: on a CPU, a parameter with a 16-bit copy cannot be updated late")
        # A norm is taken over virtual rows, too, which are sums of whole gradients.
        self._takes_sparse = not math.isfinite(optimizer.max_norm) and not optimizer.rule.stable_decay


def sparse_rows(part: Part, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of a sparse gradient of the parameter that are in the part: their numbers, int64 [R] ascending, and
    their values [R, ...]."""
    numbers, values = gradient._indices()[0], gradient._values()
    if not gradient.is_coalesced() and not bool((numbers[1:] > numbers[:-1]).all()):  # not what one backward makes
        gradient = gradient.coalesce()
        numbers, values = gradient.indices()[0], gradient.values()
    end = len(gradient) if part.size is None else part.first + part.size
    if part.first == 0 and end == len(gradient):
        return numbers, values
    begin, stop = torch.searchsorted(numbers, torch.tensor([part.first, end], device=numbers.device)).tolist()
    return numbers[begin:stop] - part.first, values[begin:stop]
