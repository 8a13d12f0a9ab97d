"""The sections of a layered net in a recipe: feature sets, layers and their quantisation (nets/layered.py)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, ValidationInfo, model_validator

from nnue_trainer.data.feature_sets import FEATURE_SETS, Features
from nnue_trainer.data.features import PlaneOrder, piece_square_set
from nnue_trainer.data.features import feature_set as find_feature_set
from nnue_trainer.errors import UserError
from nnue_trainer.nets.base import INT8_MAX, INT16_MAX, INT32_MAX
from nnue_trainer.nets.rounded_forward import QatConfig
from nnue_trainer.registry import TRUSTED
from nnue_trainer.schema import section

LIMITS = {"i8": INT8_MAX, "i16": INT16_MAX, "i32": INT32_MAX}

Scale = Annotated[int, Field(ge=1, le=2**15)]
Limit = Annotated[int | None, Field(ge=1, le=INT16_MAX)]


@section
class PieceSquares:
    """A piece-square feature set with king buckets and states of your own."""

    kings: list[int] = Field(default_factory=list)
    """the king bucket for each square of the own king: 64 numbers, from a1, b1, … to h8; or 32 with `mirror`, rank by
    rank for the four files that the king can be on; empty: one bucket"""
    mirror: Literal["none", "a-d", "e-h"] = "none"
    """a-d, e-h: the board is mirrored left to right whenever this brings the own king to these files; none: never"""
    planes: Literal[10, 11, 12] = 12
    """number of planes, each with 64 squares, in a king bucket. 12: one for each own and enemy piece type; 11: both
    kings share the last plane; 10: kings are not features"""
    order: PlaneOrder = "grouped"
    """order of the planes. grouped: own pawn … own king, enemy pawn … enemy king; interleaved: own pawn, enemy pawn,
    own knight, …; enemy-first, interleaved-enemy-first: the same with own and enemy exchanged"""
    states: list[str] = Field(default_factory=list)
    """one or two counters of pieces on the board, for buckets by king and state: own (o) or enemy (e) pieces P N B R Q
    and the most that is counted. [eQ:1]: whether the enemy has a queen; [oQ:1, eQ:1]: the same for both sides, 4
    states; [eReQ:3]: enemy rooks and queens, 0 to 3; empty: buckets by king only"""
    virtual: Literal["both", "kings", "states"] = "both"
    """with factorised: the buckets that share weights. both: all of them; kings: those of the same state; states: those
    of the same king bucket"""

    @model_validator(mode="after")
    def _check(self) -> PieceSquares:
        self.name  # noqa: B018
        return self

    @property
    def name(self) -> str:
        """The name of the feature set, which contains its whole definition."""
        try:
            return piece_square_set(
                self.kings,
                mirror=self.mirror,
                planes=self.planes,
                order=self.order,
                states=self.states,
                virtual=self.virtual,
            )
        except UserError as error:
            raise ValueError(str(error)) from None


def _known_set(name: str, info: ValidationInfo) -> str:
    """Checks that the feature set exists. A recipe from the user may name a file that defines it; this imports the
    file."""
    try:
        find_feature_set(name, may_import=bool((info.context or {}).get(TRUSTED, False)))
    except UserError as error:
        raise ValueError(str(error)) from None
    return name


def _kind_of_input(value: Any) -> str:
    """The tag of the form in which a recipe states a feature set: a name, a piece-square section, or a section of a set
    from outside, which has a `kind`."""
    if isinstance(value, Features) or (isinstance(value, dict) and "kind" in value):
        return "outside"
    return "section" if isinstance(value, dict | PieceSquares) else "name"


Input = Annotated[
    Annotated[Annotated[str, AfterValidator(_known_set)], Tag("name")]
    | Annotated[PieceSquares, Tag("section")]
    | Annotated[Annotated[Features, FEATURE_SETS], Tag("outside")],
    Discriminator(_kind_of_input),
]


def _check_limit(limit: int | None, kind: str) -> None:
    if limit is not None and kind == "f32":
        raise ValueError(f"limit: found {limit}, but the weights are floats; remove limit")
    if limit is not None and limit > LIMITS[kind]:
        raise ValueError(f"limit: found {limit}, expected at most {LIMITS[kind]}, the largest value of {kind}")


@section
class Layer:
    """A layer between the first layer and the output layer. Each output bucket has its own weights."""

    outputs: int = Field(ge=1, le=1024)
    """number of outputs, including a skip connection's"""
    activation: Literal["crelu", "screlu", "dual", "none"] = "crelu"
    """crelu: clamp to [0, 1]; screlu: clamp to [0, 1] and square; dual: min(x², 1) of each output, also of negative
    ones, and then crelu of each output, so twice as many values; none: no activation"""
    skip: Literal["none", "last", "difference"] = "none"
    """skip connection: what is added directly to the net's output. last: the last output; difference: the last but one
    minus the last"""
    skip_activated: bool = False
    """the outputs of the skip connection are also activated, so they are inputs of the next layer, too"""
    to_output: bool = False
    """the activations are also inputs of the output layer, in front of the last layer's"""
    scale: Scale = 64
    """quantisation: the integer for a weight of 1.0 (QB)"""
    type: Literal["i8", "i16", "f32"] = "i16"
    """type of the weights. i8, i16: integers; f32: floats, which are not quantised, and so are all layers after
    this one"""
    bias_type: Literal["i32", "f32"] = "i32"
    """type of the biases. i32: integers; f32: floats. With integer weights the sums then become floats, and all layers
    after this one are f32. Weights of type f32 always have biases of type f32"""
    shift: int | None = Field(default=None, ge=0, le=30)
    """quantisation: sums are shifted right by this many bits; null: by log2(scale), rounded, which removes the scale of
    the weights"""
    clip: int | None = Field(default=None, ge=1, le=INT16_MAX)
    """quantisation: the largest integer of a clamped output; null: the integer for 1.0. Of floats: the largest value;
    null: 1; 32767: none"""
    limit: Limit = None
    """quantisation: the largest magnitude of an integer weight; null: 127 for i8, 127/64 · scale for i16"""

    @model_validator(mode="after")
    def _check(self) -> Layer:
        _check_limit(self.limit, self.type)
        if self.is_float and self.shift is not None:
            raise ValueError(f"shift: found {self.shift}, but the outputs are floats; remove shift")
        if self.activated < 1:
            raise ValueError(f"outputs: found {self.outputs}, expected more than the skip connection takes")
        if self.skip == "difference" and self.outputs < 2:
            raise ValueError("outputs: found 1, expected at least 2 for skip: difference")
        if self.skip_activated and self.skip == "none":
            raise ValueError("skip_activated: found true without a skip connection, expected skip: last or difference")
        return self

    @property
    def is_float(self) -> bool:
        """Whether the outputs are floats."""
        return "f32" in (self.type, self.bias_type)

    @property
    def skipped(self) -> int:
        """The number of outputs of the skip connection; they are the last ones."""
        return {"none": 0, "last": 1, "difference": 2}[self.skip]

    @property
    def activated(self) -> int:
        """The number of outputs that are activated; they are the first ones."""
        return self.outputs if self.skip_activated else self.outputs - self.skipped


