"""A file becomes index rows in the loader, or the loader hands out records and the device expands them. Order, losses,
weights and saved states are the same to the bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from loader_states import same_states
from made_up import MadeUpSource, made_up_batch, recipe

from nnue_trainer import nets
from nnue_trainer.data import Loader, LoaderOptions, RecordLoader
from nnue_trainer.files import checkpoint
from nnue_trainer.training.assembly import assemble, training_batches
from nnue_trainer.training.assembly import data as assembled_data
from nnue_trainer.training.assembly import held_out as held_out_of
from nnue_trainer.training.assembly.data import loader_cpus
from nnue_trainer.training.batches import DeviceBatches
from nnue_trainer.training.device import set_up_torch
from nnue_trainer.training.parallel.ranks import Ranks

FIELDS = ("white", "black", "counts", "black_to_move", "score", "result", "piece_count", "material")
OPTIONS: LoaderOptions = {"seed": 3, "repeat": True, "shuffle_buffer": 4_000, "threads": 2}

CUDA = pytest.param("cuda", marks=pytest.mark.cuda)


@pytest.fixture
def file(project_root: Path) -> Path:
    return project_root / "samples" / "val.binpack"


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("name", ["HalfKAv2_hm", "HalfKP"])
def test_the_same_batches(file: Path, device: str, name: str) -> None:
    records = RecordLoader(file, 1_000, **(OPTIONS | {"pin_memory": device == "cuda"}))
    batches = DeviceBatches(records, torch.device(device), name)
    rows = Loader(file, name, 1_000, **OPTIONS)
    place, behind_it = batches.state_dict(), []
    for expected, index in zip(rows, range(70), strict=False):  # two epochs and more
        got = next(batches)
        for field in FIELDS:
            assert torch.equal(getattr(got, field).cpu(), getattr(expected, field)), field
        batches.finish()
        assert same_states(batches.state_dict(), rows.state_dict())
        if index < 10:
            behind_it.append(expected.white.clone())
    batches.load_state_dict(place)
    for white in behind_it:
        assert torch.equal(next(batches).white.cpu(), white)


def test_a_place_in_one_is_a_place_in_the_other(file: Path) -> None:
    rows = DeviceBatches(Loader(file, "HalfKAv2_hm", 1_000, **OPTIONS), torch.device("cpu"), "HalfKAv2_hm")
    for _ in range(7):
        next(rows)
    rows.finish()
    records = DeviceBatches(RecordLoader(file, 1_000, **OPTIONS), torch.device("cpu"), "HalfKAv2_hm")
    records.load_state_dict(rows.state_dict())
    for _ in range(3):
        assert torch.equal(next(records).white, next(rows).white)


class CountingSource(MadeUpSource):
    asked = 0

    def state_dict(self) -> dict[str, Any]:
        self.asked += 1
        return super().state_dict()


def test_a_batch_counts_when_its_step_is_complete_and_the_source_is_asked_once_per_batch() -> None:
    source = CountingSource()
    batches = DeviceBatches(source, torch.device("cpu"), "Chess768")
    for index in range(5):
        next(batches)
        assert source.asked == index + 1
        saved = batches.state_dict()
        assert saved == {"index": index}
        batches.finish()
    assert batches.state_dict() == {"index": 5}
    next(batches)
    batches.load_state_dict(saved)
    assert torch.equal(next(batches).white, made_up_batch(4).white)


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("model", ["{kind: simple, hidden: 16}", "{kind: sfnnv5, l1: 32}"], ids=["simple", "sfnnv5"])
def test_the_same_training(tmp_path: Path, file: Path, device: str, graph: bool, model: str) -> None:
    if graph and device == "cpu":
        pytest.skip("CUDA graphs need a CUDA device")
    chosen = recipe(
        f"training.device={device}", f"training.cuda_graph={str(graph).lower()}", f"model={model}",
        f"data.train=[{file}]", "data.batch_size=500", "training.positions_per_epoch=5_000", "data.shuffle_buffer=2000",
        f"training.deterministic={str(device == 'cuda').lower()}",
    )  # fmt: skip
    set_up_torch(chosen.training, torch.device(device))
    options = OPTIONS | {"pin_memory": device == "cuda"}
    net = nets.build(chosen.model)
    files = []
    for name, source in (
        ("rows", Loader(file, net.feature_set, 500, **options)),
        ("records", RecordLoader(file, 500, **options)),
    ):
        torch.manual_seed(chosen.training.seed)
        net = nets.build(chosen.model).to(device)
        assemble(chosen, net, source, None, tmp_path / name).train()
        files.append(tmp_path / name / "checkpoints" / "last.safetensors")
    one, two = (checkpoint.load(path) for path in files)
    assert one.state == two.state
    for group, tensors in one.tensors.items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, two.tensors[group][name]), f"{group}/{name}"


def test_a_cuda_run_takes_records_and_a_cpu_run_rows(file: Path) -> None:
    chosen = recipe(f"data.train=[{file}]")
    model = nets.build(chosen.model)
    assert isinstance(training_batches(chosen, model, torch.device("cpu")), Loader)
    if torch.cuda.is_available():
        assert isinstance(training_batches(chosen, model, torch.device("cuda")), RecordLoader)


@pytest.mark.parametrize(
    ("device", "cpus", "processes", "expected"),
    [("cpu", 16, 1, 16), ("cuda", 16, 1, 14), ("cuda", 32, 2, 14), ("cuda", 8, 1, 6), ("cuda", 4, 1, 4),
     ("cpu", 16, 4, 4), ("cuda", 2, 4, 1)],
)  # fmt: skip
def test_the_thread_that_launches_has_a_cpu(
    monkeypatch: pytest.MonkeyPatch, device: str, cpus: int, processes: int, expected: int
) -> None:
    monkeypatch.setattr(assembled_data, "usable_cpus", lambda: cpus)
    assert loader_cpus(torch.device(device), Ranks(local_size=processes)) == expected


def test_a_default_number_of_threads_is_cut_without_a_word(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    chunks = sum(opened.native.num_chunks for opened in RecordLoader(file, 1000).opened)
    assert RecordLoader(file, 1000, cpus=chunks + 20).threads <= chunks + 1
    assert RecordLoader(file, 1000, cpus=1).threads == 1
    assert RecordLoader(file, 1000, threads=2, cpus=1).threads == 2
    assert not caplog.records
    assert RecordLoader(file, 1000, threads=chunks + 20).threads <= chunks + 1
    assert len(caplog.records) == 1


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("positions", [2_300, 1_000_000])
def test_validation_sees_the_same_positions_on_every_device(file: Path, device: str, positions: int) -> None:
    chosen = recipe(
        f"data.validation=[{file}]", "data.batch_size=1000", f"data.validation_positions={positions}",
        "data.filters.quiet=true", "model={kind: sfnnv5, l1: 32}",
    )  # fmt: skip
    model = nets.build(chosen.model)
    held_out = held_out_of(chosen, model, torch.device(device))
    every: LoaderOptions = {"filters": chosen.data.filters, "shuffle": False, "drop_last": False}
    expected = {
        field: torch.cat([getattr(batch, field).clone() for batch in Loader(file, model.feature_set, 1_000, **every)])
        for field in FIELDS
    }
    for _ in range(2):  # every time it is opened
        batches = []
        for batch in held_out():
            assert batch.white.device.type == device
            batches.append({field: getattr(batch, field).clone() for field in FIELDS})
        assert len(batches) > 2
        for field in FIELDS:
            got = torch.cat([batch[field] for batch in batches]).cpu()
            assert torch.equal(got, expected[field][:positions]), field
