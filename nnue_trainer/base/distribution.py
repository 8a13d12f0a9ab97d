"""The distribution that this package belongs to, and another distribution that has a package of the same name.

Imported by `import nnue_trainer`, so it imports nothing slow.
"""

from __future__ import annotations

import os
import sys

NAME = "torch-nnue"
version = ""
"""of the package: `nnue_trainer.__version__`, which `import nnue_trainer` puts here first"""
OTHER = "nnue-trainer"
"""Our own releases up to 0.2.0, and releases of somebody else in package indexes."""
_RECORD = f"{OTHER.replace('-', '_')}-"


def others() -> list[str]:
    """The folders with metadata of installed distributions `OTHER`, such as "nnue_trainer-0.2.0.dist-info"."""
    found = []
    for folder in dict.fromkeys(sys.path):
        try:
            names = os.listdir(folder or ".")  # noqa: PTH208 (pathlib is slow to import)
        except OSError:
            continue
        found += [os.path.join(folder, name) for name in names if name.startswith(_RECORD) and _is_metadata(name)]  # noqa: PTH118
    return found


def _is_metadata(name: str) -> bool:
    return name.endswith((".dist-info", ".egg-info"))


def _has_files(metadata: str) -> bool:
    """Whether a distribution put files into its folder. One that is linked to a checkout (`pip install -e`) did not."""
    try:
        with open(os.path.join(metadata, "RECORD"), encoding="utf-8") as record:  # noqa: PTH118, PTH123
            return any(line.startswith("nnue_trainer/") for line in record)
    except OSError:
        return True


def advice() -> str:
    """The commands that leave only this distribution; also for users of 0.2.0 (docs/install.md)."""
    return f"pip uninstall {OTHER}, then install {NAME} again"


def warn() -> None:
    """Warns if files of `OTHER` and of this package may be mixed in one folder."""
    for metadata in others():
        if _has_files(metadata):
            import warnings

            warnings.warn(
                f"the distribution {OTHER} is installed too ({metadata}). It has a package of the same name, "
                f"nnue_trainer, so files of the two may be mixed; run {advice()}",
                stacklevel=3,
            )
            return
