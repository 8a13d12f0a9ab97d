"""Who plays: nets in an engine, checkpoints, or engines as they are."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnue_trainer.engines.uci import Engine, EngineEnded, find_engine
from nnue_trainer.errors import UserError, shown
from nnue_trainer.files.atomic import replacing
from nnue_trainer.match.play import Player

if TYPE_CHECKING:  # at run time it would import torch, which engines do not need
    from nnue_trainer.export import QuantizedNet
    from nnue_trainer.files.checkpoint import Checkpoint

_NETS = (".nnue", ".bin", ".onnx", ".safetensors")
_FIRST_ANSWER = 60.0  # seconds
_EXECUTABLE = (b"\x7fELF", b"#!", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")


def players_of(
    names: Sequence[str],
    engines: Sequence[str | None],
    options: Sequence[Mapping[str, str]],
    nets: Path,
    *,
    net_option: str = "EvalFile",
    only_nets: bool = False,
) -> tuple[list[Player], dict[str, Any]]:
    """The players that `names` stand for, and JSON data that identifies them.

    A name is a net file, a checkpoint or run folder, whose net is written into the folder `nets`, or an engine. Nets
    play in the engine of the same number in `engines`, with its `options`; where that is None, in the player of this
    project (match/own_player.py), for which they are written into `nets`, too. With `only_nets` no name is an engine:
    for names that come from files."""
    for path in map(Path, names):  # before the first player is compiled
        if only_nets or not _is_engine(path):
            _check_exists(path)
    players: list[Player] = []
    identity: list[dict[str, Any]] = []
    for name, engine, chosen in zip(names, engines, options, strict=True):
        path, given = Path(name), ""
        all_options = dict(chosen)
        about: dict[str, Any] = {"options": dict(chosen)}
        if not only_nets and _is_engine(path):
            program = find_engine(name)
            about["engine"] = Path(program).name
        elif engine is None:
            from nnue_trainer.match.own_player import player_of

            own = player_of(quantized_net(path), nets, name)
            program, all_options = own.program, own.options | all_options
            about |= {"net": own.net, "engine": own.identity}
        else:
            net = path if _is_net_file(path) else exported_net(path, nets)
            program = find_engine(engine)
            given = all_options[net_option] = str(net.resolve())
            with net.open("rb") as file:
                about |= {"net": hashlib.file_digest(file, "sha256").hexdigest(), "engine": Path(program).name}
        short = path.stem if path.suffix in (".nnue", ".safetensors") else path.name
        title, number = short, 1
        while any(player.name == title for player in players):
            number += 1
            title = f"{short} #{number}"
        players.append(Player(title, program, all_options, given))
        identity.append(about)
    return players, {"engines": identity}


def _is_net_file(path: Path) -> bool:
    return path.is_file() and path.suffix != ".safetensors"


def _check_exists(path: Path) -> None:
    if not path.exists():
        raise UserError(f"{path}: no such file, expected a net, a checkpoint, a run folder or an engine")


def _checkpoint_of(path: Path) -> Path:
    """A checkpoint, or the best one of a run. UserError if there is none."""
    from nnue_trainer.files import checkpoint as checkpoints

    _check_exists(path)
    return checkpoints.of_run(path) if path.is_dir() else path


def quantized_net(path: Path) -> QuantizedNet:
    """The integers of a .nnue file, of a checkpoint, or of the best checkpoint of a run."""
    from nnue_trainer.export import net_from_checkpoint, read_net
    from nnue_trainer.files import checkpoint as checkpoints

    if _is_net_file(path):
        return read_net(path)
    checkpoint = _checkpoint_of(path)
    return net_from_checkpoint(checkpoints.load(checkpoint, ("model", "net")), str(checkpoint), any_l1=True)


def exported_net(path: Path, folder: Path) -> Path:
    """The net of a checkpoint, or of the best checkpoint of a run, written into `folder` as nn-<sha256>.nnue."""
    data, suffix = net_of(_checkpoint_of(path))
    net = folder / f"nn-{hashlib.sha256(data).hexdigest()[:12]}{suffix}"
    if not net.exists():
        with replacing(net) as output:
            output.write_bytes(data)
    return net


def net_of(checkpoint: Path, *, as_nnue: bool = False) -> tuple[bytes, str]:
    """The net of a checkpoint and the suffix of its file: in the format of its recipe, or with `as_nnue` a .nnue file
    of any size, which the player of this project reads."""
    from nnue_trainer.files import checkpoint as checkpoints

    return _net_of(checkpoints.load(checkpoint, ("model", "net")), str(checkpoint), as_nnue)


def check_engine(
    architecture: dict[str, Any],
    recipe: dict[str, Any],
    engine: str | None,
    options: Mapping[str, str],
    net_option: str,
    search: str = "go nodes 1",
) -> float:
    """The seconds of a search with a net of a recipe, one of zeros. UserError for an engine that does not play with
    it."""
    import torch

    from nnue_trainer import nets
    from nnue_trainer.export.check_positions import CHECK_POSITIONS
    from nnue_trainer.export.convert import parameter_shapes
    from nnue_trainer.files import checkpoint as checkpoints

    made = nets.parse(architecture, "recipe: model")
    if made.unreadable is not None and engine is not None:
        raise UserError(f"model.{made.unreadable}")
    shapes = parameter_shapes(made)
    zeros = {name: torch.zeros(shape, dtype=torch.float32, device="cpu") for name, shape in shapes.items()}
    checkpoint = checkpoints.Checkpoint(architecture, {"model": zeros}, recipe)
    data, suffix = _net_of(checkpoint, "recipe", engine is None)
    with tempfile.TemporaryDirectory() as folder:
        net = Path(folder) / f"zeros{suffix}"
        net.write_bytes(data)
        (player,), _ = players_of([str(net)], [engine], [options], Path(folder), net_option=net_option)
        try:
            with Engine(player.path, player.options, timeout=_FIRST_ANSWER) as started:
                started.send(f"position fen {CHECK_POSITIONS[0]}")
                began = time.monotonic()
                started.ask(search, "bestmove")
                return time.monotonic() - began
        except EngineEnded as error:
            if (reason := error.reason.rstrip(".")) and engine is not None:
                why = f"engine {shown(engine)}: does not play with nets of this recipe: {reason}; {made.engines}"
                raise UserError(why) from None
            raise UserError(f"{error}; it had a net of this recipe: {made.engines}") from None


def does_not_play(player: Player, error: EngineEnded) -> UserError:
    """The error for an engine that ended at its first search. It may not read its net, so the message has the engines
    that do."""
    if not player.net:
        return error
    why = error.reason.rstrip(".") or str(error).partition(": ")[2]
    try:
        readers = f"; {quantized_net(Path(player.net)).net.engines}"
    except UserError as problem:
        readers = f"; {problem}"
    return UserError(f"engine {shown(player.path)}: does not play with {shown(player.net)}: {why}{readers}")


def _net_of(loaded: Checkpoint, where: str, as_nnue: bool) -> tuple[bytes, str]:
    from nnue_trainer.export import exported, format_of, net_from_checkpoint, parse_format
    from nnue_trainer.nnue_file.formats import file_bytes

    chosen = parse_format({"kind": "nnue"}, where) if as_nnue else format_of(loaded, where)
    net = exported(net_from_checkpoint(loaded, where, any_l1=as_nnue), loaded)
    return file_bytes(chosen, net, f"format {chosen.kind}"), chosen.suffix


def _is_engine(path: Path) -> bool:
    """Whether a name means a program: a file that the system can start, or no file at all but a name on PATH. A file
    with the suffix of a net or checkpoint is none, whatever it holds."""
    if path.is_dir() or path.suffix in _NETS:
        return False
    if not path.exists():
        return os.sep not in str(path) and not path.suffix
    try:
        with path.open("rb") as file:
            return os.access(path, os.X_OK) and file.read(4).startswith(_EXECUTABLE)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
