"""The cost of the loader's state in a save for each of several processes, with millions of chunks.

    python -m torch.distributed.run --nproc-per-node 8 benchmarks/clusters/save.py DATA.binpack --chunks 2000000

The file has that many chunks of one position of DATA each. Every process makes the state of its shard, they exchange
the states, and the first one writes the merged state as a checkpoint. One line per save.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import struct
import tempfile
import time
from pathlib import Path

from torch import Tensor

from nnue_trainer.data import RecordLoader
from nnue_trainer.data.binpack import write_binpack
from nnue_trainer.data.loader import merge_over
from nnue_trainer.files import checkpoint
from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.training.parallel.ranks import Ranks, joined

CHAIN = 34  # bytes of a chain of one position


def make_file(data: Path, path: Path, chunks: int) -> None:
    """A binpack with this many chunks of one position each."""
    with RecordLoader([data], 10_000, seed=1) as loader:
        write_binpack(path, next(iter(loader)).numpy().copy(), join_chains=False)
    chains = path.read_bytes()[8:]
    pieces = [chains[at : at + CHAIN] for at in range(0, len(chains), CHAIN)]
    one = b"".join(b"BINP" + struct.pack("<I", len(piece)) + piece for piece in pieces)
    size = (8 + CHAIN) * chunks
    path.write_bytes((one * (size // len(one) + 1))[:size])


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def mebibytes(field: str) -> float:
    """A field of /proc/self/status: VmRSS, or VmHWM, its maximum since `clear_refs` was written."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def save(loader: RecordLoader, ranks: Ranks, path: Path) -> list[float]:
    """CPU seconds of the state, of its exchange and of the write, and the growth of the memory in MiB."""
    Path("/proc/self/clear_refs").write_text("5")
    before, times = mebibytes("VmRSS"), [cpu_seconds()]
    state = loader.state_dict()
    times.append(cpu_seconds())
    merged = merge_over(state, ranks.maximum, ranks.at_first, ranks.any)
    times.append(cpu_seconds())
    if ranks.writes:
        tensors = {key: value for key, value in merged.items() if isinstance(value, Tensor)}
        checkpoint.save(path, Checkpoint({}, {"batches": tensors}))
    times.append(cpu_seconds())
    seconds = [after - before for before, after in itertools.pairwise(times)]
    return [*seconds, mebibytes("VmHWM") - before]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a binpack of at least 10,000 positions")
    parser.add_argument("--chunks", type=int, default=2_000_000)
    parser.add_argument("--saves", type=int, default=4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as own, joined() as ranks:
        folder = Path(str(ranks.each(own)[0]))
        if ranks.writes:
            make_file(args.data, folder / "many.binpack", args.chunks)
        ranks.any(False)
        loader = RecordLoader(
            [folder / "many.binpack"],
            64,
            shuffle_buffer=4096,
            repeat=True,
            threads=1,
            shards=ranks.size,
            rank=ranks.rank,
            world_size=ranks.size,
        )
        with loader:
            stream = iter(loader)
            for _ in range(args.saves):
                next(stream)
                time.sleep(1)  # for the threads that read ahead
                ranks.any(False)
                every = ranks.each(save(loader, ranks, folder / "checkpoint.safetensors"))
                if ranks.writes:
                    state, exchange, write, _ = (sum(each) for each in zip(*every, strict=True))
                    most, memory = max(sum(each[:3]) for each in every), max(each[3] for each in every)
                    print(
                        f"CPU s of all: state {state:.3f}, exchange {exchange:.3f}, write {write:.3f}; of one at most "
                        f"{most:.3f}; memory of one at most +{memory:.1f} MiB; load {os.getloadavg()[0]:.1f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
