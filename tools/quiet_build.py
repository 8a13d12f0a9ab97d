"""Builds the native parts in place; lists what it builds, shows the compiler's output only where something fails.

Where nothing has changed since the last build, it ends at once: setup.py takes four seconds, most of it for torch.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from find_nvcc import find_nvcc

ROOT = Path(__file__).resolve().parents[1]
PARTS = os.environ.get("NNUE_PARTS", "")
LOG = ROOT / "build" / (f"build-{PARTS}.log" if PARTS else "build.log")
LAST = LOG.with_suffix(".json")
BUILT = ("nnue_trainer/*.so", "nnue_trainer/lib/*", "nnue_trainer/include/nnue/operator_calls.h")


def inputs() -> str:
    """A digest of all that a build depends on: sources, packages, programs, options. Files count by size and time."""
    files = [ROOT / "setup.py", ROOT / "nnue_trainer" / "__init__.py"]
    files += [path for room in ("csrc", "data_loader") for path in sorted((ROOT / room).rglob("*")) if path.is_file()]
    for package in ("torch", "pybind11", "setuptools"):
        spec = find_spec(package)
        files += sorted(Path(spec.origin).parent.glob("*version*.py")) if spec and spec.origin else []
    programs = [*os.environ.get("CXX", "c++").split(), os.environ.get("CC", "cc"), find_nvcc() or "nvcc", "ninja"]
    files += [Path(found) for program in programs if (found := shutil.which(program))]
    options = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(("NNUE_", "CUDA_", "FORCE_", "PYTORCH_", "CXX", "CC", "CFLAGS", "CPPFLAGS", "LDFLAGS"))
    }
    times = [(str(path), (status := path.stat()).st_mtime_ns, status.st_size) for path in files]
    return hashlib.sha256(json.dumps([sys.version, sys.executable, times, options]).encode()).hexdigest()


def up_to_date(digest: str) -> bool:
    try:
        last = json.loads(LAST.read_text())
    except (OSError, ValueError):
        return False
    return last["inputs"] == digest and all((ROOT / path).exists() for path in last["built"])


def main() -> int:
    LOG.parent.mkdir(exist_ok=True)
    digest = inputs()
    if up_to_date(digest):
        print("  nothing has changed since the last build")
        return 0
    LAST.unlink(missing_ok=True)
    start = time.monotonic()
    with LOG.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "setup.py", "build_ext", "--inplace"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "TERM": "dumb"},
        )
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            if line.startswith("building "):
                print(f"  {line.strip()}", flush=True)
            elif line.startswith("["):  # ninja's [3/7]: the object is what interests
                progress, _, command = line.partition("]")
                target = next((Path(word).name for word in command.split() if word.endswith(".o")), "")
                print(f"    {progress}] {target}", flush=True)
        code = process.wait()
    if code:
        print(LOG.read_text(), file=sys.stderr)
        print(f"build failed; the log above is {LOG.relative_to(ROOT)}", file=sys.stderr)
        return code
    # ptxas only warns of this, but such a kernel takes much longer.
    if serial := [line for line in LOG.read_text().splitlines() if "(C7512)" in line]:
        print("  slow kernels, since the compiler has too few registers for wgmma:", *serial, sep="\n  ")
        if os.environ.get("NNUE_REQUIRE_ALL"):
            return 1
    built = [str(path.relative_to(ROOT)) for pattern in BUILT for path in sorted(ROOT.glob(pattern))]
    LAST.write_text(json.dumps({"inputs": digest, "built": built}))
    print(f"  built in {time.monotonic() - start:.0f} s; compiler output in {LOG.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
