"""`nnue explain` prints which kernels run each part of a recipe's step, on this machine or on another GPU."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated

import typer

from nnue_trainer.cli.outputs import AsJson
from nnue_trainer.cli.plugins import with_plugins
from nnue_trainer.cli.train import Preset, recipe_path
from nnue_trainer.errors import UserError, quoted

if TYPE_CHECKING:
    from nnue_trainer.ops.capabilities import Machine
    from nnue_trainer.training.estimate import Card


@with_plugins
def explain(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RECIPE] [KEY=VALUE]...", help="Recipe, and fields to override."),
    ] = None,
    preset: Preset = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="DEVICE", help="Device: cpu or cuda:N. Default: the one that training would use."
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            help="Explain for a GPU that need not be installed, and estimate the rate of training: its name, such as "
            '"RTX 3060", or its compute capability, such as 8.9 or 9.0:114 with its number of multiprocessors.',
            metavar="NAME|X.Y[:N]",
        ),
    ] = None,
    memory_bandwidth: Annotated[
        float | None,
        typer.Option(min=1, help="With --gpu X.Y: memory bandwidth in GB/s, for the estimate.", metavar="GB/s"),
    ] = None,
    ranks: Annotated[int, typer.Option(min=1, help="Number of processes, each on a separate device.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Print which kernels run each part of a recipe's training step, and why faster ones are not used."""
    from nnue_trainer import config as recipes
    from nnue_trainer.config.outline import outline
    from nnue_trainer.training.assembly import explain as parts_of

    path, overrides = recipe_path(arguments, None, preset, "explain")
    if path is None:
        raise UserError("explain: expected a RECIPE or --preset NAME (nnue presets lists them)")
    if device is not None and gpu is not None:
        raise UserError("explain: --device and --gpu exclude each other")
    if gpu is None and memory_bandwidth is not None:
        raise UserError("explain: --memory-bandwidth: expected --gpu X.Y beside it")
    changes = overrides if device is None else [*overrides, f"training.device={device}"]
    recipe = recipes.load(path, changes, trusted=False)
    machine, card = (_here(outline(recipe).device), None) if gpu is None else _elsewhere(gpu, memory_bandwidth)
    parts = parts_of(recipe, machine, ranks, card)
    if as_json:
        print(json.dumps([part._asdict() for part in parts], indent=2))
        return
    widths = [max(len(part[column]) for part in parts[1:]) for column in (0, 1)]
    for name, kernels, reason in parts:
        print(f"{name:{widths[0]}}  {kernels:{widths[1]}}  {reason}".rstrip())


def _here(device: str) -> Machine:
    from nnue_trainer.ops import capabilities
    from nnue_trainer.training.device import choose_device

    found = capabilities.machine_of(choose_device(device))
    if found is None:
        raise UserError(f"explain: --device: found {quoted(device)}, expected cpu or cuda:N")
    return capabilities.Machine(*found)


def _elsewhere(gpu: str, memory_bandwidth: float | None) -> tuple[Machine, Card | None]:
    """The GPU of `--gpu`; and its data sheet, where that is known."""
    from nnue_trainer.ops import capabilities
    from nnue_trainer.training.estimate import CARDS, card_of

    named = {name.lower(): card for name, card in CARDS.items()}.get(re.sub("nvidia |geforce |tesla ", "", gpu.lower()))
    if named is not None:
        if memory_bandwidth is not None:
            raise UserError(f"explain: --memory-bandwidth: found it beside the name {quoted(gpu)}, which has one")
        return capabilities.gpu(named.capability, named.multiprocessors), named
    found = re.fullmatch(r"([1-9][0-9]?)\.([0-9])(?::([1-9][0-9]{0,3}))?", gpu)
    if found is None:
        raise UserError(
            f"explain: --gpu: found {quoted(gpu)}, expected a compute capability such as 8.9 or 9.0:114, or one of "
            + ", ".join(CARDS)
        )
    major, minor, multiprocessors = found.groups()
    machine = capabilities.gpu(10 * int(major) + int(minor), int(multiprocessors or 0))
    if memory_bandwidth is None:
        return machine, None
    return machine, card_of(machine.capability, machine.multiprocessors, memory_bandwidth)
