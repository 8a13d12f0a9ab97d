"""The optimiser step alone: the fused operators against torch's fused AdamW with factoriser, clipping and guard.

    python benchmarks/optimizer.py [--device cuda] [--out FOLDER]

The parameters have the shapes of real nets: weight and PSQT of the feature transformer with virtual rows, biases, and
layer stacks. Times are medians. On CUDA they are those of a replayed graph; before each replay another 256 MB are read,
so that little of the data is in the cache. `bytes` is the least that the rule must move. For Adam in fp32 that is 28
bytes per weight: gradient, weight and two moments are read, and weight and moments are written. Virtual rows, a 16-bit
copy, a clipped norm and other rules need more. `copy` is the rate of a large element-wise kernel in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nnue_trainer.optim.fused_optimizer import FusedOptimizer
from nnue_trainer.optim.parts import Part
from nnue_trainer.optim.update_rule import UpdateRule
from report import RESULTS, environment, write

# For each net: rows that share virtual rows, virtual rows, rows without virtual rows, columns.
NETS = {
    "HalfKAv2_hm-1024": (24576, 768, 0, 1024),
    "HalfKAv2_hm-3072": (24576, 768, 0, 3072),
    "SFNNv16-1024": (24576, 768, 64368, 1024),
    "Chess768-1024": (0, 0, 768, 1024),
}


def make_parts(net: str, device: torch.device, copy: torch.dtype | None, gradient: torch.dtype) -> list[Part]:
    """The parameters of a net with random values and gradients. `copy`: the dtype of a 16-bit copy of the feature
    transformer's weight, or None; `gradient`: the dtype of its gradient."""
    shared, virtual, plain, columns = NETS[net]
    g = torch.Generator(device=device).manual_seed(1)

    def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
        p = nn.Parameter(torch.randn(shape, device=device, generator=g) * 0.1)
        p.grad_dtype = dtype
        p.grad = (torch.randn(shape, device=device, generator=g) * 1e-3).to(dtype)
        return p

    weight = parameter(shared + plain, columns, dtype=gradient)
    to = None if copy is None else torch.empty_like(weight, dtype=copy)
    parts = []
    if shared:
        parts.append(Part("weight", weight, 0, shared, virtual, decay=0.01, low=-1.98, high=1.98, copy=to))
        parts.append(Part("psqt", parameter(shared, 8), virtual_rows=virtual, decay=0.01))
    if plain:
        parts.append(Part("weight", weight, shared, plain, decay=0.01, low=-1.98, high=1.98, copy=to))
    parts.append(Part("bias", parameter(columns), decay=0.01))
    for i, (outputs, inputs) in enumerate(((16, columns), (32, 30), (1, 32))):
        parts.append(Part(f"fc{i}.weight", parameter(8, outputs, inputs), decay=0.01, low=-1.98, high=1.98))
        parts.append(Part(f"fc{i}.bias", parameter(8, outputs), decay=0.01))
    return parts


def least_bytes(parts: list[Part], rule: UpdateRule, clips: bool) -> int:
    """The bytes that a step must read and write at least. `clips`: the norm of the gradients is clipped, for which they
    are read twice."""
    total = 0
    for part in parts:
        assert part.parameter.grad is not None
        weights = part.rows(part.parameter).numel()
        each: float = part.parameter.grad.element_size() * (2 if clips else 1) + 24
        each += 4 if rule.averages == 2 else 0  # the second average of the gradient is only read
        each += 12 / rule.lookahead_every if rule.lookahead_every else 0
        each += 0 if part.copy is None else 2
        total += int(weights * each)
        total += part.virtual_rows * part.rows(part.parameter)[:1].numel() * 16
    return total


