"""The layers after the first one and the loss, forward and backward: the fused operators against torch's operators.

    python benchmarks/layer_stacks.py [--out FOLDER] [--quick] [--qat]

torch's operators compute all stacks for every position and then choose one. Times are medians of a replayed CUDA graph,
in milliseconds; before each replay another 256 MB are read, so that little of the data is in the cache. `order` is the
time to order the positions by stack. It is not part of the operators' time, because it depends on the batch alone and
can be done during the step before. `floor` is the time that reading x once and writing its gradient once takes at the
rate of a large copy in the same run. Errors are relative to float64: norm of the difference / norm.

With `--qat` the layers round as the engine does (only x in fp32 is measured), and the times include the rounding of
their parameters to integers. Errors are then relative to torch's operators.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from nnue_trainer import nets
from nnue_trainer.losses import SigmoidLoss, mean
from nnue_trainer.losses.win_rate import WinRateLoss
from nnue_trainer.modules import StackedLinear
from nnue_trainer.modules.layer_stacks import FirstOutputs, LayerStacks
from nnue_trainer.modules.straight_through import Places
from nnue_trainer.nets.base import StackedModel
from optimizer import copy_rate, median_ms
from report import RESULTS, environment, write

NETS: dict[str, dict[str, Any]] = {
    "SFNNv5, N 1024": {"kind": "sfnnv5"},
    "SFNNv9, N 3072": {"kind": "sfnnv9"},
    "SFNNv16, N 1024": {"kind": "sfnnv16"},
    "simple, N 2 x 1024": {"kind": "simple", "hidden": 1024},
}
# Shares of the positions in each output bucket, from few pieces to many: about those of self-play games.
SHARES = (0.06, 0.14, 0.14, 0.14, 0.14, 0.13, 0.13, 0.12)
# (batch, dtype of x); with --quick only the first three.
CASES = (
    (16384, torch.float32), (16384, torch.bfloat16), (16384, torch.float16), (65536, torch.float32),
    (65536, torch.bfloat16),
)  # fmt: skip


class Problem:
    """The layers of a net with weights, and a random batch of their inputs, on the GPU."""

    def __init__(self, net: dict[str, Any], positions: int, dtype: torch.dtype) -> None:
        g = torch.Generator(device="cuda").manual_seed(1)
        model = nets.build(net).cuda()
        assert isinstance(model, StackedModel)
        self.model = model
        self.stacks: LayerStacks = model.stacks
        self.linears: Sequence[nn.Module] = model.linears()
        self.score_scale = model.score_scale
        with torch.no_grad():  # all stacks of a new model have the same weights; make them different
            for linear in self.linears:
                for parameter in linear.parameters():
                    parameter.mul_(1 + 0.2 * torch.randn(parameter.shape, device="cuda", generator=g))
        self.x = torch.rand((positions, self.stacks.inputs), device="cuda", generator=g).square().to(dtype)
        self.x.requires_grad_()
        self.psqt = torch.randn(positions, device="cuda", generator=g).mul_(0.3).requires_grad_()
        shares = torch.tensor(SHARES[: self.stacks.stacks], device="cuda")
        bucket = torch.multinomial(shares, positions, replacement=True, generator=g)
        self.first = FirstOutputs(self.x, self.psqt, bucket)
        score = torch.randint(-800, 800, (positions,), device="cuda", generator=g).short()
        result = torch.randint(-1, 2, (positions,), device="cuda", generator=g).to(torch.int8)
        self.targets = (score, result, torch.tensor(0.9, device="cuda"))
        self.loss = SigmoidLoss() if net["kind"] == "simple" else WinRateLoss()
        self.leaves = [self.x, self.psqt, *(p for linear in self.linears for p in linear.parameters())]
        self.order = self.stacks.order(bucket)

    def torch_step(self) -> list[Tensor]:
        """The loss and all gradients, by torch's operators."""
        net = self.stacks.outputs(self.first._replace(x=self.x.float()), self.linears).squeeze(1)
        loss = mean(*self.loss.terms(net * self.score_scale, *self.targets))
        return [loss, *torch.autograd.grad(loss, self.leaves)]

    def step(self) -> list[Tensor]:
        """The loss and all gradients, by the fused operators."""
        return self.by_operators(self.stacks.call(self.linears, self.first.bucket, self.order).parameters)

    @torch.no_grad()
    def by_operators(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """The loss and the gradients of x, PSQT and these parameters."""
        kernel, operators, x = self.loss.kernel(), torch.ops.nnue, self.first.x
        assert kernel is not None
        totals, *found = operators._layer_stacks_loss(
            x, self.order, parameters, self.first.psqt, list(self.targets), self.stacks.description, kernel.kind,
            [self.score_scale, *kernel.constants],
        )  # fmt: skip
        by_sums, by_output, partials = found
        of_x, _, of_psqt, of_weight, flat = operators._layer_stacks_gradients(
            x, self.order, parameters, by_sums, partials, by_output, [torch.ones_like(totals[2]), totals],
            self.stacks.description, x.dtype, [],
        )  # fmt: skip
        return [totals[2], of_x, of_psqt, of_weight, *Places(parameters[1:], 4).cut(flat)]

    def exact(self) -> list[Tensor]:
        """The loss and all gradients in float64."""
        leaves = [self.x.detach().double().requires_grad_(), self.psqt.detach().double().requires_grad_()]
        linears: list[nn.Module] = []
        for linear in self.linears:
            stacks, outputs, inputs = (1, *linear.weight.shape)[-3:]  # type: ignore[misc]
            copy = StackedLinear(int(stacks), int(inputs), int(outputs)).cuda().double()
            for own, other in zip(copy.parameters(), linear.parameters(), strict=True):
                own.data.copy_(other.detach().view_as(own))
            linears.append(copy)
            leaves += copy.parameters()
        net = self.stacks.outputs(FirstOutputs(leaves[0], leaves[1], self.first.bucket), linears).squeeze(1)
        score, result, lam = self.targets
        loss = mean(*self.loss.terms(net * self.score_scale, score, result, lam.double()))
        return [loss, *torch.autograd.grad(loss, leaves)]


class Rounded(Problem):
    """The layers with the engine's rounding. `exact` is what torch's operators compute."""

    def __init__(self, net: dict[str, Any], positions: int, dtype: torch.dtype) -> None:
        super().__init__(net, positions, dtype)
        self.model.set_rounding(True)
        assert self.model.rounded is not None
        self.rounded = self.model.rounded
        assert self.rounded.stacks is not None
        self.stacks = self.rounded.stacks
        with torch.no_grad():
            self.x.mul_(self.rounded.forward.first.largest).floor_()
            self.psqt.mul_(self.rounded._psqt_scale)

    def torch_step(self) -> list[Tensor]:
        sums = self.rounded._sums_of_layers(self.rounded._steps(self.model), self.first)
        net = self.rounded._score(self.first, sums)
        loss = mean(*self.loss.terms(net * self.score_scale, *self.targets))
        return [loss, *torch.autograd.grad(loss, self.leaves, allow_unused=True, materialize_grads=True)]

    def step(self) -> list[Tensor]:
        parameters = self.rounded._parameters(self.model)
        loss, of_x, of_psqt, *others = self.by_operators(parameters)
        given = [other.view_as(each) for other, each in zip(others, parameters, strict=True)]
        return [loss, of_x, of_psqt, *torch.autograd.grad(parameters, self.leaves[2:], given)]

    def exact(self) -> list[Tensor]:
        return [found.double() for found in self.torch_step()]


def largest_error(found: list[Tensor], exact: list[Tensor]) -> tuple[float, float]:
    """The relative error of the gradient of x, and the largest one of the loss and the other gradients."""
    errors = [
        float((a.double().view_as(b) - b).norm() / b.norm().clamp(min=1e-30)) for a, b in zip(found, exact, strict=True)
    ]
    return errors[1], max(errors[:1] + errors[2:])


def kernels(step: Callable[[], Any], repeats: int = 10) -> dict[str, dict[str, float]]:
    """For each of our kernels in a step: the number of launches, and the microseconds of all launches together."""
    flush = torch.ones(64 << 20, device="cuda")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(repeats):
            flush.sum()
            step()
        torch.cuda.synchronize()
    found: dict[str, dict[str, float]] = defaultdict(lambda: {"launches": 0.0, "us": 0.0})
    for event in profiler.key_averages():
        if event.device_type == torch.autograd.DeviceType.CUDA and "nnue" in event.key:
            name = event.key.partition("(")[0].replace("nnue::cuda::stacks::", "").removeprefix("void ")
            found[name]["launches"] += event.count / repeats
            found[name]["us"] += round(event.self_device_time_total / repeats, 2)
    return dict(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="*", default=list(NETS))
    parser.add_argument("--quick", action="store_true", help="the first three cases of each net")
    parser.add_argument("--qat", action="store_true", help="with the engine's rounding")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--out", type=Path, default=RESULTS)
    a = parser.parse_args()
    device = torch.device("cuda")
    report: dict[str, Any] = {"benchmark": "layer_stacks", "qat": a.qat, **environment(device)}
    report["copy_tb_s"] = round(copy_rate(device, a.repeats), 3)
    print(f"{report['device']}, copy {report['copy_tb_s']} TB/s")
    print(f"{'net':20} {'batch':>6} {'x':9} {'torch':>7} {'here':>7} {'floor':>7} {'order':>7}  errors: torch, here")
    rows = []
    for net in a.nets:
        for positions, dtype in CASES[:3] if a.quick else CASES:
            if a.qat and dtype != torch.float32:
                continue
            problem = (Rounded if a.qat else Problem)(NETS[net], positions, dtype)
            row: dict[str, Any] = {"net": net, "batch": positions, "x": str(dtype).removeprefix("torch.")}
            if positions == CASES[0][0]:
                exact = problem.exact()
                row["errors_torch"] = largest_error(problem.torch_step(), exact)
                row["errors"] = largest_error(problem.step(), exact)
                row["same_bits"] = all(map(torch.equal, problem.step(), problem.step()))
                del exact
            row["torch_ms"] = round(median_ms(problem.torch_step, device, a.repeats), 4)
            row["ms"] = round(median_ms(problem.step, device, a.repeats), 4)
            order = partial(problem.stacks.order, problem.first.bucket)
            row["order_ms"] = round(median_ms(order, device, a.repeats), 4)
            row["floor_ms"] = round(2 * problem.x.nbytes / report["copy_tb_s"] / 1e9, 4)

            def ordered_step(problem: Problem = problem, order: Callable[[], object] = order) -> None:
                order()
                problem.step()

            row["kernels"] = kernels(ordered_step)
            rows.append(row)
            errors = [f"{e:.1e}" for e in (*row.get("errors_torch", ()), *row.get("errors", ()))]
            print(
                f"{net:20} {positions:6} {row['x']:9} {row['torch_ms']:7.3f} {row['ms']:7.3f} {row['floor_ms']:7.3f} "
                f"{row['order_ms']:7.3f}  {' '.join(errors)} {row.get('same_bits', '')}"
            )
            for name, figures in sorted(row["kernels"].items(), key=lambda item: -item[1]["us"]):
                print(f"{'':20}   {name[:60]:60} {figures['launches']:4.0f} {figures['us']:8.2f} us", flush=True)
            del problem
    report["rows"] = rows
    write(a.out / f"layer_stacks{'-qat' if a.qat else ''}-cuda.json", report)


if __name__ == "__main__":
    main()
