"""The checkpoint that a path stands for: a file, or the newest one of a run folder."""

from __future__ import annotations

import re
from pathlib import Path

from nnue_trainer.errors import UserError
from nnue_trainer.files import checkpoint
from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.training.run_folder import MANIFEST


def find_resumed(resume: str | None, run_dir: Path) -> tuple[Checkpoint | None, Path]:
    """The checkpoint to continue from, and its path; the checkpoint is None if the run starts anew. `resume` and
    `run_dir` are those of `train`. UserError if the checkpoint cannot be read."""
    path = checkpoint_of(run_dir if resume in (None, "auto") else Path(str(resume)))
    if resume is None or (resume == "auto" and not path.exists()):
        return None, path
    saved = load_resumed(path)
    if "step" in saved.state and not saved.resumes:
        raise UserError(
            f"{path}: has the net without the optimizer's state, so it cannot be resumed; {_instead(saved, path)}"
            f"training.initial_weights={path} starts another run from this net"
        )
    return saved, path


def _instead(saved: Checkpoint, path: Path) -> str:
    """Which files beside a checkpoint that cannot be resumed can be: `last`, and the epoch of the same net."""
    found = {"continues the run": path.with_name("last.safetensors")}
    if (epoch := saved.trainer_state(path).epoch) is not None:
        found["continues from this net"] = path.with_name(f"epoch-{epoch:04d}.safetensors")
    return "".join(f"--resume {file} {what}, " for what, file in found.items() if file.exists() and file != path)


def load_resumed(path: Path, groups: tuple[str, ...] | None = None) -> Checkpoint:
    """`checkpoint.load`, whose error message also names the newest other checkpoint of an epoch in the same folder."""
    try:
        return checkpoint.load(path, groups)
    except UserError as error:
        others = [other for other in _epochs(path.parent) if not other.samefile(path)] if path.exists() else []
        hint = f"; --resume {others[-1]} may work" if others else ""
        raise UserError(f"{error}{hint}") from None


def checkpoint_of(path: Path) -> Path:
    """The path itself if it names a .safetensors file; otherwise the last checkpoint of the run folder `path`: `last`,
    or the newest one of an epoch. The file need not exist."""
    if path.suffix == ".safetensors" and not path.is_dir():
        return path
    folder = path / "checkpoints"
    last = folder / "last.safetensors"
    return last if last.exists() else next(reversed(_epochs(folder)), last)


def _epochs(folder: Path) -> list[Path]:
    """The checkpoints `epoch-N` in a folder, oldest first."""
    found = [(re.fullmatch(r"epoch-(\d{4,18})\.safetensors", path.name), path) for path in folder.glob("epoch-*")]
    return [path for _, path in sorted((int(match[1]), path) for match, path in found if match)]


def run_folder_of(path: Path) -> Path:
    """The run folder that contains a checkpoint. UserError if the checkpoint is not in the checkpoints folder of a run,
    because then it does not determine where the continued run writes."""
    folder = path.absolute().parent
    if folder.name != "checkpoints" or not any((folder.parent / name).exists() for name in (MANIFEST, "recipe.yaml")):
        raise UserError(f"{path}: not in the checkpoints folder of a run: pass --run-dir DIR")
    return path.parent.parent
