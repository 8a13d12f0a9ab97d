"""One step of training in two operators: `nnue::_optimizer_begin` decides, `nnue::_optimizer_update` moves all weights.

`_optimizer_begin` looks at the loss and at gradients before anything is written, takes their norm, counts the step, and
works out what the rule needs to know of it. `_optimizer_update` reads gradients, weights and moments once and writes
weights and moments once: decay, virtual rows, clip to bounds, lookahead and a 16-bit copy of the weight included.
Learning rate, step count and the flag of failure live on the device, so a step can be captured in a CUDA graph. The
contract is in csrc/optimizer.h.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from nnue_trainer import ops
from nnue_trainer.ops import capabilities

BEGIN = "nnue::_optimizer_begin"
UPDATE = "nnue::_optimizer_update"
UPDATE_MATRICES = "nnue::_optimizer_update_matrices"
MARK_ROWS = "nnue::_optimizer_mark_rows"
UPDATE_ROWS = "nnue::_optimizer_update_rows"
CATCH_UP = "nnue::_optimizer_catch_up"

_operators = torch.ops.nnue  # tests put the emulated ones here

WINDOW = 16
"""Steps that rows updated late may be behind. Each takes as much memory as the virtual rows do."""
DEVICE_WINDOW = 32
"""The same on a GPU for rows without virtual rows: kMostWindow of csrc/optimizer.h."""
LATE_SHARE = 0.45
"""Share of the rows in a batch above which all rows are updated in its step, which is faster then: measured in
benchmarks/NOTEBOOK.md. It changes no bit."""

LARGEST_COPY = 2048
"""The largest integer of a copy: float16 holds all up to it."""

RuleKind = Literal["adam", "rectified", "positive_negative", "lion", "schedule_free"]
_KINDS: tuple[RuleKind, ...] = get_args(RuleKind)

# What _optimizer_begin leaves for _optimizer_update, float64: the enum Number of csrc/optimizer.h.
NUMBERS = 16
GRADIENT = 5
NORM = 8
KEPT = slice(11, 14)
"""Those that are part of the state: kFirstKept to kLastKept."""


@dataclass(frozen=True)
class Rule:
    """How weights move; weight decay is decoupled from all of this.

    kind: "adam" is torch.optim.AdamW, "rectified" torch.optim.RAdam; "positive_negative" is Adam with two averages of
    the gradient that take turns, and moves along (1 + positive) · this step's − positive · the other one's, divided by
    the norm of these two factors (AdaPNM).
    "lion" moves by the sign of one average and has no squares; "schedule_free" is AdamW whose parameters hold y, where
    gradients are taken, and whose net is x (`FusedOptimizer.averaged`).
    lookahead_every: after so many steps the slow weights move by `lookahead_share` of the way to the fast ones, which
    start there anew; 0: no slow weights.
    corrects_bias: divide averages and squares by what they lack, as they start at zero; of "adam" only.
    warmup, weight_power: of "schedule_free": the rate rises over so many steps, and step t counts as rate² · t^power.
    stable_decay: the weight decay is divided by the root of the mean square gradient of all parts.
    max_value: gradients are clipped to this size, after they were scaled to the norm.
    """

    kind: RuleKind = "adam"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    positive: float = 1.0
    lookahead_every: int = 0
    lookahead_share: float = 0.5
    corrects_bias: bool = True
    warmup: int = 0
    weight_power: float = 0.0
    stable_decay: bool = False
    max_value: float = math.inf

    @property
    def number(self) -> int:
        """`kind` as the operators take it."""
        return _KINDS.index(self.kind)

    def constants(self, elements: int) -> list[float]:
        """As the operators take them. `elements`: of all parts and their virtual rows."""
        lookahead = [self.lookahead_every, self.lookahead_share]
        stable_over = elements if self.stable_decay else 0
        own = [self.corrects_bias, self.warmup, self.weight_power, stable_over, self.max_value]
        return [float(number) for number in (*self.betas, self.eps, self.positive, *lookahead, *own)]

    @property
    def averages(self) -> list[str]:
        """The names of the running means of the gradient, or of what stands in their place."""
        if self.kind == "schedule_free":
            return ["z"]
        return ["exp_avg", "exp_avg_2"] if self.kind == "positive_negative" else ["exp_avg"]

    @property
    def squares(self) -> list[str]:
        """The name of the running mean of the square, if there is one."""
        return [] if self.kind == "lion" else ["exp_avg_sq"]


@dataclass(frozen=True)
class Part:
    """Rows of a parameter that are trained alike: all of them, or `size` rows from `first` on.

    virtual_rows: V, a divisor of the number of rows: rows r and r + V of the part share a virtual row. 0: none.
    rate, decay: factor of the learning rate, and the decoupled weight decay.
    low, high: the closed range that the weight is clipped to after every step.
    copy: float16 or bfloat16 of the parameter's shape, written along with the weight. Where it has a gradient, that is
        the part's, and not the parameter's. See `FusedOptimizer.copy_in_steps`.
    """

    name: str
    parameter: Tensor
    first: int = 0
    size: int | None = None
    virtual_rows: int = 0
    rate: float = 1.0
    decay: float = 0.0
    low: float = -math.inf
    high: float = math.inf
    copy: Tensor | None = None
    virtual_name: str | None = None
    """of the virtual rows, for their moments; NAME.virtual unless given"""
    betas: tuple[float, float] | None = None
    """in place of the rule's"""

    @property
    def gradient(self) -> Tensor | None:
        """Of the part's rows, the copy's if it has one. Of a sparse gradient, those rows that it has."""
        gradient = None if self.copy is None else self.copy.grad
        gradient = self.parameter.grad if gradient is None else gradient
        if gradient is None:
            return None
        return self.sparse_rows(gradient)[1] if gradient.is_sparse else self.rows(gradient)

    def settings(self, steps: float = 0.0) -> list[float]:
        """As the operators take them. `steps`: of the copy."""
        most = LARGEST_COPY / steps if steps else math.inf
        return [self.rate, self.decay, max(self.low, -most), min(self.high, most), steps]

    def rows(self, tensor: Tensor) -> Tensor:
        """The part's rows of a tensor of the parameter's shape."""
        if self.first == 0 and self.size is None:
            return tensor
        size = tensor.shape[0] - self.first if self.size is None else self.size
        return tensor[self.first : self.first + size]

    def sparse_rows(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Of a sparse gradient of the parameter: the numbers of its rows in the part, int64 [R] ascending, and what
        these are [R, ...]."""
        numbers, values = gradient._indices()[0], gradient._values()
        if not gradient.is_coalesced() and not bool((numbers[1:] > numbers[:-1]).all()):  # not what one backward makes
            gradient = gradient.coalesce()
            numbers, values = gradient.indices()[0], gradient.values()
        end = len(gradient) if self.size is None else self.first + self.size
        if self.first == 0 and end == len(gradient):
            return numbers, values
        begin, stop = torch.searchsorted(numbers, torch.tensor([self.first, end])).tolist()
        return numbers[begin:stop] - self.first, values[begin:stop]


@dataclass
class _Moments:
    """The state of a part: views of the parameter's moments, and the moments of its virtual rows."""

    weight: Tensor
    own: list[Tensor]
    """averages and squares"""
    shared: list[Tensor]
    """the same of the virtual rows"""
    slow: Tensor | None
    copy: Tensor
    steps: float = 0.0
    """integers of the copy in 1.0; 0: it has the weight itself"""

    @property
    def tensors(self) -> int:
        """How many tensors have a row of the parameter: the weight and its moments."""
        return 1 + len(self.own) + (self.slow is not None)

    def all(self) -> list[Tensor]:
        """In the order of the operators."""
        slow = [] if self.slow is None else [self.slow]
        return [*self.own, *self.shared, *slow]


@dataclass
class _Numbers:
    """A rule with the numbers of its steps, on the device. Parts with other betas have their own."""

    rule: Rule
    step_count: Tensor
    failed: Tensor
    numbers: Tensor
    constants: list[float] = field(default_factory=list)

    @property
    def state(self) -> list[Tensor]:
        """As the operators take it."""
        return [self.step_count, self.failed, self.numbers]


def _write_copy(copy: Tensor, weight: Tensor, steps: float) -> None:
    copy.copy_(torch.round(weight * steps) if steps else weight)


@dataclass
class FusedOptimizer:
    """State and step of `parts`, all on one device and of one dtype, float32 or float64.

    `lr` (float32), `step_count` (int64), `failed` (float32) and `numbers` (float64) are tensors on that device. A step
    whose loss or gradients are not finite changes nothing and sets `failed`, and no later step changes anything;
    `flag`, if given, is the tensor to be used for it.

    `max_norm`: gradients are scaled down to this norm, taken over all parts and their virtual rows.
    """

    parts: Sequence[Part]
    rule: Rule
    lr: Tensor
    max_norm: float = math.inf
    flag: InitVar[Tensor | None] = None
    late: InitVar[Iterable[str]] = ()
    """names of parameters whose rows are updated when they are needed, on a GPU those that it pays for: see LateRows"""
    norm_of: Callable[[Sequence[tuple[Part, Tensor]]], Tensor] | None = None
    """Numbers whose norm is that of the gradients of these parts, virtual rows included, where this process has not all
    of them; None: it has."""
    step_count: Tensor = field(init=False)
    failed: Tensor = field(init=False)
    numbers: Tensor = field(init=False)
    state: dict[str, Tensor] = field(init=False, default_factory=dict)
    """Moments by name: exp_avg/NAME, exp_avg_sq/NAME and the same of NAME.virtual; exp_avg_2/… is the second average
    of a rule that has two, z/NAME that of a schedule-free one, slow/NAME are the slow weights of lookahead."""

    def __post_init__(self, flag: Tensor | None, late: Iterable[str]) -> None:
        device = self.lr.device
        self.failed = torch.zeros((), dtype=torch.float32, device=device) if flag is None else flag
        betas = dict.fromkeys([self.rule.betas, *(part.betas or self.rule.betas for part in self.parts)])
        self._numbers = [
            _Numbers(
                replace(self.rule, betas=each),
                torch.zeros((), dtype=torch.int64, device=device),
                self.failed,
                torch.zeros(NUMBERS, dtype=torch.float64, device=device),
            )
            for each in betas
        ]
        self.step_count, self.numbers = self._numbers[0].step_count, self._numbers[0].numbers
        self._moments = [self._make_moments(part) for part in self.parts]
        for numbers in self._numbers:
            numbers.constants = numbers.rule.constants(0)
        kind = HostLateRows if device.type == "cpu" else LateRows
        made = {name: kind(self, name) for name in late}
        self.late_rows = {name: rows for name, rows in made.items() if rows.parts}
        """by name of the parameter"""

    def _make_moments(self, part: Part) -> _Moments:
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
        if part.virtual_rows and f"{names[0]}/{virtual}" in self.state:  # the second such range of one parameter
            virtual += f".{part.first}"

        def of_virtual(name: str) -> Tensor:
            if not part.virtual_rows:
                return nothing
            if rows.shape[0] % part.virtual_rows:
                raise ValueError(
                    f"{part.name}: {rows.shape[0]} rows cannot share {part.virtual_rows} virtual rows evenly"
                )
            return self.state.setdefault(f"{name}/{virtual}", rows.new_zeros(part.virtual_rows, *rows.shape[1:]))

        return _Moments(
            weight=rows,
            own=[of_parameter(name) for name in names],
            shared=[of_virtual(name) for name in names],
            slow=of_parameter("slow") if self.rule.lookahead_every else None,
            copy=nothing if part.copy is None else part.rows(part.copy.detach()),
        )

    @torch.no_grad()
    def step(self, loss: Tensor, covered: Iterable[str] = (), also: Sequence[tuple[Tensor, int]] = ()) -> None:
        """One update from the gradients in place. `loss` is used only by the guard, as are all gradients but those of
        the parameters named in `covered`, for which others stand: each of their terms is one of another gradient, too.
        A parameter without a gradient is left out. With a norm to clip to, all gradients are looked at. `also`: other
        gradients for the guard and the norm, each with its number of virtual rows (0: none).
        """
        for late in self.late_rows.values():
            late.before_step()
        active = [
            (part, moments, gradient)
            for part, moments in zip(self.parts, self._moments, strict=True)
            if (gradient := part.gradient) is not None
        ]
        everything = math.isfinite(self.max_norm) or self.rule.stable_decay
        left_out = set() if everything else set(covered)
        guarded = [(part, gradient) for part, _, gradient in active if part.name not in left_out]
        others, shared_by_others = [gradient for gradient, _ in also], [shared for _, shared in also]
        looked_at = [*(gradient for _, gradient in guarded), *others]
        shared_rows = [part.virtual_rows if everything else 0 for part, _ in guarded] + shared_by_others
        rows = [self._marks_of(part) for part, _ in guarded] + [self._no_marks] * len(also)
        if everything and self.norm_of is not None:
            looked_at, shared_rows, rows = [self.norm_of(guarded), *others], [0, *shared_by_others], []
        if self.rule.stable_decay:
            elements = sum(moments.weight.numel() + moments.shared[-1].numel() for _, moments, _ in active)
            for each in self._numbers:
                each.constants = each.rule.constants(elements + sum(g.numel() + v * g[0].numel() for g, v in also))
        for each in self._numbers:
            _operators._optimizer_begin(
                looked_at,
                shared_rows,
                loss.detach(),
                self.lr,
                each.state,
                each.rule.number,
                each.constants,
                self.max_norm,
                rows,
            )
            looked_at, shared_rows, rows = [self.numbers[NORM : NORM + 1]], [0], []
        # Autograd has to know that a graph which was made before the step is out of date.
        torch.autograd.graph.increment_version([part.parameter for part, _, _ in active])
        waiting = {id(part) for late in self.late_rows.values() for part, _ in late.parts}
        active = [(part, moments, gradient) for part, moments, gradient in active if id(part) not in waiting]
        for each in self._numbers:
            own = [(part, moments, gradient) for part, moments, gradient in active if self.numbers_of(part) is each]
            _operators._optimizer_update(
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

    def _marks_of(self, part: Part) -> Tensor:
        """uint8: the rows of the gradient that may be other than zeros; no elements: all."""
        for late in self.late_rows.values():
            if any(part is waiting for waiting, _ in late.parts):
                return late.marks_of(part)
        return self._no_marks

    @property
    def _no_marks(self) -> Tensor:
        return self.numbers.new_empty(0, dtype=torch.uint8)

    def rows(self) -> Iterator[tuple[Part, int]]:
        """Each part, and how many tensors have its rows: the weight and its moments."""
        for part, moments in zip(self.parts, self._moments, strict=True):
            yield part, moments.tensors

    def numbers_of(self, part: Part) -> _Numbers:
        """The rule of a part, and where its numbers are."""
        betas = part.betas or self.rule.betas
        return next(numbers for numbers in self._numbers if numbers.rule.betas == betas)

    @property
    def kept(self) -> dict[str, Tensor]:
        """Numbers that later steps depend on beside the moments, of rules that have such; views."""
        if self.rule.kind != "schedule_free" and not self.rule.stable_decay:
            return {}
        return {f"numbers/{i}": each.numbers[KEPT] for i, each in enumerate(self._numbers)}

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
        parts = [(part, m) for part, m in zip(self.parts, self._moments, strict=True) if part.name == parameter]
        found = parts[0][0].parameter.detach().clone()
        for part, moments in parts:
            beta = self.numbers_of(part).rule.betas[0]
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
        for part, moments in zip(self.parts, self._moments, strict=True):
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
        for part, moments in zip(self.parts, self._moments, strict=True):
            if part.copy is not None:
                _write_copy(moments.copy, moments.weight, moments.steps)

    @torch.no_grad()
    def clip(self, part: Part) -> None:
        """Clips the weights of some rows of a parameter to the bounds of `part`, which is none of `parts`."""
        rows = part.rows(part.parameter.detach()).clamp_(part.low, part.high)
        if part.copy is None:
            return
        steps = next(
            moments.steps for own, moments in zip(self.parts, self._moments, strict=True) if own.name == part.name
        )
        copy = part.rows(part.copy.detach())
        _write_copy(copy.view(torch.float16) if steps else copy, rows, steps)

    def settle(self) -> None:
        """Brings all rows that are updated late up to date."""
        for late in self.late_rows.values():
            late.settle()


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

    parts: list[tuple[Part, _Moments]]
    """those whose rows are updated late"""

    def __init__(self, optimizer: FusedOptimizer, name: str, window: int = DEVICE_WINDOW) -> None:
        """`window`: of rows without virtual rows."""
        self._optimizer = optimizer
        own = [pair for pair in zip(optimizer.parts, optimizer._moments, strict=True) if pair[0].name == name]
        self._parameter = own[0][0].parameter
        self.parts = self._chosen(own)
        device, rows = self._parameter.device, len(self._parameter)
        self._made = torch.zeros(rows, dtype=torch.int64, device=device)
        self._marked = torch.zeros(rows, dtype=torch.uint8, device=device)
        windows = [WINDOW if part.virtual_rows else window for part, _ in self.parts]
        self._histories = [torch.zeros(steps, NUMBERS, dtype=torch.float64, device=device) for steps in windows]
        self._changes = [
            m.weight.new_empty(steps, *m.shared[-1].shape) if m.shared[-1].numel() else m.weight.new_empty(0)
            for steps, (_, m) in zip(windows, self.parts, strict=True)
        ]
        self._any_marked = False
        self._all_marked = False

    def _chosen(self, own: list[tuple[Part, _Moments]]) -> list[tuple[Part, _Moments]]:
        machine = capabilities.machine_of(self._parameter.device)
        return [
            (part, m) for part, m in own if capabilities.update(machine, len(m.weight), m.tensors).kernels == "late"
        ]

    @torch.no_grad()
    def catch_up(self, white: Tensor, black: Tensor) -> bool:
        """Brings the rows that the index rows int32 [B, K] name up to date. Until the next step these, and those of
        other calls before it, are all the rows that may get a gradient. Returns whether the gradient may be sparse: a
        row that it leaves out waits."""
        self._mark(white, black)
        if not self._all_marked:
            self._replay(self._marked)
        return False

    def _mark(self, white: Tensor, black: Tensor) -> None:
        _operators._optimizer_mark_rows(white, black, self._marked)
        self._any_marked = True

    @torch.no_grad()
    def settle(self, *, gradient: bool = False) -> None:
        """Brings all rows up to date. `gradient`: any row may get a gradient in the next step."""
        self._replay(None)
        self._all_marked |= gradient

    def restart(self) -> None:
        """Everything has been replaced, and is up to date."""
        self._made.copy_(self._optimizer.numbers_of(self.parts[0][0]).step_count.expand_as(self._made))

    def before_step(self) -> None:
        """What has to be done while the step has not been counted."""
        if not self._any_marked:  # the rows that have a gradient are unknown
            self._all_marked = True
        if self._all_marked or not self._has_gradient:
            self.settle()

    def step(self) -> None:
        """The step that `_optimizer_begin` has allowed, or not."""
        if self._has_gradient:
            self._step()
        else:
            self.restart()  # a step without the parameter does not move it
        self._marked.zero_()
        self._any_marked = self._all_marked = False

    @property
    def _has_gradient(self) -> bool:
        copy = self.parts[0][0].copy
        return self._parameter.grad is not None or (copy is not None and copy.grad is not None)

    def marks_of(self, part: Part) -> Tensor:
        """Of the part's rows, uint8: those that may get a gradient in this step; no elements: all."""
        return self._marked[:0] if self._all_marked else part.rows(self._marked)

    def _step(self) -> None:
        if self._all_marked:
            self._marked.fill_(1)
        for number, (part, _) in enumerate(self.parts):
            assert part.gradient is not None
            self._update(number, part.rows(self._marked), part.gradient)

    def _update(self, number: int, rows: Tensor, gradient: Tensor) -> None:
        moments = self.parts[number][1]
        _operators._optimizer_update_rows(moments.weight, gradient, moments.all(), rows, *self._how(number))

    def _replay(self, marked: Tensor | None) -> None:
        for number, (part, moments) in enumerate(self.parts):
            rows = None if marked is None else part.rows(marked)
            _operators._optimizer_catch_up(moments.weight, moments.all(), rows, *self._how(number))

    def _how(self, number: int) -> tuple[list[Tensor], list[Tensor], list[float], int, list[float]]:
        """late, state, settings, rule and constants of one of `parts`, as the operators take them."""
        part, moments = self.parts[number]
        late = [part.rows(self._made), self._changes[number], self._histories[number]]
        copy = [moments.copy] if moments.copy.numel() else []
        numbers = self._optimizer.numbers_of(part)
        constants = numbers.constants
        return [*late, *copy], numbers.state, part.settings(moments.steps), numbers.rule.number, constants


class HostLateRows(LateRows):
    """The same on a CPU, for all rows of a parameter. The gradient may be sparse, and where most rows are in a batch
    all are updated."""

    def __init__(self, optimizer: FusedOptimizer, name: str) -> None:
        super().__init__(optimizer, name, WINDOW)
        rows = len(self._parameter)
        if sum(len(moments.weight) for _, moments in self.parts) != rows:
            raise ValueError(f"{name}: its parts are not all of its {rows} rows")
        if any(part.copy is not None for part, _ in self.parts):
            raise ValueError(f"{name}: on a CPU, a parameter with a 16-bit copy cannot be updated late")
        self._settled_at = 0  # no row has made fewer steps

    def _chosen(self, own: list[tuple[Part, _Moments]]) -> list[tuple[Part, _Moments]]:
        return own

    @torch.no_grad()
    def catch_up(self, white: Tensor, black: Tensor) -> bool:
        self._mark(white, black)
        if int(self._marked.sum(dtype=torch.int64)) > LATE_SHARE * len(self._marked):
            self.settle(gradient=True)
        if not self._all_marked:
            self._replay(self._marked)
            self._settled_at = max(self._settled_at, self._steps() - WINDOW + 1)
        # A norm is taken over virtual rows, too, which only _optimizer_begin knows how to sum.
        own = self._optimizer
        return not self._all_marked and not math.isfinite(own.max_norm) and not own.rule.stable_decay

    @torch.no_grad()
    def settle(self, *, gradient: bool = False) -> None:
        if self._settled_at < self._steps():
            self._replay(None)
            self._settled_at = self._steps()
        self._all_marked |= gradient

    def restart(self) -> None:
        self._settled_at = self._steps()
        self._made.fill_(self._settled_at)

    def before_step(self) -> None:
        super().before_step()
        if self._steps() - self._settled_at == WINDOW:
            self.settle()

    def marks_of(self, part: Part) -> Tensor:
        return self._marked[:0]  # a gradient may be sparse, of these rows

    def _step(self) -> None:
        optimizer, gradient = self._optimizer, self._parameter.grad
        if optimizer.numbers[0] == 0:
            return
        assert gradient is not None
        if self._all_marked and not gradient.is_sparse:
            self._marked.fill_(1)
            self._settled_at = self._steps()
        for number, (part, _) in enumerate(self.parts):
            if gradient.is_sparse:
                rows, own = part.sparse_rows(gradient)
            else:
                rows, own = part.rows(self._marked), part.rows(gradient)
            self._update(number, rows, own)

    def _steps(self) -> int:
        return int(self._optimizer.step_count)


def _nothing(*args: object, **kwargs: object) -> None:
    """Fake kernels: the operators only write what they were given."""


ops.register_fakes(dict.fromkeys((BEGIN, UPDATE, UPDATE_MATRICES, MARK_ROWS, UPDATE_ROWS, CATCH_UP), _nothing))