@section
class FirstQuantisation:
    """Quantisation of the first layer."""

    scale: Scale = 255
    """the integer for 1.0 of an accumulator (QA)"""
    clip: int | None = Field(default=None, ge=1, le=INT16_MAX)
    """the largest integer of a clamped accumulator; null: the same as scale; 32767: none, so that crelu is ReLU and
    screlu squared ReLU"""
    type: Literal["i8", "i16"] = "i16"
    """integer type of the weights of features in king buckets, which include all piece-square features"""
    unbucketed_type: Literal["i8", "i16"] = "i16"
    """integer type of the weights of features without king buckets, such as threats and pawn pairs"""
    product_shift: int = Field(default=0, ge=0, le=16)
    """products (of screlu and pairwise) are shifted right by this many bits; 0: they keep all bits, and the sums of the
    next layer are divided by scale, rounded toward zero"""
    limit: Limit = None
    """the largest magnitude of an integer weight or bias; null: 127 for i8, 127/64 · scale for i16. With a larger one
    than that, accumulators may exceed 16 bits, which export then reports"""

    @model_validator(mode="after")
    def _check(self) -> FirstQuantisation:
        _check_limit(self.limit, self.type)
        return self


@section
class OutputQuantisation:
    """Quantisation of the output layer."""

    scale: Scale = 64
    """the integer for a weight of 1.0 (QB)"""
    type: Literal["i8", "i16", "f32"] = "i16"
    """type of the weights. f32: floats; required after float layers"""
    bias_type: Literal["i16", "i32", "f32"] = "i16"
    """type of the biases. f32: floats; required with float weights and after float layers"""
    limit: Limit = None
    """the largest magnitude of an integer weight; null: 127 for i8, 127/64 · scale for i16"""

    @model_validator(mode="after")
    def _check(self) -> OutputQuantisation:
        _check_limit(self.limit, self.type)
        return self


@section
class Quantisation(QatConfig):
    """Quantisation of the first layer and the output layer; each of `layers` has its own fields for it."""

    first: FirstQuantisation = Field(default_factory=FirstQuantisation)
    output: OutputQuantisation = Field(default_factory=OutputQuantisation)
