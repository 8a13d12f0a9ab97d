"""The loop: it learns, repeats itself to the bit, resumes to the bit, and stops well."""

import functools
import json
import os
import runpy
import signal
import sys
import threading
from dataclasses import replace

import pytest
import torch
from made_up import BATCH, MadeUpSource, made_up_batch, trainer
from typed import grad_of, instance, present
from waiting import wait_for

from nnue_trainer.errors import UserError
from nnue_trainer.files import checkpoint
from nnue_trainer.modules import PerspectiveTransformer
from nnue_trainer.schedules import RunStep
from nnue_trainer.training.checkpoints import CheckpointStore
from nnue_trainer.training.outputs import RunOutputs
from nnue_trainer.training.resuming import resume
from nnue_trainer.training.schedule_values import ScheduleValues, StepValues


def assert_same(first, second):
    """Two checkpoint files, byte for byte, with a readable complaint."""
    one, two = checkpoint.load(first), checkpoint.load(second)
    assert one.state == two.state
    assert one.tensors.keys() == two.tensors.keys()
    for group, tensors in one.tensors.items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, two.tensors[group][name]), f"{group}/{name}"
    assert first.read_bytes() == second.read_bytes()


def records(run_dir, event):
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


class StopsAt(MadeUpSource):
    """Calls `action` when batch `index` is requested."""

    def __init__(self, index, action):
        super().__init__()
        self.at, self.action = index, action

    def __next__(self):
        if self.index == self.at:
            self.action()
        return super().__next__()


def in_step(run, number, action):
    """Calls `action` in the middle of step `number` of a trainer, counted from 1."""
    whole = run.current_step.run

    def step(batch):
        if run.step == number - 1:
            action()
        whole(batch)

    run.current_step.run = step
    return run


def wait_for_writes(run):
    """Waits until no checkpoint waits to be written."""
    store = instance(CheckpointStore, present(run.outputs).store)
    wait_for(lambda: all(write.done() for write in store._writes))


def test_it_learns_and_leaves_everything_behind(tmp_path):
    run = trainer(tmp_path, "training.epochs=12")
    before = present(run.validate())
    summary = run.train()
    assert present(summary.validation_loss) < 0.5 * before
    assert present(summary.best_validation_loss) <= present(summary.validation_loss)
    assert (summary.step, summary.steps, summary.positions) == (120, 120, 120 * BATCH)
    assert not summary.interrupted

    folder = tmp_path / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == [
        "best.safetensors", "epoch-0011.safetensors", "epoch-0012.safetensors", "last.safetensors",
    ]  # fmt: skip
    last = checkpoint.load(folder / "last.safetensors")
    assert last.state["step"] == 120
    assert last.architecture == run.model.architecture
    assert present(last.recipe)["training"]["epochs"] == 12

    train = records(tmp_path, "train")
    assert [r["step"] for r in train[:5]] == [3, 6, 9, 10, 12]
    assert train[0]["lr"] == pytest.approx(1e-2 * 3 / 5)
    assert train[0]["lambda"] == pytest.approx(1 - 0.5 * 2 / 120)
    assert train[-1]["positions"] == 120 * BATCH
    assert train[0]["positions_per_second"] > 0
    assert train[0]["peak_memory_bytes"] > 1 << 20
    losses = [r["loss"] for r in records(tmp_path, "validation")]
    assert len(losses) == 12
    assert min(losses) == summary.best_validation_loss


