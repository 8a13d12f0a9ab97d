"""A net that starts from another one: the same evaluations where it has more of everything; changes are reported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from command import nnue

from nnue_trainer import nets
from nnue_trainer.data import Loader
from nnue_trainer.errors import UserError
from nnue_trainer.export import net_from_checkpoint, write_net
from nnue_trainer.files import checkpoint
from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.losses.win_rate import WinRateLoss
from nnue_trainer.nets.base import NETS, NnueModel
from nnue_trainer.nets.stockfish_net import StockfishNet
from nnue_trainer.training.warm_start import start_from

KINGS = [0, 1, 2, 2] + [1] * 4 + [2] * 24


def made(architecture: dict[str, Any], seed: int = 1) -> NnueModel:
    """A model whose weights matter: far from 0, within what the net holds, other ones in every output bucket."""
    torch.manual_seed(seed)
    model = nets.build(architecture)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0, 0.1 if name.startswith("feature_transformer") else 0.2)
        for bound in model.weight_bounds():
            bound.parameter[bound.first_row :][: bound.rows].clamp_(bound.low, bound.high)
    return model


def saved(model: NnueModel, path: Path) -> Path:
    checkpoint.save(path, Checkpoint(model.architecture, {"model": model.state_dict()}))
    return path


@pytest.fixture
def loss(project_root: Path) -> Callable[[NnueModel], float]:
    """The loss of a model on held-out positions of the sample, as the validation of a run adds it up."""

    def loss_of(model: NnueModel) -> float:
        loader = Loader(
            [str(project_root / "samples" / "val.binpack")], model.feature_set, 2000, shuffle=False, threads=1
        )
        try:
            batch = next(iter(loader))
            with torch.no_grad():
                weighted, weights = WinRateLoss().terms(
                    model(batch) * model.score_scale, batch.score, batch.result, 0.75
                )
        finally:
            loader.close()
        return float(weighted / weights)

    return loss_of


SIMPLE = {"kind": "simple", "hidden": 32}
BUCKETS = {"kind": "layered", "inputs": {"kings": KINGS, "mirror": "a-d"}, "hidden": 32, "output_buckets": {"count": 4}}
DUAL = {
    **BUCKETS,
    "activation": "pairwise",
    "psqt": True,
    "shared": True,
    "layers": [{"outputs": 8, "activation": "dual", "skip": "last"}, {"outputs": 6}],
}
LIKE_V16 = {
    **DUAL,
    "layers": [
        {"outputs": 9, "activation": "dual", "skip": "difference", "skip_activated": True, "to_output": True},
        {"outputs": 6, "activation": "dual"},
    ],
}
GROWN = {
    "simple, wider": (SIMPLE, {**SIMPLE, "hidden": 48}),
    "crelu, wider": ({**SIMPLE, "activation": "crelu"}, {**SIMPLE, "activation": "crelu", "hidden": 40}),
    "simple → layered with king and output buckets": (
        SIMPLE,
        {"kind": "layered", "inputs": [{"kings": [0] * 20 + [1] * 44}], "hidden": 40, "output_buckets": {"count": 8}},
    ),
    "layered, wider": (BUCKETS, {**BUCKETS, "hidden": 48}),
    "more output buckets": (BUCKETS, {**BUCKETS, "output_buckets": {"count": 16}}),
    "one output bucket → eight of bullet": (
        {**BUCKETS, "output_buckets": {"count": 1}},
        {**BUCKETS, "output_buckets": {"count": 8, "rule": "bullet"}},
    ),
    "more king buckets": (BUCKETS, {**BUCKETS, "inputs": {"kings": list(range(32)), "mirror": "a-d"}}),
    "states": (BUCKETS, {**BUCKETS, "inputs": {"kings": KINGS, "mirror": "a-d", "states": ["eQ:1"]}}),
    "more states": (
        {**BUCKETS, "inputs": {"kings": KINGS, "mirror": "a-d", "states": ["eQ:1"]}},
        {**BUCKETS, "inputs": {"kings": KINGS, "mirror": "a-d", "states": ["oQ:1", "eQ:1"]}},
    ),
    "output buckets by queens": (BUCKETS, {**BUCKETS, "output_buckets": {"count": 16, "rule": "queens"}}),
    "the other half of the board": (
        BUCKETS,
        {
            **BUCKETS,
            "inputs": {"kings": [k for r in range(8) for k in KINGS[4 * r : 4 * r + 4][::-1]], "mirror": "e-h"},
        },
    ),
    "threats and pawn pairs beside": (
        BUCKETS,
        {**BUCKETS, "inputs": [{"kings": KINGS, "mirror": "a-d"}, "PP_3Wide", "Full_Threats_v16"]},
    ),
    "pairwise, wider": (DUAL, {**DUAL, "hidden": 48}),
    "other layers": (
        DUAL,
        {**DUAL, "layers": [{"outputs": 16, "activation": "dual", "skip": "last"}, {"outputs": 10}]},
    ),
    "a skip connection, squares and a look past a layer": (DUAL, LIKE_V16),
    "everything at once": (
        DUAL,
        {
            **LIKE_V16,
            "hidden": 64,
            "output_buckets": {"count": 8},
            "inputs": [{"kings": list(range(32)), "mirror": "a-d"}, "Full_Threats_v12"],
        },
    ),
    "sfnnv9, wider": ({"kind": "sfnnv9", "l1": 32}, {"kind": "sfnnv9", "l1": 64}),
    "sfnnv5 → sfnnv6": ({"kind": "sfnnv5", "l1": 32}, {"kind": "sfnnv6", "l1": 64}),
    "sfnnv5 → stacks of its own": (
        {"kind": "sfnnv5", "l1": 32},
        {"kind": "sfnnv5", "l1": 32, "output_buckets": {"count": 32, "rule": "queens"}},
    ),
    "sfnnv17 → sfnnv18": ({"kind": "sfnnv17", "l1": 32}, {"kind": "sfnnv18", "l1": 32}),
    "sfnnv17 → sfnnv16": ({"kind": "sfnnv17", "l1": 32}, {"kind": "sfnnv16", "l1": 32}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GROWN)
def test_a_net_with_more_of_something_starts_with_the_evaluations(name: str, loss, tmp_path: Path) -> None:
    small, large = GROWN[name]
    before = made(small)
    path = saved(before, tmp_path / "small.safetensors")
    torch.manual_seed(2)
    after = nets.build(large)
    lines = start_from(path, after, print)
    assert loss(after) == pytest.approx(loss(before), abs=1e-5)
    assert "those of the source" in lines[-1]
    assert "not those" not in lines[-1]
    assert not any(line.startswith(("left out", "clipped", "output buckets")) for line in lines)


@pytest.mark.parametrize("name", ["simple, wider", "pairwise, wider", "everything at once", "sfnnv9, wider"])
def test_what_is_new_learns(name: str, loss, tmp_path: Path, project_root: Path) -> None:
    """New units and features get gradients, and the first of them are those of their outgoing weights."""
    small, large = GROWN[name]
    after = nets.build(large)
    start_from(saved(made(small), tmp_path / "small.safetensors"), after, print)
    start = {key: value.clone() for key, value in after.state_dict().items()}
    optimizer = torch.optim.Adam(after.parameters(), lr=1e-3)
    loader = Loader([str(project_root / "samples" / "val.binpack")], after.feature_set, 500, shuffle=False, threads=1)
    batch = next(iter(loader))
    loader.close()
    for _ in range(2):
        optimizer.zero_grad()
        weighted, weights = WinRateLoss().terms(after(batch) * after.score_scale, batch.score, batch.result, 0.75)
        (weighted / weights).backward()
        optimizer.step()
    hidden = start["feature_transformer.bias"].numel()
    width = hidden // 2 if "pairwise" in name or "everything" in name or "sfnnv9" in name else hidden
    last_unit = after.state_dict()["feature_transformer.weight"][:, width - 1]
    assert not torch.equal(last_unit, start["feature_transformer.weight"][:, width - 1])


def test_v16_takes_the_inputs_of_v9(loss, tmp_path: Path) -> None:
    """Two nets with other units and other clips: what is the same is copied, and the difference is measured."""
    before = made({"kind": "sfnnv9", "l1": 32})
    after = nets.build({"kind": "sfnnv16", "l1": 64})
    lines = start_from(saved(before, tmp_path / "v9.safetensors"), after, print)
    old, new = before.state_dict(), after.state_dict()
    rows = old["feature_transformer.weight"].shape[0]
    for half in range(2):
        units = slice(32 * half, 32 * half + 16)
        expected = old["feature_transformer.weight"][:, 16 * half : 16 * half + 16]
        assert torch.equal(new["feature_transformer.weight"][:rows, units], expected)
        assert not new["feature_transformer.weight"][rows:, units].any()
    assert torch.equal(new["feature_transformer.psqt"][:rows], old["feature_transformer.psqt"])
    assert not new["fc0.weight"][:, 31].any(), "the second skip output is new, and would count at once"
    assert torch.equal(new["fc0.weight"][:, 30, :16], old["fc0.weight"][:, 15, :16])
    assert loss(after) == pytest.approx(loss(before), abs=1e-3)
    assert "inputs: Full_Threats_v16: new" in lines
    assert "correlation 1.000" in lines[-1]


def test_a_net_file_and_a_run_folder_are_sources_too(loss, tmp_path: Path) -> None:
    before = made({"kind": "sfnnv9", "l1": 32})
    path = saved(before, tmp_path / "small.safetensors")
    write_net(net_from_checkpoint(checkpoint.load(path), "small", any_l1=True), tmp_path / "small.nnue")
    after = nets.build({"kind": "sfnnv9", "l1": 64})
    lines = start_from(tmp_path / "small.nnue", after, print)
    assert loss(after) == pytest.approx(loss(before), abs=2e-3), "the net has rounded weights"
    assert "those of the source" in lines[-1]

    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(UserError, match=r"run: not the folder of a run: expected checkpoints/last\.safetensors in it"):
        start_from(tmp_path / "run", after, print)
    path.rename(tmp_path / "run" / "checkpoints" / "last.safetensors")
    again = nets.build({"kind": "sfnnv9", "l1": 32})
    assert start_from(tmp_path / "run", again, print) == [
        f"initial weights: all of {tmp_path}/run/checkpoints/last.safetensors"
    ]
    assert loss(again) == loss(before)


@pytest.mark.parametrize(
    ("small", "large", "expected"),
    [
        (BUCKETS, {**BUCKETS, "hidden": 16}, "not those of the source"),
        (BUCKETS, {**BUCKETS, "output_buckets": {"count": 3}}, "output buckets 0, 1, 2: positions came from several"),
        (BUCKETS, {**BUCKETS, "activation": "crelu"}, "activation was screlu, is crelu: the same weights give other"),
        (BUCKETS, {**BUCKETS, "score_scale": 200}, "score_scale was 400, is 200: the same weights give other"),
        (BUCKETS, {**BUCKETS, "inputs": "Chess768"}, "features are means of several"),
        (DUAL, {**DUAL, "psqt": False}, "left out: feature_transformer.psqt of the source"),
        (
            {**BUCKETS, "inputs": ["Chess768", "PP_3Wide"]},
            {**BUCKETS, "inputs": ["Chess768"]},
            "inputs: PP_3Wide: left out",
        ),
        (
            {"kind": "sfnnv15", "l1": 32},
            {"kind": "sfnnv16", "l1": 32},
            "59,808 of 59,808 features are in Full_Threats_v14",
        ),
    ],
)
def test_what_cannot_be_kept_is_said_in_one_line(small: dict, large: dict, expected: str, tmp_path: Path) -> None:
    lines = start_from(saved(made(small), tmp_path / "small.safetensors"), nets.build(large), print)
    assert any(expected in line for line in lines), lines
    assert "not those of the source" in lines[-1]


def test_layers_behind_fresh_ones_are_fresh(tmp_path: Path) -> None:
    """The weights of a layer are worth nothing where its inputs are not what they were."""
    lines = start_from(
        saved(made(DUAL), tmp_path / "dual.safetensors"), nets.build({**DUAL, "activation": "crelu"}), print
    )
    rows = {line.split()[0]: line.split() for line in lines if line.startswith("  ")}
    assert rows["tensor"][1:] == ["shape", "copied", "fresh", "left", "out"]
    for name in ("layers.0.weight", "layers.1.weight", "output.weight"):
        assert rows[name][-3] == "–", rows[name]


def test_a_mean_is_a_mean_and_the_table_counts(tmp_path: Path) -> None:
    two = {**BUCKETS, "inputs": {"kings": [0] * 32 + [1] * 32}}
    before, after = made(two), nets.build({**two, "inputs": "Chess768"})
    lines = start_from(saved(before, tmp_path / "two.safetensors"), after, print)
    old, new = before.state_dict()["feature_transformer.weight"], after.state_dict()["feature_transformer.weight"]
    queen = 64 * 4 + 27
    low = 31 / 63  # own kings below, except for the queen's own square
    torch.testing.assert_close(new[queen], low * old[queen] + (1 - low) * old[768 + queen], rtol=0, atol=1e-6)
    row = next(line.split() for line in lines if line.startswith("  feature_transformer.weight"))
    header = next(line.split() for line in lines if line.startswith("  tensor"))
    numbers = dict(zip(header[2:], [int(cell.replace(",", "").replace("–", "0")) for cell in row[4:]], strict=False))
    assert sum(numbers[key] for key in ("copied", "means", "zero") if key in numbers) == new.numel()


def test_what_the_net_cannot_hold_is_clipped(tmp_path: Path) -> None:
    before, after = made({"kind": "sfnnv5", "l1": 32}), nets.build({"kind": "sfnnv9", "l1": 32})
    with torch.no_grad():
        before.get_parameter("feature_transformer.bias")[3] = 200.0
    lines = start_from(saved(before, tmp_path / "a.safetensors"), after, print)
    clipped = [line for line in lines if line.startswith("clipped: ")]
    assert clipped == [
        "clipped: 1 of 32 values of feature_transformer.bias to -129 … 129, what the exported net can hold; the "
        "largest magnitude was 200"
    ]
    assert after.get_parameter("feature_transformer.bias")[3].item() == pytest.approx(16383 / 127)


SMALL_SCALE = {
    "kind": "layered", "hidden": 16, "activation": "crelu", "quantisation": {"first": {"scale": 16, "clip": 2000}},
}  # fmt: skip


def test_weights_beyond_the_limits_are_counted_and_named(tmp_path: Path) -> None:
    """This includes weights of a net of the same architecture, which the first step would clip."""
    before, after = made(SMALL_SCALE), nets.build(SMALL_SCALE)
    generator = torch.Generator().manual_seed(3)
    weight = before.get_parameter("feature_transformer.weight")
    with torch.no_grad():
        weight.copy_(torch.randint(-200, 201, weight.shape, generator=generator) / 16)
    beyond = int((weight.abs() > 31 / 16).sum())
    lines = start_from(saved(before, tmp_path / "a.safetensors"), after, print)
    assert lines[0].startswith(f"initial weights: all of {tmp_path}/a.safetensors, except values beyond the limits")
    assert lines[1].startswith(
        f"clipped: {beyond:,} of {weight.numel():,} values of feature_transformer.weight to -1.9"
    )
    assert "the largest magnitude was 12.5" in lines[1]
    assert lines[2].startswith("evaluations of 104 positions: not those of the source, rms difference ")


def test_a_description_may_state_larger_limits(tmp_path: Path) -> None:
    stated = {**SMALL_SCALE, "quantisation": {"first": {"scale": 16, "clip": 2000, "limit": 200}}}
    before, after = made(stated), nets.build(stated)
    weight = before.get_parameter("feature_transformer.weight")
    with torch.no_grad():
        weight.copy_(torch.randint(-200, 201, weight.shape) / 16)
    path = saved(before, tmp_path / "a.safetensors")
    assert start_from(path, after, print) == [f"initial weights: all of {path}"]
    assert torch.equal(after.get_parameter("feature_transformer.weight"), weight)
    quantized = net_from_checkpoint(checkpoint.load(path), "a")
    assert quantized.tensors["feature_transformer.weight"].max() == 200
    assert "limit" not in nets.build(SMALL_SCALE).architecture["quantisation"]["first"], "files stay as they are"
    with pytest.raises(UserError, match=r"limit: found 200, expected at most 127, the largest value of i8"):
        nets.build({**SMALL_SCALE, "quantisation": {"first": {"type": "i8", "limit": 200}}})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "mirrored"), [("Chess768", {"mirror": "a-d"}), ("Chess768", "K16Q2"), ("HalfKAv2", "HalfKAv2_hm")]
)
def test_mirrored_features_are_means_of_both_halves(source: str, mirrored: Any, tmp_path: Path) -> None:
    """No feature has a single source. A net that does not distinguish the halves keeps its evaluations."""
    before = made({"kind": "layered", "inputs": source, "hidden": 32})
    target = nets.build({"kind": "layered", "inputs": mirrored, "hidden": 32})
    weight = before.get_parameter("feature_transformer.weight")
    with torch.no_grad():
        squares = weight.view(-1, 8, 8, 32)
        squares.copy_((squares + squares.flip(2)) / 2)
        if source != "Chess768":
            kings = weight.view(8, 8, -1, 32)
            kings.copy_((kings + kings.flip(1)) / 2)
    report = "\n".join(start_from(saved(before, tmp_path / "a.safetensors"), target, print))
    assert "features are means of several" in report
    assert "evaluations of 104 positions: those of the source" in report


def test_nothing_in_common(tmp_path: Path) -> None:
    words = r"simple, which has nothing in common with sfnnv5-l1-32 \(activation was screlu, is pairwise, "
    with pytest.raises(UserError, match=words) as caught:
        start_from(saved(made(SIMPLE), tmp_path / "a.safetensors"), nets.build({"kind": "sfnnv5", "l1": 32}), print)
    assert "\n" not in str(caught.value)


def test_every_net_says_what_its_weights_mean() -> None:
    for kind in NETS.kinds().values():
        net = kind(l1=32) if issubclass(kind, StockfishNet) else kind()
        meaning, model = net.meaning(), net.model()
        assert meaning is not None
        assert meaning.parameters.keys() == dict(model.named_parameters()).keys()
        roles = [one.role for one in meaning.parameters.values()]
        assert len(set(roles)) == len(roles)


def test_training_starts_where_the_source_was(tmp_path: Path, project_root: Path) -> None:
    """The whole command: the table on the terminal and in the run folder, the loss in the metrics, and no trace of it
    after a resume."""

    samples = project_root / "samples"
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "model: {kind: simple, hidden: 16}\n"
        f"data: {{train: [{samples}/train.binpack], validation: [{samples}/val.binpack], batch_size: 500,"
        " shuffle_buffer: 2000, validation_positions: 2000, threads: 1}\n"
        "loss: {kind: sigmoid}\noptimizer: {lr: 5e-3}\nschedule: {kind: constant}\n"
        "training: {epochs: 1, positions_per_epoch: 2000, device: cpu}\nlogging: {tensorboard: false}\n"
    )

    def validations(run: str) -> list[float]:
        lines = [json.loads(line) for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines()]
        return [line["loss"] for line in lines if line["event"] == "validation"]

    nnue("train", recipe, "--run-dir", tmp_path / "a")
    still = ["optimizer.lr=1e-30", f"training.initial_weights={tmp_path}/a", "model.hidden=32"]
    output = nnue("train", recipe, "--run-dir", tmp_path / "b", *still)
    assert validations("b") == pytest.approx(validations("a"), abs=1e-5)
    table = (tmp_path / "b" / "initial_weights.txt").read_text()
    assert table.strip() in output
    assert "feature_transformer.weight  768 × 32  12,288     –  12,288" in table
    output = nnue("train", "--resume", tmp_path / "b", "training.epochs=2")
    assert "feature_transformer" not in output
    assert (tmp_path / "b" / "initial_weights.txt").read_text() == table
