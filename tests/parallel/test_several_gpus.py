"""Training on several GPUs, up to four: as on one, to rounding; graphs, resume and runs change no bit."""

import re
import signal
from pathlib import Path

import pytest
import several
import torch
from loader_states import same_states
from made_up import MadeUpSource, recipe
from needs import ROOT
from safetensors.torch import load_file, save_file
from small_runs import in_chunks, last, written

from nnue_trainer import nets
from nnue_trainer.training.assembly import assemble, divide
from nnue_trainer.training.device import choose_device, set_up_torch
from nnue_trainer.training.parallel.ranks import joined

pytestmark = [pytest.mark.cuda, pytest.mark.two_gpus]

GPUS = 4 if torch.cuda.device_count() >= 4 else 2

LAYERED = (
    "model={kind: layered, hidden: 128, activation: pairwise, psqt: true, shared: true, output_buckets: {count: 8}, "
    "layers: [{outputs: 16, activation: dual, skip: last}, {outputs: 32}], quantisation: {first: {product_shift: 9}}}"
)
AWARE = LAYERED.replace("quantisation: {", "quantisation: {qat: true, qat_from: 0.2, ")


def _train(folder: Path, runs: dict[str, tuple[str, ...]]) -> None:
    """12 steps of each run: some eager, some recorded, some replayed."""
    with joined() as ranks:
        for name, overrides in runs.items():
            chosen = recipe("training.device=cuda", "training.precision=fp32", *overrides)
            device = choose_device(chosen.training.device, ranks)
            set_up_torch(chosen.training, device)
            model = nets.build(chosen.model)
            sharding, _ = divide(chosen, model, ranks, device)
            trainer = assemble(chosen, model.to(device), MadeUpSource(), None, folder / "run", sharding=sharding)
            for _ in range(12):
                trainer.advance()
            saved = trainer.checkpoint()
            assert not trainer.optimizer.failed()
            if ranks.writes:
                groups = saved.tensors
                state = {f"{group}/{key}": t.clone().cpu() for group in groups for key, t in groups[group].items()}
                save_file(state | {"loss": trainer.current_step.loss_sum.cpu()}, folder / f"{name}.safetensors")


def trained(size: int, folder: Path, **runs: tuple[str, ...]) -> list[dict[str, torch.Tensor]]:
    """The final tensors of each run; `runs` are overrides of the recipe."""
    run = several.Processes(size, folder, _train, folder, runs)
    assert run.wait() == [0] * size, run.said()
    states = [load_file(folder / f"{name}.safetensors") for name in runs]
    return [{name: tensor for name, tensor in state.items() if not name.startswith("rng/")} for state in states]


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
    ids=[
        "columns",
        "norm",
        "mixed",
        "mixed, an average",
        "torch rule",
        "simple",
        "columns, rounded",
        "positions, eager",
    ],
)
def test_several_gpus_train_as_one_does(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    (one,) = trained(1, tmp_path / "one", run=overrides)
    eager_too = ("training.cuda_graph=false", *overrides)
    all_of_them, again, eager = trained(GPUS, tmp_path / "all", run=overrides, again=overrides, eager=eager_too)
    assert one.keys() == all_of_them.keys()
    rounds = "training.precision=mixed" in overrides or AWARE in overrides
    rough = 2e-2 if rounds else 1e-4
    for name, tensor in all_of_them.items():
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
        (AWARE.replace("qat_from: 0.2", "qat_from: 0.0"),),
        (f"model={{kind: layered, hidden: 64, inputs: [{{kind: {OWN_SET}:KingDistance}}]}}",),
    ],
    ids=["columns", "mixed", "rounded", "index rows from the host"],
)
def test_several_gpus_that_share_the_data_train_as_one_does(
    tmp_path: Path, project_root: Path, overrides: tuple[str, ...]
) -> None:
    """12 steps from a file with a shard for each GPU: some eager, some recorded, some replayed."""
    chosen = from_file(tmp_path, project_root)

    def trained_from_file(size: int, name: str, *arguments: object) -> dict[str, torch.Tensor]:
        folder = tmp_path / name
        start = ["--config", chosen, "--run-dir", folder, *overrides]
        if folder.exists():
            start = ["--resume", folder, "--plugin", OWN_SET]
        said = several.train(size, tmp_path / "said" / f"{name}-{size}", *start, *arguments)
        assert size == 1 or f"each process reads 1 of {GPUS} shards" in said
        tensors = last(folder).tensors
        return {f"{group}/{key}": t for group in ("model", "optimizer") for key, t in tensors[group].items()}

    one, whole = trained_from_file(1, "one"), trained_from_file(GPUS, "all")
    again, eager = trained_from_file(GPUS, "again"), trained_from_file(GPUS, "eager", "training.cuda_graph=false")
    trained_from_file(GPUS, "parts", "training.epochs=2")
    parts = trained_from_file(GPUS, "parts", "training.epochs=3")
    # From all of them on one of them, and back.
    for size, epochs in ((GPUS, 1), (1, 2), (GPUS, 3)):
        chain = trained_from_file(size, "chain", f"training.epochs={epochs}")
    assert same_states(last(tmp_path / "one").stream(tmp_path), last(tmp_path / "all").stream(tmp_path))
    assert one.keys() == whole.keys()
    rounds = "training.precision=mixed" in overrides or "qat: true" in overrides[0]
    for name, tensor in whole.items():
        for other in (again, eager, parts):
            assert torch.equal(tensor, other[name]), name
        if rounds and not name.startswith("model/"):
            continue  # moments of small gradients are far apart after a few rounded steps
        for found in (tensor, chain[name]):
            difference = (found.double() - one[name].double()).abs()
            assert difference.mean() <= (0.1 if rounds else 1e-4) * one[name].double().abs().mean() + 1e-10, name


def from_file(folder: Path, project_root: Path) -> Path:
    """A recipe with three epochs of four steps, and a shard of the data for each GPU."""
    files = [str(file) for file in in_chunks(project_root, folder, 12, 600)]
    data = {"train": files, "validation": files[:1], "batch_size": 512, "shuffle_buffer": 2048, "shards": GPUS}
    more = {"epochs": 3, "positions_per_epoch": 4 * 512, "device": "cuda", "precision": "fp32"}
    return written(folder / "mine.yaml", folder, data=data, training=more)


@pytest.mark.parametrize("lost", [0, GPUS - 1])
def test_a_lost_process_ends_all_with_one_message(tmp_path: Path, project_root: Path, lost: int) -> None:
    """While the others wait for it in a recorded exchange."""
    folder = tmp_path / "run"
    start = ["--config", str(from_file(tmp_path, project_root)), "--run-dir", str(folder), LAYERED]
    run = several.training(GPUS, tmp_path / "a", *start, "training.epochs=100000", "training.checkpoint_minutes=1e-6")
    metrics = folder / "metrics.jsonl"
    run.until(lambda: metrics.exists() and '"epoch": 10,' in metrics.read_text())
    run.signal(signal.SIGKILL, lost)
    codes = run.wait()
    assert codes[lost] == -signal.SIGKILL
    assert [code for rank, code in enumerate(codes) if rank != lost] == [1] * (GPUS - 1)
    assert re.findall(r"nnue: (error: .*)", run.said()) == [
        f"error: rank {lost} of {GPUS} has ended, which ends the training; {folder}/checkpoints/last.safetensors is "
        "the last good checkpoint"
    ]
    step = last(folder).state["step"]
    assert f"resumed at step {step:,} " in several.train(
        1, tmp_path / "b", "--resume", folder, f"training.epochs={step // 4 + 1}"
    )
