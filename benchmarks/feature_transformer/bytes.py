"""Counts the bytes that the fused operator moves in one forward and backward, by Nsight Compute (ncu).

    python benchmarks/feature_transformer/bytes.py --data FILE.binpack [--cases buckets:1024:16384 full:1024:16384]

For each case and dtype it counts, for each kernel of plan, forward and backward, the device memory read and written,
the bytes through the L2 cache, and the time without fixed clocks. ncu runs the kernels one by one, with the caches as
the kernel before left them. The table also has the fewest bytes that the operator could move: each input and output
once. NNUE_CUDA_KERNELS=portable selects the portable kernels, which run on every supported GPU. Needs ncu and the
permission to read hardware counters. Prints a table and writes JSON to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import report  # noqa: E402 (a neighbour of this folder)

METRICS = {
    "dram__bytes_read.sum": "dram_read",
    "dram__bytes_write.sum": "dram_written",
    "lts__t_bytes.sum": "l2",
    "gpu__time_duration.sum": "time",
}
UNITS = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "nsecond": 1e-9}
UNITS |= {"usecond": 1e-6, "msecond": 1e-3, "second": 1.0, "s": 1.0}


def one_step(case: str, dtype: str, data: str | None) -> None:
    """Runs one forward and backward between cudaProfilerStart and cudaProfilerStop; `count` starts this under ncu."""
    import run
    import torch

    from nnue_trainer import ops
    from nnue_trainer.ops.perspectives import perspective_transformer

    name, outputs, batch = run.parse_case(case)
    ops.set_index_check("off")
    white, black, stm = (t.cuda() for t in (run.real_rows(data, name, batch) if data else run.random_rows(name, batch)))
    kind = getattr(torch, dtype)
    weight = (torch.randn(run.FEATURES[name], outputs, device="cuda") * 0.05).to(kind).requires_grad_()
    bias = torch.rand(outputs, device="cuda").requires_grad_()
    grad = (torch.randn(batch, outputs, device="cuda") * 1e-4).to(kind)
    torch.cuda.synchronize()
    entries = sum(int((i >= 0).sum()) for i in (white, black))
    values = weight.numel() + outputs * batch + bias.numel()
    print(f"fewest {2 * (values * weight.element_size() + 4 * entries)}", flush=True)
    torch.cuda.cudart().cudaProfilerStart()
    bucket_size, num_bucketed = run.buckets_of(name)
    out = perspective_transformer(white, black, stm, weight, bias, bucket_size=bucket_size, num_bucketed=num_bucketed)
    torch.autograd.grad(out, (weight, bias), grad)
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


def count(case: str, dtype: str, data: str | None) -> dict[str, Any]:
    """Runs `one_step` under ncu, and returns bytes and seconds of each kernel."""
    command = ["ncu", "--csv", "--print-units", "base", "--clock-control", "none", "--profile-from-start", "off"]
    command += ["--cache-control", "none", "--metrics", ",".join(METRICS)]
    command += [
        sys.executable,
        str(Path(__file__).resolve()),
        "--one",
        case,
        dtype,
        *(["--data", data] if data else []),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    lines = result.stdout.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if result.returncode != 0 or start is None:
        raise SystemExit(f"ncu failed ({result.returncode}): {(result.stdout + result.stderr).strip()[-600:]}")
    kernels: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines[start:]))):
        name = f"{row['ID']} {row['Kernel Name'].split('(')[0].removeprefix('void ').removeprefix('nnue::')}"
        if row["Metric Name"] in METRICS:
            value = float(row["Metric Value"].replace(",", "")) * UNITS[row["Metric Unit"]]
            kernels.setdefault(name, {})[METRICS[row["Metric Name"]]] = value
    fewest = next(float(line.split()[1]) for line in lines if line.startswith("fewest "))
    return {"case": case, "dtype": dtype, "fewest_bytes": fewest, "kernels": kernels}


def table(result: dict[str, Any]) -> None:
    print(f"\n{result['case']}, {result['dtype']}: MB, us")
    print(f"    {'':64s}{'DRAM read':>10s}{'written':>10s}{'L2':>10s}{'time':>8s}")
    rows = list(result["kernels"].items())
    total = {key: sum(k[key] for _, k in rows) for key in METRICS.values()}
    for name, k in [*((n, k) for n, k in rows if k["time"] > 2e-6), ("all kernels", total)]:
        cells = "".join(f"{k[key] / 1e6:10.1f}" for key in ("dram_read", "dram_written", "l2"))
        print(f"    {name[:63]:64s}{cells}{k['time'] * 1e6:8.1f}")
    print(f"    inputs and outputs, each once: {result['fewest_bytes'] / 1e6:.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description="Bytes of the fused feature transformer, by ncu")
    parser.add_argument("--data", help="a binpack file; random rows without one")
    parser.add_argument("--cases", nargs="+", metavar="SET:N:B", default=["buckets:1024:16384", "full:1024:16384"])
    parser.add_argument("--out", type=Path, default=report.RESULTS, help="folder for the JSON")
    parser.add_argument("--one", nargs=2, metavar=("CASE", "DTYPE"), help="only run one step; used under ncu")
    args = parser.parse_args()
    if args.one:
        case, dtype = args.one
        one_step(case, dtype, args.data)
        return
    results = [count(case, dtype, args.data) for case in args.cases for dtype in ("float32", "bfloat16")]
    for result in results:
        table(result)
    record = {"benchmark": "feature_transformer_bytes", **report.environment("cuda")}
    record["data"] = Path(args.data).name if args.data else "random"
    report.write(args.out / "feature_transformer_bytes-cuda.json", record | {"results": results})


if __name__ == "__main__":
    main()
