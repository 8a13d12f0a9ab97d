"""Fits the factors of nnue_trainer/training/estimate.py to benchmarks/step_times.json, and prints the errors.

The factors of the kernels for 9.0 are fitted to an H200 alone, so the times of an H100 are predictions. The portable
kernels' factors for gathering are fitted to both cards; update, layers and launches are the same kernels.

  python benchmarks/estimate.py             # factors and errors
  python benchmarks/estimate.py --table     # a table of GPUs
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nnue_trainer import config as recipes
from nnue_trainer.ops import capabilities
from nnue_trainer.training.assembly.explanation import work_of
from nnue_trainer.training.estimate import CARDS, FACTORS, Factors, Work, estimate, ideal

ROOT = Path(__file__).resolve().parents[1]
NETS = ["simple", "buckets", "sfnnv5", "sfnnv16"]


@dataclass(frozen=True)
class Measured:
    """A measured step."""

    card: str
    kernels: str
    recipe: str
    work: Work
    seconds: float

    def terms(self) -> npt.NDArray[np.float64]:
        """The ideal seconds of each term, as shares of the measured time."""
        return np.array(ideal(self.work, CARDS[self.card])) / self.seconds


def work_for(words: str, batch: int, capability: int) -> Work | None:
    """The work of a preset with overrides."""
    preset, *overrides = words.split()
    path = ROOT / "nnue_trainer" / "presets" / f"{preset}.yaml"
    recipe = recipes.load(path, [*overrides, f"data.batch_size={batch}"], trusted=True)
    return work_of(recipe, capabilities.gpu(capability))


def measured() -> list[Measured]:
    """All measured steps."""
    found = []
    for block in json.loads((ROOT / "benchmarks" / "step_times.json").read_text())["measured"]:
        for words, batch, milliseconds in block["times"]:
            work = work_for(words, batch, 90 if block["kernels"] == "hopper" else 80)
            assert work is not None
            assert work.kernels == block["kernels"]
            name = f"{words} {batch}"
            found.append(Measured(block["card"], block["kernels"], name, work, milliseconds / 1000))
    return found


def not_negative(terms: npt.NDArray[np.float64], goal: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Least squares with factors that are not negative: the best over all sets of terms that are left out."""
    best, least = np.zeros(terms.shape[1]), np.inf
    for chosen in range(1, 1 << terms.shape[1]):
        columns = [i for i in range(terms.shape[1]) if chosen >> i & 1]
        found = np.linalg.lstsq(terms[:, columns], goal, rcond=None)[0]
        error = float(((terms[:, columns] @ found - goal) ** 2).sum())
        if (found >= 0).all() and error < least:
            least, best = error, np.zeros(terms.shape[1])
            best[columns] = found
    return best


def fitted(steps: list[Measured]) -> dict[str, Factors]:
    """The factors of each set of kernels."""
    own = [step for step in steps if step.kernels == "hopper" and step.card == "H200"]
    hopper = Factors(*not_negative(np.array([step.terms() for step in own]), np.ones(len(own))))
    portable = [step for step in steps if step.kernels == "portable"]
    terms = np.array([step.terms() for step in portable])
    shared = terms[:, [0, 3, 4]] @ np.array([hopper.update, hopper.layers, hopper.launches])
    bucketed, unbucketed = not_negative(terms[:, 1:3], 1 - shared)
    return {"hopper": hopper, "portable": hopper._replace(bucketed=float(bucketed), unbucketed=float(unbucketed))}


def table() -> None:
    """Prints a table of GPUs and presets."""
    print("| GPU | " + " | ".join(NETS) + " | sfnnv16 needs |")
    print("|---" * (len(NETS) + 2) + "|")
    for name, card in CARDS.items():
        works = [work_for(net, 16_384, card.capability) for net in NETS]
        found = [estimate(work, card) if work else None for work in works]
        rates = [f"{16.384e-3 / one.seconds:.1f}" if one else "" for one in found]
        memory = f"{found[-1].memory:.1f} GiB" if found[-1] else ""
        print(f"| {name} | " + " | ".join(rates) + f" | {memory} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="print a table of GPUs")
    if parser.parse_args().table:
        table()
        return
    steps = measured()
    for kernels, factors in fitted(steps).items():
        print(f"{kernels:9} fitted {tuple(float(f'{x:.3g}') for x in factors)}  in use {tuple(FACTORS[kernels])}")
    for step in steps:
        found = estimate(step.work, CARDS[step.card])
        print(
            f"{step.card} {step.kernels:9} {step.recipe:38} measured {step.seconds * 1000:6.3f} ms  "
            f"estimated {found.seconds * 1000:6.3f} ms  {found.seconds / step.seconds - 1:+.0%}"
        )


if __name__ == "__main__":
    main()
