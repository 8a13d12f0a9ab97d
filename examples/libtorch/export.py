"""Compiles the net of a checkpoint with AOTInductor, for run_exported.cpp: python export.py net.safetensors net.pt2"""

import sys

import torch
from torch import Tensor, nn

from nnue_trainer import data, nets
from nnue_trainer.files import checkpoint


class Scores(nn.Module):
    """Index rows → scores in engine units."""

    def __init__(self, model: nets.NnueModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, white: Tensor, black: Tensor, black_to_move: Tensor, piece_count: Tensor, material: Tensor
    ) -> Tensor:
        none = torch.zeros_like(piece_count)
        batch = data.Batch(white, black, none, black_to_move, none, none, piece_count, material)
        output: Tensor = self.model(batch)
        return output * self.model.score_scale


def main(source: str, target: str) -> None:
    saved = checkpoint.load(source, groups=("model",))
    model = nets.build(saved.architecture)
    checkpoint.load_into(saved.tensors["model"], model, source)
    batch = data.expand(data.records_from_fens(["4k3/8/8/8/8/8/8/4K3 w - - 0 1"] * 2), model.feature_set)
    arguments = (batch.white, batch.black, batch.black_to_move, batch.piece_count, batch.material)
    positions = torch.export.Dim("positions", min=1)
    with torch.no_grad():
        program = torch.export.export(
            Scores(model), arguments, dynamic_shapes=[{0: positions} for _ in arguments], strict=False
        )
        torch._inductor.aoti_compile_and_package(
            program, package_path=target, inductor_configs={"aot_inductor.metadata": {"feature_set": model.feature_set}}
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
