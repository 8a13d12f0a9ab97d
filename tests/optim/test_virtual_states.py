"""Virtual rows over states and king buckets of sets from outside: the same training as that of a declared set."""

from pathlib import Path
from typing import Any

import pytest
import torch
from typed import instance

from nnue_trainer import nets
from nnue_trainer.data import RecordLoader, expand, feature_set, piece_square_set
from nnue_trainer.data.feature_match import match_features
from nnue_trainer.modules import PerspectiveTransformer
from nnue_trainer.nets.base import VirtualRows
from nnue_trainer.optim import AdamW, Optimizer

SETS = """
import numpy as np

from nnue_trainer.data.feature_sets import Features, View
from nnue_trainer.schema import section


@section
class ByKing(Features):
    \"\"\"States of a king bucket follow one another.\"\"\"

    num_features, max_active, bucket_size, num_virtual = 6 * 768, 32, 768, 3 * 768

    def indices(self, view: View):
        queens = np.minimum((view.piece == 9).sum(axis=1), 2)
        return self.rows(view, 3 * (view.king // 32) + queens)

    def rows(self, view, bucket):
        return np.where(view.present, 768 * bucket[:, None] + 64 * view.piece + view.square, -1)


@section
class ByState(ByKing):
    \"\"\"King buckets of a state follow one another.\"\"\"

    num_virtual = 2 * 768

    def indices(self, view: View):
        queens = np.minimum((view.piece == 9).sum(axis=1), 2)
        return self.rows(view, 2 * queens + view.king // 32)


@section
class Both(ByKing):
    num_virtual = 768
"""


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "virtual"), [("ByKing", "kings"), ("ByState", "states"), ("Both", "both")])
def test_virtual_rows_of_a_set_from_outside(cls: str, virtual: Any, project_root: Path, tmp_path: Path) -> None:
    (tmp_path / "sets.py").write_text(SETS)
    outside = feature_set(f"{tmp_path}/sets.py:{cls}", may_import=True).name
    declared = piece_square_set([0] * 32 + [1] * 32, order="interleaved", states=["eQ:2"], virtual=virtual)
    source = torch.from_numpy(match_features(outside, declared).source)
    known = source >= 0
    shared = torch.randn(6 * 768, 16) * 0.1
    records = next(iter(RecordLoader([str(project_root / "samples" / "val.binpack")], 256, seed=3))).numpy().copy()
    found = []
    for name, weight in ((declared, shared), (outside, shared[source])):
        torch.manual_seed(1)
        model = nets.build({"kind": "layered", "inputs": name, "hidden": 16})
        transformer = instance(PerspectiveTransformer, model.feature_transformer)
        with torch.no_grad():
            transformer.weight.copy_(weight)
        rows = model.factorised()["feature_transformer.weight"]
        optimizer = Optimizer(model, AdamW(lr=0.01))
        for number in range(3):
            batch = expand(records[64 * number :][:64], name)
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step(loss)
        found.append((rows, transformer.weight.detach()))
    (_, expected), (rows, weight) = found
    feature = feature_set(outside).parts[0]
    assert rows == [VirtualRows(0, 6 * 768, feature.num_virtual)]
    moved = (expected != shared).any(1)
    assert moved.sum() > 1000
    torch.testing.assert_close(weight[known], expected[source[known]], rtol=1e-6, atol=1e-7)