def torch_step(parts: list[Part], loss: Tensor, device: torch.device) -> Callable[[], None]:
    """The step that the trainer made before there was a fused operator: torch's AdamW with virtual rows, guard and
    clipping in torch's operators."""
    parameters = {part.name: part.parameter for part in parts}
    virtual = [(p, nn.Parameter(p.parameter.new_zeros(p.virtual_rows, *p.parameter.shape[1:]))) for p in parts]
    virtual = [(p, rows) for p, rows in virtual if p.virtual_rows]
    groups: list[dict[str, Any]] = [
        {"params": list(parameters.values())},
        {"params": [rows for _, rows in virtual], "weight_decay": 0.0},
    ]
    cuda = device.type == "cuda"
    lr = torch.tensor(1e-3, device=device)
    adamw = torch.optim.AdamW(groups, lr=lr, weight_decay=0.01, fused=True, capturable=cuda)
    failed = torch.zeros((), device=device)
    setattr(adamw, "found_inf", failed)  # noqa: B010

    @torch.no_grad()
    def step() -> None:
        for part, rows in virtual:
            gradient = part.rows(part.parameter.grad).view(-1, *rows.shape)  # type: ignore[arg-type]
            if cuda:
                rows.grad = gradient.sum(0)
            else:
                rows.grad = gradient[0].clone()
                for group in gradient[1:]:
                    rows.grad.add_(group)
            rows.zero_()
        with_rows = {part.name for part, _ in virtual}
        sums = [p.grad.sum() for n, p in parameters.items() if n not in with_rows and p.grad is not None]
        sums += [rows.grad.sum() for _, rows in virtual if rows.grad is not None]
        failed.clamp_(min=(~torch.stack([loss, *sums]).isfinite().all()).float())
        adamw.step()
        for part, rows in virtual:
            groups = part.rows(part.parameter.detach()).view(-1, *rows.shape)
            for group in [groups] if cuda else groups:
                group.add_(rows).clamp_(part.low, part.high)
        for part in parts:
            if not part.virtual_rows:
                part.parameter.clamp_(part.low, part.high)

    return step


def median_ms(step: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The median milliseconds of a step: of `repeats` replays of a graph with cold caches on CUDA, of fewer direct
    calls on a CPU."""
    times = []
    if device.type == "cpu":
        for _ in range(max(3, repeats // 10)):
            begin = time.perf_counter()
            step()
            times.append((time.perf_counter() - begin) * 1e3)
        return statistics.median(times[1:])
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    flush = torch.ones(64 << 20, device=device)
    for _ in range(repeats):
        flush.sum()  # only reads; written cache lines would have to be written back during the step
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        started.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        times.append(started.elapsed_time(ended))
    return statistics.median(times)


def copy_rate(device: torch.device, repeats: int) -> float:
    """The bytes that a large element-wise kernel reads and writes per second, in TB/s."""
    a = torch.randn((256 if device.type == "cuda" else 32) << 20, device=device)
    b = torch.empty_like(a)
    return 2 * a.numel() * 4 / median_ms(lambda: (torch.neg(a, out=b), None)[1], device, repeats) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--nets", nargs="*", default=list(NETS))
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--out", type=Path, default=RESULTS)
    a = parser.parse_args()
    device = torch.device(a.device)
    report: dict[str, Any] = {"environment": environment(device), "copy_tb_s": round(copy_rate(device, a.repeats), 3)}
    print(f"copy {report['copy_tb_s']} TB/s")
    cases: list[dict[str, Any]] = []
    half, single = torch.bfloat16, torch.float32
    lookahead = UpdateRule("positive_negative", eps=1e-7, lookahead_every=5)
    for net in a.nets:
        variants: list[tuple[str, UpdateRule | None, torch.dtype | None, torch.dtype, float]] = [
            ("torch", None, None, single, float("inf")),
            ("adamw", UpdateRule(), None, single, float("inf")),
            ("adamw, bf16 copy", UpdateRule(), half, single, float("inf")),
            ("adamw, bf16 copy and gradient", UpdateRule(), half, half, float("inf")),
            ("adamw, norm clipped", UpdateRule(), None, single, 2.0),
            ("radam", UpdateRule("rectified"), None, single, float("inf")),
            ("ranger_lite, norm clipped", lookahead, None, single, 2.0),
        ]
        for name, rule, copy, gradient, max_norm in variants:
            parts = make_parts(net, device, copy, gradient)
            loss = torch.ones((), device=device)
            if rule is None:
                step = torch_step(parts, loss, device)
                moved = least_bytes(parts, UpdateRule(), False)
            else:
                fused = FusedOptimizer(parts, rule, torch.tensor(1e-3, device=device), max_norm, covered=["weight"])
                step = partial(fused.step, loss)
                moved = least_bytes(parts, rule, max_norm < float("inf"))
            ms = median_ms(step, device, a.repeats)
            rate = moved / ms / 1e9
            case = {"net": net, "step": name, "ms": round(ms, 4), "bytes": moved, "tb_s": round(rate, 3)}
            cases.append(case)
            print(f"{net:18} {name:30} {ms:8.3f} ms  {moved / 1e6:7.0f} MB  {rate:6.3f} TB/s", flush=True)
            del parts, step
    report["cases"] = cases
    write(a.out / f"optimizer-{device.type}.json", report)


if __name__ == "__main__":
    main()
