"""Calls of every operator that has kernels on the CPU, recorded from the public functions that make them.

Used by the soak and the attack of tests/faults/test_operators.py, and by their tools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from nnue_trainer import ops, stats
from nnue_trainer.base import _library
from nnue_trainer.data import RecordLoader
from nnue_trainer.modules.layer_stacks import Integers, LayerStacks
from nnue_trainer.modules.stacked_linear import StackedLinear
from nnue_trainer.modules.straight_through import Steps, integer_parameters
from nnue_trainer.ops import functional, perspectives
from nnue_trainer.ops.reference import Activation, StackLayer
from nnue_trainer.optim.fused_optimizer import FusedOptimizer
from nnue_trainer.optim.parts import Part
from nnue_trainer.optim.update_rule import UpdateRule
from nnue_trainer.stats import graph, matrix, random

ROOT = Path(__file__).resolve().parents[2]
_MOST = 4  # calls of one operator that are kept

# Made once per process, or for CUDA only.
LEFT_OUT = {"add_cuda_feature_set", "add_feature_set", "name_cuda_feature_set"}


@dataclass
class Call:
    """One call of `torch.ops.nnue.NAME`. Its tensors are copies of those it was made with."""

    name: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]

    @property
    def operator(self) -> Any:
        return getattr(torch.ops.nnue, self.name).default

    def __call__(self) -> Any:
        return self.operator(*self.arguments, **self.keywords)

    def with_all_arguments(self) -> tuple[list[str], list[Any]]:
        """Names and values of the arguments, defaults among them."""
        schema = self.operator._schema.arguments
        given = dict(zip((a.name for a in schema), self.arguments, strict=False)) | self.keywords
        return [a.name for a in schema], [given.get(a.name, a.default_value) for a in schema]


def copied(value: Any) -> Any:
    return tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, value)


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, list[Call]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "nnue":
            kept = self.calls.setdefault(func.__name__.partition(".")[0], [])
            kept.append(Call(func.__name__.partition(".")[0], copied(tuple(args)), copied(kwargs)))
        return func(*args, **kwargs)


def operators_of_the_cpu() -> list[str]:
    """The names of all operators that a CPU build has kernels of."""
    _library.require()
    names = (name.partition("::")[2] for name in torch._C._dispatch_get_all_op_names() if name.startswith("nnue::"))

    def has_kernel(name: str) -> bool:
        keys = ("CPU", "CompositeExplicitAutograd")
        return any(torch._C._dispatch_has_kernel_for_dispatch_key(f"nnue::{name}", key) for key in keys)

    return sorted(name for name in names if has_kernel(name))


def _index_rows(generator: torch.Generator, features: int) -> Tensor:
    found = torch.randint(0, features, (6, 4), generator=generator, dtype=torch.int32)
    found[1, 2:] = -1
    return found


def _feature_transformers(g: torch.Generator) -> None:
    white, black = _index_rows(g, 24), _index_rows(g, 24)
    weight, bias = (torch.randn(*shape, generator=g).requires_grad_() for shape in ((24, 16), (16,)))
    values = torch.randn(6, 4, generator=g, requires_grad=True)
    functional.feature_transformer(white, weight, bias, values).sum().backward()
    functional.feature_transformer(white, weight, bias).sum().backward()
    side, bucket = torch.tensor([0, 1] * 3, dtype=torch.uint8), torch.arange(6) % 3
    psqt = torch.randn(24, 3, generator=g, requires_grad=True)
    ways: dict[Activation, bool] = {"pairwise": True, "screlu": False, "identity": False}
    for activation, sparse in ways.items():
        out, sums = perspectives.perspective_transformer(
            white, black, side, weight, bias, activation=activation, psqt=psqt, psqt_bucket=bucket, sparse_grad=sparse
        )
        (out.sum() + sums.sum()).backward()
        weight.grad = None


def _expansion(_: torch.Generator) -> None:
    records = next(iter(RecordLoader([ROOT / "samples" / "val.binpack"], 8, seed=1)))
    for name in ("HalfKAv2_hm", "HalfKAv2_hm+Full_Threats_v16"):
        ops.expand_features_into(records, name, ops.expand_features(records, name))
    torch.ops.nnue.name_feature_set(torch.tensor(list(b"HalfKAv2_hm"), dtype=torch.uint8))
    torch.ops.nnue.enumerations(), torch.ops.nnue.stats_enumerations()


def _optimizers(g: torch.Generator) -> None:
    lookahead = UpdateRule("positive_negative", eps=1e-7, lookahead_every=5)
    for rule, late in ((UpdateRule(), ()), (UpdateRule(), ("w",)), (lookahead, ("w",))):
        weight, bias = nn.Parameter(torch.randn(120, 5, generator=g)), nn.Parameter(torch.randn(5, generator=g))
        parts = [Part("w", weight, 0, 80, virtual_rows=8), Part("w", weight, 80, 40), Part("b", bias)]
        optimizer = FusedOptimizer(parts, rule, torch.tensor(0.01), 2.0, late=late, covered=["w"])
        if late:
            optimizer.norm_of = lambda parts, norm: norm(parts)[None]  # as with several processes
        for _step in range(20):
            for rows_ in optimizer.late_rows.values():
                rows_.catch_up(_index_rows(g, 120), _index_rows(g, 120))
            weight.grad, bias.grad = torch.ones_like(weight), torch.ones_like(bias)
            optimizer.step(torch.tensor(1.0))
        optimizer.settle()


def _windows(g: torch.Generator) -> None:
    x, y = torch.randn(2, 40, generator=g), torch.randn(2, 40, generator=g, dtype=torch.float64)
    rolling = stats.rolling(x, 7, min_periods=2)
    for name in ("mean", "std", "kurt", "max", "median"):
        getattr(rolling, name)()
    stats.rolling(y, 7).corr(y.flip(1))
    stats.ewm(x, span=5).mean()
    stats.ewm(y, span=5, adjust=False).var()
    numbers = random.Philox(1)
    numbers.normal((9,))
    numbers.integers(0, 9, (9,))
    matrix.norms(x)
    matrix.transpose(x)
    stats.RowFunction("return x.sum([](double v) { return v * v; });")(x)
    product = "return a.sum([&](double v) { return b.sum([=](double u) { return u * v; }); });"
    stats.RowFunction(product, inputs=("a", "b"))(x, x[0])


def _graphs(g: torch.Generator) -> None:
    active = torch.rand(70, 6, generator=g) < 0.5
    bits = graph.pack_bits(active)
    graph.bit_counts(bits)
    graph.bit_counts(bits, bits[:4])
    counts = graph.Graph.from_counts(graph.bit_counts(bits))
    graph.pagerank_walks(counts, 32)


def _layers(g: torch.Generator) -> None:
    layer = StackedLinear(3, 8, 16)
    x = torch.randn(6, 8, generator=g, requires_grad=True)
    layer(x, torch.arange(6) % 3).sum().backward()
    for shape, steps in (((8, 16), Steps(0, 8, 64.0, 127, False)), ((5,), Steps(0, 5, 9600.0, 2**31 - 1, True))):
        (found,) = integer_parameters([torch.randn(shape, generator=g).requires_grad_()], [[steps]])
        found.sum().backward()


def _kernels(_: torch.Generator) -> None:
    """Directly, because Python keeps what the table has answered."""
    operators, machine = torch.ops.nnue, [89, 128, 7, 3]
    layers = LayerStacks(64, 8, (StackLayer(16, 15, "dual", 1.0), StackLayer(32, 32, "crelu", 1.0)), Integers())
    operators._kernel_reasons()
    operators._transformer_kernels(machine, torch.float32, 768, 64, 768, 768, torch.float32)
    operators._stack_kernels(machine, *layers.numbers, torch.bfloat16, torch.float32, True, False, 0)
    operators._layer_kernels(machine, torch.float32, torch.float32, 0)
    operators._gradient_between(3, 2, torch.bfloat16, torch.bfloat16, 64, 1, 3, 1.0, False, False, True)
    operators._row_update(machine, 60_000, 3, 16_384)
    operators._matrix_step(machine, 16, 1024)


WORK: list[Callable[[torch.Generator], None]] = [
    _feature_transformers, _expansion, _optimizers, _windows, _graphs, _layers, _kernels,
]  # fmt: skip


def recorded_calls() -> dict[str, list[Call]]:
    """A few different calls of each operator: the last ones, when an optimiser has the most to do."""
    recorder = _Recorder()
    with recorder:
        for work in WORK:
            work(torch.Generator().manual_seed(1))
    found = {}
    for name, calls in recorder.calls.items():
        step = max(len(calls) // _MOST, 1)
        found[name] = calls[::-step][:_MOST]
    return found
