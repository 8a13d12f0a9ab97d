"""The example that trains, plots and plays runs as it stands."""

import json
import os
import subprocess
import sys
from pathlib import Path


def test_the_notebook_runs(project_root: Path, tmp_path: Path) -> None:
    script = project_root / "examples" / "notebook" / "train_plot_play.py"
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=os.environ
        | {"EPOCHS": "2", "PAIRS": "1", "POSITIONS": "2048", "MOVES": "3", "PYTHONPATH": str(project_root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "validation loss" in done.stdout
    folder = tmp_path / "notebook"
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "report.html").read_text()
    match = json.loads((folder / "match/match.json").read_text())
    assert match["complete"]
    assert not [game for game in match["games"] if "fault" in game]
    assert "last vs epoch-0001: 2 games" in done.stdout
