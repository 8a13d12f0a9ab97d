"""The plain operator's backward on a GPU by the share of zero gradients: `deterministic=True` against `False`.

    python benchmarks/feature_transformer/zero_gradients.py --rows ROWS.pt

The deterministic kernel sorts the batch, and its time hardly depends on the gradients. The kernel with atomics skips
zero gradients, such as those of clipped activations. Both perspectives of a batch are one matrix of rows. The gradients
are random, each zero with the given probability, independently of its neighbours, which is the worst case for atomics
of four numbers; "neurons": a share of the neurons has no gradients in a row at all, in groups of four. The lowest rung
of ladder.cu, the plain pair, is beside them in fp32. The kernels' results are compared with each other. Times are
medians with a cold L2 cache (run.py's timer). Prints a table and writes JSON to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import ctypes
import tempfile
from collections.abc import Callable
from pathlib import Path

import run
import torch
from torch import Tensor

from nnue_trainer import ops

SHARES = (0.0, 0.5, 0.75, 0.9, 0.97, 1.0)


def gradients(rows: int, outputs: int, share: float, together: int, dtype: torch.dtype) -> Tensor:
    """Random gradients [rows, outputs], of which `share` are zero, in groups of `together` neighbours."""
    g = torch.Generator("cuda").manual_seed(3)
    grad = torch.randn(rows, outputs, generator=g, device="cuda")
    zero = torch.rand(rows, outputs // together, generator=g, device="cuda") < share
    return grad.masked_fill_(zero.repeat_interleave(together, 1), 0).to(dtype)


def pair(ladder: ctypes.CDLL, rows: Tensor, grad: Tensor, features: int) -> Callable[[], tuple[Tensor, Tensor]]:
    """The backward of the plain pair: the gradients of weight and bias."""
    weight, bias = grad.new_empty(features, grad.shape[1]), grad.new_empty(grad.shape[1])
    values = torch.ones_like(rows, dtype=torch.float32)

    def call() -> tuple[Tensor, Tensor]:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        pointers = map(run.pointer, (rows, values, grad, weight, bias))
        assert ladder.backward(1, *pointers, len(rows), features, rows.shape[1], grad.shape[1], stream) == 0
        return weight, bias

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description="The plain operator's backward by the share of zero gradients")
    parser.add_argument(
        "--rows", help="index rows of HalfKAv2_hm, int32 [B, K], written by torch.save; default: random"
    )
    parser.add_argument("--data", help="a binpack file instead of --rows")
    parser.add_argument("--outputs", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=run.report.RESULTS, help="folder for the JSON")
    args = parser.parse_args()
    ops.set_index_check("off")
    if args.rows:
        rows = torch.load(args.rows, weights_only=True).cuda()
    else:
        made = (
            run.real_rows(args.data, run.KING_BUCKETS, 16_384)
            if args.data
            else run.random_rows(run.KING_BUCKETS, 16_384)
        )
        rows = torch.cat(made[:2]).cuda()
    features = run.FEATURES[run.KING_BUCKETS]
    record = {"benchmark": "zero_gradients", **run.report.environment("cuda"), "features": run.KING_BUCKETS}
    record |= {"rows": len(rows), "active": (rows != -1).sum().item() / len(rows), "outputs": args.outputs}
    timer = run.Timer(args.repeats)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        ladder = run.build_ladder(folder)
        for dtype in (torch.float32, torch.bfloat16):
            for share, together in [*((share, 1) for share in SHARES), *((share, 4) for share in SHARES[1:-1])]:
                grad = gradients(len(rows), args.outputs, share, together, dtype)
                calls: dict[str, Callable[[], tuple[Tensor | None, ...]]] = {
                    name: lambda grad=grad, kind=kind: ops.feature_transformer_backward(  # type: ignore[misc]
                        grad, rows, features, deterministic=kind
                    )
                    for name, kind in (("deterministic", True), ("atomics", False))
                }
                if ladder is not None and dtype == torch.float32:
                    calls["plain pair"] = pair(ladder, rows, grad, features)
                expected = calls["deterministic"]()[0]
                assert expected is not None
                result: dict[str, object] = {"dtype": str(dtype).removeprefix("torch."), "zeros": share}
                result["in groups of"] = together
                for name, call in calls.items():
                    found = call()[0]
                    assert found is not None
                    error = ((found - expected).norm() / expected.norm().clamp_min(1e-30)).item()
                    assert error < (1e-5 if dtype == torch.float32 else 1e-2), f"{name}: {error}"
                    result[name] = round(timer(call), 4)
                results.append(result)
                print("  ".join(f"{key} {value}" for key, value in result.items()), flush=True)
    run.report.write(args.out / "zero_gradients-cuda.json", record | {"results": results})


if __name__ == "__main__":
    main()
