"""A net's float model as an ONNX graph, for programs that run ONNX and nothing of ours.

The graph takes what the model takes: index rows of both perspectives, who is to move, and the number of pieces. The
sparse operators are not part of ONNX, so here the first layer is a gather and a sum of rows; everything else is traced
as it stands.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nnue_trainer.base import extras
from nnue_trainer.data.batch import Batch
from nnue_trainer.data.features import feature_set
from nnue_trainer.modules.perspective_transformer import PerspectiveTransformer
from nnue_trainer.nets.base import Net, NnueModel, build
from nnue_trainer.nets.integer_forward import depends_on_queens
from nnue_trainer.ops import reference

INPUTS = ("white", "black", "black_to_move", "piece_count")
MATERIAL = "material"  # one more input, of nets whose stacks depend on queens
OUTPUT = "score"


def onnx_graph(net: Net, tensors: Mapping[str, Tensor], where: str) -> bytes:
    """The file of a graph. Its inputs are white and black int64 [B, K] (index rows, −1 after the last feature),
    black_to_move int64 [B] (0 or 1), piece_count int64 [B], and material int64 [B] where the layer stack depends on
    queens; its output is score fp32 [B], engine units from the side to move. `tensors` are the parameters. UserError
    that begins with `where` if the packages for it are missing."""
    for package in ("onnx", "onnxscript"):
        extras.require(package, where)
    import onnx

    with torch.random.fork_rng(devices=[]):
        model = build(net)
    model.load_state_dict(dict(tensors))
    graph = _Graph(model).eval()
    rows = torch.full((2, feature_set(net.feature_set).max_active), -1, dtype=torch.int64, device="cpu")
    rows[:, 0] = 0
    example = [rows, rows.clone(), torch.tensor([0, 1], device="cpu"), torch.tensor([32, 2], device="cpu")]
    inputs, forward = list(INPUTS), net.integer_forward()
    if forward is not None and not forward.piece_weights and depends_on_queens(forward.stacks):
        inputs.append(MATERIAL)
        example.append(torch.tensor([5, 0], device="cpu"))
    batch = torch.export.Dim("batch", min=1)
    # The exporter talks on all channels.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), _quiet():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            graph,
            tuple(example),
            dynamo=True,
            verbose=False,
            input_names=inputs,
            output_names=[OUTPUT],
            dynamic_shapes={name: {0: batch} for name in inputs},
        )
    assert program is not None
    proto = program.model_proto
    proto.producer_name = "torch-nnue"
    proto.doc_string = f"{net.name}; index rows of {net.feature_set}"
    facts = {"feature_set": net.feature_set, "architecture": net.name}
    onnx.helper.set_model_props(proto, facts)
    return bytes(proto.SerializeToString())


@contextlib.contextmanager
def _quiet() -> Any:
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


class _Batch(Batch):
    """Shifts of signed integers are not part of ONNX."""

    @property
    def bucket(self) -> Tensor:
        return torch.div(self.piece_count.long() - 1, 4, rounding_mode="floor")


class _Graph(nn.Module):
    """A model with plain tensors for a batch, and engine units as its output."""

    def __init__(self, model: NnueModel) -> None:
        super().__init__()
        self.model = model
        self.scale = model.score_scale
        for name, module in list(model.named_modules()):
            if isinstance(module, PerspectiveTransformer):
                model.set_submodule(name, _Transformer(module))

    def forward(
        self,
        white: Tensor,
        black: Tensor,
        black_to_move: Tensor,
        piece_count: Tensor,
        material: Tensor | None = None,
    ) -> Tensor:
        nothing = torch.zeros_like(piece_count)
        queens = nothing if material is None else material
        batch = _Batch(white, black, nothing, black_to_move, nothing, nothing, piece_count, queens)
        output: Tensor = self.model(batch)
        return output * self.scale


class _Transformer(nn.Module):
    """The function of `PerspectiveTransformer`, without its operators."""

    def __init__(self, layer: PerspectiveTransformer) -> None:
        super().__init__()
        self.description = layer.description
        self.weight, self.bias, self.psqt = layer.weight, layer.bias, layer.psqt

    def of_batch(self, batch: Batch, bucket: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        described = self.description
        return reference.perspective_transformer(
            (batch.white, batch.black, batch.black_to_move), self.weight, self.bias, described.activation,
            described.bound, described.scale, self.weight.dtype, psqt=self.psqt, psqt_bucket=bucket, row_sums=_sums,
        )  # fmt: skip


def _sums(rows: Tensor, weight: Tensor, bias: Tensor, values: Tensor | None) -> Tensor:
    """`reference.row_sums` of left-packed rows, in fewer operators."""
    active = (rows >= 0).unsqueeze(2).to(weight.dtype)
    return bias + (nn.functional.embedding(rows.clamp(min=0), weight) * active).sum(1)
