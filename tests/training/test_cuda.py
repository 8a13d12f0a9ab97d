"""Training on a CUDA device: nothing waits, batches come one ahead, graphs and resume change no bit."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from made_up import MadeUpSource, made_up_batch, recipe
from typed import instance, present

from nnue_trainer import nets
from nnue_trainer.data import RecordLoader
from nnue_trainer.data.batch import Batch
from nnue_trainer.files import checkpoint
from nnue_trainer.losses import mean
from nnue_trainer.modules import PerspectiveTransformer
from nnue_trainer.ops import capabilities
from nnue_trainer.ops.perspectives import PerspectivePlan, is_fused
from nnue_trainer.optim.fused import FusedRule
from nnue_trainer.optim.fused_optimizer import LateRows
from nnue_trainer.training.assembly import assemble, core
from nnue_trainer.training.batches import DeviceBatches
from nnue_trainer.training.device import set_up_torch
from nnue_trainer.training.fused_parts import FusedTransformer
from nnue_trainer.training.recorder import EAGER_CALLS
from nnue_trainer.training.resuming import resume
from nnue_trainer.training.step import ChosenStep
from nnue_trainer.training.trainer import Trainer

pytestmark = pytest.mark.cuda


class PinnedSource(MadeUpSource):
    """Memory as the loader has it: page-locked memory in one allocation, two of them used in turn."""

    def __init__(self) -> None:
        super().__init__()
        first = made_up_batch(0)
        self.slots = [Batch.allocate(len(first), first.white.shape[1], pin_memory=True) for _ in range(2)]

    def __next__(self) -> Batch:
        made, slot = super().__next__(), self.slots[self.index % len(self.slots)]
        for name in ("white", "black", "counts", "black_to_move", "score", "result", "piece_count", "material"):
            getattr(slot, name).copy_(getattr(made, name))
        return slot


class OnTheDevice(PinnedSource):
    """Batches in four buffers on the device."""

    def __init__(self) -> None:
        super().__init__()
        size, length = self.slots[0].white.shape
        self.slots = [replace(Batch.allocate(size, length, device="cuda"), buffer=number) for number in range(4)]

    def __next__(self) -> Batch:
        batch = super().__next__()
        torch.cuda.synchronize()  # the stream that prepares the batch does not wait for the copy
        return batch


def trainer(run_dir, *overrides: str, source: MadeUpSource | None = None) -> Trainer:
    chosen = recipe("training.device=cuda", *overrides)
    device = torch.device("cuda")
    set_up_torch(chosen.training, device)
    model = nets.build(chosen.model).to(device)
    return assemble(chosen, model, source or PinnedSource(), lambda: [made_up_batch(-1)], run_dir)


def weights(path) -> dict[str, torch.Tensor]:
    return checkpoint.load(path / "checkpoints" / "last.safetensors").tensors["model"]


def assert_same(one, two):
    for name, tensor in weights(one).items():
        assert torch.equal(tensor, weights(two)[name]), name


def advance_without_waiting(run: Trainer, steps: int) -> None:
    """Steps in which anything that waits for the device is an error."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(steps):
            run.advance()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_batches_come_in_order_and_the_state_is_that_of_the_next_one():
    source = PinnedSource()
    batches = DeviceBatches(source, torch.device("cuda"), "Chess768")
    for index in range(20):
        batch = next(batches)
        assert batch.white.is_cuda
        assert torch.equal(batch.white.cpu(), made_up_batch(index).white)
        assert batches.state_dict() == {"index": index}  # its step may fail
        batches.finish()
        assert batches.state_dict() == {"index": index + 1}
    again = DeviceBatches(PinnedSource(), torch.device("cuda"), "Chess768")
    again.load_state_dict(batches.state_dict())
    assert torch.equal(next(again).white.cpu(), made_up_batch(20).white)


LATE = "quantisation: {qat: true, qat_from: 0.55}"
MODELS = [
    "model={kind: simple, hidden: 16}",
    "model={kind: sfnnv5, l1: 32}",
    f"model={{kind: simple, hidden: 16, {LATE}}}",
    f"model={{kind: sfnnv5, l1: 32, {LATE}}}",
]


def test_it_learns(tmp_path):
    run = trainer(tmp_path / "a")
    before = present(run.validate())
    assert present(run.train().validation_loss) < before