def test_the_same_seed_gives_the_same_bits(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        trainer(tmp_path / name, f"training.seed={seed}").train()
    assert_same(*(tmp_path / name / "checkpoints" / "last.safetensors" for name in "ab"))
    other = checkpoint.load(tmp_path / "c" / "checkpoints" / "last.safetensors")
    same = checkpoint.load(tmp_path / "a" / "checkpoints" / "last.safetensors")
    assert not torch.equal(same.tensors["model"]["output.weight"], other.tensors["model"]["output.weight"])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("stop_at", [1, 10, 17, 39])
def test_a_resumed_run_is_bit_identical(tmp_path, stop_at, waiting, number):
    """Stopped by a signal after `stop_at` steps, in the middle or at the end of an epoch: while a step is computed, or
    while the run waits for the batch that comes then."""
    trainer(tmp_path / "whole").train()

    def stop():
        os.kill(os.getpid(), number)

    if waiting:
        first = trainer(tmp_path / "parts", source=StopsAt(stop_at, stop))
    else:
        first = in_step(trainer(tmp_path / "parts"), stop_at, stop)
    summary = first.train()
    assert summary.interrupted
    assert summary.step == stop_at

    path = tmp_path / "parts" / "checkpoints" / "last.safetensors"
    second = trainer(tmp_path / "parts", "training.seed=42")
    torch.manual_seed(999)  # the checkpoint's generator counts, not this one
    resume(second, checkpoint.load(path), path)
    assert not second.train().interrupted
    assert_same(path, tmp_path / "whole" / "checkpoints" / "last.safetensors")

    for event in ("train", "validation"):
        whole, parts = ([r["step"] for r in records(tmp_path / name, event)] for name in ("whole", "parts"))
        assert parts == whole


def test_jitter_of_lambda_resumes_to_the_bit(tmp_path):
    """It changes the training, not what is written down as λ."""
    jitter = "lambda.jitter=0.3"
    trainer(tmp_path / "without").train()
    trainer(tmp_path / "whole", jitter).train()
    first = in_step(trainer(tmp_path / "parts", jitter), 17, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert first.train().step == 17
    path = tmp_path / "parts" / "checkpoints" / "last.safetensors"
    second = trainer(tmp_path / "parts", jitter)
    resume(second, checkpoint.load(path), path)
    second.train()
    whole, without = (tmp_path / name / "checkpoints" / "last.safetensors" for name in ("whole", "without"))
    assert_same(path, whole)
    weights = [checkpoint.load(file).tensors["model"]["output.weight"] for file in (whole, without)]
    assert not torch.equal(*weights)
    lambdas = [[r["lambda"] for r in records(tmp_path / name, "train")] for name in ("whole", "without", "parts")]
    assert lambdas[0] == lambdas[1] == lambdas[2]


def test_resuming_from_an_older_checkpoint_rewrites_the_metrics(tmp_path):
    trainer(tmp_path).train()
    before = records(tmp_path, "validation")
    path = tmp_path / "checkpoints" / "epoch-0003.safetensors"
    again = trainer(tmp_path)
    resume(again, checkpoint.load(path), path)
    again.train()
    after = records(tmp_path, "validation")
    assert [(r["step"], r["loss"]) for r in after] == [(r["step"], r["loss"]) for r in before]


def test_best_is_the_best_of_the_folder_it_stands_in(tmp_path):
    trainer(tmp_path / "first").train()
    path = tmp_path / "first" / "checkpoints" / "epoch-0003.safetensors"
    saved = checkpoint.load(path)
    saved.state["best_validation_loss"] = 0.0  # better than anything to come
    other = trainer(tmp_path / "other")
    resume(other, saved, path)
    summary = other.train()
    losses = [r["loss"] for r in records(tmp_path / "other", "validation")]
    assert summary.best_validation_loss == min(losses) > 0
    best = checkpoint.load(tmp_path / "other" / "checkpoints" / "best.safetensors")
    assert best.state["validation_loss"] == min(losses)


def test_a_finished_run_has_nothing_to_resume(tmp_path):
    trainer(tmp_path).train()
    path = tmp_path / "checkpoints" / "last.safetensors"
    before = path.read_bytes()
    again = trainer(tmp_path)
    resume(again, checkpoint.load(path), path)
    assert again.train().positions == 0
    assert path.read_bytes() == before


@pytest.mark.parametrize("step", [0, 14, 19])
def test_nan_stops_the_run_and_spares_the_last_good_checkpoint(tmp_path, step):
    class Poisoned(MadeUpSource):
        def __next__(self):
            if self.index == step:
                with torch.no_grad():
                    run.model.get_parameter("output.weight")[0, 0] = float("nan")
            return super().__next__()

    run = trainer(tmp_path, source=Poisoned())
    with pytest.raises(UserError, match=rf"not finite at step {step + 1};") as caught:
        run.train()
    assert "\n" not in str(caught.value)
    path = tmp_path / "checkpoints" / "last.safetensors"
    if step < 10:
        assert not path.exists()
        assert "no checkpoint was written yet" in str(caught.value)
    else:
        saved = checkpoint.load(path)
        assert saved.state["step"] == 10
        assert all(t.isfinite().all() for t in saved.tensors["model"].values())
        assert str(path) in str(caught.value)


def test_best_is_the_best_and_outlives_its_epoch(tmp_path, monkeypatch):
    """With the learning rate far too high after the first epoch, validation only gets worse."""
    run = trainer(tmp_path, "optimizer.clip_weights=false")
    losses = iter([0.5, 0.1, 0.3, 0.2])
    monkeypatch.setattr(run, "validate", lambda: next(losses))
    summary = run.train()
    assert summary.best_validation_loss == 0.1
    assert checkpoint.load(tmp_path / "checkpoints" / "best.safetensors").state["step"] == 20
    assert not (tmp_path / "checkpoints" / "epoch-0002.safetensors").exists()


def test_without_validation_there_are_checkpoints_but_no_best(tmp_path):
    run = trainer(tmp_path)
    run.validator.held_out = None
    summary = run.train()
    assert summary.validation_loss is None
    assert (tmp_path / "checkpoints" / "last.safetensors").exists()
    assert not (tmp_path / "checkpoints" / "best.safetensors").exists()


def test_validation_is_the_mean_over_all_positions_whatever_the_batches(tmp_path):
    run = trainer(tmp_path, "loss={kind: win_rate, weight_boost: 1.0}")
    batch = made_up_batch(5)
    whole = [batch]
    pieces = [batch.part(a, b) for a, b in ((0, 3), (3, 32))]
    run.validator.held_out = lambda: whole
    first = run.validate()
    run.validator.held_out = lambda: pieces
    assert run.validate() == pytest.approx(first, rel=1e-6)
    run.validator.held_out = lambda: []
    with pytest.raises(UserError, match="no positions to validate on"):
        run.validate()


def test_epochs_between_validations_and_checkpoints(tmp_path, monkeypatch):
    run = trainer(tmp_path, "training.validate_every=3", "training.checkpoint_every=2", "training.keep_last=9")
    validate = run.validate

    def after_the_write():
        present(run.outputs).store.wait()  # one that waits for a slow disk may be left out
        return validate()

    monkeypatch.setattr(run, "validate", after_the_write)
    run.train()
    assert [r["step"] for r in records(tmp_path, "validation")] == [30, 40]
    names = sorted(path.name for path in (tmp_path / "checkpoints").glob("epoch-*"))
    assert names == ["epoch-0002.safetensors", "epoch-0003.safetensors", "epoch-0004.safetensors"]


def test_a_second_interrupt_is_not_swallowed(tmp_path):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        in_step(trainer(tmp_path), 5, twice).train()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU])
def test_a_signal_that_the_starter_ignores_is_ignored(tmp_path, number):
    """SIGHUP under `nohup`, for example."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        run = in_step(trainer(tmp_path), 5, lambda: os.kill(os.getpid(), number))
        assert not run.train().interrupted
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU])
def test_signals_of_clusters_save(tmp_path, number):
    def send():
        for _ in range(3):  # from SLURM and from torchrun, or each second
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    summary = in_step(trainer(tmp_path), 7, send).train()
    assert (summary.interrupted, summary.step, summary.status) == (True, 7, 75)
    assert checkpoint.load(tmp_path / "checkpoints" / "last.safetensors").state["step"] == 7
    assert signal.getsignal(number) is before


def test_a_preempted_run_repeats_steps_instead_of_a_slow_write(tmp_path, monkeypatch, capsys):
    """Before that it reports that such a write takes longer than a scheduler waits."""
    monkeypatch.setenv("NNUE_GRACE_SECONDS", "20")

    def write_seconds(store):
        store.wait()  # so that step 11 is the first after a write, however fast the steps are
        return 25.0 if store.written_step else 0.0

    monkeypatch.setattr(CheckpointStore, "write_seconds", write_seconds)
    monkeypatch.setattr(RunOutputs, "seconds_since_save", lambda _: 7.0)  # the wait above is not of the run
    run = trainer(tmp_path / "parts", "logging.every_steps=1")
    in_step(run, 15, lambda: os.kill(os.getpid(), signal.SIGTERM))
    summary = run.train()
    said = capsys.readouterr().err
    assert said.count("a write takes 25 s, but schedulers kill a run 20 s after their signal") == 1
    assert "no other checkpoint is written, as a write takes 25 s: the next start repeats the last 7 s" in said
    assert (summary.status, summary.step) == (75, 15)
    assert checkpoint.load(tmp_path / "parts" / "checkpoints" / "last.safetensors").state["step"] == 10
    finish(tmp_path)


def test_it_runs_outside_the_main_thread(tmp_path):
    results = []
    thread = threading.Thread(target=lambda: results.append(trainer(tmp_path).train()))
    thread.start()
    thread.join()
    assert results[0].step == 40


def test_foreign_checkpoints_are_refused(tmp_path):
    run = trainer(tmp_path)
    weights_only = checkpoint.Checkpoint(run.model.architecture, {"model": run.model.state_dict()})
    with pytest.raises(UserError, match=r"net\.safetensors: holds weights only; start from it with"):
        resume(run, weights_only, tmp_path / "net.safetensors")
    saved = run.checkpoint()
    del saved.tensors["optimizer"]["step/output.bias"]
    with pytest.raises(UserError, match=r"x\.safetensors: optimizer tensor step/output\.bias is missing; expected"):
        resume(run, saved, tmp_path / "x.safetensors")


def copy_of(run) -> torch.Tensor | None:
    return instance(PerspectiveTransformer, run.model.feature_transformer)._copy


@pytest.mark.parametrize("kind", ["adamw", "ranger_lite", "torch, name: Adam"])
def test_mixed_precision_trains(tmp_path, kind):
    """Weights and state are fp32; what training reads is their bfloat16, which rules of others do without."""
    run = trainer(tmp_path, "training.precision=mixed", f"optimizer={{kind: {kind}, lr: 0.01}}")
    before = present(run.validate())
    assert present(run.train().validation_loss) < before
    saved = run.checkpoint()
    assert all(tensor.dtype == torch.float32 for tensor in saved.tensors["model"].values())
    assert all(tensor.dtype != torch.bfloat16 for tensor in saved.tensors["optimizer"].values())
    if kind.startswith("torch"):
        assert copy_of(run) is None
    else:
        assert torch.equal(present(copy_of(run)), run.model.get_parameter("feature_transformer.weight").bfloat16())


def test_mixed_precision_resumes_to_the_bit(tmp_path):
    trainer(tmp_path / "whole", "training.precision=mixed").train()
    path = tmp_path / "whole" / "checkpoints" / "epoch-0003.safetensors"
    second = trainer(tmp_path / "parts", "training.precision=mixed")
    resume(second, checkpoint.load(path), path)
    assert torch.equal(present(copy_of(second)), second.model.get_parameter("feature_transformer.weight").bfloat16())
    second.train()
    whole, parts = (
        checkpoint.load(tmp_path / name / "checkpoints" / "last.safetensors") for name in ("whole", "parts")
    )
    for group in ("model", "optimizer"):
        for name, tensor in whole.tensors[group].items():
            assert torch.equal(tensor, parts.tensors[group][name]), name


def test_mixed_precision_flushes_no_gradient(tmp_path):
    """A loss of 2^-100 has gradients that float16 would call zero."""
    run = trainer(tmp_path, "training.precision=mixed")
    batch = made_up_batch(0)
    with torch.autocast("cpu", torch.bfloat16):
        output = run.model(batch)
    (output.float().mean() * 2.0**-100).backward()
    found = grad_of(copy_of(run))
    assert run.model.get_parameter("feature_transformer.weight").grad is None
    seen = torch.zeros(len(found), dtype=torch.bool)
    seen[batch.white[batch.white >= 0].long()] = True
    assert (found[seen] != 0).any(1).float().mean() > 0.9


def test_cuda_graph_wants_cuda(tmp_path):
    with pytest.raises(UserError, match=r"training\.cuda_graph: found device cpu, expected a CUDA device"):
        trainer(tmp_path, "training.cuda_graph=true")


def test_a_graph_wants_an_optimiser_that_can_be_recorded(tmp_path):
    with pytest.raises(UserError, match=r"training\.cuda_graph: a step of the optimizer 'torch' cannot be recorded"):
        trainer(tmp_path, "training.cuda_graph=true", "optimizer={kind: torch, name: SGD}")


def test_lambda_is_set_ahead_for_steps_of_the_run_alone(tmp_path, monkeypatch):
    """One batch more is fetched than there are steps, and a batch without a buffer is the next step's, too."""
    run, asked = trainer(tmp_path), []

    def at(self, step):
        asked.append(step)
        return StepValues(0.1, 0.5, rounds=False, share=0.0, average_begun=False)

    monkeypatch.setattr(ScheduleValues, "at", at)
    batch = replace(made_up_batch(0), buffer=0)
    run.lambdas.set_ahead(replace(batch, buffer=None))
    for _ in range(run.steps):
        run.lambdas.set_ahead(batch)
    assert asked == [*range(1, run.steps), run.steps - 1]


