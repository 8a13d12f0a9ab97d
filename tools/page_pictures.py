"""Draws docs/pictures/report.png: a report about a run, light on a desk and dark on a phone, side by side.

    python tools/page_pictures.py runs/quickstart

Needs chromium and its driver (make system-packages) and the packages for tests. The other pictures of README.md and of
the guides: benchmarks/peers.py (speed.png), examples/graph_pictures.py (graph-*.png).
"""

import sys
import tempfile
from pathlib import Path

from PIL import Image

from nnue_trainer.cli.main import app

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "analysis"))
HEIGHT, GAP = 1000, 20
DESK, PHONE = (1100, HEIGHT), (360, HEIGHT)


def draw(run: Path, picture: Path) -> None:
    from browser import started

    with tempfile.TemporaryDirectory() as folder, started() as browser:
        page = Path(folder) / "report.html"
        app(["report", str(run), "--out", str(page)], standalone_mode=False)
        whole = Image.new("RGB", (DESK[0] + GAP + PHONE[0], HEIGHT), "white")
        for size, dark, left in ((DESK, False, 0), (PHONE, True, DESK[0] + GAP)):
            browser.open(page, size, dark=dark)
            part = Path(folder) / "part.png"
            browser.screenshot(part, height=HEIGHT)
            whole.paste(Image.open(part), (left, 0))
    whole.quantize(256).save(picture, optimize=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    draw(Path(sys.argv[1]), ROOT / "docs" / "pictures" / "report.png")
