"""benchmarks/documents.py, on problems of a moment."""

from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.compiler
def test_each_number_stands_beside_ours(
    project_root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(project_root / "benchmarks"))
    import documents

    monkeypatch.setattr(documents, "POINTS", 1000)
    documents.main(["--device", "cpu", "--elements", "4000", "--edges", "2000", "--repeats", "1"])
    hardware, versions, theirs, _, _, _, *rows = capsys.readouterr().out.splitlines()
    assert "threads of" in hardware
    assert "commit" in versions
    assert "Tesla P100" in theirs
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row[0] for row in cells] == ["000"] * 2 + ["001"] * 7 + ["003"] * 3 + ["004"] * 4
    assert all(row[3].split()[1] in ("s", "ms", "µs", "ns") for row in cells)
    assert cells[0][2].startswith("naive 17.3 s")


def test_times_have_a_unit_that_fits(project_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(project_root / "benchmarks"))
    import documents

    times = (163.0, 0.048, 1.2e-5, 3e-9)
    assert [documents.shown(each) for each in times] == ["163 s", "48 ms", "12 µs", "3 ns"]