def test_what_does_not_change_is_not_written_again(tmp_path):
    """The learning rate is a separate launch beside a recorded step."""
    still = ["schedule={kind: exponential, gamma: 0.5}", "lambda={kind: linear, start: 0.5, end: 0.5}"]
    moving = ["schedule={kind: linear, final_lr: 1e-3}"]
    # The first rate of 12 steps, in two epochs, is there from the beginning.
    for overrides, writes in ((still, 1), (moving, 11)):
        run, written = trainer(tmp_path, *overrides), 0
        for step in range(12):
            before = run.optimizer.lr._version
            run.advance()
            written += run.optimizer.lr._version > before
            numbers = [run.optimizer.lr, *run.lambdas.values()]
            chosen = run.run.recipe
            rate, lam = chosen.schedule.of(RunStep(step, 10, 4), 1e-2), chosen.lambda_.of(RunStep(step, 10, 4))
            assert [number.item() for number in numbers] == pytest.approx([rate, lam])
        assert written == writes


def test_torchs_optimisers_train_and_resume(tmp_path):
    """Through files, with a learning rate that changes at every step."""
    chosen = ["optimizer={kind: torch, name: NAdam, lr: 1e-2}", "schedule={kind: linear, final_lr: 1e-3}"]
    trainer(tmp_path / "whole", *chosen).train()
    path = tmp_path / "whole" / "checkpoints" / "epoch-0003.safetensors"
    second = trainer(tmp_path / "parts", *chosen)
    resume(second, checkpoint.load(path), path)
    summary = second.train()
    assert present(summary.validation_loss) < 0.05
    assert_same(*(tmp_path / name / "checkpoints" / "last.safetensors" for name in ("whole", "parts")))


