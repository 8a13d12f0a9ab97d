"""Thousands of data files on a slow file system: the time until they are open and until the first batch, the number of
reads, and the memory.

    python benchmarks/clusters/many_files.py DATA.binpack --folder /tmp/many --files 3000 --out RESULT.json

The files are hard links to one of about `--mib` MiB, made of whole copies of DATA. Each opening is a process of its
own; `slow_reads.c` delays each of its reads by `--delay-us` and counts them. The first opening has no index, the second
one has what the first has written.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def make_files(data: Path, folder: Path, files: int, mib: float) -> None:
    """Hard links to one file of whole copies of `data`, cut at a chunk if it is larger than that."""
    from nnue_trainer import _data

    folder.mkdir(parents=True, exist_ok=True)
    first = folder / "f00000.binpack"
    if not first.exists():
        wanted, content = int(mib * 2**20), data.read_bytes()
        ends = [offset + size for offset, size in _data.BinpackFile(os.fsencode(data)).chunks]
        whole, rest = divmod(wanted, len(content))
        first.write_bytes(content * whole + content[: max([end for end in ends if end <= rest], default=0)])
    for i in range(1, files):
        path = folder / f"f{i:05d}.binpack"
        if not path.exists():
            os.link(first, path)


def resident() -> int:
    """Bytes of this process in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_them(folder: Path, files: int, buffer: int) -> dict[str, Any]:
    """Opens files and takes a batch, in this process."""
    from nnue_trainer.data import Loader

    library = ctypes.CDLL(None)
    reads = getattr(library, "reads_so_far", lambda: 0)
    paths = sorted(folder.glob("f*.binpack"))[:files]
    before, began = reads(), time.monotonic()
    loader = Loader(paths, "HalfKAv2_hm", 16384, shuffle_buffer=buffer, repeat=True, reuse=True)
    chunks = sum(file.native.num_chunks for file in loader.opened)
    opened, opening = time.monotonic(), reads()
    stream = iter(loader)
    next(stream)
    found = {
        "files": len(paths),
        "chunks": chunks,
        "open_seconds": round(opened - began, 3),
        "open_reads_per_file": round((opening - before) / len(paths), 2),
        "first_batch_seconds": round(time.monotonic() - began, 3),
        "resident_mib": round(resident() / 2**20, 1),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
    }
    loader.close()
    return found


def child(args: argparse.Namespace, files: int, cache: Path, delay: int) -> dict[str, Any]:
    """`open_them` in a new process."""
    shim = args.folder / "slow_reads.so"
    if not shim.exists():
        source = HERE / "slow_reads.c"
        subprocess.run([os.environ.get("CC", "gcc"), "-O2", "-shared", "-fPIC", source, "-o", shim, "-ldl"], check=True)
    command = [sys.executable, __file__, "-", "--folder", args.folder, "--files", str(files), "--child"]
    command += ["--buffer", str(args.buffer)]
    wanted = {"LD_PRELOAD": str(shim), "READ_DELAY_US": str(delay), "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(command, env=os.environ | wanted, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a binpack of less than --mib MiB, or any with chunks of about 1 MiB")
    parser.add_argument("--folder", type=Path, required=True, help="where the files go; it must be on one file system")
    parser.add_argument("--files", type=int, default=3000)
    parser.add_argument("--mib", type=float, default=28)
    parser.add_argument("--delay-us", type=int, default=1000)
    parser.add_argument("--buffer", type=int, default=1 << 20, help="positions of the shuffle buffer")
    parser.add_argument("--out", type=Path, help="JSON to write")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(open_them(args.folder, args.files, args.buffer)))
        return
    make_files(args.data, args.folder, args.files, args.mib)
    cache = args.folder / f"cache-{os.getpid()}"
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, stdout=subprocess.PIPE, text=True)
    result = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, {platform.release()}",
        "command": " ".join(["python", "benchmarks/clusters/many_files.py", *map(str, sys.argv[1:])]),
        "commit": commit.stdout.strip(),
        "delay_us": args.delay_us,
        "file_bytes": (args.folder / "f00000.binpack").stat().st_size,
        "first": child(args, args.files, cache, args.delay_us),
        "second": child(args, args.files, cache, args.delay_us),
        "one_file": child(args, 1, cache, args.delay_us),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
