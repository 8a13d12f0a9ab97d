"""Every file that `nnue export` writes can be read: any kind of net, any sizes of layers, compression, description."""

import struct
from pathlib import Path
from typing import Any

import pytest
from command import nnue
from net_support import START, within_limits

from nnue_trainer import nets
from nnue_trainer.cli.data_tools import chosen_filters
from nnue_trainer.errors import UserError
from nnue_trainer.export import exported, net_from_checkpoint, parse_format, read_net
from nnue_trainer.files import checkpoint
from nnue_trainer.nets import NETS
from nnue_trainer.nnue_file.formats import file_bytes

SIZES: dict[str, dict[str, Any]] = {
    "layered": {"hidden": 16, "layers": [{"outputs": 4}]},
    "simple": {"hidden": 16},
    "sfnnv5": {"l1": 64, "l2": 24, "l3": 8},
    "sfnnv16": {"l1": 32, "l2": 64},
    "sfnnv18": {"l1": 32, "l3": 16},
}


@pytest.mark.parametrize("kind", NETS.names())
def test_every_net_in_every_compression_with_any_description(kind: str, tmp_path: Path) -> None:
    made = within_limits({"kind": kind, **SIZES.get(kind, {"l1": 32})})
    net = net_from_checkpoint(made, kind, any_l1=True)
    path = tmp_path / "net.nnue"
    for compression in dict.fromkeys(layout.compression for layout in net.net.layouts()):
        for description in (None, 'my {"net": 1}'):
            chosen = parse_format({"compression": compression, "description": description}, "test")
            path.write_bytes(file_bytes(chosen, exported(net, made), "test"))
            found = read_net(path)
            assert found.net == net.net
            assert found.file_layout.compression == compression
            assert all((found.tensors[name] == values).all() for name, values in net.tensors.items())
            assert description is None or found.description.startswith(description.encode())


def test_by_the_commands(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c.safetensors", within_limits({"kind": "sfnnv5", "l1": 32, "l2": 20}))
    out = tmp_path / "net.nnue"
    nnue("export", tmp_path / "c.safetensors", out, "--any-l1", "--description", "mine")
    nnue("import", out, tmp_path / "again.safetensors")
    nnue("export", tmp_path / "again.safetensors", tmp_path / "again.nnue", "--any-l1")
    assert (tmp_path / "again.nnue").read_bytes() == out.read_bytes()
    assert "evaluation" in nnue("eval", out, "--fen", START)
    assert "sfnnv5-l1-32-l2-20" in nnue("inspect", out)


def without_record(path: Path) -> None:
    data = path.read_bytes()
    (length,) = struct.unpack_from("<I", data, 8)
    path.write_bytes(data[:8] + struct.pack("<I", 4) + b"mine" + data[12 + length :])


@pytest.mark.parametrize(
    ("architecture", "words"),
    [
        (
            {"kind": "sfnnv18", "l1": 32},
            "offset 4: file hash: 0xE5CD8571 is of a net without a record: l1 is 32, which no Stockfish reads; "
            "expected 1024; give its name as --arch: sfnnv18-l1-32",
        ),
        ({"kind": "sfnnv9", "l1": 64}, "3072 (sfnnv9); give its name as --arch: sfnnv4-l1-64, sfnnv5-l1-64, "),
        (
            {"kind": "sfnnv1", "l1": 64, "l3": 8},
            "its name and all its sizes as --arch, such as sfnnv1-l1-64-l2-32-l3-32",
        ),
    ],
)
def test_a_file_without_a_record_is_read_by_its_name(architecture: dict[str, Any], words: str, tmp_path: Path) -> None:
    """A file as early versions wrote it with a given description."""
    checkpoint.save(tmp_path / "c.safetensors", within_limits(architecture))
    out = tmp_path / "net.nnue"
    nnue("export", tmp_path / "c.safetensors", out, "--any-l1")
    without_record(out)
    with pytest.raises(UserError) as caught:
        read_net(out)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    name = nets.parse(architecture, "test").name
    nnue("import", out, tmp_path / "again.safetensors", "--arch", name)
    nnue("export", tmp_path / "again.safetensors", tmp_path / "again.nnue", "--any-l1")
    assert (tmp_path / "again.nnue").read_bytes() == out.read_bytes()
    # Described anew it has a record.
    nnue("export", tmp_path / "again.safetensors", out, "--any-l1", "--description", "x", "--overwrite")
    assert read_net(out).net.name == name
    with pytest.raises(UserError, match="l1: found 33, expected a multiple of 32"):
        read_net(out, f"{architecture['kind']}-l1-33")
    with pytest.raises(UserError, match="unknown architecture 'sfnnv99-l1-32', expected one of"):
        read_net(out, "sfnnv99-l1-32")


def test_a_description_that_would_be_read_as_a_record_is_refused(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c.safetensors", within_limits({"kind": "simple", "hidden": 16}))
    out = tmp_path / "net.nnue"
    with pytest.raises(UserError, match=r'description with \{"nnue_trainer":, expected other text'):
        nnue("export", tmp_path / "c.safetensors", out, "--description", 'x {"nnue_trainer":1}')
    assert not out.exists()
    nnue("export", tmp_path / "c.safetensors", out)
    copied = read_net(out).description.decode()
    nnue("export", tmp_path / "c.safetensors", out, "--description", copied, "--overwrite")
    assert read_net(out).description.decode() == copied


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--compression", "lzma"], "--compression: found \"lzma\", expected 'default', 'raw'"),
        (["--description", "a\nb"], '--description: found "a\\nb", expected text without control'),
        (["--format", "raw", "--header-namespace", "1x"], "--header-namespace: found"),
    ],
)
def test_an_error_of_an_option_names_it_once(options: list[str], words: str, tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c.safetensors", within_limits({"kind": "simple", "hidden": 16}))
    with pytest.raises(UserError) as caught:
        nnue("export", tmp_path / "c.safetensors", tmp_path / "net", *options)
    assert str(caught.value).startswith(words)


def test_an_error_of_a_filter_names_it_once() -> None:
    with pytest.raises(UserError, match=r"^--min-ply: found 1\.5, expected"):
        chosen_filters({"min_ply": 1.5}, None)