@pytest.mark.parametrize("model", MODELS)
def test_it_repeats_itself(tmp_path, model):
    trainer(tmp_path / "a", model).train()
    trainer(tmp_path / "b", model).train()
    assert_same(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("model", MODELS)
def test_a_graph_changes_no_bit(tmp_path, model):
    trainer(tmp_path / "eager", model, "training.cuda_graph=false").train()
    trainer(tmp_path / "graph", model, "training.cuda_graph=true").train()
    assert_same(tmp_path / "eager", tmp_path / "graph")


@pytest.mark.parametrize("model", MODELS)
def test_graphs_prepare_batches_that_are_on_the_device(tmp_path, model):
    run = trainer(tmp_path / "some", model, source=OnTheDevice())
    for _ in range(EAGER_CALLS + 5):
        run.advance()
    assert len(present(run.batches._recorder)._recordings) == 4
    for name, graph in (("eager", "false"), ("graph", "true")):
        trainer(tmp_path / name, model, f"training.cuda_graph={graph}", source=OnTheDevice()).train()
    assert_same(tmp_path / "eager", tmp_path / "graph")


OPTIMIZERS = pytest.mark.parametrize("name", ["adamw", "Adam", "NAdam", "RAdam"])


def optimizer(name: str) -> str:
    return "optimizer={kind: adamw}" if name == "adamw" else f"optimizer={{kind: torch, name: {name}}}"


@OPTIMIZERS
def test_a_graph_changes_no_bit_of_any_rule(tmp_path, name):
    for graph in ("false", "true"):
        trainer(tmp_path / graph, optimizer(name), f"training.cuda_graph={graph}").train()
    assert_same(tmp_path / "false", tmp_path / "true")


@pytest.mark.parametrize("name", ["adamw", "RAdam", "SGD", "Adafactor"])
def test_a_failed_step_is_refused_or_undone_on_the_device(tmp_path, name):
    run = trainer(tmp_path, optimizer(name), "training.cuda_graph=false")
    for _ in range(3):
        run.advance()
    before = {key: tensor.clone() for key, tensor in run.model.state_dict().items()}
    moments = {key: tensor.clone() for key, tensor in run.optimizer.state_dict().items()}
    for parameter in run.model.parameters():
        parameter.grad = torch.full_like(parameter, float("nan"))
    run.optimizer.step(torch.zeros((), device="cuda"))
    assert run.optimizer.failed()
    assert run.optimizer.good_steps() == 3
    for key, tensor in run.model.state_dict().items():
        assert torch.equal(tensor, before[key]), key
    for key, tensor in run.optimizer.state_dict().items():
        assert torch.equal(tensor, moments[key]), key


@pytest.mark.parametrize("name", ["adamw", "RAdam", "SGD", "Adafactor"])
def test_resume_changes_no_bit(tmp_path, name):
    trainer(tmp_path / "whole", optimizer(name)).train()
    path = tmp_path / "whole" / "checkpoints" / "epoch-0003.safetensors"
    second = trainer(tmp_path / "parts", optimizer(name))
    resume(second, checkpoint.load(path), path)
    second.train()
    assert_same(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("model", MODELS[2:])
def test_no_rounded_step_waits_for_the_device(tmp_path, model):
    """The step is recorded anew from the 23rd of 40 on; the steps that replay it wait for nothing."""
    run = trainer(tmp_path, model, "training.cuda_graph=true")
    for _ in range(28):
        run.advance()
    assert run.model.rounded is not None
    advance_without_waiting(run, 3)


@OPTIMIZERS
@pytest.mark.parametrize("graph", ["true", "false"])
def test_no_step_waits_for_the_device(tmp_path, graph, name):
    run = trainer(tmp_path, optimizer(name), f"training.cuda_graph={graph}")
    for _ in range(6):
        run.advance()
    advance_without_waiting(run, 3)


PRECISIONS = pytest.mark.parametrize("precision", ["fp32", "mixed"])


def from_records(run_dir: Path, file: Path, *overrides: str) -> Trainer:
    """Batches of records, which take turns in the expander's buffers."""
    chosen = recipe("training.device=cuda", "model={kind: sfnnv5, l1: 32}", "data.batch_size=500", *overrides)
    device = torch.device("cuda")
    set_up_torch(chosen.training, device)
    source = RecordLoader(file, 500, pin_memory=True, seed=3, repeat=True, shuffle_buffer=2_000)
    return assemble(chosen, nets.build(chosen.model).to(device), source, None, run_dir)


@PRECISIONS
def test_plans_are_made_ahead_and_lie_where_recorded_steps_read_them(tmp_path, project_root, precision):
    run = from_records(tmp_path, project_root / "samples" / "val.binpack", f"training.precision={precision}")
    places: dict[tuple[int | None, int], set[int]] = {}
    for _ in range(EAGER_CALLS):
        next(run.batches)
    for _ in range(20):
        batch = next(run.batches)
        fresh = run.current_step.prepare(batch).plans
        kinds = [type(plan) for plan in batch.plans]
        assert kinds == [type(plan) for plan in fresh]
        assert (PerspectivePlan in kinds) == is_fused(run.model.get_parameter("feature_transformer.weight"), 768)
        for number, (plan, expected) in enumerate(zip(batch.plans, fresh, strict=True)):
            assert plan.white is batch.white
            assert plan.data.shape == expected.data.shape
            places.setdefault((batch.buffer, number), set()).add(plan.data.data_ptr())
    assert all(len(found) == 1 for found in places.values())


@PRECISIONS
@pytest.mark.parametrize("graph", ["false", "true"])
@pytest.mark.parametrize("kernels", ["auto", "portable"])
def test_no_step_makes_a_plan(tmp_path, project_root, monkeypatch, precision, graph, kernels):
    """Its batch has brought one for the weights that the step reads. Only the first step that rounds may need another:
    its batch was prepared before."""
    made: list[PerspectivePlan] = []
    in_steps: list[torch.dtype] = []
    whole_plan, whole_step = FusedTransformer.plan, ChosenStep._train

    def plan(transformer, batch):
        made.append(whole_plan(transformer, batch))
        return made[-1]

    def train_step(run, batch):
        before = len(made)
        whole_step(run, batch)
        in_steps.extend(plan.weight_dtype for plan in made[before:])

    monkeypatch.setattr(capabilities, "_cuda_kernels", kernels)
    monkeypatch.setattr(FusedTransformer, "plan", plan)
    monkeypatch.setattr(ChosenStep, "_train", train_step)
    rounding = ("model.quantisation={qat: true, qat_from: 0.55}", "training.positions_per_epoch=5000")
    settings = (f"training.precision={precision}", f"training.cuda_graph={graph}")
    run = from_records(tmp_path, project_root / "samples" / "val.binpack", *rounding, *settings)
    for _ in range(3 * run.steps // 4):
        run.advance()
    assert run.model.rounded is not None
    floats, integers = (torch.bfloat16, torch.float16) if precision == "mixed" else (torch.float32, torch.float32)
    assert in_steps in ([], [integers])  # the integers that the optimiser writes
    assert made[0].weight_dtype == floats
    assert made[-1].weight_dtype == integers


@pytest.mark.parametrize("rounds", ["false", "true"], ids=["floats", "qat"])
@pytest.mark.parametrize("kind", ["sfnnv5", "sfnnv16", "sfnnv18"])
def test_no_step_updates_rows_that_no_batch_has(tmp_path, project_root, monkeypatch, kind, rounds):
    """Code that reads the weight in a step would have all rows updated in each of them: the same bits, but slower."""
    monkeypatch.setenv("NNUE_LEAST_LATE_ROWS", "1000")
    model = f"model={{kind: {kind}, l1: 32, quantisation: {{qat: {rounds}, qat_from: 0.0}}}}"
    settings = (model, "training.precision=mixed", "training.cuda_graph=false")
    run = from_records(tmp_path, project_root / "samples" / "val.binpack", *settings)
    run.advance()
    assert (run.model.rounded is not None) == (rounds == "true")
    assert instance(FusedRule, run.optimizer.rule).fused.late_rows
    settled = []
    monkeypatch.setattr(LateRows, "settle", lambda rows, *, gradient=False: settled.append(gradient))
    for _ in range(3):
        run.advance()
    assert settled == []


class RowsOfEveryKind(PinnedSource):
    """Batches with rows in one king bucket each, with rows that break that rule, and without any feature, in turn."""

    def __next__(self) -> Batch:
        batch, kind = super().__next__(), self.index % 3
        if kind == 0:
            batch.white.copy_(torch.where(batch.white < 0, -1, torch.arange(batch.white.shape[1]) * 7 + self.index))
            batch.black.copy_(torch.where(batch.black < 0, -1, batch.white + 350))
        if kind == 2:
            batch.white.fill_(-1)
            batch.black.fill_(-1)
        return batch


@pytest.mark.filterwarnings("ignore:.*deterministic")
@pytest.mark.parametrize("graph", ["false", "true"], ids=["eager", "graph"])
@pytest.mark.parametrize("precision", ["fp32", "mixed"])
@pytest.mark.parametrize("kind", ["sfnnv5", "sfnnv16"])
def test_no_step_reads_gradients_of_features_that_no_position_has(
    tmp_path, project_root, monkeypatch, kind, precision, graph
):
    """They are not written, so they would be NaN here. Gradients that the user takes are complete."""

    def source():
        if kind == "sfnnv5":
            return RowsOfEveryKind()
        records = project_root / "samples" / "val.binpack"
        return RecordLoader(records, 32, pin_memory=True, seed=3, repeat=True, shuffle_buffer=2_000)

    monkeypatch.setenv("NNUE_LEAST_LATE_ROWS", "1000")
    unwritten = []
    give = FusedTransformer.give

    def spy(first, of_weight, *others):
        if not torch.cuda.is_current_stream_capturing():
            unwritten.append(bool(of_weight.isnan().any()))
        give(first, of_weight, *others)

    monkeypatch.setattr(FusedTransformer, "give", spy)
    settings = (f"training.precision={precision}", f"training.cuda_graph={graph}")
    chosen = recipe(
        "training.device=cuda", f"model={{kind: {kind}, l1: 64}}", "optimizer={max_norm: 0.5, lr: 0.01}", *settings
    )
    device = torch.device("cuda")
    set_up_torch(chosen.training, device)
    torch.use_deterministic_algorithms(True, warn_only=True)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)  # with NaN
    try:
        for late in (True, False):
            torch.manual_seed(1)
            model = nets.build(chosen.model).to(device)
            with monkeypatch.context() as patched:
                if not late:
                    patched.setattr(core, "why_not_late", lambda *_: "for comparison")
                run = assemble(chosen, model, source(), None, tmp_path / str(late))
            assert bool(instance(FusedRule, run.optimizer.rule).fused.late_rows) == late
            run.train()
            assert not run.optimizer.failed()
            assert any(unwritten) == late
            unwritten.clear()
            batch = made_up_batch(1).to(device)
            mean(*run.validator.evaluation.terms(batch, run.lambdas[batch.buffer])).backward()
            assert not any(gradient.isnan().any() for gradient in run.optimizer.gradients())
            unwritten.clear()
    finally:
        torch.use_deterministic_algorithms(False)
    assert_same(tmp_path / "True", tmp_path / "False")


def test_a_graph_per_buffer_changes_no_bit(tmp_path, project_root):
    file = project_root / "samples" / "val.binpack"
    for graph in ("false", "true"):
        run = from_records(tmp_path / graph, file, f"training.cuda_graph={graph}")
        run.train()
    assert_same(tmp_path / "false", tmp_path / "true")


def test_no_step_waits_once_each_buffer_is_recorded(tmp_path, project_root):
    run = from_records(tmp_path, project_root / "samples" / "val.binpack", "training.cuda_graph=true")
    for _ in range(10):
        run.advance()
    advance_without_waiting(run, 6)


def test_mixed_precision_repeats_itself_with_and_without_graphs(tmp_path, project_root):
    file = project_root / "samples" / "val.binpack"
    for name, graph in (("eager", "false"), ("graph", "true"), ("again", "true")):
        run = from_records(tmp_path / name, file, "training.precision=mixed", f"training.cuda_graph={graph}")
        run.train()
        transformer = instance(PerspectiveTransformer, run.model.feature_transformer)
        assert torch.equal(present(transformer._copy), transformer.weight.bfloat16())
    assert_same(tmp_path / "eager", tmp_path / "graph")
    assert_same(tmp_path / "graph", tmp_path / "again")
