"""Builds the native parts in place; lists what it builds, shows the compiler's output only where something fails."""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = os.environ.get("NNUE_PARTS", "")
LOG = ROOT / "build" / (f"build-{PARTS}.log" if PARTS else "build.log")


def main() -> int:
    LOG.parent.mkdir(exist_ok=True)
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
    print(f"  built in {time.monotonic() - start:.0f} s; compiler output in {LOG.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
