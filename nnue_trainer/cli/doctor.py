"""`nnue doctor`: `nnue info`, what keeps this machine from training fast, and the rates of loader and step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from nnue_trainer.base import findings, machine
from nnue_trainer.base.findings import Finding
from nnue_trainer.cli import info

SECONDS = 10.0
"""Duration of the measurements."""
_BATCH_SIZE = {"cpu": 2_048, "cuda": 16_384}


def doctor(
    bench: Annotated[bool, typer.Option("--bench/--no-bench", help="Measure loader and step for ten seconds.")] = True,
) -> None:
    """Print what nnue info prints, what keeps this machine from training fast and the command that helps, and measure
    the rates of the loader and of a training step."""
    facts, here = info.collect(), machine.describe()
    for name, text in [*info.rows(facts), *rows(here)]:
        print(f"{name:14} {text}")
    found = findings.findings(here, facts)
    for line in lines(found):
        print(line)
    if any(finding.stops for finding in found):
        raise typer.Exit(1)
    if bench:
        for line in measure(SECONDS):
            print(line, flush=True)


def rows(here: machine.Machine) -> list[tuple[str, str]]:
    """Lines about the machine, as `info.rows` has them."""
    nvidia = f"{here.nvidia_gpus} of NVIDIA, driver {here.driver or 'not loaded'}" if here.nvidia_gpus else ""
    amd = f"{here.amd_gpus} of AMD" if here.amd_gpus else ""
    place = "WSL2" if here.wsl else "a container" if here.container else ""
    system = " ".join(
        filter(None, (here.distribution or here.system, f"with glibc {here.glibc}" if here.glibc else ""))
    )
    return [
        ("CPU", f"{here.usable_cpus} of {here.cpus} CPUs; {here.instruction_sets}"),
        ("GPUs", "; ".join(filter(None, (nvidia, amd))) or "none"),
        ("system", ", ".join(filter(None, (system, place)))),
    ]


def lines(found: list[Finding]) -> Iterator[str]:
    """The text of the findings."""
    yield ""
    if not found:
        yield "nothing to improve"
    for finding in found:
        yield f"found: {finding.problem}"
        yield f"  fix: {finding.remedy}"


def measure(seconds: float) -> Iterator[str]:
    """Lines with positions per second of loader and step with the net of the preset quickstart, which take `seconds`
    together."""
    from nnue_trainer.base.progress import positions
    from nnue_trainer.config import load
    from nnue_trainer.files import presets
    from nnue_trainer.training.assembly.rates import rates
    from nnue_trainer.training.device import choose_device

    device = choose_device("auto")
    if presets.samples() is None:
        yield "not measured: there are no sample positions"
        return
    size = _BATCH_SIZE.get(device.type, 2_048)
    recipe = load(presets.path("quickstart"), [*presets.overrides("quickstart"), f"data.batch_size={size}"])
    yield ""
    yield f"measuring for {seconds:.0f} s: the net of the preset quickstart on {device}, batches of {size:,}"
    loader, step = rates(recipe, device, seconds)
    yield f"loader         {positions(loader)} per second"
    yield f"step           {positions(step)} per second"
    slower = "loader" if loader < step else "step"
    yield f"training       the {slower} is slower, so about {positions(min(loader, step))} per second"
