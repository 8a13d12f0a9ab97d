"""Training that is aware of quantisation, from the start or from a part of the run on: what each step computes, resume,
validation, and `nnue check` of what came out."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from made_up import made_up_batch, trainer
from typed import present
from typer.testing import CliRunner

from nnue_trainer.cli.main import app
from nnue_trainer.data.binpack import write_binpack
from nnue_trainer.errors import UserError
from nnue_trainer.files import checkpoint
from nnue_trainer.training.resuming import resume

SIMPLE = "model={kind: simple, hidden: 16, quantisation: {qat: true}}"
LATE = "model={kind: simple, hidden: 16, quantisation: {qat: true, qat_from: 0.55}}"
FLOAT = "model={kind: simple, hidden: 16}"
LAYERED = (
    "model={kind: layered, hidden: 16, output_buckets: {count: 8}, layers: [{outputs: 8, activation: dual}], "
    "shared: true, quantisation: {qat: true, qat_from: 0.55}}"
)


def weights(run: Path, name: str = "last") -> dict[str, torch.Tensor]:
    return checkpoint.load(run / "checkpoints" / f"{name}.safetensors").tensors["model"]


def test_it_learns_with_rounding(tmp_path):
    run = trainer(tmp_path, SIMPLE)
    before = present(run.validate())
    summary = run.train()
    assert present(summary.validation_loss) < 0.8 * before
    assert not run.optimizer.failed()


def test_it_begins_at_its_share_of_the_run(tmp_path):
    """40 steps: 22 in floating point, which are those of a run without it, and 18 with rounding."""
    late, floating = trainer(tmp_path / "late", LATE), trainer(tmp_path / "float", FLOAT)
    for step in range(24):
        late.advance()
        floating.advance()
        assert (late.model.rounded is not None) == (step >= 22)
        same = all(torch.equal(a, b) for a, b in zip(late.model.parameters(), floating.model.parameters(), strict=True))
        assert same == (step < 22)


@pytest.mark.parametrize("model", [LATE, LAYERED])
@pytest.mark.parametrize("epoch", [1, 3])
def test_a_resumed_run_is_bit_identical(tmp_path, model, epoch):
    """From before and from behind the step at which the rounding begins."""
    trainer(tmp_path / "whole", model).train()
    name = f"epoch-{epoch:04}"
    trainer(tmp_path / "kept", model, "training.keep_last=9").train()
    path = tmp_path / "kept" / "checkpoints" / f"{name}.safetensors"
    second = trainer(tmp_path / "parts", model)
    resume(second, checkpoint.load(path), path)
    second.train()
    for key, tensor in weights(tmp_path / "whole").items():
        assert torch.equal(weights(tmp_path / "parts")[key], tensor), key


def test_validation_rounds_from_the_start(tmp_path):
    """The losses of all epochs are comparable, and `best` is the best net of an engine."""
    late, floating = trainer(tmp_path / "late", LATE), trainer(tmp_path / "float", FLOAT)
    assert late.model.rounded is None
    loss = late.validate()
    assert late.model.rounded is None
    assert loss != floating.validate()
    late.model.set_rounding(True)
    assert late.validate() == loss, "the recipe decides, not what the step before did"
    assert late.model.rounded is not None


def test_other_rules_and_layers_take_part(tmp_path):
    for rule in (
        "kind: ranger_lite",
        "kind: torch, name: RAdam",
        "kind: adamw, factoriser: false, clip_weights: false",
    ):
        run = trainer(tmp_path / rule.replace(" ", ""), LAYERED, f"optimizer={{{rule}, lr: 0.01}}")
        before = present(run.validate())
        assert present(run.train().validation_loss) < before


def test_bf16_and_compile_train_the_same_net(tmp_path, monkeypatch):
    """Rounding switches autocast off. What is compiled notices when it begins."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager", fullgraph=True))
    for name, option in (("plain", "fp32"), ("mixed", "mixed")):
        trainer(tmp_path / name, SIMPLE, f"training.precision={option}").train()
    for key, tensor in weights(tmp_path / "plain").items():
        assert torch.equal(weights(tmp_path / "mixed")[key], tensor), key
    trainer(tmp_path / "eager", LATE).train()
    trainer(tmp_path / "compiled", LATE, "training.compile=true").train()
    for key, tensor in weights(tmp_path / "eager").items():
        torch.testing.assert_close(weights(tmp_path / "compiled")[key], tensor, rtol=1e-3, atol=1e-4)


# --- nnue check


@pytest.fixture(scope="module")
def positions(project_root, tmp_path_factory) -> Path:
    from nnue_trainer.data import RecordLoader

    path = tmp_path_factory.mktemp("positions") / "some.binpack"
    with RecordLoader([project_root / "samples" / "val.binpack"], 3000, shuffle=False) as loader:
        write_binpack(path, next(iter(loader)).numpy().copy(), join_chains=False)
    return path


def check(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["check", *(str(argument) for argument in arguments)])
    error = "" if isinstance(result.exception, SystemExit) else str(result.exception or "")
    return result.exit_code, result.stdout, error


