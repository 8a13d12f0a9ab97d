"""A real client: Debian's Stockfish 15.1 reads what we write, writes what we read, and computes what we compute."""

import hashlib
import subprocess

import numpy as np
import pytest
from golden import golden_net
from net_support import START, batch_of, fnv1a64, random_checkpoint, vectors
from typed import present

from nnue_trainer import data, nets
from nnue_trainer.engines.stockfish_eval import unit_of
from nnue_trainer.engines.uci import find_engine
from nnue_trainer.errors import UserError
from nnue_trainer.export import checkpoint_from_net, evaluate, net_from_checkpoint, read_net, to_bytes, write_net
from nnue_trainer.export.check_positions import CHECK_POSITIONS
from nnue_trainer.export.engine_check import EngineWithNet, expected, verify
from nnue_trainer.files import checkpoint
from nnue_trainer.nets.base import accumulate
from nnue_trainer.nets.integer_forward import first_activations

pytestmark = pytest.mark.engine
FENS = list(CHECK_POSITIONS)
IN_CHECK = "rnb1kbnr/pppp1ppp/8/4p3/5PPq/8/PPPPP2P/RNBQKBNR w KQkq - 1 3"


@pytest.fixture(scope="module")
def engine() -> str:
    return find_engine()


@pytest.fixture(scope="module")
def own_net(engine, tmp_path_factory):
    """The net that is compiled into the engine."""
    path = tmp_path_factory.mktemp("engine") / "own.nnue"
    subprocess.run([engine], input=f"export_net {path}\nquit\n", capture_output=True, text=True, check=True)
    file = path.read_bytes()
    assert hashlib.sha256(file).hexdigest() == "ad9b423546714137916bd38978af6fd68d7b8951bef25ff76bf43da72d6cb786"
    return path


def compare(engine, net, path, fens):
    """All differences, and the number of positions that the engine evaluates."""
    write_net(net, path)
    with EngineWithNet(engine, path) as running:
        found = [running.evaluate(fen) for fen in fens]
        unit = unit_of(running.name)
    lines = [
        line
        for ours, theirs in zip(expected(net, fens), found, strict=True)
        if not theirs.in_check
        for line in ours.differences(theirs, unit)
    ]
    return lines, sum(not output.in_check for output in found)


def test_its_own_net_is_read_and_written_byte_for_byte(own_net, tmp_path) -> None:
    net = read_net(own_net)
    assert net.description == b"Network trained with the https://github.com/glinscott/nnue-pytorch trainer."
    assert to_bytes(net) == own_net.read_bytes()
    checkpoint.save(tmp_path / "c.safetensors", checkpoint_from_net(net, "own"))
    again = net_from_checkpoint(checkpoint.load(tmp_path / "c.safetensors"), "c")
    assert to_bytes(again) == own_net.read_bytes()


def test_its_own_net_evaluates_as_instrumented(own_net) -> None:
    net = read_net(own_net)
    positions = vectors("sf15.1_debian_net")
    batch = batch_of(net, [p["fen"] for p in positions])
    found = evaluate(net, batch)
    np.testing.assert_array_equal(found.bucket, [p["bucket"] for p in positions])
    np.testing.assert_array_equal(found.psqt_raw, [p["psqt_raw"] for p in positions])
    np.testing.assert_array_equal(found.positional_raw, [p["positional_raw"] for p in positions])
    rows = first_activations(present(net.net.integer_forward()), net.tensors, batch)
    assert [fnv1a64(row) for row in rows] == [p["ft_act_fnv1a64"] for p in positions]


def test_its_own_net_imported_agrees_in_floating_point(own_net) -> None:
    import torch

    net = read_net(own_net)
    imported = checkpoint_from_net(net, "own")
    model = nets.build(imported.architecture)
    model.load_state_dict(imported.tensors["model"])
    with torch.no_grad():
        floating = model(data.expand(data.records_from_fens(FENS), model.feature_set)).double().numpy()
    difference = floating * model.score_scale - evaluate(net, batch_of(net, FENS)).score
    assert np.sqrt(np.mean(difference**2)) < 30


def test_golden_net_prints_the_same_table(engine, tmp_path) -> None:
    wrong, compared = compare(engine, golden_net("sfnnv5"), tmp_path / "golden.nnue", FENS)
    assert wrong == []
    assert compared == len(FENS) >= 100


