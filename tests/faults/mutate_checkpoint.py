"""Mutated checkpoints, and what is done with one: whatever stands in it, only a UserError may come out.

`python tests/faults/mutate_checkpoint.py SEED COUNT` goes on for as long as one likes; test_checkpoints.py runs some.
"""

import copy
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

from nnue_trainer import config, nets, schema
from nnue_trainer.data import Loader
from nnue_trainer.errors import UserError
from nnue_trainer.files import checkpoint
from nnue_trainer.training.assembly import assemble, training_batches
from nnue_trainer.training.resuming import check_resumable, resume

ROOT = Path(__file__).resolve().parents[2]

RECIPE: dict[str, Any] = {
    "model": {"kind": "simple", "hidden": 8},
    "data": {"train": [str(ROOT / "samples" / "val.binpack")], "batch_size": 32, "shuffle_buffer": 64, "threads": 1},
    "loss": {"kind": "sigmoid"},
    "training": {"epochs": 2, "positions_per_epoch": 96, "device": "cpu"},
    "logging": {"tensorboard": False},
}

HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**400, 0.5, -0.0, 1e308, float("nan"),
    float("inf"), "", "x", "\0", "\n\x1b[2J", "é" * 50, "9" * 300, [], [[]], [1, 2, 3], ["x"] * 20, {}, {"x": 1},
    {"": {"": {}}}, {"kind": "simple"}, "../../x", "NaN",
]  # fmt: skip


class Mutator:
    """`trainer` is resumed from every mutation of a checkpoint that it wrote itself."""

    def __init__(self, folder: Path):
        recipe = config.parse(RECIPE)
        self.recipe = recipe
        torch.manual_seed(1)
        model = nets.build(recipe.model)
        loader = training_batches(recipe, model, torch.device("cpu"))
        assert isinstance(loader, Loader)
        self.loader = loader
        self.trainer = assemble(recipe, model, loader, None, folder / "run")
        for _ in range(3):
            self.trainer.advance()
        self.path = folder / "run" / "checkpoints" / "last.safetensors"
        self.path.parent.mkdir(parents=True)
        checkpoint.save(self.path, self.trainer.checkpoint(1))
        self.whole = self.path.read_bytes()

    def attempt(self, data: bytes) -> str | None:
        """The text of the UserError; None where the checkpoint was taken, and a step was trained from it."""
        self.path.write_bytes(data)
        try:
            saved = checkpoint.load(self.path)
            check_resumable(schema.to_data(self.recipe), saved, self.path)
            if saved.recipe is not None:
                config.parse(saved.recipe, (), str(self.path))
            resume(self.trainer, saved, self.path)
            self.loader.open()
            self.trainer.advance()
        except UserError as error:
            return str(error)
        finally:
            self.loader.close()
        return None

    def mutation(self, rng: random.Random) -> bytes:
        kind = rng.randrange(4)
        if kind == 0:
            return self._bytes(rng)
        if kind == 1:
            return self._tensors(rng)
        return self._metadata(rng, safetensors=kind == 2)

    def _bytes(self, rng: random.Random) -> bytes:
        data = bytearray(self.whole)
        header = 8 + int.from_bytes(data[:8], "little")
        for _ in range(rng.choice([1, 1, 2, 8])):
            at = rng.randrange(header if rng.random() < 0.8 else len(data))
            match rng.randrange(4):
                case 0:
                    data[at] ^= 1 << rng.randrange(8)
                case 1:
                    data[at] = rng.choice(b'"{}[],:0919-e\0\xff')
                case 2:
                    del data[at : at + rng.choice([1, 7, 100, 10**6])]
                case _:
                    data[at:at] = rng.randbytes(rng.choice([1, 8, 200]))
            if not data:
                break
            header = min(header, len(data))
        return bytes(data)

    def _tensors(self, rng: random.Random) -> bytes:
        size = int.from_bytes(self.whole[:8], "little")
        metadata = json.loads(self.whole[8 : 8 + size])["__metadata__"]
        tensors = load(self.whole)
        name = rng.choice(sorted(tensors))
        tensor = tensors.pop(name)
        match rng.randrange(6):
            case 0:
                pass
            case 1:
                kinds = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
                tensors[name] = tensor.to(rng.choice(kinds))
            case 2:
                tensors[name] = tensor.reshape(-1)[: rng.randrange(tensor.numel() + 1)].clone()
            case 3:
                tensors[rng.choice(["model/x", "optimizer/step/x", "rng/x", "x", "/", "rng/cuda"])] = tensor
            case 4:
                tensors[name] = tensor.unsqueeze(0).repeat(2, *[1] * tensor.dim())
            case _:
                noise = torch.randint(0, 256, (tensor.numel() * tensor.element_size(),), dtype=torch.uint8)
                tensors[name] = noise.view(tensor.dtype).reshape(tensor.shape)
        return save(tensors, metadata)

    def _metadata(self, rng: random.Random, *, safetensors: bool) -> bytes:
        size = int.from_bytes(self.whole[:8], "little")
        header = json.loads(self.whole[8 : 8 + size])
        own = json.loads(header["__metadata__"]["nnue"])
        tree = header if safetensors else own
        for _ in range(rng.choice([1, 1, 1, 3])):
            mutate_tree(tree, rng)
        if not safetensors:
            header["__metadata__"]["nnue"] = json.dumps(own)
            if rng.random() < 0.05:
                header["__metadata__"]["nnue"] = '{"a": ' * rng.choice([40, 5000, 100_000])
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text + self.whole[8 + size :]


def mutate_tree(tree: Any, rng: random.Random) -> None:
    """Changes one value, key or entry of JSON data, in place."""
    places: list[tuple[Any, Any]] = []
    todo = [tree]
    while todo:
        node = todo.pop()
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, value in items:
            places.append((node, key))
            if isinstance(value, dict | list):
                todo.append(value)
    if not places:
        return
    node, key = rng.choice(places)
    match rng.randrange(4):
        case 0 if isinstance(node, dict):
            del node[key]
        case 1 if isinstance(node, dict):
            node[rng.choice(["", "x", "kind", key + "x", "\0"])] = copy.deepcopy(rng.choice(HOSTILE))
        case _:
            node[key] = copy.deepcopy(rng.choice(HOSTILE))


def mutate(folder: Path, seed: int, count: int) -> dict[str, int]:
    """Tries `count` mutations; how many were refused and how many taken."""
    torch.set_num_threads(1)
    mutator = Mutator(folder)
    assert mutator.attempt(mutator.whole) is None
    outcome = {"refused": 0, "taken": 0}
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        torch.manual_seed(number)
        data = mutator.mutation(rng)
        try:
            message = mutator.attempt(data)
            outcome["taken" if message is None else "refused"] += 1
            assert message is None or len(message) < 2000, message
        except BaseException:
            print(f"seed {seed}, mutation {number}", file=sys.stderr)
            raise
    return outcome


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        print(mutate(Path(temporary), int(sys.argv[1]), int(sys.argv[2])))
