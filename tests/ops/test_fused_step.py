"""The fused step of whole nets in the emulator of tests/cuda_emulator: against forward and loss apart in float64, also
where several processes have some columns each."""

from __future__ import annotations

import copy
import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
import torch
from fused_loss import memory_of_nan, on_gpu, step_of
from sample_inputs import assert_close
from sample_models import assert_as_apart, make_model
from torch import Tensor
from typed import present

from nnue_trainer.losses import Loss, mean
from nnue_trainer.losses.cross_entropy import CrossEntropyLoss
from nnue_trainer.losses.win_rate import WinRateLoss
from nnue_trainer.modules.layer_stacks import LayerCall
from nnue_trainer.optim import AdamW, Optimizer, fused_operators, fused_optimizer
from nnue_trainer.optim.fused_optimizer import LateRows
from nnue_trainer.training.assembly.steps import StepKind
from nnue_trainer.training.fused_parts import StackKernels
from nnue_trainer.training.parallel.ranks import Ranks
from nnue_trainer.training.parallel.sharding import ShardedColumns
from nnue_trainer.training.step import FusedStep

T = TypeVar("T")

LOSS = WinRateLoss(qp_asymmetry=0.3, weight_boost=1.5)
SIMPLE = {"kind": "simple", "hidden": 48}
LAYERED = {"kind": "layered", "hidden": 48, "layers": [], "output_buckets": {"count": 8}}
SFNNV5 = {"kind": "sfnnv5", "l1": 64}


@pytest.fixture
def emulated_gpu(emulated: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    """Parts of a step take CPU tensors as if they were on an H100."""
    on_gpu(monkeypatch)
    emulated.emulator_configure(4, 7)
    return emulated


def make_step(model: Any, exchange: ShardedColumns | None = None, loss: Loss = LOSS) -> tuple[FusedStep, StackKernels]:
    return step_of(model, loss, 0.8, Optimizer(model, AdamW()), exchange)


def check_step(monkeypatch: pytest.MonkeyPatch, net: dict[str, Any], of: Loss = LOSS) -> str:
    """Loss and gradients of a fused step are those of forward and loss apart in float64. Returns what goes between the
    layers and the transformer."""
    model, batch = make_model(net)
    exact = copy.deepcopy(model).double()
    assert StepKind(of).why_not_fused(model, torch.device("cuda")) is None
    step, stacks = make_step(model, loss=of)
    loss = step.gradients(step.prepare(batch))
    monkeypatch.undo()
    monkeypatch.setattr(LayerCall, "_kernels", lambda *_: "torch")
    gradients: Any = [parameter.grad for parameter in model.parameters()]
    # Gradients of PSQT columns are sums that cancel.
    assert_as_apart(exact, batch, of, torch.tensor(0.8), loss, gradients, tolerance=5e-6)
    return stacks.between


@pytest.mark.parametrize(
    ("net", "between", "of"),
    [
        (SIMPLE, "factors", LOSS),
        (LAYERED, "factors", CrossEntropyLoss()),
        (LAYERED | {"psqt": True}, "whole", LOSS),
        (SFNNV5, "rows", LOSS),
        (SFNNV5, "rows", CrossEntropyLoss()),
    ],
    ids=["simple", "layered", "with PSQT", "sfnnv5", "sfnnv5, cross entropy"],
)
def test_emulated_step(
    emulated_gpu: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, net: dict[str, Any], between: str, of: Loss
) -> None:
    assert check_step(monkeypatch, net, of) == between


ONE_PASS = pytest.mark.parametrize(
    ("hidden", "stacks", "activation", "of"),
    [(48, 8, "crelu", LOSS), (1040, 3, "screlu", CrossEntropyLoss()), (2064, 1, "screlu", LOSS)],
)


def check_one_pass(
    monkeypatch: pytest.MonkeyPatch, device: str, hidden: int, stacks: int, activation: str, of: Loss,
    again: Callable[[], None],
) -> None:  # fmt: skip
    """With 16-bit copies, the loss of a net of one layer makes the gradients of the transformer's rows: one, two and
    four packs per thread. Rows that have a feature twice are in it. `again`: called before the second of two steps,
    whose bits are equal."""
    net = {"activation": activation, "hidden": hidden, "factorised": False, "output_buckets": {"count": stacks}}
    model, batch = make_model(LAYERED | net, device)
    batch.white[::40, 1] = batch.white[::40, 0]
    weight = model.feature_transformer.weight
    weight.data = weight.data.bfloat16().float()
    exact, optimizer, found = copy.deepcopy(model).double(), Optimizer(model, AdamW(), copies=True), []
    for _ in range(2):
        step, kernels = step_of(model, of, 0.8, optimizer)
        assert kernels.between == "rows"
        with memory_of_nan():
            loss = step.gradients(step.prepare(batch))
        trained = [step.first.trained, *list(model.parameters())[1:]]
        found.append([loss, *(present(parameter.grad).clone() for parameter in trained)])
        again()
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    monkeypatch.undo()
    monkeypatch.setattr(LayerCall, "_kernels", lambda *_: "torch")
    lam = torch.tensor(0.8, device=device)
    expected = mean(*of.terms(exact(batch) * exact.score_scale, batch.score, batch.result, lam))
    assert_close(found[0][0], expected, 1e-4, "loss")
    of_exact = torch.autograd.grad(expected, list(exact.parameters()))
    for (name, _), a, b in zip(exact.named_parameters(), found[0][1:], of_exact, strict=True):
        assert_close(a.float(), b, 2e-2 if name == "feature_transformer.weight" else 5e-3, name)


@pytest.mark.slow
@ONE_PASS
def test_emulated_one_pass(
    emulated_gpu: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, hidden: int, stacks: int, activation: str, of: Loss
) -> None:
    def again() -> None:
        emulated_gpu.emulator_configure(4, 50)  # another schedule

    check_one_pass(monkeypatch, "cpu", hidden, stacks, activation, of, again)


@pytest.mark.cuda
@ONE_PASS
def test_cuda_one_pass(
    cuda: torch.device, monkeypatch: pytest.MonkeyPatch, hidden: int, stacks: int, activation: str, of: Loss
) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("those kernels need compute capability 9.0")
    check_one_pass(monkeypatch, "cuda", hidden, stacks, activation, of, torch.cuda.synchronize)


def test_emulated_step_with_a_batch_of_another_forward_pass(emulated_gpu: ctypes.CDLL) -> None:
    """The batch in hand when the rounding begins was prepared without it."""
    model, batch = make_model(SFNNV5)
    before = make_step(model)[0].prepare(batch)
    model.set_rounding(True)
    found = []
    for prepared in (before, batch, model.prepare(batch)):
        loss = make_step(model)[0].gradients(prepared)
        found.append([loss, *(present(parameter.grad).clone() for parameter in model.parameters())])
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(*found, strict=True))


