"""torch.set_default_device and torch.set_default_dtype change nothing in this package."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import last, split_sample, written
from torch.utils._device import _device_constructors

from nnue_trainer import data, nets, ops, stats
from nnue_trainer.config import load
from nnue_trainer.training.run import train

MAKERS = {function.__name__ for function in _device_constructors()} | {"Generator"}
WITH_DTYPE = {"empty", "eye", "linspace", "ones", "rand", "randn", "zeros"}  # float32 only by default


def unnamed(source: str, is_module: bool = False) -> Iterator[tuple[int, str]]:
    """(line, argument) where a call of torch makes a tensor and leaves that argument to torch's defaults.
    `is_module`: an nn.Module takes `device=None` for the default, as torch's own do; `nets.build` sets that."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arguments) and not is_module:
            named: list[tuple[ast.arg, ast.expr | None]] = [
                *zip(reversed(node.args), reversed(node.defaults), strict=False)
            ]
            named += zip(node.kwonlyargs, node.kw_defaults, strict=True)
            for argument, default in named:
                annotation = ast.unparse(argument.annotation) if argument.annotation else ""
                if "torch.device" in annotation and default is not None and ast.unparse(default) == "None":
                    yield argument.lineno, "device"  # torch takes None for its own default
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        made, given = ast.unparse(node.func), {keyword.arg for keyword in node.keywords}
        if (made.startswith("torch.") and node.func.attr in MAKERS) or made == "nn.Linear":
            if "device" not in given:
                yield node.lineno, "device"
            if "dtype" not in given and (node.func.attr in WITH_DTYPE or made == "nn.Linear"):
                yield node.lineno, "dtype"


def test_the_package_names_the_device_of_each_tensor_that_it_makes(project_root: Path) -> None:
    found = [
        f"{path.relative_to(project_root)}:{line}: names no {what} (device=, dtype=)"
        for path in sorted((project_root / "nnue_trainer").rglob("*.py"))
        for line, what in unnamed(path.read_text(), path.parent.name == "modules")
    ]
    assert not found, "\n".join(found)


def test_the_rule_finds_what_it_is_for() -> None:
    assert list(unnamed("torch.zeros(3)")) == [(1, "device"), (1, "dtype")]
    assert list(unnamed("a = torch.arange(3)")) == [(1, "device")]
    assert list(unnamed("nn.Linear(3, 1, device=None, dtype=torch.float32)")) == []
    assert list(unnamed("def f(a, *, device: torch.device | None = None): pass")) == [(1, "device")]
    assert list(unnamed("def f(a=None, device: torch.device = 'cpu'): pass")) == []
    assert list(unnamed("torch.zeros_like(x), torch.from_numpy(y), np.zeros(3)")) == []


@pytest.fixture
def odd_defaults() -> Iterator[None]:
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def folder(project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return split_sample(project_root, tmp_path_factory.mktemp("runs"), 1000, 250)


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        ({"kind": "layered", "hidden": 16, "psqt": True}, {"kind": "adamw", "lr": 0.005}),
        ({"kind": "simple", "hidden": 16}, {"kind": "torch", "name": "Adam", "lr": 0.005}),
    ],
)
def test_trainings_are_the_same(
    folder: Path,
    tmp_path: Path,
    model: dict[str, object],
    optimizer: dict[str, object],
    request: pytest.FixtureRequest,
) -> None:
    path = written(tmp_path / "r.yaml", folder, model=model, optimizer=optimizer, training={"epochs": 1})
    train(load(path), tmp_path / "plain")
    request.getfixturevalue("odd_defaults")
    train(load(path), tmp_path / "odd")
    one, other = last(tmp_path / "plain").tensors, last(tmp_path / "odd").tensors
    assert one.keys() == other.keys()
    for group, tensors in one.items():
        assert tensors.keys() == other[group].keys()
        for name, tensor in tensors.items():
            found = other[group][name]
            assert torch.equal(found, tensor), f"{group}/{name}"
            assert found.dtype == tensor.dtype, f"{group}/{name}"


@pytest.mark.usefixtures("odd_defaults")
def test_batches_expansion_evaluation_and_statistics(folder: Path, project_root: Path) -> None:
    file = folder / "val.binpack"
    batch = next(iter(data.Loader(file, "HalfKAv2_hm", 100, shuffle=False)))
    records = next(iter(data.RecordLoader(file, 100, shuffle=False)))
    assert batch.white.is_cpu
    assert torch.equal(batch.white, ops.expand.Expander("HalfKAv2_hm", "cpu")(records).white)
    assert torch.equal(batch.white, data.expand(records.numpy(), "HalfKAv2_hm").white)
    for architecture in ({"kind": "simple", "hidden": 16}, {"kind": "sfnnv16", "l1": 32}):
        model = nets.build(architecture)
        assert all(each.is_cpu and each.dtype == torch.float32 for each in model.parameters())
    assert model(data.expand(records.numpy(), model.feature_set)).dtype == torch.float32
    assert stats.rolling(np.arange(5.0), 2).mean()[-1] == 3.5
    assert stats.random.Philox(1).uniform(3).is_cpu
    ends = torch.tensor([[0, 1, 2], [1, 2, 3]], device="cpu")
    graph = stats.graph.Graph.from_edges(4, ends[0], ends[1], undirected=True)
    assert len(stats.graph.densest_subgraph(graph, 2).nodes) == 2
