"""From a recipe to a trained net: builds the parts, finds what to resume, and hands over to the loop."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from nnue_trainer import architectures, checkpoint, config, ops, schema
from nnue_trainer.architectures.base import NnueModel
from nnue_trainer.atomic import replacing
from nnue_trainer.checkpoint import Checkpoint
from nnue_trainer.config import Recipe
from nnue_trainer.data import Batch, Filters, Loader, RecordLoader
from nnue_trainer.data.device import Expander
from nnue_trainer.errors import UserError
from nnue_trainer.training.trainer import Summary, Trainer


def train(recipe: Recipe, run_dir: Path, *, resume: str | None = None, overwrite: bool = False) -> Summary:
    """Trains as `recipe` says and writes everything into `run_dir`.

    `resume`: "auto" continues the run in `run_dir` if there is one; a path continues from that checkpoint, or from the
    last one of that run directory. Raises UserError for what the user can mend.
    """
    saved, path = find_resumed(resume, run_dir)
    if saved is not None:
        check_resumable(recipe, saved, path)
    own = saved is not None and path.resolve().parent == (run_dir / "checkpoints").resolve()
    if (run_dir / "recipe.yaml").exists() and not (own or overwrite or resume == "auto"):
        raise UserError(
            f"{run_dir}: already holds a run; --resume auto continues it, --run-dir DIR starts another, --overwrite "
            "replaces it"
        )
    device = choose_device(recipe.training.device)
    set_up_torch(recipe, device)
    model = architectures.build(recipe.model).to(device)
    if recipe.training.initial_weights and saved is None:
        weights = checkpoint.load(recipe.training.initial_weights, groups=("model",))
        checkpoint.load_into(weights.tensors.get("model", {}), model, recipe.training.initial_weights)
    batches = training_batches(recipe, model, device)
    trainer = Trainer(recipe, model, batches, validation_batches(recipe, model, device), run_dir)
    if saved is not None:
        trainer.resume(saved, path)
    # A file that is missing or no data ends the run before it writes anything.
    trainer.batches.open()
    if trainer.validation is not None:
        next(iter(trainer.validation()), None)
    if overwrite:
        clear(run_dir)
    with replacing(run_dir / "recipe.yaml") as temporary:
        temporary.write_text(config.to_yaml(recipe), encoding="utf-8")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"{run_dir}: {recipe.model.kind} with {parameters:,} parameters on {device}, {trainer.steps:,} steps of "
        f"{recipe.data.batch_size:,} positions" + (f", resumed at step {trainer.step:,} from {path}" if saved else ""),
        file=sys.stderr,
    )
    try:
        return trainer.train()
    finally:
        batches.close()


def find_resumed(resume: str | None, run_dir: Path) -> tuple[Checkpoint | None, Path]:
    """The checkpoint to continue from, and its path; None to start afresh."""
    path = checkpoint_of(run_dir if resume in (None, "auto") else Path(str(resume)))
    if resume is None or (resume == "auto" and not path.exists()):
        return None, path
    return checkpoint.load(path), path


def checkpoint_of(path: Path) -> Path:
    """The last checkpoint of a run directory, or the path itself if it names a checkpoint."""
    return path if path.suffix == ".safetensors" else path / "checkpoints" / "last.safetensors"


def check_resumable(recipe: Recipe, saved: Checkpoint, path: Path) -> None:
    """Says what differs from the recipe in the checkpoint. UserError if it is the model; what decides the order of
    positions is checked by the loader."""
    changes = list(differences(saved.recipe, schema.to_data(recipe))) if saved.recipe else []
    for key, before, after in changes:
        if key.startswith("model."):
            raise UserError(f"{path}: {key} was {before!r}, now it is {after!r}, and a model cannot change on resume")
    for key, before, after in changes:
        print(f"{path}: resuming with {key} {after!r}, it was {before!r}", file=sys.stderr)


def differences(before: Any, after: Any, key: str = "") -> Iterable[tuple[str, Any, Any]]:
    """(dotted key, value before, value after) of everything that differs in plain data."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in {**before, **after}:
            inner = f"{key}.{name}" if key else name
            yield from differences(before.get(name), after.get(name), inner)
    elif before != after:
        yield key, before, after