def test_exported_model_prints_the_same_table(engine, tmp_path) -> None:
    """A folder with a blank in its name, as users have them."""
    net = net_from_checkpoint(random_checkpoint({"kind": "sfnnv5"}), "c")
    folder = tmp_path / "my nets"
    folder.mkdir()
    wrong, compared = compare(engine, net, folder / "model.nnue", FENS)
    assert wrong == []
    assert compared == len(FENS)


def test_the_engine_wraps_around_as_we_do(engine, tmp_path) -> None:
    """Biases over the whole 16 bits: nearly every position overflows somewhere."""
    net = golden_net("sfnnv5")
    net.tensors["feature_transformer.bias"] = np.linspace(-32768, 32767, 1024).round().astype("<i2")
    net.tensors["feature_transformer.weight"] = net.tensors["feature_transformer.weight"] * np.int16(25)
    batch = batch_of(net, FENS)
    bias, weight = (net.tensors[f"feature_transformer.{part}"] for part in ("bias", "weight"))
    us, _ = accumulate(batch, bias, [(0, weight)])
    exact = net.tensors["feature_transformer.bias"].astype(int)
    weight = net.tensors["feature_transformer.weight"].astype(int)
    rows = [r[r >= 0] for r in np.where(batch.black_to_move.numpy()[:, None], batch.black, batch.white)]
    assert sum((exact + weight[r].sum(0) != us[i]).any() for i, r in enumerate(rows)) > 90
    wrong, compared = compare(engine, net, tmp_path / "wrap.nnue", FENS)
    assert wrong == []
    assert compared == len(FENS)


def test_positions_in_check_are_skipped(engine, tmp_path) -> None:
    wrong, compared = compare(engine, golden_net("sfnnv5"), tmp_path / "golden.nnue", [START, IN_CHECK])
    assert wrong == []
    assert compared == 1


def test_a_wrong_evaluator_would_be_noticed(engine, tmp_path) -> None:
    """The comparison itself: one weight of one stack changed behind the engine's back."""
    net = golden_net("sfnnv5")
    write_net(net, tmp_path / "golden.nnue")
    net.tensors["fc2.weight"][3, 0, 5] += 9
    with EngineWithNet(engine, tmp_path / "golden.nnue") as running:
        found = [running.evaluate(fen) for fen in FENS]
    unit = unit_of("Stockfish 15.1")
    both = zip(expected(net, FENS), found, strict=True)
    wrong = [line for ours, theirs in both for line in ours.differences(theirs, unit)]
    assert len(wrong) > 10
    assert all(": bucket 3" in line for line in wrong)
    with pytest.raises(
        UserError, match=r"golden\.nnue: .* b .*: bucket 3 positional: engine prints .*, expected .* \("
    ) as caught:
        verify(engine, tmp_path / "golden.nnue", net, FENS)
    assert caught.value.args[0].count("\n") == 0


def test_a_file_the_engine_refuses_is_reported(engine, tmp_path) -> None:
    path = tmp_path / "cut.nnue"
    path.write_bytes(to_bytes(golden_net("sfnnv5"))[:-1])
    with pytest.raises(UserError, match=r"does not load .*cut.nnue"):
        verify(engine, path, golden_net("sfnnv5"), [START])


def test_verify_command(engine, tmp_path, nnue) -> None:
    path = tmp_path / "golden.nnue"
    write_net(golden_net("sfnnv5"), path)
    (tmp_path / "fens.txt").write_text(f"{START}\n{IN_CHECK}\n")
    for options, words in (
        ([], f"{len(FENS)} positions x 8 buckets x 3 columns compared, no differences"),
        (["--positions", 100], "100 positions x 8 buckets x 3 columns compared, no differences"),
        (["--fens", tmp_path / "fens.txt"], "1 positions x 8 buckets x 3 columns compared, 1 in check and skipped"),
        (["--positions", 300, "--seed", 7], "in check and skipped, no differences"),
    ):
        done = nnue("verify", path, *options)
        assert done.returncode == 0
        assert words in done.stdout
    done = nnue("verify", path, "--fens", f"{tmp_path}/fens.txt", "--positions", "3")
    assert done.returncode == 1
    assert f"--positions 3: {tmp_path}/fens.txt has only 2" in done.stderr


def test_the_engine_refuses_the_net_of_another_version(engine, tmp_path) -> None:
    net = golden_net("small128")
    write_net(net, tmp_path / "small.nnue")
    with pytest.raises(UserError, match=r"does not load .*small\.nnue: "):
        verify(engine, tmp_path / "small.nnue", net, [START])