def test_tensorboard_events_are_written(tmp_path):
    trainer(tmp_path, "logging.tensorboard=true", "training.epochs=1").train()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [e.step for e in events.Scalars("train/loss")] == [3, 6, 9, 10]
    assert [e.step for e in events.Scalars("validation/loss")] == [10]


def test_compiled_training_is_the_same_training(tmp_path, monkeypatch):
    """Through the tracer and autograd of torch.compile; the code generator itself is not ours to test."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager", fullgraph=True))
    trainer(tmp_path / "eager", "training.epochs=1").train()
    trainer(tmp_path / "compiled", "training.epochs=1", "training.compile=true").train()
    eager, compiled = (
        checkpoint.load(tmp_path / name / "checkpoints" / "last.safetensors").tensors["model"]
        for name in ("eager", "compiled")
    )
    for name, tensor in eager.items():
        torch.testing.assert_close(compiled[name], tensor, rtol=1e-5, atol=1e-6)


# --- endings: whatever ends a run, what was trained is saved, and the rest comes out the same


def finish(tmp_path):
    """Resumes the run in `parts` and compares its end with that of a run that was never stopped."""
    trainer(tmp_path / "whole").train()
    path = tmp_path / "parts" / "checkpoints" / "last.safetensors"
    again = trainer(tmp_path / "parts")
    resume(again, checkpoint.load(path), path)
    assert not again.train().interrupted
    for name in ("last", "best", "epoch-0004"):
        assert_same(path.with_stem(name), tmp_path / "whole" / "checkpoints" / f"{name}.safetensors")


def fail(error):
    raise error


@pytest.mark.parametrize("error", [UserError("x.binpack: damaged"), MemoryError(), RuntimeError("a bug")])
@pytest.mark.parametrize("stop_at", [10, 17])
def test_an_error_of_the_data_ends_a_run_with_a_checkpoint(tmp_path, capsys, stop_at, error):
    run = trainer(tmp_path / "parts", source=StopsAt(stop_at, lambda: fail(error)))
    with pytest.raises(type(error)) as caught:
        run.train()
    assert caught.value is error
    assert f"last.safetensors: saved at step {stop_at}, before the error" in capsys.readouterr().err or stop_at == 10
    assert checkpoint.load(tmp_path / "parts" / "checkpoints" / "last.safetensors").state["step"] == stop_at
    finish(tmp_path)


def test_running_out_of_memory_in_a_step_ends_a_run_with_a_checkpoint(tmp_path):
    """The batch of that step is trained on again."""
    run = trainer(tmp_path / "parts")
    in_step(run, 18, lambda: fail(torch.OutOfMemoryError("CUDA out of memory.")))
    with pytest.raises(torch.OutOfMemoryError):
        run.train()
    assert checkpoint.load(tmp_path / "parts" / "checkpoints" / "last.safetensors").state["step"] == 17
    finish(tmp_path)


def test_what_fails_in_an_update_is_not_saved(tmp_path, monkeypatch):
    """Some of the weights have moved by then, and others have not."""
    run = trainer(tmp_path / "parts")
    update = run.optimizer.step

    def half(loss):
        if run.step == 17:
            run.model.get_parameter("output.weight").data.add_(1.0)
            raise MemoryError
        update(loss)

    monkeypatch.setattr(run.optimizer, "step", half)
    with pytest.raises(MemoryError):
        run.train()
    assert checkpoint.load(tmp_path / "parts" / "checkpoints" / "last.safetensors").state["step"] == 10
    finish(tmp_path)


@pytest.mark.parametrize("error", [None, UserError("val.binpack: damaged")])
def test_a_run_that_ends_during_validation_validates_again(tmp_path, error):
    run = trainer(tmp_path / "parts")
    held_out = list(present(run.validator.held_out)())

    def batches():
        yield held_out[0]
        if run.step == 20:
            if error is not None:
                raise error
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("the rest of the validation is not waited for")
        yield held_out[1]

    run.validator.held_out = batches
    if error is None:
        assert run.train().interrupted
    else:
        with pytest.raises(UserError, match="damaged"):
            run.train()
    saved = checkpoint.load(tmp_path / "parts" / "checkpoints" / "last.safetensors")
    assert (saved.state["step"], saved.state["epoch_end_pending"]) == (20, True)
    finish(tmp_path)
    steps = [record["step"] for record in records(tmp_path / "parts", "validation")]
    assert steps == [10, 20, 30, 40]


def test_an_error_of_an_earlier_write_does_not_hide_the_best(tmp_path, monkeypatch):
    """It comes out at the end of the next epoch, whose own checkpoint is made when the run goes on."""
    run = trainer(tmp_path / "parts")
    save = checkpoint.save

    def no_room(path, content, *check):
        if content.state["step"] == 30:
            raise UserError(f"{path}: cannot be written: No space left on device")
        save(path, content, *check)

    validate = run.validate

    def after_the_write():
        wait_for_writes(run)
        return validate()

    monkeypatch.setattr(checkpoint, "save", no_room)
    monkeypatch.setattr(run, "validate", after_the_write)
    with pytest.raises(UserError, match="No space left"):
        run.train()
    saved = checkpoint.load(tmp_path / "parts" / "checkpoints" / "last.safetensors")
    assert (saved.state["step"], saved.state["epoch_end_pending"]) == (40, True)
    monkeypatch.undo()
    finish(tmp_path)
    assert [record["step"] for record in records(tmp_path / "parts", "validation")] == [10, 20, 30, 40]


def test_checkpoints_within_an_epoch(tmp_path):
    """Minutes apart; here after every step. A kill loses what came after the last of them, and no more."""
    run = trainer(tmp_path / "parts", "training.checkpoint_minutes=1e-9")
    folder = tmp_path / "parts" / "checkpoints"
    in_step(run, 17, lambda: wait_for_writes(run))  # while the best one waits for a slow disk, later ones are left out
    in_step(run, 18, lambda: fail(KeyboardInterrupt()))  # as a kill does, it saves nothing
    with pytest.raises(KeyboardInterrupt):
        run.train()
    assert checkpoint.load(folder / "last.safetensors").state["step"] == 17
    assert sorted(path.name for path in folder.iterdir()) == [
        "best.safetensors", "epoch-0001.safetensors", "last.safetensors",
    ]  # fmt: skip
    finish_recipe = trainer(tmp_path / "parts")
    resume(finish_recipe, checkpoint.load(folder / "last.safetensors"), folder / "last.safetensors")
    finish_recipe.train()
    trainer(tmp_path / "whole").train()
    assert_same(folder / "last.safetensors", tmp_path / "whole" / "checkpoints" / "last.safetensors")


def test_a_terminal_that_is_gone_ends_nothing(tmp_path, monkeypatch):
    class Gone:
        encoding = "utf-8"

        def write(self, *_):
            raise OSError(5, "Input/output error")

        flush = isatty = write

    monkeypatch.setattr(sys, "stderr", Gone())
    monkeypatch.setattr(os, "dup2", lambda *_: None)  # the terminal of the tests is not gone
    assert not trainer(tmp_path).train().interrupted


# --- what is not finite is never kept


@pytest.mark.parametrize("step", [8, 10, 13, 20])
def test_weights_that_an_update_made_infinite_are_never_saved(tmp_path, monkeypatch, step):
    """Loss and gradients are finite, but the update is not: a huge decay made NaN out of such weights."""
    run = trainer(tmp_path, "optimizer.clip_weights=false", "training.checkpoint_minutes=1e-9")
    update = run.optimizer.step

    def overflow(loss):
        update(loss)
        if run.step + 1 == step:
            run.model.get_parameter("feature_transformer.weight").data[5, 3] = float("inf")

    monkeypatch.setattr(run.optimizer, "step", overflow)
    with pytest.raises(UserError, match=r"not finite") as caught:
        run.train()
    assert "\n" not in str(caught.value)
    for path in (tmp_path / "checkpoints").glob("*"):
        saved = checkpoint.load(path)
        assert saved.state["step"] < step
        assert all(tensor.isfinite().all() for tensor in saved.tensors["model"].values())


def test_a_huge_decay_stops_the_run(tmp_path):
    run = trainer(tmp_path, "optimizer={lr: 1e30, weight_decay: 1e30, clip_weights: false}", "logging.every_steps=1")
    with pytest.raises(UserError, match="the update made weights or moments that are not finite, at step 1 or before"):
        run.train()
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize("first", [float("nan"), float("inf")])
def test_a_validation_that_is_not_finite_is_never_the_best(tmp_path, monkeypatch, first):
    """The first one was, and then nothing was ever better than NaN."""
    run = trainer(tmp_path)
    losses = iter([first, 0.3, float("nan"), 0.2])
    monkeypatch.setattr(run, "validate", lambda: next(losses))
    summary = run.train()
    assert summary.best_validation_loss == 0.2
    assert [r["best"] for r in records(tmp_path, "validation")] == [None, 0.3, 0.3, 0.2]
    assert [r["loss"] for r in records(tmp_path, "validation")] == [None, 0.3, None, 0.2]
    assert checkpoint.load(tmp_path / "checkpoints" / "best.safetensors").state["best_step"] == 40
    third = checkpoint.load(tmp_path / "checkpoints" / "epoch-0003.safetensors").state
    assert (third["validation_loss"], third["best_validation_loss"], third["best_step"]) == (None, 0.3, 20)


def test_a_step_is_few_python_calls(project_root):
    """On a CPU; the limit of a GPU's step, which this machine cannot count, is lower (tools/step_calls.py)."""
    tool = runpy.run_path(str(project_root / "tools" / "step_calls.py"))
    calls = tool["count"]("sfnnv5", torch.device("cpu"), ["model.l1=32", "data.batch_size=256", "training.device=cpu"])
    assert 10 < calls.functions.total() <= 120
    assert len({file for file, _ in calls.functions}) <= 15
