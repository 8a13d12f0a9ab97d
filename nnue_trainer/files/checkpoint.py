"""Checkpoints: one safetensors file with architecture, recipe and everything that resuming needs.

Tensors are named `model/…`, `optimizer/…` and so on; everything that is not a tensor is JSON in the file's metadata,
under the key `nnue`. `files.atomic` writes the file, so a reader never finds half of one; nothing is pickled.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
from pydantic import Field
from safetensors import safe_open
from torch import Tensor, nn

from nnue_trainer import schema
from nnue_trainer.base import system
from nnue_trainer.errors import UserError, shown
from nnue_trainer.files.atomic import replacing
from nnue_trainer.schema import section

__all__ = ["Checkpoint", "load", "load_into", "save"]

FORMAT_VERSION = 1
_PIECE = 1 << 26  # bytes that are written at a time
_DEEPEST = 32  # levels of nesting in the metadata; a recipe has four
_COUNT = 2**62  # beyond the steps of the longest recipe, 2^60

# Names of the safetensors format, in the order in which its own writer lays tensors out: widest first.
_DTYPES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@section
class TrainerState:
    """The state of a training run beside tensors. Fields with a default are missing in checkpoints of
    earlier versions."""

    batches: dict[str, Any]
    """state of the stream of batches without its tensors (`Checkpoint.stream`), which checks it on loading"""
    step: int = Field(ge=0, lt=_COUNT)
    """steps done"""
    validation_loss: float | None = None
    """loss of the last validation; None: there was none, or it was not finite"""
    best_validation_loss: float | None = None
    """the loss of the best validation so far"""
    best_value: float | None = None
    """its figure `training.best_by`"""
    best_step: int | None = Field(default=None, ge=0, lt=_COUNT)
    """the step after which it was"""
    epoch: int | None = Field(default=None, ge=1, lt=_COUNT)
    """this is the checkpoint of the end of that epoch; None: of a step in between"""
    epoch_end_pending: bool = False
    """the step is the last of an epoch, but the run ended before the validation that comes after it"""
    steps_per_epoch: int | None = Field(default=None, ge=1, lt=_COUNT)
    """it decides which epoch a step belongs to"""
    stage: int = Field(default=0, ge=0, lt=_COUNT)
    """the stage of the run, counted from 0"""
    stage_first_step: int = Field(default=0, ge=0, lt=_COUNT)
    """steps of the run before that stage"""
    validation_files: list[Any] | None = None
    """the identities of the validation files"""
    validation_contents: list[Any] | None = None
    """of early versions; unused"""
    figure: dict[str, Any] | None = None
    """the definition of the validation loss; only losses with the same definition can be compared"""
    callbacks: list[dict[str, Any]] = Field(default_factory=list)
    """the state of callbacks, by kind"""
    stopped: str = ""
    """why a callback ended the run before its last step; "" if none did"""
    bad_chunks: int = Field(default=0, ge=0, lt=_COUNT)
    """damaged chunks of the training files that the run has left out"""
    window_steps: int = Field(default=0, ge=0, lt=_COUNT)
    """steps since the last record of metrics"""
    window_loss: float = 0.0
    """the sum of their losses"""
    device: str | None = None
    """cpu or cuda"""
    cpu_threads: int | None = Field(default=None, ge=1, lt=_COUNT)
    """threads of torch: the order in which a CPU adds numbers depends on it"""
    processes: int = Field(default=1, ge=1, lt=_COUNT)
    """processes that train together; the order in which they add numbers depends on it"""
    plugins: dict[str, str] = Field(default_factory=dict)
    """files that classes from outside came from, by name, with the SHA-256 of each"""
    environment: dict[str, str] = Field(default_factory=dict)
    """versions and device, in words"""


_ONLY_RESUMES = ("callbacks", "stopped", "epoch_end_pending", "window_steps", "window_loss", "validation_contents")
"""fields of a `TrainerState` that only a resume reads"""


@section
class NetOrigin:
    """The data of an imported net beside its weights."""

    name: str
    description: str
    """one character per byte"""
    layout: str = Field(max_length=80)
    """the name of one of the net's layouts, which export checks"""
    head: str = Field(default="", max_length=2**21, pattern=r"^([0-9a-f]{2})*$")
    """of a raw net: the bytes before its first tensor, in hexadecimal"""
    tail: str = Field(default="", max_length=2**13, pattern=r"^([0-9a-f]{2})*$")
    """the same of the bytes after the last one"""


