"""`nnue export`, `import` and `eval` as a user types them."""

import hashlib
import json
import re

import pytest
from golden import golden_net
from net_support import START, random_checkpoint, vectors

from nnue_trainer.export import write_net
from nnue_trainer.files import checkpoint


@pytest.fixture(scope="module")
def small_net(tmp_path_factory):
    path = tmp_path_factory.mktemp("nets") / "small.nnue"
    write_net(golden_net("small128"), path)
    return path


def test_import_export_gives_the_same_file_named_by_its_checksum(nnue, small_net, tmp_path) -> None:
    done = nnue("import", small_net, tmp_path / "c.safetensors")
    assert done.returncode == 0, done.stderr
    assert '{"kind": "small128", "l1": 128}' in done.stdout
    done = nnue("export", tmp_path / "c.safetensors", tmp_path)
    assert done.returncode == 0, done.stderr
    sha256 = hashlib.sha256(small_net.read_bytes()).hexdigest()
    assert (tmp_path / f"nn-{sha256[:12]}.nnue").read_bytes() == small_net.read_bytes()
    assert f"small128, {small_net.stat().st_size:,} bytes, sha256 {sha256}" in done.stdout


def test_eval_json_lines_are_those_of_the_vector_files(nnue, small_net, tmp_path) -> None:
    positions = vectors("golden_small128")
    (tmp_path / "fens.txt").write_text("# positions\n\n" + "".join(p["fen"] + "\n" for p in positions))
    done = nnue("eval", small_net, "--fens", tmp_path / "fens.txt", "--json")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(positions)
    for line, p in zip(lines, positions, strict=True):
        assert isinstance(line.pop("score"), int)
        assert line == p


def test_eval_prints_a_table(nnue, small_net) -> None:
    done = nnue("eval", small_net, "--fen", START)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == START
    assert lines[1].split() == ["bucket", "PSQT", "layers", "total"]
    assert [line.split()[0] for line in lines[2:10]] == list("01234567")
    assert lines[9].endswith("<-- used")
    assert re.fullmatch(r"  evaluation [+-]\d+ \(engine units, side to move\)", lines[10])
    assert lines[10].split()[1] == lines[9].split()[3]


def test_export_takes_the_folder_of_a_run(nnue, tmp_path) -> None:
    run = tmp_path / "my run"
    (run / "checkpoints").mkdir(parents=True)
    done = nnue("export", run, tmp_path / "out.nnue")
    assert done.returncode == 1
    assert done.stderr == f"nnue: error: {run}: not the folder of a run: expected checkpoints/last.safetensors in it\n"
    for seed, name in ((1, "last"), (2, "best")):
        saved = random_checkpoint({"kind": "sfnnv5", "l1": 128}, seed=seed)
        checkpoint.save(run / "checkpoints" / f"{name}.safetensors", saved)
        done = nnue("export", run, tmp_path / f"{name}.nnue")
        assert done.returncode == 0, done.stderr
        assert f"exporting {run}/checkpoints/{name}.safetensors" in done.stderr
        nnue("export", run / "checkpoints" / f"{name}.safetensors", tmp_path / f"named-{name}.nnue")
        assert (tmp_path / f"{name}.nnue").read_bytes() == (tmp_path / f"named-{name}.nnue").read_bytes()


def test_export_refuses_what_does_not_fit(nnue, tmp_path) -> None:
    source = random_checkpoint({"kind": "simple", "hidden": 8})
    source.tensors["model"]["output.weight"][0, 3] = 2.5
    checkpoint.save(tmp_path / "c.safetensors", source)
    done = nnue("export", tmp_path / "c.safetensors", tmp_path / "out.nnue")
    assert done.returncode == 1
    assert not (tmp_path / "out.nnue").exists()
    assert done.stderr.startswith(
        f"nnue: error: {tmp_path / 'c.safetensors'}: output.weight[0, 3] is 2.5, limit ±1.98438"
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["eval", "NET"], "nothing to evaluate"),
        (["eval", "NET", "--fen", "8/8/8/8/8/8/8/8 w - - 0 1"], "0 white kings"),
        (["eval", "NET", "--fens", "nowhere.txt"], "nowhere.txt: No such file or directory"),
        (["eval", "nowhere.nnue", "--fen", START], "nowhere.nnue: cannot read the net"),
        (["import", "NET", "out.safetensors", "--arch", "sfnnv9"], "expected 0x1C1020F2 (sfnnv9)"),
        (["export", "nowhere.safetensors", "out.nnue"], "nowhere.safetensors: no such checkpoint"),
        (["export", "NET", "out.nnue"], ".nnue: found a net, expected a checkpoint; `nnue import`"),
        (["check", "NET", "--data", "x"], ".nnue: found a net, expected a checkpoint; `nnue import`"),
        (["eval", "CHECKPOINT", "--fen", START], "c: found a checkpoint, expected a net; `nnue export`"),
        (["eval", "DATA", "--fen", START], "found a binpack of positions, expected a net; `nnue data info`"),
        (
            ["export", "CHECKPOINT", "CHECKPOINT"],
            "c: is an input of this command, expected another name for the output",
        ),
        (["import", "NET", "NET"], ".nnue: is an input of this command, expected another name for the output"),
        (["verify", "NET", "--engine", "no-such-engine"], "engine no-such-engine: no such program on PATH"),
    ],
)
def test_mistakes_are_one_line(nnue, arguments, words, small_net, positions_file, tmp_path) -> None:
    saved = tmp_path / "c"
    checkpoint.save(saved, random_checkpoint({"kind": "simple", "hidden": 8}))
    before = saved.read_bytes(), small_net.read_bytes()
    files = {"NET": small_net, "CHECKPOINT": saved, "DATA": positions_file("val")}
    done = nnue(*[files.get(a, a) for a in arguments])
    assert (saved.read_bytes(), small_net.read_bytes()) == before
    assert done.returncode == 1
    assert done.stderr.startswith("nnue: error: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
