"""Draws the README's chart: positions per second of training steps, this project beside nnue-pytorch and bullet.

    python benchmarks/peers.py

results/peers.json has the net and the data of each bar and the figures of the other trainers. Ours are read from the
results of training_step.py that the same file names. Rows of nets that differ are left out. Writes
docs/pictures/speed.png.
"""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
TRAINERS = {"this project": "#1f6f50", "bullet": "#b08a3e", "nnue-pytorch": "#8a8f98"}


Bar = tuple[str, float, str]  # trainer, positions per second, what it trains on what


def figures() -> list[tuple[str, list[Bar]]]:
    """The bars of each group, with the title of the group."""
    peers = json.loads((RESULTS / "peers.json").read_text())
    groups = []
    for row in peers["rows"]:
        if "differs" in row:
            continue
        ours = json.loads((RESULTS / row["ours"]).read_text())
        measured = ours["results"]["from file"]["positions_per_second"]
        bars = [
            (name, of.get("positions_per_second", measured), f"{of['net']}; {of['data']}")
            for name, of in row["trainers"].items()
        ]
        groups.append((row["title"], bars))
    return groups


def draw(groups: list[tuple[str, list[Bar]]]) -> Figure:
    figure = Figure(figsize=(9, 0.5 + 0.42 * sum(len(bars) + 1 for _, bars in groups)), layout="constrained")
    axes = figure.subplots()
    place, ticks = 0.0, []
    for title, bars in groups:
        ticks.append((place + (len(bars) - 1) / 2, title))
        for name, rate, what in bars:
            millions = rate / 1e6
            axes.barh(place, millions, color=TRAINERS[name], height=0.86)
            axes.annotate(
                f"{millions:.3g} M/s  {name}\n{what}",
                (millions, place),
                (5, 0),
                textcoords="offset points",
                va="center",
                size=8.5,
            )
            place += 1
        place += 0.9
    axes.set_yticks([at for at, _ in ticks], [title for _, title in ticks])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.5 * max(rate for _, bars in groups for _, rate, _ in bars) / 1e6)
    axes.set_xlabel("million positions per second, training steps, data from disk (one H200, batch 16,384)")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure


if __name__ == "__main__":
    draw(figures()).savefig(ROOT / "docs" / "pictures" / "speed.png", dpi=130)
