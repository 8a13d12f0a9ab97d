"""The notebook from data to Elo runs as it stands, as a file and in its cells."""

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def test_the_notebook_has_the_cells_of_the_file(project_root: Path) -> None:
    tool = runpy.run_path(str(project_root / "tools" / "notebook.py"))
    text = tool["SOURCE"].read_text(encoding="utf-8")
    assert tool["NOTEBOOK"].read_text(encoding="utf-8") == tool["notebook"](text), "run tools/notebook.py"
    cells = tool["cells"](text)
    assert [cell["cell_type"] for cell in cells[:3]] == ["markdown", "code", "code"]
    assert len(cells) == text.count("# %%\n") + text.count("# %% [markdown]") + 1


@pytest.mark.slow
@pytest.mark.parametrize(("file", "positions"), [("", "300,093"), ("mine.plain", "30,109")], ids=["sample", "own data"])
def test_the_notebook_runs_on_the_sample_and_on_own_data(
    file: str,
    positions: str,
    project_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if file:
        convert = [sys.executable, "-m", "nnue_trainer", "data", "convert"]
        subprocess.run([*convert, project_root / "samples" / "val.binpack", file], check=True)
        monkeypatch.setenv("DATA", file)
    for name, value in {"EPOCHS": "2", "PAIRS": "1", "POSITIONS": "2048", "MOVES": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(project_root))
    source = project_root / "examples" / "notebook" / "data_to_elo.py"
    if file:
        runpy.run_path(str(source), run_name="__main__")
    else:  # the cells of the notebook, in the folder in which Jupyter would run them
        monkeypatch.setenv("DATA", str(project_root / "samples" / "train.binpack"))
        shutil.copy(source.with_name("one_ply_engine.py"), tmp_path)
        cells = json.loads(source.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
        code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        exec(compile(code, "data_to_elo.ipynb", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert "validation loss" in printed
    folder = tmp_path / "notebook"
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "report.html").read_text()
    match = json.loads((folder / "match/match.json").read_text())
    assert match["complete"]
    assert not [game for game in match["games"] if "fault" in game]
    count = [sys.executable, "-m", "nnue_trainer", "data", "count", "train.binpack", "validation.binpack"]
    counted = subprocess.run(count, cwd=folder, check=True, capture_output=True, text=True).stdout
    assert counted.endswith(f"all: {positions} positions\n")
    assert "last vs epoch-0001: 2 games" in printed
