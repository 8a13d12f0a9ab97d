"""The project's own player, which plays with any net that examples/engine has: for nets without another engine.

It is a program in C++, examples/engine/player.cpp, compiled for the architecture of a net at its first use
(files/compile_once.py). All nets of one architecture share it; the weights are in a raw file, which a UCI option names.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nnue_trainer.data.feature_sets.header import HeaderFeatures
from nnue_trainer.data.features import feature_set, outside_set
from nnue_trainer.errors import UserError, shown
from nnue_trainer.files import compile_once
from nnue_trainer.files.atomic import replacing
from nnue_trainer.nets.engine_header import engine_header
from nnue_trainer.nets.stockfish_net import StockfishNet

if TYPE_CHECKING:
    from nnue_trainer.export import QuantizedNet
    from nnue_trainer.nets import Net

NAME = "nnue player"
_WHAT = "matches without an engine"
_UNITS_PER_PAWN = {True: 208, False: 100}  # engine units of a pawn: of Stockfish's nets, of other nets
_PROJECT = Path(__file__).resolve().parents[2]
_SOURCES = ("player.cpp", "transposition_table.h", "position.h", "fen.h", "nnue.h", "features/general_set.h")
_RAW_ALIGNMENT = 64


class OwnPlayer(NamedTuple):
    """A program and the options with which it plays a net. `identity` names the version of the player, `net` is the
    sha256 of the raw file."""

    program: str
    options: dict[str, str]
    identity: str
    net: str


def player_of(quantized: QuantizedNet, folder: Path, where: str) -> OwnPlayer:
    """The player for a net, whose weights are written into `folder` as nn-<sha256>.bin. UserError, which begins with
    `where`, for a net that examples/engine does not have; and if there is no compiler."""
    sources = _sources()
    program = _compiled(quantized.net, sources, where)
    weights = raw_bytes(quantized)
    digest = hashlib.sha256(weights).hexdigest()
    raw = folder / f"nn-{digest[:12]}.bin"
    if not raw.exists() or raw.stat().st_size != len(weights):
        with replacing(raw) as output:
            output.write_bytes(weights)
    units = _UNITS_PER_PAWN[isinstance(quantized.net, StockfishNet)]
    options = {"EvalFile": str(raw.resolve()), "UnitsPerPawn": str(units)}
    version = hashlib.sha256(b"".join((sources / name).read_bytes() for name in _SOURCES)).hexdigest()
    return OwnPlayer(str(program), options, f"{NAME} {version[:8]}", digest)


def raw_bytes(quantized: QuantizedNet) -> bytes:
    """The raw file of a net: its tensors in their order (docs/net-files.md)."""
    data = b"".join(quantized.tensors[tensor.name].tobytes() for tensor in quantized.net.tensors())
    return data + bytes(-len(data) % _RAW_ALIGNMENT)


def _sources() -> Path:
    """The folder of the sources: in the package where it is installed, in the project where it is not."""
    installed = _PROJECT / "nnue_trainer" / "examples" / "engine"
    return installed if installed.is_dir() else _PROJECT / "examples" / "engine"


def _compiled(net: Net, sources: Path, where: str) -> Path:
    header = net.header() or engine_header(net)
    if header is None:
        raise UserError(
            f"{where}: the player does not support nets like this one ({net.name} of {shown(net.feature_set)}); name "
            "an engine: --engine PATH"
        )
    compiler = compile_once.find_compiler(_WHAT)
    folders = [sources, *_folders_of_sets(net)]
    native = ["-march=native"]
    # Part of the source, so that a cache that machines share has a program for each kind of CPU.
    macros = compile_once.run([*compiler, *native, "-dM", "-E", "-x", "c++", os.devnull], NAME, ("", ""))
    target = hashlib.sha256("\n".join(sorted(macros.splitlines())).encode()).hexdigest()
    source = "\n".join(
        [
            f"// {target}",
            header.replace("#pragma once\n", ""),
            '#define NNUE_NET_HEADER "position.h"',
            '#include "player.cpp"',
            "",
        ]
    )
    flags = ["-std=c++17", "-O3", "-ffp-contract=off", "-pthread", *native, *(f"-I{folder}" for folder in folders)]
    return compile_once.library_of(
        f"player for {net.name}",
        "players",
        source,
        ".cpp",
        compiler,
        flags,
        prefix="player-",
        made_of=lambda unit: compile_once.included(compiler, flags, unit, NAME),
        error_name=f"{NAME}: {net.name}",
        is_program=True,
    )


def _folders_of_sets(net: Net) -> list[Path]:
    """The folders of feature sets in C++ headers."""
    sets = [outside_set(part.name) for part in feature_set(net.integer_feature_set).parts]
    return [found.header.resolve().parent for found in sets if isinstance(found, HeaderFeatures)]
