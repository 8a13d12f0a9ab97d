"""Training on two GPUs: as on one, to rounding; graphs, resume and runs change no bit."""

from pathlib import Path

import pytest
import several
import torch
from made_up import MadeUpSource, recipe
from needs import ROOT
from safetensors.torch import load_file, save_file
from small_runs import in_chunks, last, written

from nnue_trainer import nets
from nnue_trainer.parallel.division import divide
from nnue_trainer.parallel.ranks import joined
from nnue_trainer.training.run import choose_device, set_up_torch
from nnue_trainer.training.trainer import Trainer

pytestmark = [pytest.mark.cuda, pytest.mark.two_gpus]

LAYERED = (
    "model={kind: layered, hidden: 128, activation: pairwise, psqt: true, shared: true, output_buckets: {count: 8}, "
    "layers: [{outputs: 16, activation: dual, skip: last}, {outputs: 32}], quantisation: {first: {product_shift: 9}}}"
)
AWARE = LAYERED.replace("quantisation: {", "quantisation: {aware: true, aware_from: 0.2, ")


def _train(folder: Path, *overrides: str) -> None:
    """12 steps: some eager, some recorded, some replayed."""
    with joined() as ranks:
        chosen = recipe("training.device=cuda", "training.precision=fp32", *overrides)
        device = choose_device(chosen.training.device, ranks)
        set_up_torch(chosen, device)
        model = nets.build(chosen.model)
        division, _ = divide(ranks, model, chosen)
        trainer = Trainer(chosen, model.to(device), MadeUpSource(), None, folder / "run", division=division)
        for _ in range(12):
            trainer.advance()
        saved = trainer.checkpoint()
        assert not trainer.optimizer.failed()
        if ranks.writes:
            state = {f"{group}/{name}": t.cpu() for group in saved.tensors for name, t in saved.tensors[group].items()}
            save_file(state | {"loss": trainer._loss_sum.cpu()}, folder / "state.safetensors")


def trained(size: int, folder: Path, *overrides: str) -> dict[str, torch.Tensor]:
    run = several.Processes(size, folder, _train, folder, *overrides)
    assert run.wait() == [0] * size, run.said()
    found: dict[str, torch.Tensor] = load_file(folder / "state.safetensors")
    return {name: tensor for name, tensor in found.items() if not name.startswith("rng/")}


@pytest.mark.parametrize(
    "overrides",
    [
        (LAYERED,),
        (LAYERED, "optimizer={kind: ranger_lite, max_norm: 0.01}", "lambda.jitter=0.1"),
        (LAYERED, "training.precision=mixed"),
        (LAYERED, "training.precision=mixed", "average={kind: ema, half_life: 3, every: 1}"),
        (LAYERED, "optimizer={kind: torch, name: RAdam}"),
        ("model={kind: simple, hidden: 64}",),
        (AWARE,),
        (LAYERED, "optimizer={kind: torch, name: Adafactor}"),
    ],
    ids=["columns", "norm", "mixed", "mixed, an average", "torch rule", "simple", "positions", "positions, eager"],
)
def test_two_gpus_train_as_one_does(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    one, two = trained(1, tmp_path / "one", *overrides), trained(2, tmp_path / "two", *overrides)
    again = trained(2, tmp_path / "again", *overrides)
    eager = trained(2, tmp_path / "eager", "training.cuda_graph=false", *overrides)
    assert one.keys() == two.keys()
    rounds = "training.precision=mixed" in overrides or AWARE in overrides
    rough = 2e-2 if rounds else 1e-4
    for name, tensor in two.items():
        assert torch.equal(tensor, again[name]), name
        assert torch.equal(tensor, eager[name]), name
        difference = (tensor.double() - one[name].double()).abs()
        assert difference.mean() <= rough * one[name].double().abs().mean() + 1e-10, name


OWN_SET = ROOT / "examples" / "extending" / "my_features.py"


@pytest.mark.parametrize(
    "overrides",
    [
        (LAYERED, "lambda={kind: constant, jitter: 0.1}"),
        (LAYERED, "training.precision=mixed"),
        (AWARE.replace("aware_from: 0.2", "aware_from: 0.0"),),
        (f"model={{kind: layered, hidden: 64, inputs: [{{kind: {OWN_SET}:KingDistance}}]}}",),
    ],
    ids=["columns", "mixed", "positions", "index rows from the host"],
)
def test_two_gpus_that_share_the_data_train_as_one_does(
    tmp_path: Path, project_root: Path, overrides: tuple[str, ...]
) -> None:
    """12 steps from a file with two shards: some eager, some recorded, some replayed."""
    files = [str(file) for file in in_chunks(project_root, tmp_path, 12, 600)]
    data = {"train": files, "validation": files[:1], "batch_size": 512, "shuffle_buffer": 2048, "shards": 2}
    more = {"epochs": 3, "positions_per_epoch": 4 * 512, "device": "cuda", "precision": "fp32"}
    chosen = written(tmp_path / "mine.yaml", tmp_path, data=data, training=more)

    def trained_from_file(size: int, name: str, *arguments: object) -> dict[str, torch.Tensor]:
        folder = tmp_path / name
        start = ["--config", chosen, "--run-dir", folder, *overrides]
        if folder.exists():
            start = ["--resume", folder, "--plugin", OWN_SET]
        said = several.train(size, tmp_path / "said" / f"{name}-{size}", *start, *arguments)
        assert size == 1 or "each process reads 1 of 2 shards" in said
        tensors = last(folder).tensors
        return {f"{group}/{key}": t for group in ("model", "optimizer") for key, t in tensors[group].items()}

    one, two = trained_from_file(1, "one"), trained_from_file(2, "two")
    again, eager = trained_from_file(2, "again"), trained_from_file(2, "eager", "training.cuda_graph=false")
    trained_from_file(2, "parts", "training.epochs=2")
    parts = trained_from_file(2, "parts", "training.epochs=3")
    assert last(tmp_path / "one").state["batches"] == last(tmp_path / "two").state["batches"]
    assert one.keys() == two.keys()
    rounds = "training.precision=mixed" in overrides or "aware: true" in overrides[0]
    for name, tensor in two.items():
        for other in (again, eager, parts):
            assert torch.equal(tensor, other[name]), name
        if rounds and not name.startswith("model/"):
            continue  # moments of small gradients are far apart after a few rounded steps
        difference = (tensor.double() - one[name].double()).abs()
        assert difference.mean() <= (0.1 if rounds else 1e-4) * one[name].double().abs().mean() + 1e-10, name