def test_a_net_trained_with_rounding_is_what_the_engine_computes(tmp_path, positions):
    trainer(tmp_path / "run", SIMPLE).train()
    status, out, _ = check(tmp_path / "run", "--data", positions, "--positions", 2500, "--json")
    assert status == 0
    report = json.loads(out)
    assert report["positions"] == 2500
    assert (report["qat"], report["limit"], report["ok"]) == (True, 1.0, True)
    assert report["rms"] < 1e-3
    by_pair = {(row["of"], row["and"]): row for row in report["differences"]}
    assert by_pair["fake_quantised", "integer"]["largest"] < 1e-3
    apart = by_pair["float", "integer"]
    assert 0.1 < apart["rms"] < apart["largest"]
    assert len(apart["worst"]) == 3
    sizes = [abs(row["difference"]) for row in apart["worst"]]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == apart["largest"]
    for row in apart["worst"]:
        assert row["difference"] == pytest.approx(row["float"] - row["integer"], abs=2e-3)
        assert row["integer"] == evaluated(tmp_path / "run", row["fen"])


def evaluated(run: Path, fen: str) -> int:
    from nnue_trainer import data
    from nnue_trainer.export import evaluate, net_from_checkpoint

    net = net_from_checkpoint(checkpoint.load(run / "checkpoints" / "best.safetensors"), "net")
    return int(evaluate(net, data.expand(data.records_from_fens([fen]), net.net.integer_feature_set)).score[0])


def test_a_net_trained_in_floats_fails_a_limit(tmp_path, positions):
    trainer(tmp_path / "run", FLOAT).train()
    saved = tmp_path / "run" / "checkpoints" / "last.safetensors"
    status, out, error = check(saved, "--data", positions, "--positions", 500)
    assert (status, error) == (0, "")
    assert "trained as float: " in out
    assert "limit 50: ok" in out
    status, out, error = check(saved, "--data", positions, "--positions", 500, "--limit", "0.01")
    assert status == 1
    assert "limit 0.01: too far" in out
    assert f"{saved}: the float evaluation that was trained is " in error
    assert "expected at most 0.01" in error


def test_mistakes_are_one_line(tmp_path, positions):
    trainer(tmp_path / "run", "training.epochs=1").train()
    saved = tmp_path / "run" / "checkpoints" / "last.safetensors"
    (tmp_path / "empty.binpack").touch()
    loaded = checkpoint.load(saved)
    loaded.tensors["model"]["output.weight"][0, 3] = 7.0
    checkpoint.save(tmp_path / "large.safetensors", loaded)
    for words, arguments in (
        ("nowhere.safetensors: no such checkpoint", (tmp_path / "nowhere.safetensors", "--data", positions)),
        ("not the folder of a run", (tmp_path, "--data", positions)),
        ("nowhere.binpack: ", (saved, "--data", tmp_path / "nowhere.binpack")),
        ("empty.binpack", (saved, "--data", tmp_path / "empty.binpack")),
        ("output.weight[0, 3] is 7, limit", (tmp_path / "large.safetensors", "--data", positions)),
    ):
        status, out, error = check(*arguments)
        assert (status, out) == (1, ""), words
        assert words in error
        assert "\n" not in error
    assert check(saved)[0] == 2
    assert check(saved, "--data", positions, "--positions", 0)[0] == 2


def test_a_net_from_outside_is_compared_without(tmp_path, positions, monkeypatch, capfd):
    from nnue_trainer import nets, registry

    plugin = Path(__file__).parents[1] / "nets" / "my_net.py"
    registry.load_plugin(plugin)
    model = nets.build({"kind": "my_net.py:MyNet", "hidden": 8})
    saved = checkpoint.Checkpoint(model.architecture, {"model": model.state_dict()})
    checkpoint.save(tmp_path / "c.safetensors", saved)
    registry.forget_plugins()
    status, _, error = check(tmp_path / "c.safetensors", "--data", positions)
    assert status == 1
    assert "my_net.py" in error
    arguments = (tmp_path / "c.safetensors", "--data", positions, "--plugin", plugin, "--positions", 100)
    result = CliRunner().invoke(app, ["check", *map(str, arguments)])
    assert result.exit_code == 0, result.exception
    assert "quantisation-aware training is not possible" in result.stderr
    assert "float - integer" in result.stdout
    assert "fake-quantised" not in result.stdout


def test_sums_that_wrap_around_are_found(tmp_path, positions):
    """The rounded forward pass does not wrap; the engine does, and `nnue check` reports it."""
    run = trainer(tmp_path / "run", "model={kind: sfnnv5, l1: 32, quantisation: {qat: true}}")
    path = tmp_path / "c.safetensors"
    checkpoint.save(path, run.checkpoint())
    assert check(path, "--data", positions, "--positions", 200)[0] == 0
    with torch.no_grad():
        run.model.get_parameter("feature_transformer.weight").fill_(150.0)
    checkpoint.save(path, run.checkpoint())
    status, out, error = check(path, "--data", positions, "--positions", 200, "--json")
    assert status == 1
    assert json.loads(out)["rms"] > 1
    assert "fake-quantised evaluation" in error


def test_made_up_batches_reach_both_ends_of_the_clip():
    """The batches of the tests above are not linear by accident."""
    batch = made_up_batch(0)
    assert len(np.unique(batch.counts.numpy())) > 5
    with pytest.raises(UserError):
        trainer(Path("unused"), "model={kind: simple, quantisation: {qat: 1}}")