@section
class _ImportedState:
    net: NetOrigin | None = None


@dataclass
class Checkpoint:
    """The content of a checkpoint file.

    `architecture` is the argument of `nets.build`, `recipe` the training recipe (None for an imported net), `state` the
    JSON data of a `TrainerState` or of an imported net. `tensors` has groups: `tensors["model"]` is a state dict.
    """

    architecture: dict[str, Any]
    tensors: dict[str, dict[str, Tensor]]
    recipe: dict[str, Any] | None = None
    state: dict[str, Any] = field(default_factory=dict)

    def stream(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """The state of the stream of batches, with its tensors, which are the group `batches`."""
        return self.trainer_state(path).batches | self.tensors.get("batches", {})

    @property
    def resumes(self) -> bool:
        """Whether a training can continue from it: `of_net` leaves out what that needs."""
        return "optimizer" in self.tensors

    def of_net(self) -> Checkpoint:
        """The part that exports and compares: the net, the recipe, and the numbers of the run. The tensors are
        shared."""
        tensors = {group: of for group, of in self.tensors.items() if group in ("model", "net")}
        state = {key: value for key, value in self.state.items() if key not in _ONLY_RESUMES}
        return Checkpoint(self.architecture, tensors, self.recipe, state | {"batches": {}})

    def trainer_state(self, path: str | os.PathLike[str]) -> TrainerState:
        """The state of a training run; UserError naming `path` where this is none."""
        if "step" not in self.state:
            raise UserError(f"{path}: holds weights only; start from it with training.initial_weights={path}")
        return schema.validate(TrainerState, self.state, lambda _: f"{path}: metadata state")


def save(path: str | os.PathLike[str], checkpoint: Checkpoint, check: Callable[[], None] = lambda: None) -> None:
    """Writes `path` atomically. UserError if that fails (disk full); the old file is kept. `check`: as in
    `files.atomic.OutputFile`."""
    header = {
        "format_version": FORMAT_VERSION,
        "architecture": checkpoint.architecture,
        "recipe": checkpoint.recipe,
        "state": checkpoint.state,
    }
    flat = {
        f"{group}/{name}": tensor.detach().cpu().contiguous()
        for group, tensors in checkpoint.tensors.items()
        for name, tensor in tensors.items()
    }
    with replacing(path, check) as output:
        _write_tensors(output.file, flat, {"nnue": json.dumps(header, allow_nan=False)})


def _write_tensors(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Writes the same bytes as safetensors' `save_file`. That function always makes its own temporary file with its own
    permissions, and `save` holds all bytes in memory at once."""
    order = list(_DTYPES)
    largest_first = sorted(tensors, key=lambda name: (order.index(tensors[name].dtype), name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name in largest_first:
        tensor = tensors[name]
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in largest_first:
        tensor = tensors[name]
        if tensor.numel():
            data = tensor.contiguous().view(-1).view(torch.uint8).numpy().data
            for begin in range(0, len(data), _PIECE):
                file.write(data[begin : begin + _PIECE])
                with contextlib.suppress(OSError, ValueError):  # a file in memory has no descriptor
                    system.start_writing(file.fileno())


def of_run(folder: Path) -> Path:
    """The checkpoint of a run that its weights are taken from: the best one, or else the last, as the report at the end
    of a training gives. UserError for a folder of something else."""
    candidates = [folder / "checkpoints" / f"{name}.safetensors" for name in ("best", "last")]
    for path in candidates:
        if path.exists():
            return path
    raise UserError(f"{folder}: not the folder of a run: expected {candidates[1].relative_to(folder)} in it")


def load(path: str | os.PathLike[str], groups: tuple[str, ...] | None = None) -> Checkpoint:
    """Reads a checkpoint, only the named tensor groups if given. Raises UserError for anything that is not one."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such checkpoint")
    if path.suffix == ".nnue":
        raise UserError(f"{path}: found a net, expected a checkpoint; `nnue import` makes one from a net")
    try:
        with safe_open(path, framework="pt") as handle:
            header = _header(path, handle.metadata() or {})
            tensors: dict[str, dict[str, Tensor]] = {}
            for key in handle.keys():  # noqa: SIM118 (not a mapping)
                group, _, name = key.partition("/")
                if groups is None or group in groups:
                    tensors.setdefault(group, {})[name] = handle.get_tensor(key)
    except UserError:
        raise
    except MemoryError:
        raise UserError(f"{path}: too large to be read into memory") from None
    except Exception as error:  # safetensors raises many types for a damaged file: OSError, KeyError, its own, …
        raise UserError(f"{path}: not a readable safetensors checkpoint ({shown(error)})") from None
    saved = Checkpoint(header["architecture"], tensors, header.get("recipe"), header["state"])
    if "step" in saved.state:
        saved.trainer_state(path)
    else:
        schema.validate(_ImportedState, saved.state, lambda _: f"{path}: metadata state")
    return saved


def _header(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Everything that is not a tensor. A file may hold anything: types are checked here, and nowhere else."""
    try:
        # NaN and Infinity are not JSON; checkpoints of early versions have them where a loss was not finite.
        header = json.loads(metadata.get("nnue", "null"), parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: metadata is not JSON ({shown(error)})") from None
    if not isinstance(header, dict):
        raise UserError(
            f"{path}: a safetensors file without the metadata key 'nnue', so not a checkpoint of torch-nnue"
        )
    version = header.get("format_version")
    if version != FORMAT_VERSION or not isinstance(version, int):
        raise UserError(f"{path}: format_version {version!r:.80}, expected {FORMAT_VERSION}")
    for key, kinds in (("architecture", dict), ("recipe", dict | None), ("state", dict)):
        if not isinstance(header.get(key), kinds):
            raise UserError(f"{path}: metadata {key} is {header.get(key)!r:.80}, expected a mapping")
    level: list[Any] = [header]
    for _ in range(_DEEPEST):
        inner = (value.values() if isinstance(value, dict) else value for value in level)
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
    if level:
        raise UserError(f"{path}: metadata is nested more than {_DEEPEST} levels deep")
    return header


def load_into(model_tensors: Mapping[str, Tensor], into: nn.Module, path: str | os.PathLike[str]) -> None:
    """Copies `model_tensors` into the module `into`; a tensor that is missing, unknown, or of another shape or dtype is
    a UserError by name, and then nothing is copied. What only training has (`Net.training_only`) may be missing."""
    own = into.state_dict()
    optional = tuple(getattr(getattr(into, "net", None), "training_only", ()))
    for name in sorted(own.keys() - model_tensors.keys()):
        if not name.startswith(optional):
            raise UserError(f"{path}: tensor model/{name} is missing")
    for name, tensor in model_tensors.items():
        if name not in own:
            raise UserError(f"{path}: tensor model/{shown(name)} does not belong to this architecture")
        check_like(tensor, own[name], f"{path}: tensor model/{name}")
    into.load_state_dict(own | dict(model_tensors))


def check_like(found: Tensor, expected: Tensor, what: str) -> None:
    """UserError that starts with `what` if shape or dtype differ."""
    if found.shape != expected.shape:
        raise UserError(f"{what} has shape {list(found.shape)}, expected {list(expected.shape)}")
    if found.dtype != expected.dtype:
        raise UserError(f"{what} is {found.dtype}, expected {expected.dtype}")
