"""Random layered nets whose integers fill their ranges: imported, exported to the same bytes, evaluated."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command import nnue
from net_support import batch_of

from nnue_trainer import nets
from nnue_trainer.export import QuantizedNet, evaluate, net_from_checkpoint
from nnue_trainer.export.check_positions import CHECK_POSITIONS
from nnue_trainer.export.convert import exported, parse_format, read_format
from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.nets.base import Net
from nnue_trainer.nnue_file.formats import NetFormat, file_bytes

FENS = list(CHECK_POSITIONS)[::4]


def random_recipe(choose: random.Random) -> dict[str, Any]:
    activation = choose.choice(["crelu", "screlu", "pairwise"])
    psqt = choose.random() < 0.3
    layers: list[dict[str, Any]] = [
        {
            "outputs": choose.choice([3, 8, 31]),
            "activation": choose.choice(["crelu", "screlu", "dual", "none"]),
            "type": choose.choice(["i8", "i16"]),
            "scale": choose.choice([32, 64, 100, 128]),
            "skip": choose.choice(["none", "none", "last", "difference"]) if number == 0 else "none",
            "to_output": choose.random() < 0.3,
        }
        for number in range(choose.randint(0, 3))
    ]
    for layer in layers:
        if layer["type"] == "i16" and choose.random() < 0.3:
            layer["limit"] = 32767
    first = {"scale": choose.choice([64, 127, 181, 255]), "type": choose.choice(["i8", "i16"])}
    if activation != "crelu" and choose.random() < 0.7:
        first["product_shift"] = choose.choice([7, 8, 9])
    output = {"scale": choose.choice([50, 64, 128]), "type": choose.choice(["i8", "i16"]), "bias_type": "i32"}
    return {
        "kind": "layered",
        "inputs": [{"kings": [choose.randrange(2) for _ in range(30)] + [0, 1], "mirror": "a-d"}],
        "hidden": choose.choice([16, 32, 48]),
        "activation": activation,
        "perspectives": "both" if psqt else choose.choice(["both", "mover", "white"]),
        "psqt": psqt,
        "layers": layers,
        "output_buckets": {"count": choose.choice([1, 4, 8])},
        "quantisation": {"first": first, "output": output},
    }


def random_integers(net: Net, seed: int) -> dict[str, np.ndarray]:
    """Over the whole range of each tensor, ends included; of 32 bits only what a float32 holds."""
    generator = np.random.default_rng(seed)
    integers = {}
    for tensor in net.tensors():
        low, high = (tensor.lowest, tensor.limit) if tensor.dtype != "<i4" else (-20_000, 20_000)
        values = generator.integers(low, high, tensor.shape, endpoint=True)
        values.reshape(-1)[-2:] = (low, high)[: values.size]
        integers[tensor.name] = values.astype(tensor.dtype)
    return integers


def raw_file(net: Net, integers: dict[str, np.ndarray]) -> bytes:
    data = b"".join(integers[tensor.name].tobytes() for tensor in net.tensors())
    return data + bytes(-len(data) % 64)


def read(data: bytes, net: Net) -> tuple[QuantizedNet, Checkpoint, NetFormat]:
    raw = parse_format({"kind": "raw"}, "test")
    return *read_format(data, raw, net, "test", print), raw


@pytest.mark.parametrize("seed", range(25))
def test_import_and_export_keep_every_byte_and_evaluation(seed: int) -> None:
    recipe = random_recipe(random.Random(seed))
    net = nets.parse(recipe, "test")
    data = raw_file(net, random_integers(net, seed))
    quantized, imported, raw = read(data, net)
    again = net_from_checkpoint(imported, "test")
    assert file_bytes(raw, exported(again, imported), "test") == data, recipe
    found = evaluate(again, FENS)
    reference = net.evaluate(quantized.tensors, batch_of(quantized, FENS))
    assert np.array_equal(found.positional_raw, reference.positional)
    assert np.array_equal(found.psqt_raw, reference.psqt)


@pytest.mark.parametrize("scale", [50, 64, 100, 128])
@pytest.mark.parametrize("shift", [0, 7, 8, 9, 10])
def test_limits_follow_from_the_stated_scale(scale: int, shift: int) -> None:
    """Not from the exact number of steps, which rounding makes a little smaller or larger."""
    quantisation = {"first": {"product_shift": shift}, "output": {"scale": scale}}
    net = nets.parse({"kind": "layered", "hidden": 8, "quantisation": quantisation}, "test")
    (weight,) = [tensor for tensor in net.tensors() if tensor.name == "output.weight"]
    assert weight.scale == pytest.approx(scale, rel=0.01)
    assert weight.limit == 127 * scale // 64


def test_integers_beyond_the_limits_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model: dict[str, Any] = {"kind": "layered", "hidden": 8}
    net = nets.parse(model, "test")
    integers = random_integers(net, 0)
    integers["output.weight"].reshape(-1)[3:5] = 300, -400
    Path("net.bin").write_bytes(raw_file(net, integers))
    Path("model.yaml").write_text(yaml.safe_dump({"model": model}))
    arguments = ["--format", "raw", "--model", "model.yaml", "--overwrite"]
    assert (
        "output.weight: 2 of 16 integers are beyond the limit ±127 (from -400 to 300), so training clips them and "
        "export refuses them; for a larger limit, set model.quantisation.output.limit in the recipe"
    ) in nnue("import", "net.bin", "c.safetensors", *arguments)
    model["quantisation"] = {"output": {"limit": 400}}
    Path("model.yaml").write_text(yaml.safe_dump({"model": model}))
    assert "beyond the limit" not in nnue("import", "net.bin", "c.safetensors", *arguments)
    nnue("export", "c.safetensors", "again.bin", "--format", "raw")
    assert Path("again.bin").read_bytes() == Path("net.bin").read_bytes()
