"""Recipes: a YAML file, checked against typed sections, with overrides from the command line.

Every field is documented where it is declared; `reference()` prints them all.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field

from nnue_trainer import schema
from nnue_trainer.architectures.config import Architecture
from nnue_trainer.data.filters import Filters
from nnue_trainer.errors import UserError
from nnue_trainer.losses import LossConfig
from nnue_trainer.optim import OptimizerConfig
from nnue_trainer.schema import section
from nnue_trainer.training.schedule import Exponential, ScheduleConfig


@section
class DataConfig:
    """Where positions come from."""

    train: list[str] = Field(min_length=1)
    """files to train on, relative to the working directory; read again from the start when they end"""
    validation: list[str] = Field(default_factory=list)
    """files of held-out positions, filtered alike; none: no validation loss"""
    validation_positions: int = Field(1_000_000, gt=0)
    """positions of the validation files to use, the first that pass; always the same ones"""
    filters: Filters = Field(default_factory=Filters)
    batch_size: int = Field(16_384, gt=0, le=2**24)
    """positions in a step"""
    shuffle_buffer: int = Field(4_194_304, ge=0)
    """positions that are mixed at a time, 64 bytes of memory each; 0: file order"""
    threads: int = Field(0, ge=0, le=1024)
    """threads that read and expand positions; 0: one a CPU. Changes the speed only, never the order"""


@section
class TrainingConfig:
    """How long, on what, and what is kept."""

    epochs: int = Field(800, gt=0)
    """an epoch is a number of positions, not a pass over the files"""
    positions_per_epoch: int = Field(100_000_000, gt=0)
    """rounded up to whole batches"""
    seed: int = Field(42, ge=0, lt=2**63)
    """of initial weights and sample order"""
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """auto (cuda if there is one), cpu, cuda or cuda:N"""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """fp32; tf32: matrix products of fp32 numbers in TF32 (CUDA); bf16: layers after the feature transformer under
    bfloat16 autocast, weights stay fp32"""
    deterministic: bool = True
    """the same recipe on the same machine gives the same bits; off: allow faster kernels that do not"""
    compile: bool = False
    """compile the model with torch.compile"""
    cuda_graph: bool | None = None
    """replay the whole step as one CUDA graph; null: wherever the device is CUDA"""
    initial_weights: str | None = None
    """checkpoint whose weights to start from; everything else starts afresh"""
    validate_every: int = Field(1, gt=0)
    """epochs between validations"""
    checkpoint_every: int = Field(1, gt=0)
    """epochs between checkpoints"""
    keep_last: int = Field(3, gt=0)
    """how many of the newest checkpoints to keep; last and best are kept in any case"""


@section
class LoggingConfig:
    """What is written down along the way."""

    every_steps: int = Field(100, gt=0)
    """steps between two records of loss, speed and memory"""
    tensorboard: bool = True
    """write TensorBoard events next to metrics.jsonl"""


@section
class Recipe:
    """All of a training run."""

    model: Architecture
    data: DataConfig
    loss: LossConfig
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = Field(default_factory=Exponential)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    logging: LoggingConfig = Field(default_factory=LoggingConfig)


def load(path: str | os.PathLike[str], overrides: Iterable[str] = ()) -> Recipe:
    """The recipe in a YAML file. UserError, one line, for an unreadable file, an unknown key or a wrong value."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8") from None
    return parse(_read_yaml(text, str(path)), overrides, str(path))


def parse(data: Any, overrides: Iterable[str] = (), origin: str = "recipe") -> Recipe:
    """The recipe in plain data, with `dotted.key=value` overrides whose values are YAML. An override replaces the
    value or whole section of its key."""
    if not isinstance(data, dict):
        raise UserError(f"{origin}: found {type(data).__name__}, expected the sections of a recipe")
    origins: dict[tuple[str, ...], str] = {}
    for override in overrides:
        name = f"override {override!r}"
        key, equals, text = override.partition("=")
        if not equals or not re.fullmatch(r"\w+(\.\w+)*", key):
            raise UserError(f"{name}: expected key=value, such as optimizer.lr=1e-3")
        path = tuple(key.split("."))
        origins |= {path[:n]: name for n in range(1, len(path)) if not _holds(data, path[:n])}
        data = _replace(data, path, _read_yaml(text, name))
        origins[path] = name
    # Keys are looked up from the innermost out: the last one to have set a value is the one to blame.
    return schema.validate(
        Recipe,
        data,
        lambda path: next((origins[path[:n]] for n in range(len(path), 0, -1) if path[:n] in origins), origin),
    )


def to_yaml(recipe: Recipe) -> str:
    """Every field, defaults included; `load` reads it back as the same recipe."""
    return yaml.safe_dump(schema.to_data(recipe), sort_keys=False, allow_unicode=True, width=120)


def reference() -> str:
    """All fields of a recipe with type, default and meaning, for people to read."""
    lines = []
    for key, kind, default, text in schema.describe(Recipe):
        head = f"{key} {kind}" if kind.startswith("=") else f"{key}: {kind}"
        if default:
            head += f" [{default}]"
        lines.append(f"{head}\n    {text}" if text else head)
    return "\n".join(lines)


class _Loader(yaml.SafeLoader):
    """YAML as people mean it: 1e-3 is a number, and a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key must be a word", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key.value!r} is given twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in ("tag:yaml.org,2002:float",)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(\d[\d_]*(\.[\d_]*)?([eE][-+]?\d+)?|\.\d[\d_]*([eE][-+]?\d+)?|\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)


def _read_yaml(text: str, origin: str) -> Any:
    try:
        data = yaml.load(text, Loader=_Loader)
        json.dumps(data, default=str)  # refuses data that holds itself
        return data
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise UserError(f"{origin}{where}: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date such as 2024-99-99
        raise UserError(f"{origin}: {' '.join(str(error).split())}") from None


def _holds(data: Any, path: tuple[str, ...]) -> bool:
    for part in path:
        if not isinstance(data, dict) or part not in data:
            return False
        data = data[part]
    return True


def _replace(data: dict[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    head, *rest = path
    if rest:
        inner = data.get(head)
        value = _replace(inner if isinstance(inner, dict) else {}, rest, value)
    return {**data, head: value}