def test_emulated_step_leaves_rows_unwritten(emulated: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the optimiser reads the gradient: rows of features that the batch lacks hold what the memory held."""
    monkeypatch.setattr(fused_optimizer, "HostLateRows", LateRows)
    monkeypatch.setattr(fused_operators, "namespace", torch.ops.nnue_emulated)
    emulated.emulator_configure(4, 7)
    states = []
    for late in (True, False):
        model, batch = make_model(SFNNV5)
        optimizer = Optimizer(model, AdamW(max_norm=0.1), late=late)
        unused = torch.ones(len(model.feature_transformer.weight), dtype=torch.bool)
        for rows in (batch.white, batch.black):
            unused[rows[rows >= 0].long()] = False
        with monkeypatch.context() as patched:
            on_gpu(patched)
            step, _ = step_of(model, LOSS, 0.8, optimizer)
            for number in range(3):
                with memory_of_nan():
                    loss = step.gradients(step.prepare(batch))
                gradient = optimizer.rule.work.parameters["feature_transformer.weight"].grad
                assert gradient is not None
                # In the first step any row may have a gradient, since the weight has been read.
                assert gradient[unused].isnan().any() == (late and number > 0)
                assert not gradient[~unused].isnan().any()
                step.update(loss)
                assert all(parameter.grad is None for parameter in optimizer.rule.work.parameters.values())
        assert not optimizer.failed()
        states.append(model.state_dict() | optimizer.state_dict())
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_hooks_and_other_parameters_take_autograd() -> None:
    """A fused step sets gradients itself: torch's hooks would not be called."""
    kind, device = StepKind(LOSS), torch.device("cpu")
    model, _ = make_model(SIMPLE)
    assert kind.why_not_fused(model, device) is None
    for hooked in (model.feature_transformer, model.output):
        with hooked.register_forward_hook(lambda *_: None):
            assert kind.why_not_fused(model, device) == "hooks watch its layers"
    with model.output.weight.register_hook(lambda *_: None):
        assert kind.why_not_fused(model, device) == "hooks watch its layers"
    model.output.bias.requires_grad_(False)
    assert kind.why_not_fused(model, device) == "some parameters have no gradient"
    model.output.register_parameter("more", torch.nn.Parameter(torch.zeros(1)))
    model.register_parameter("other", torch.nn.Parameter(torch.zeros(1)))
    assert kind.why_not_fused(model, device) == "the net has parameters beside its layers"


class Meeting:
    """Where threads that stand for the processes of a run exchange tensors. One of them works at a time."""

    def __init__(self, size: int):
        self.size, self.turn = size, threading.Lock()
        self._all_here = threading.Barrier(size, timeout=60)
        self._brought: list[Any] = [None] * size

    def exchange(self, rank: int, own: Any) -> list[Any]:
        self._brought[rank] = own
        self.turn.release()
        try:
            self._all_here.wait()
            every = list(self._brought)
            self._all_here.wait()  # no thread brings the next one before all have taken these
        finally:
            self.turn.acquire()
        return every

    def run(self, work: Callable[[Ranks], T]) -> list[T]:
        """The results of `work` for each rank, each in a separate thread."""

        def start(rank: int) -> T:
            with self.turn:
                try:
                    return work(Thread(self, rank))
                except BaseException:
                    self._all_here.abort()
                    raise

        with ThreadPoolExecutor(self.size) as threads:
            return list(threads.map(start, range(self.size)))


class Thread(Ranks):
    """One of the threads of a meeting."""

    def __init__(self, meeting: Meeting, rank: int):
        super().__init__(rank, meeting.size)
        self._meeting = meeting

    @contextmanager
    def reduce_scatter(self, whole: Tensor) -> Iterator[Tensor]:
        total = torch.stack(self._meeting.exchange(self.rank, whole)).sum(0)
        yield total.view(self.size, -1, *whole.shape[1:])[self.rank].clone()

    def all_gather_each(self, parts: Sequence[Tensor]) -> list[Tensor]:
        every = self._meeting.exchange(self.rank, list(parts))
        return [torch.stack(of_all) for of_all in zip(*every, strict=True)]


def check_columns(model: Any, batch: Any, size: int) -> tuple[Tensor, list[Tensor]]:
    """The loss and the gradients of all ranks together."""

    def work(ranks: Ranks) -> tuple[ShardedColumns, Tensor, dict[str, Tensor | None]]:
        own = copy.deepcopy(model)
        sharding = ShardedColumns(ranks, own, len(batch))
        step, stacks = make_step(own, sharding)
        assert stacks.between == ("rows" if own.stacks.hidden else "whole")
        found = step.gradients(step.prepare(batch))
        return sharding, found, {name: parameter.grad for name, parameter in own.named_parameters()}

    shardings, losses, gradients = zip(*Meeting(size).run(work), strict=True)
    whole: list[Tensor] = []
    for name, first in gradients[0].items():
        every, split = [of_rank[name] for of_rank in gradients], shardings[0].splits.get(name)
        if split is None:  # all ranks have this parameter, and must have the same gradient
            assert all(torch.equal(first, other) for other in every), name
        whole.append(
            first if split is None else split.join([split.padded(part, rank) for rank, part in enumerate(every)])
        )
    assert all(torch.equal(losses[0], other) for other in losses)
    return losses[0], whole


DEEP = LAYERED | {
    "activation": "pairwise", "psqt": True, "output_buckets": {"count": 4},
    "layers": [
        {"outputs": 8, "activation": "dual", "skip": "last", "to_output": True},
        {"outputs": 6, "activation": "none", "skip": "difference", "skip_activated": True},
        {"outputs": 5, "activation": "screlu"},
    ],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("net", "size"),
    [
        *((SFNNV5 | {"l1": 64 * size}, size) for size in (1, 2, 3)),
        (LAYERED | {"hidden": 64, "psqt": True}, 2),
        (DEEP | {"hidden": 128}, 2),
    ],
    ids=["one", "two", "three", "one layer", "deep"],
)
def test_emulated_columns(
    emulated_gpu: ctypes.CDLL, net: dict[str, Any], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = make_model(net)
    exact = copy.deepcopy(model).double()
    loss, gradients = check_columns(model, batch, size)
    monkeypatch.undo()
    monkeypatch.setattr(LayerCall, "_kernels", lambda *_: "torch")
    assert_as_apart(exact, batch, LOSS, torch.tensor(0.8), loss, gradients, tolerance=5e-6)


@pytest.mark.cuda
@pytest.mark.parametrize("size", [1, 2, 3])
def test_cuda_columns(cuda: torch.device, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("those kernels need compute capability 9.0")
    model, batch = make_model(SFNNV5 | {"l1": 256 * size}, "cuda")
    exact = copy.deepcopy(model).double()
    loss, gradients = check_columns(model, batch, size)
    monkeypatch.setattr(LayerCall, "_kernels", lambda *_: "torch")
    assert_as_apart(exact, batch, LOSS, torch.tensor(0.8, device="cuda"), loss, gradients)


@pytest.mark.cuda
@pytest.mark.parametrize(
    "net", [SIMPLE, LAYERED, LAYERED | {"psqt": True}, SFNNV5], ids=["simple", "layered", "with PSQT", "sfnnv5"]
)
def test_cuda_step(cuda: torch.device, monkeypatch: pytest.MonkeyPatch, net: dict[str, Any]) -> None:
    model, batch = make_model(net, "cuda")
    exact = copy.deepcopy(model).double()
    loss = make_step(model)[0].gradients(batch)
    gradients: Any = [parameter.grad for parameter in model.parameters()]
    monkeypatch.setattr(LayerCall, "_kernels", lambda *_: "torch")
    assert_as_apart(exact, batch, LOSS, torch.tensor(0.8, device="cuda"), loss, gradients, tolerance=5e-6)
