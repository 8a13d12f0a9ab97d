"""Draws the README's chart: positions per second of whole trainings, this project beside nnue-pytorch and bullet.

    python benchmarks/peers.py

The figures of the other trainers are in results/peers.json, with how they were measured. Ours are read from the results
of training_step.py that the same file names. Writes docs/pictures/speed.png.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
TRAINERS = {"this project": "#1f6f50", "bullet": "#b08a3e", "nnue-pytorch": "#8a8f98"}


def figures() -> list[tuple[str, dict[str, float]]]:
    """Each net, with positions per second by the name of the trainer."""
    peers = json.loads((RESULTS / "peers.json").read_text())
    rows = []
    for row in peers["rows"]:
        ours = json.loads((RESULTS / row["ours"]).read_text())
        rates: dict[str, Any] = {"this project": ours["results"]["from file"]["positions_per_second"]}
        rates |= {name: row[name] for name in TRAINERS if row.get(name) is not None}
        rows.append((row["net"], rates))
    return rows


def draw(rows: list[tuple[str, dict[str, float]]]) -> Figure:
    figure = Figure(figsize=(8, 0.5 + 0.36 * sum(len(rates) + 1 for _, rates in rows)), layout="constrained")
    axes = figure.subplots()
    place, ticks = 0.0, []
    for net, rates in rows:
        ticks.append((place + (len(rates) - 1) / 2, net))
        for name, colour in TRAINERS.items():
            if name not in rates:
                continue
            millions = rates[name] / 1e6
            axes.barh(place, millions, color=colour, height=0.86)
            axes.annotate(
                f"{millions:.3g} M/s  {name}",
                (millions, place),
                (5, 0),
                textcoords="offset points",
                va="center",
                size=9,
            )
            place += 1
        place += 0.9
    axes.set_yticks([at for at, _ in ticks], [net for _, net in ticks])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.28 * max(rate for _, rates in rows for rate in rates.values()) / 1e6)
    axes.set_xlabel("million positions per second, whole training from disk (one H200, batch 16,384)")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure


if __name__ == "__main__":
    draw(figures()).savefig(ROOT / "docs" / "pictures" / "speed.png", dpi=130)
