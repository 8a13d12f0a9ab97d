"""What each net format looks like: one table of architectures, from which sizes, hashes and sections follow.

Layout and arithmetic are written down in docs/nets.md. Nothing here reads or writes a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

import nnue_trainer
from nnue_trainer.architectures.config import SfnnV5Config, SimpleConfig, parse
from nnue_trainer.errors import UserError
from nnue_trainer.quantization.scales import QA, QB
from nnue_trainer.schema import to_data

Layout = Literal["raw", "leb"]

FEATURE_HASH = {"HalfKP": 0x5D69D5B8, "HalfKAv2": 0x5F234CB8, "HalfKAv2_hm_11": 0x7F234CB8}
NUM_FEATURES = {"HalfKP": 41024, "HalfKAv2": 45056, "HalfKAv2_hm_11": 22528, "Chess768": 768}
SIMPLE_VERSION = 0x4E545301


@dataclass(frozen=True)
class Section:
    """One tensor as it lies in a file: elements of `dtype` (little-endian), row-major; `stack` None in the feature
    transformer. A tensor of the net is the stack of its sections."""

    tensor: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    stack: int | None = None

    @property
    def label(self) -> str:
        return self.tensor if self.stack is None else f"stack {self.stack} {self.tensor}"

    @property
    def count(self) -> int:
        return int(np.prod(self.shape))


def _section(tensor: str, dtype: str, *shape: int, stack: int | None = None) -> Section:
    return Section(tensor, np.dtype(dtype), shape, stack)


def pad32(n: int) -> int:
    return -(-n // 32) * 32


@dataclass(frozen=True)
class StockfishSpec:
    """A Stockfish architecture.

    `fc` holds (inputs, outputs) of the three layers. `pairwise`: products of clipped halves instead of clipped values;
    `skip`: the last output of fc0 goes straight to the result; `squared`: fc1 sees squares as well. `sf17`: it is read
    by Stockfish 17 and later, which divide PSQT and positional part by 16 apart, not their sum, and double the feature
    transformer in 16 bits when they load it.
    """

    name: str
    feature_set: str
    l1: int
    fc: tuple[tuple[int, int], ...]
    version: int = 0x7AF32F20
    stacks: int = 8
    psqt: bool = True
    pairwise: bool = True
    skip: bool = True
    squared: bool = True
    layout: Layout = "raw"
    sf17: bool = False

    @property
    def feature_transformer_hash(self) -> int:
        return FEATURE_HASH[self.feature_set] ^ 2 * self.l1

    @cached_property
    def stack_hash(self) -> int:
        h = 0xEC42E90D ^ 2 * self.l1
        for layer, (_, outputs) in enumerate(self.fc):
            h = (0xCC03DAE4 + outputs) ^ h >> 1 ^ (h << 31 & 0xFFFFFFFF)
            if layer < len(self.fc) - 1:
                h = h + 0x538D24C7 & 0xFFFFFFFF
        return h

    @property
    def file_hash(self) -> int:
        return self.feature_transformer_hash ^ self.stack_hash

    @property
    def num_features(self) -> int:
        return NUM_FEATURES[self.feature_set]

    def feature_transformer_sections(self) -> Iterator[Section]:
        yield _section("feature_transformer.bias", "<i2", self.l1)
        yield _section("feature_transformer.weight", "<i2", self.num_features, self.l1)
        if self.psqt:
            yield _section("feature_transformer.psqt", "<i4", self.num_features, self.stacks)

    def stack_sections(self, stack: int) -> Iterator[Section]:
        for layer, (inputs, outputs) in enumerate(self.fc):
            yield _section(f"fc{layer}.bias", "<i4", outputs, stack=stack)
            yield _section(f"fc{layer}.weight", "<i1", outputs, pad32(inputs), stack=stack)

    def tensor_shapes(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        shapes = {s.tensor: (s.dtype, s.shape) for s in self.feature_transformer_sections()}
        shapes |= {s.tensor: (s.dtype, (self.stacks, *s.shape)) for s in self.stack_sections(0)}
        return shapes

    def score(self, psqt_raw: np.ndarray, positional_raw: np.ndarray) -> np.ndarray:
        """Engine units, side to move's view, of raw values int64 [B]."""
        if self.sf17:
            return np.asarray(tdiv(psqt_raw, 16) + tdiv(positional_raw, 16))
        return tdiv(psqt_raw + positional_raw, 16)

    @property
    def accumulator_limit(self) -> int:
        """The largest magnitude of an accumulator that the engine holds without wrapping around."""
        return 16383 if self.sf17 else 32767

    @property
    def architecture(self) -> dict[str, Any] | None:
        """What `architectures.build` takes to make the float model; None for those that have none here."""
        return {"kind": "sfnnv5", "l1": self.l1} if self.squared else None


