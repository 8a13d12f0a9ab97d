"""Checkpoints: one safetensors file that carries its architecture, its recipe and all it takes to resume.

Tensors are named `model/…`, `optimizer/…` and so on; everything that is not a tensor is JSON in the file's metadata,
under the key `nnue`. The file is written beside its place and renamed, so a reader never sees half of one; nothing is
pickled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from nnue_trainer.atomic import replacing
from nnue_trainer.errors import UserError

FORMAT_VERSION = 1


@dataclass
class Checkpoint:
    """`architecture` is what `architectures.build` takes; `recipe` the training recipe (None for an imported net);
    `state` JSON data of the trainer (step, loader state, …); `tensors` by group: `tensors["model"]` is a state dict."""

    architecture: dict[str, Any]
    tensors: dict[str, dict[str, Tensor]]
    recipe: dict[str, Any] | None = None
    state: dict[str, Any] = field(default_factory=dict)


def save(path: str | os.PathLike[str], checkpoint: Checkpoint) -> None:
    """Writes `path` atomically. Where that fails (a full disk), the old file stays as it was and UserError says why."""
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
    with replacing(path) as temporary:
        try:
            save_file(flat, temporary, metadata={"nnue": json.dumps(header)})
        except SafetensorError as error:  # how it reports what the system says
            raise OSError(str(error)) from None
        temporary.chmod(0o666 & ~_umask())  # safetensors leaves it readable by its owner alone


def _umask() -> int:
    # There is no way to ask but to set; one process sets it to the same value from any thread.
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def load(path: str | os.PathLike[str], groups: tuple[str, ...] | None = None) -> Checkpoint:
    """Reads a checkpoint, only the named tensor groups if given. Raises UserError for anything that is not one."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such checkpoint")
    try:
        with safe_open(path, framework="pt") as handle:
            header = json.loads((handle.metadata() or {}).get("nnue", "null"))
            if not isinstance(header, Mapping):
                raise UserError(
                    f"{path}: a safetensors file without the metadata key 'nnue', so not a checkpoint of ours"
                )
            if header.get("format_version") != FORMAT_VERSION:
                raise UserError(f"{path}: format_version {header.get('format_version')!r}, expected {FORMAT_VERSION}")
            tensors: dict[str, dict[str, Tensor]] = {}
            for key in handle.keys():  # noqa: SIM118 (safe_open is no mapping)
                group, _, name = key.partition("/")
                if groups is None or group in groups:
                    tensors.setdefault(group, {})[name] = handle.get_tensor(key)
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: not a readable safetensors checkpoint ({error})") from None
    for key, kinds in (("architecture", dict), ("recipe", dict | None), ("state", dict)):
        if not isinstance(header.get(key), kinds):
            raise UserError(f"{path}: metadata {key} is {header.get(key)!r:.80}, expected a mapping")
    return Checkpoint(header["architecture"], tensors, header["recipe"], header["state"])


def load_into(model_tensors: Mapping[str, Tensor], into: nn.Module, path: str | os.PathLike[str]) -> None:
    """Copies `model_tensors` into the module `into`; a missing, unknown or misshapen tensor is a UserError by name, and
    then nothing is copied."""
    own = into.state_dict()
    for name in sorted(own.keys() - model_tensors.keys()):
        raise UserError(f"{path}: tensor model/{name} is missing")
    for name, tensor in model_tensors.items():
        if name not in own:
            raise UserError(f"{path}: tensor model/{name} is unknown to this architecture")
        if own[name].shape != tensor.shape:
            raise UserError(
                f"{path}: tensor model/{name} has shape {list(tensor.shape)}, expected {list(own[name].shape)}"
            )
    into.load_state_dict(dict(model_tensors))
