"""The bundled sample is what its README states, and sound."""

import hashlib
from pathlib import Path

from nnue_trainer import _data
from nnue_trainer.data.binpack import read_binpack
from nnue_trainer.data.info import file_info


def test_samples_match_their_readme(project_root: Path) -> None:
    folder = project_root / "samples"
    files = sorted(folder.glob("*.binpack"))
    assert [file.name for file in files] == ["train.binpack", "val.binpack"]
    assert sum(file.stat().st_size for file in files) <= 4 << 20
    for file in files:
        info = file_info(file)
        cells = (
            f"`{file.name}`",
            f"{info.statistics.positions:,}",
            f"{info.chains:,}",
            f"{info.size:,}",
            hashlib.sha256(file.read_bytes()).hexdigest(),
        )
        row = next(line for line in (folder / "README.md").read_text().splitlines() if line.startswith(f"| {cells[0]}"))
        assert all(cell in row for cell in cells)
        validator = _data.Validator()
        validator.add(read_binpack(file))
        assert not any(count for _, count, _ in validator.problems)
        assert info.statistics.score_none == info.statistics.null_moves == 0
