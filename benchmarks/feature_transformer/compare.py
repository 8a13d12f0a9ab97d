"""Compares builds of the CUDA operator library: errors, whether repeated runs give equal bits, and times.

    python benchmarks/feature_transformer/compare.py --data FILE.binpack old=PATH/_ops_cuda.so new=PATH/_ops_cuda.so

The builds run one after the other, each in a separate process, on the same positions. For each build it prints the
errors of output and gradients against float64, whether five more runs give the same bits, the median times with a cold
L2 cache (run.py's timer), and with --profile the time of each kernel. Measure a change of a kernel with this before it
is merged; run.py measures the figures that are kept.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent


def error(found: Tensor, expected: Tensor) -> float:
    """The relative error: norm of the difference / norm."""
    return float((found.double() - expected).norm() / expected.norm())


class Case:
    """A batch and parameters of one dtype, with the calls that are checked and timed. `run` is the module run.py."""

    def __init__(
        self, run: Any, name: str, rows: tuple[Tensor, Tensor, Tensor], outputs: int, dtype: torch.dtype
    ) -> None:
        self.run, self.features = run, run.FEATURES[name]
        self.white, self.black, self.black_to_move = (t.cuda() for t in rows)
        self.weight, self.bias, self.grad = run.parameters(self.features, outputs, len(self.white), dtype)

    def plan(self) -> Any:
        run = self.run
        rows = (self.white, self.black, self.black_to_move)
        return run.perspective_plan(*rows, self.features, run.BUCKET, run.BUCKETED, self.weight.dtype)

    def forward(self, plan: Any = None) -> Tensor:
        run = self.run
        out = run.perspective_transformer(
            self.white, self.black, self.black_to_move, self.weight, self.bias,
            bucket_size=run.BUCKET, num_bucketed=run.BUCKETED, plan=plan,
        )  # fmt: skip
        return cast(Tensor, out)

    def backward(self, out: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(out, (self.weight, self.bias), self.grad, retain_graph=True)

    def step(self) -> tuple[Tensor, ...]:
        out = self.forward()
        return (out, *torch.autograd.grad(out, (self.weight, self.bias), self.grad))

    def reference(self) -> tuple[Tensor, ...]:
        """The results of `step`, computed in float64 by embedding_bag."""
        weight, bias = (p.detach().double().requires_grad_() for p in (self.weight, self.bias))
        packed = [self.run.pack(i) for i in (self.white, self.black)]
        out = self.run.bags(packed, self.black_to_move.bool()[:, None], weight, bias)
        return (out.detach(), *torch.autograd.grad(out, (weight, bias), self.grad.double()))

    def check(self, flush: Tensor) -> str:
        found, expected = self.step(), self.reference()
        errors = [error(f, e) for f, e in zip(found, expected, strict=True)]
        size = expected[1].norm(dim=1)
        used = size > 0
        worst = float(((found[1].double() - expected[1]).norm(dim=1)[used] / size[used]).max())
        stray = int((found[1][~used] != 0).sum())
        equal = True
        for _ in range(5):
            flush.random_()
            equal &= all(torch.equal(a, b) for a, b in zip(found, self.step(), strict=True))
        return (
            f"errors: output {errors[0]:.1e} weight {errors[1]:.1e} (worst feature {worst:.1e}) bias {errors[2]:.1e}; "
            f"gradients of unused features that are not 0: {stray}; equal bits: {equal}"
        )

    def times(self, timer: Any) -> str:
        plan = self.plan()
        out = self.forward(plan)
        found = {
            "plan": timer(self.plan),
            "forward": timer(lambda: self.forward(plan)),
            "backward": timer(lambda: self.backward(out)),
            "step": timer(self.step),
        }
        return "ms: " + "  ".join(f"{k} {v:.4f}" for k, v in found.items())

    def kernels(self, flush: Tensor) -> dict[str, list[float]]:
        """For each of our kernels: the microseconds of all its launches in ten steps."""
        found: dict[str, list[float]] = {}
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(10):
                flush.zero_()
                self.step()
            torch.cuda.synchronize()
        for event in profile.events() or []:
            if "nnue::" in event.name:
                name = event.name.split("(")[0].split("<")[0].removeprefix("void ")
                found.setdefault(name, []).append(event.device_time)
        return found


def measure(name: str, library: str, args: argparse.Namespace) -> None:
    """Checks and times one build. It must run in a separate process, because a process can load only one library."""
    from nnue_trainer.base import _library

    _library.CUDA_LIBRARY = Path(library)
    sys.path.insert(0, str(HERE))
    import run  # the benchmark beside this one; it loads the library

    run.ops.set_index_check("off")
    timer = run.Timer(args.repeats)
    for text in args.cases:
        kind, outputs, batch = run.parse_case(text)
        rows = run.real_rows(args.data, kind, batch) if args.data else run.random_rows(kind, batch)
        for dtype in args.dtypes:
            case, label = Case(run, kind, rows, outputs, getattr(torch, dtype)), f"{name:12s} {text} {dtype:9s}"
            print(label, case.check(timer.flush))
            print(label, case.times(timer), flush=True)
            if args.profile:
                for kernel, spent in case.kernels(timer.flush).items():
                    print(f"    {kernel:60s} {statistics.median(spent):8.1f} us  x {len(spent) / 10:g}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds of the CUDA op library against each other")
    parser.add_argument("builds", nargs="+", metavar="NAME=LIBRARY", help="for example old=/tmp/old/_ops_cuda.so")
    parser.add_argument("--data", help="a binpack file; random rows without one")
    parser.add_argument("--cases", nargs="+", default=["buckets:1024:16384"], metavar="SET:N:B")
    parser.add_argument(
        "--dtypes", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16", "float16"]
    )
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--limit", type=int, default=120, metavar="SECONDS", help="for one build; a hang is stopped")
    parser.add_argument("--profile", action="store_true", help="print each kernel's time")
    args = parser.parse_intermixed_args()
    builds = [build.partition("=") for build in args.builds]
    for name, _, library in builds:
        if not Path(library).is_file():
            print(f"compare: {name}={library}: found no file, expected a library", file=sys.stderr)
            return 1
    failed = 0
    for name, _, library in builds:
        process = multiprocessing.get_context("spawn").Process(target=measure, args=(name, library, args))
        process.start()
        process.join(args.limit)
        if process.is_alive():
            print(f"compare: {name}: stopped after {args.limit} s", file=sys.stderr)
            process.kill()
            process.join()
        failed |= process.exitcode != 0
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
