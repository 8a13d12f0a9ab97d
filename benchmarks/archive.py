"""Moves measurements from results/*.json into results/measurements.tar.xz, and writes results/README.md, their summary.

    python benchmarks/archive.py

A measurement replaces the one of the same name. peers.json stays, and so do the measurements that it refers to:
`peers.py` draws the README's chart from them. `tar -xJf benchmarks/results/measurements.tar.xz` gets the others back.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "data_loader" / "fuzz"))

from corpus import read, write

RESULTS = Path(__file__).resolve().parent / "results"
ARCHIVE = RESULTS / "measurements.tar.xz"
TEXT = """# Measurements

All measurements, listed by `benchmarks/archive.py`. Those that are not files in this folder are in the archive
`measurements.tar.xz` (`tar -xJf measurements.tar.xz`), with command, machine and versions. The notebooks discuss them.
Measurements with `qat` are called `aware` in files up to 2026-11-26.

| measurement | date | commit | machine | positions per second |
|---|---|---|---|---|
"""


def kept() -> set[str]:
    peers = json.loads((RESULTS / "peers.json").read_text())
    return {"peers.json", *(row["ours"] for row in peers["rows"])}


def row(name: str, text: bytes) -> str:
    data = json.loads(text)
    about = data.get("environment", data)
    cases = data["results"] if isinstance(data.get("results"), dict) else {}
    rates = [
        f"{case}: {of['positions_per_second']:,.0f}"
        for case, of in cases.items()
        if isinstance(of, dict) and "positions_per_second" in of
    ]
    commit = str(about.get("commit", ""))
    return f"| {name} | {about['date'][:10]} | {commit} | {about.get('device', '')} | {'; '.join(rates)} |\n"


def main() -> None:
    texts = read(ARCHIVE) if ARCHIVE.is_file() else {}
    here = {path.name: path.read_bytes() for path in RESULTS.glob("*.json")}
    moved = {name: text for name, text in here.items() if name not in kept()}
    texts |= moved
    write(texts, ARCHIVE)
    rows = [row(name, text) for name, text in sorted((texts | here).items())]
    (RESULTS / "README.md").write_text(TEXT + "".join(rows), encoding="utf-8")
    for name in moved:
        (RESULTS / name).unlink()
    print(f"{len(moved)} moved, {len(texts)} in {ARCHIVE.name}")


if __name__ == "__main__":
    main()
