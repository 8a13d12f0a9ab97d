#!/usr/bin/env python3
"""Whether the operators give equal bits under two versions of torch: one wheel serves all of them.

    OLD/bin/python tools/compare_torch.py --save old.safetensors       in an environment with torch 2.10
    NEW/bin/python tools/compare_torch.py --against old.safetensors    in one with the newest torch

Both environments need this package (the same wheel) and safetensors. Every tensor of a fixed set of calls on the CPU is
compared bit by bit; the exit status is 1 if one differs. `--threads` sets the number of CPU threads (results must not
depend on it).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import nnue_trainer
from nnue_trainer import ops
from nnue_trainer.ops import perspectives
from nnue_trainer.stats import ewm, matrix, random, rolling

BATCH, ACTIVE, FEATURES, WIDTH = 64, 32, 768, 96


def results() -> dict[str, torch.Tensor]:
    """Tensors by name, from inputs that depend only on Philox."""
    numbers = random.Philox(seed=7)

    def uniform(*shape: int) -> torch.Tensor:
        return numbers.uniform(shape) - 0.5

    def index_rows() -> torch.Tensor:
        entries = numbers.integers(0, FEATURES, (BATCH, ACTIVE)).to(torch.int32)
        counts = numbers.integers(0, ACTIVE + 1, (BATCH, 1))
        return torch.where(torch.arange(ACTIVE) < counts, entries, -1)

    def parameter(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return tensor.detach().clone().to(dtype).requires_grad_()

    white, black = index_rows(), index_rows()
    stm = numbers.integers(0, 2, (BATCH,)).to(torch.uint8)
    weights, biases, values, flow = (
        uniform(FEATURES, WIDTH),
        uniform(WIDTH),
        uniform(BATCH, ACTIVE),
        uniform(BATCH, WIDTH),
    )
    found: dict[str, torch.Tensor] = {}
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        weight, bias = parameter(weights, dtype), parameter(biases, dtype)
        scale = parameter(values, torch.float64 if dtype is torch.float64 else torch.float32)
        out = nnue_trainer.ops.functional.feature_transformer(white, weight, bias, scale)
        out.backward(flow.to(dtype))
        for part, tensor in (("out", out), ("weight", weight.grad), ("bias", bias.grad), ("values", scale.grad)):
            assert tensor is not None
            found[f"feature_transformer/{name}/{part}"] = tensor.detach()
        for activation in ("identity", "crelu", "screlu", "pairwise"):
            weight, bias = parameter(weights, dtype), parameter(biases, dtype)
            out = perspectives.perspective_transformer(white, black, stm, weight, bias, activation=activation)
            out.float().square().sum().backward()
            for part, tensor in (("out", out), ("weight", weight.grad), ("bias", bias.grad)):
                assert tensor is not None
                found[f"perspective_transformer/{name}/{activation}/{part}"] = tensor.detach()
    series = uniform(4, 5_000).double()
    for statistic in ("sum", "mean", "var", "std", "min", "max", "median", "skew", "kurt"):
        found[f"rolling/{statistic}"] = getattr(rolling(series, 100), statistic)()
    for statistic in ("mean", "var", "std"):
        found[f"ewm/{statistic}"] = getattr(ewm(series, span=50), statistic)()
    norms = matrix.norms(weights)
    found["rows/norms"] = torch.stack(norms) if isinstance(norms, tuple) else norms
    found["rows/transpose"] = matrix.transpose(weights)
    positions = nnue_trainer.data.records_from_fens(["rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"])
    for name, tensor in ops.expand_features(torch.from_numpy(positions), "HalfKAv2_hm")._asdict().items():
        found[f"expand_features/{name}"] = tensor
    return {name: tensor.contiguous() for name, tensor in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the operators' results under two versions of torch.")
    parser.add_argument("--save", type=Path, metavar="FILE", help="File to write the tensors to.")
    parser.add_argument("--against", type=Path, metavar="FILE", help="Tensors of another environment to compare with.")
    parser.add_argument("--threads", type=int, default=2, help="Number of CPU threads. Default: 2.")
    arguments = parser.parse_args()
    if (arguments.save is None) == (arguments.against is None):
        parser.error("expected one of --save and --against")
    torch.set_num_threads(arguments.threads)
    found = results()
    print(f"torch {torch.__version__}, torch-nnue {nnue_trainer.__version__}: {len(found)} tensors")
    if arguments.save:
        save_file(found, arguments.save)
        return 0
    expected = load_file(arguments.against)
    different = [
        name
        for name in sorted(found.keys() | expected.keys())
        if name not in found
        or name not in expected
        or found[name].dtype != expected[name].dtype
        or found[name].shape != expected[name].shape
        or not torch.equal(found[name].view(torch.uint8), expected[name].view(torch.uint8))
    ]
    print(f"{len(found) - len(different)} of {len(found)} are equal in every bit", *different, sep="\n  ")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
