"""Moves measurements from results/*.json into results/measurements.tar.xz, and writes results/README.md, their summary.

    python benchmarks/archive.py

A measurement replaces the one of the same name. peers.json stays, and so do the measurements that it refers to:
`peers.py` draws the README's chart from them. `tar -xJf benchmarks/results/measurements.tar.xz` gets the others back.
"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
ARCHIVE = RESULTS / "measurements.tar.xz"
TEXT = """# Measurements

All measurements, listed by `benchmarks/archive.py`. Those that are not files in this folder are in the archive
`measurements.tar.xz` (`tar -xJf measurements.tar.xz`), with command, machine and versions. The notebooks discuss them.

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
    texts: dict[str, bytes] = {}
    if ARCHIVE.is_file():
        with tarfile.open(ARCHIVE) as archive:
            texts = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    here = {path.name: path.read_bytes() for path in RESULTS.glob("*.json")}
    moved = {name: text for name, text in here.items() if name not in kept()}
    texts |= moved
    partial = ARCHIVE.with_suffix(".partial")
    with tarfile.open(partial, "w:xz", preset=9) as archive:
        for name, text in sorted(texts.items()):
            member = tarfile.TarInfo(name)  # no owner and no time: the same measurements give the same archive
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    partial.replace(ARCHIVE)
    rows = [row(name, text) for name, text in sorted((texts | here).items())]
    (RESULTS / "README.md").write_text(TEXT + "".join(rows), encoding="utf-8")
    for name in moved:
        (RESULTS / name).unlink()
    print(f"{len(moved)} moved, {len(texts)} in {ARCHIVE.name}")


if __name__ == "__main__":
    main()