@dataclass(frozen=True)
class SimpleSpec:
    """A simple net in the container of this project."""

    config: SimpleConfig
    layout: Layout = "raw"

    name = "simple"
    version = SIMPLE_VERSION
    stacks = 1
    accumulator_limit = 32767

    @property
    def feature_set(self) -> str:
        return self.config.feature_set

    @property
    def num_features(self) -> int:
        return NUM_FEATURES[self.feature_set]

    def sections(self) -> Iterator[Section]:
        hidden = self.config.hidden
        yield _section("feature_transformer.weight", "<i2", self.num_features, hidden)
        yield _section("feature_transformer.bias", "<i2", hidden)
        yield _section("output.weight", "<i2", 1, 2 * hidden)
        yield _section("output.bias", "<i2", 1)

    def tensor_shapes(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        return {s.tensor: (s.dtype, s.shape) for s in self.sections()}

    def score(self, psqt_raw: np.ndarray, positional_raw: np.ndarray) -> np.ndarray:
        """Engine units, side to move's view, of raw values int64 [B]."""
        return tdiv((psqt_raw + positional_raw) * self.config.score_scale, QA * QB)

    @property
    def architecture(self) -> dict[str, Any] | None:
        return to_data(self.config)


Spec = StockfishSpec | SimpleSpec


def tdiv(a: np.ndarray, b: int) -> np.ndarray:
    """Integer division toward zero, as C does it; `b` positive."""
    return np.asarray(np.sign(a) * (np.abs(a) // b))


def _sfnnv5_family(name: str, l1: int, layout: Layout, *, sf17: bool = False) -> StockfishSpec:
    fc = ((l1, 16), (30, 32), (32, 1))
    return StockfishSpec(name, "HalfKAv2_hm_11", l1, fc, layout=layout, sf17=sf17)


_V5 = _sfnnv5_family("sfnnv5", 1024, "raw")
# Where two share version, hashes and size (SFNNv4 and SFNNv5), the first is taken unless the user or the description
# says otherwise.
STOCKFISH: dict[str, StockfishSpec] = {
    spec.name: spec
    for spec in (
        StockfishSpec(
            "sfnnv1",
            "HalfKP",
            256,
            ((512, 32), (32, 32), (32, 1)),
            version=0x7AF32F16,
            stacks=1,
            psqt=False,
            pairwise=False,
            skip=False,
            squared=False,
        ),
        StockfishSpec(
            "sfnnv2", "HalfKAv2", 512, ((1024, 16), (16, 32), (32, 1)), pairwise=False, skip=False, squared=False
        ),
        StockfishSpec(
            "sfnnv3", "HalfKAv2_hm_11", 1024, ((2048, 8), (8, 32), (32, 1)), pairwise=False, skip=False, squared=False
        ),
        _V5,
        replace(_V5, name="sfnnv4", fc=((1024, 16), (15, 32), (32, 1)), squared=False),
        _sfnnv5_family("sfnnv6", 1536, "leb"),
        _sfnnv5_family("sfnnv7", 2048, "leb"),
        _sfnnv5_family("sfnnv8", 2560, "leb"),
        _sfnnv5_family("sfnnv9", 3072, "leb", sf17=True),
        _sfnnv5_family("small128", 128, "leb", sf17=True),
    )
}
KNOWN_L1 = {spec.l1: spec.name for spec in STOCKFISH.values() if spec.squared}
VERSIONS = sorted({spec.version for spec in STOCKFISH.values()} | {SIMPLE_VERSION})

# Known by sight, so that the refusal can say what the file is.
UNSUPPORTED = {
    (0x7AF32F20, 0xEC102EF2): "SFNNv10, v11 or v12",
    (0x7AF32F20, 0xEC1035AE): "SFNNv13",
    (0x7AF32F20, 0x0256ACDF): "SFNNv13 or v14",
    (0x6A448AFA, 0x0256ACDF): "SFNNv14.1 or v15",
    (0x6A448AFA, 0xA85B2205): "SFNNv16",
}


def spec_of(config: SfnnV5Config | SimpleConfig) -> Spec:
    """The net format of a float model. An l1 that no Stockfish uses gets a format of the same kind, by its l1."""
    if isinstance(config, SimpleConfig):
        return SimpleSpec(config)
    name = KNOWN_L1.get(config.l1)
    return STOCKFISH[name] if name else _sfnnv5_family(f"sfnnv5-l1-{config.l1}", config.l1, "leb")


def describe(spec: Spec) -> bytes:
    """Description of a net we write: a sentence for people, then the architecture as JSON for programs."""
    version = nnue_trainer.__version__
    facts = {"nnue_trainer": version, "net": spec.name, "architecture": spec.architecture}
    return (f"{spec.name} net trained with nnue-trainer {version}. {json.dumps(facts, separators=(',', ':'))}").encode()


def described(description: bytes, where: str) -> tuple[str, SfnnV5Config | SimpleConfig] | None:
    """Name and architecture that a description of ours states; None for a description from elsewhere."""
    start = description.find(b'{"nnue_trainer":')
    if start < 0:
        return None
    try:
        facts = json.loads(description[start:])
        name, architecture = facts["net"], facts["architecture"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{where}: description: damaged architecture record ({error})") from None
    if not isinstance(architecture, Mapping):
        raise UserError(f"{where}: description: architecture is {architecture!r}, expected a mapping")
    return str(name), parse(architecture, f"{where}: description")