def active_filters(recipe: Recipe) -> Filters | None:
    """None where no filter is on, which spares the loader a pass."""
    return recipe.data.filters if recipe.data.filters != Filters() else None


def training_batches(recipe: Recipe, model: NnueModel, device: torch.device) -> Loader | RecordLoader:
    """The endless stream that the recipe trains on. For CUDA packed records, to be expanded there; order and state are
    the same."""
    data = recipe.data
    options: dict[str, Any] = {
        "seed": recipe.training.seed,
        "repeat": True,
        "filters": active_filters(recipe),
        "shuffle": data.shuffle_buffer > 0,
        "shuffle_buffer": max(data.shuffle_buffer, 1),
        "threads": data.threads,
    }
    if device.type == "cuda":
        return RecordLoader(data.train, data.batch_size, pin_memory=True, **options)
    return Loader(data.train, model.feature_set, data.batch_size, **options)


def validation_batches(recipe: Recipe, model: NnueModel, device: torch.device) -> Callable[[], Iterator[Batch]] | None:
    """What opens the held-out positions of the recipe, in file order; None where it has none. For CUDA they are
    expanded there, bit for bit as on the CPU."""
    data = recipe.data
    options: dict[str, Any] = {
        "filters": active_filters(recipe),
        "shuffle": False,
        "drop_last": False,
        "threads": data.threads,
    }

    def expanded(loader: RecordLoader) -> Iterator[Batch]:
        # Not from page-locked memory: the copy has left the loader's memory when the call returns.
        expander = Expander(model.feature_set, device)
        for records in loader:
            yield expander(records)

    def read() -> Iterator[Batch]:
        loader: Loader | RecordLoader
        batches: Iterator[Batch]
        if device.type == "cuda":
            loader = RecordLoader(data.validation, data.batch_size, **options)
            batches = expanded(loader)
        else:
            loader = Loader(data.validation, model.feature_set, data.batch_size, **options)
            batches = iter(loader)
        left = data.validation_positions
        try:
            for batch in batches:
                yield batch if len(batch) <= left else batch.head(left)
                left -= len(batch)
                if left <= 0:
                    return
        finally:
            loader.close()

    return read if data.validation else None


def choose_device(name: str) -> torch.device:
    """The device of a recipe; UserError for a CUDA device that is not there."""
    available = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if available else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not (available and (device.index or 0) < torch.cuda.device_count()):
        found = f"{torch.cuda.device_count()} CUDA devices" if available else "no CUDA device"
        raise UserError(f"training.device: found {name!r}, but torch {torch.__version__} sees {found}")
    return device


def set_up_torch(recipe: Recipe, device: torch.device) -> None:
    """Seeds, determinism and the meaning of fp32, for the whole process."""
    training = recipe.training
    torch.manual_seed(training.seed)
    torch.set_float32_matmul_precision("high" if training.precision == "tf32" else "highest")
    if training.deterministic and device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
    torch.use_deterministic_algorithms(training.deterministic)
    # Filling every fresh tensor with NaN finds bugs, not differences, and costs a pass over each gradient.
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010 (the type lacks it)
    if device.type == "cpu":
        keep_freed_memory()
    else:
        ops.set_index_check("async")  # the loader's rows are sound; an error may come a step late, the host never waits


def keep_freed_memory() -> None:
    """Lets the C library reuse large blocks. By default it returns each to the system, and a step would fault in the
    pages of its gradients, 100 MB each, anew: 40 % of the CPU time of an SFNNv5 step. glibc only; elsewhere no-op."""
    m_trim_threshold, m_mmap_max = -1, -4  # of malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)


def clear(run_dir: Path) -> None:
    """Removes what an earlier run wrote, and nothing else."""
    for pattern in ("recipe.yaml", "metrics.jsonl", "checkpoints/*.safetensors", "tensorboard/events.out.*"):
        for path in run_dir.glob(pattern):
            path.unlink()
