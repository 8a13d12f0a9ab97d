"""The sections of a recipe. Every field is documented where it is declared."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from nnue_trainer.callbacks import CALLBACKS, Callback
from nnue_trainer.config.stages import Stage
from nnue_trainer.data.filters import Filters
from nnue_trainer.data.formats import DATA_FORMATS, DataFormat
from nnue_trainer.losses import LOSSES, Loss
from nnue_trainer.losses.position_weights import POSITION_WEIGHTS, PositionWeight
from nnue_trainer.nets import NETS, Net
from nnue_trainer.nnue_file.formats import FORMATS, NetFormat, Nnue
from nnue_trainer.optim import OPTIMIZERS, AdamW, OptimizerConfig
from nnue_trainer.optim.averages import AVERAGES, Average
from nnue_trainer.optim.penalties import PENALTIES, Penalty
from nnue_trainer.schedules import LAMBDAS, SCHEDULES, ConstantLambda, Exponential, LambdaSchedule, Schedule
from nnue_trainer.schema import section

FileList = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
"""The type of a field that lists files: a single name is a list of one."""


@section
class DataConfig:
    """Where positions come from."""

    train: FileList = Field(min_length=1)
    """files to train on, folders of them or patterns such as data/*.binpack, relative to the working directory; read
    again from the start when they end"""
    weights: list[Annotated[float, Field(ge=0, le=1000)]] = Field(default_factory=list)
    """how often each entry of train is read in a pass over the data, a number for each: with 2.5 twice, and a random
    half of it once more; empty: once"""
    validation: FileList = Field(default_factory=list)
    """files of held-out positions, filtered in the same way; without them there is no validation loss"""
    validation_positions: int = Field(default=1_000_000, gt=0, le=2**40)
    """how many positions of the validation files to use: the first ones that pass the filters, the same every time"""
    formats: list[Annotated[DataFormat, DATA_FORMATS]] = Field(default_factory=list)
    """your own formats, tried before the built-in ones"""
    filters: Filters = Field(default_factory=Filters)
    batch_size: int = Field(default=16_384, gt=0, le=2**24)
    """positions in a step"""
    shuffle_buffer: int = Field(default=4_194_304, ge=0, le=2**33)
    """positions that are mixed at a time, 64 bytes of memory each; 0: file order"""
    shards: int = Field(default=1, gt=0, le=2**16)
    """streams that the training data is read as, each with an equal part of every batch; several processes read only
    their own streams, so their number must divide this one. 1: one stream, which every process reads. The order of
    positions depends on it"""
    skip_bad_chunks: bool = False
    """skip and count damaged chunks of the files; off: a damaged chunk ends the run with a checkpoint"""
    implausible: Literal["warn", "stop", "ignore"] = "warn"
    """action at the start of a run if a file of train is doubtful or contradicts itself (scores or results in the wrong
    view, filters that leave nothing, ...). stop: a file that contradicts itself ends the run"""
    threads: int = Field(default=0, ge=0, le=1024)
    """threads that read and expand positions; 0: one per CPU, and where a GPU trains and a process has eight CPUs or
    more, two fewer. The number changes only the speed, never the order"""

    @field_validator("shards")
    @classmethod
    def _possible(cls, shards: int, info: ValidationInfo) -> int:
        batch_size, shuffle_buffer = info.data.get("batch_size", shards), info.data.get("shuffle_buffer", 1)
        if batch_size % shards:
            raise ValueError(f"found {shards}, expected a divisor of data.batch_size, {batch_size}")
        if shards > 1 and shuffle_buffer == 0:
            raise ValueError(f"found {shards}, expected 1 in file order (data.shuffle_buffer 0)")
        return shards

    @field_validator("shuffle_buffer")
    @classmethod
    def _shuffles(cls, shuffle_buffer: int, info: ValidationInfo) -> int:
        if shuffle_buffer == 0 and info.data.get("weights"):
            raise ValueError("found 0, which is file order, expected a larger number with data.weights")
        return shuffle_buffer

    @field_validator("weights")
    @classmethod
    def _one_each(cls, weights: list[float], info: ValidationInfo) -> list[float]:
        entries = len(info.data.get("train", weights))
        if weights and len(weights) != entries:
            raise ValueError(f"found {len(weights)} numbers, expected one for each of the {entries} entries of train")
        if weights and not any(weights):
            raise ValueError("found only zeros, expected a larger number for one of the entries of train")
        return weights


Sample = Literal["first", "spread"]


@section
class ValidationSet:
    """More held-out positions, under a name: for figures, not for `best`."""

    name: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")
    """name of the set, and prefix of its metrics: NAME/loss"""
    files: FileList = Field(min_length=1)
    """files, folders or patterns, as in data.train"""
    positions: int = Field(default=1_000_000, gt=0, le=2**40)
    """how many positions to use"""
    filters: Filters | None = None
    """filters of this set; null: as in validation"""
    sample: Sample = "first"
    """first: the first positions that pass the filters; spread: as many from random places of the files, the same every
    time"""


@section
class ValidationConfig:
    """How a net is validated. The held-out positions come from data.validation."""

    loss: Annotated[Loss, LOSSES] | None = None
    """loss of the validation; null: as in training"""
    lambda_: Literal["end", "follow"] | Annotated[float, Field(ge=0, le=1)] = Field(default="end", alias="lambda")
    """λ of the validation: end: training's last value, so that all epochs compare; a number; follow: the value at the
    step, with which losses of different epochs cannot be compared, so the best checkpoint is arbitrary"""
    filters: Filters | None = None
    """filters of held-out positions; null: as in data"""
    sample: Sample = "first"
    """which positions of data.validation are used. first: the first ones that pass the filters; spread: as many from
    random places of the files, the same every time"""
    sets: list[ValidationSet] = Field(default_factory=list)
    """more sets of held-out positions"""
    scale: float = Field(default=400.0, gt=0)
    """engine units of the fixed figures: a score s is worth 1/(1 + e^(−s/scale)) expected points. Runs with the same
    scale can be compared"""

    @field_validator("sets")
    @classmethod
    def _by_name(cls, sets: list[ValidationSet]) -> list[ValidationSet]:
        names = [each.name for each in sets]
        if len(set(names)) < len(names):
            raise ValueError(f"found the names {names}, expected different names")
        return sets


Precision = Literal["auto", "fp32", "tf32", "mixed"]


@section
class TrainingConfig:
    """How long to train, on which device, and what to keep."""

    epochs: int = Field(default=800, gt=0, le=2**20)
    """an epoch is a number of positions, not a pass over the files"""
    positions_per_epoch: int = Field(default=100_000_000, gt=0, le=2**40)
    """rounded up to whole batches"""
    seed: int = Field(default=42, ge=0, lt=2**63)
    """seed of the initial weights and of the sample order"""
    device: str = Field(default="auto", pattern=r"^[a-z]{1,20}(:\d{1,2})?$")
    """auto (cuda if there is one with our kernels), cpu, cuda or cuda:N; or another device of torch's, such as mps:
    PyTorch's operators compute the forward and backward pass there, and the CPU the rest"""
    precision: Precision = "auto"
    """auto: mixed where it is faster, which is on GPUs, with built-in nets and fused optimizers, else fp32; a resumed
    run keeps what it began with. tf32: matrix products of fp32 numbers in TF32 (CUDA); mixed: forward and backward pass
    in bfloat16, with a copy of the feature transformer's weights; the weights themselves, sums and the optimizer's
    state stay fp32"""
    deterministic: bool = True
    """the same recipe on the same machine gives the same bits; off: allow faster kernels that do not"""
    compile: bool = False
    """compile the model with torch.compile"""
    cuda_graph: bool | None = None
    """replay the whole step as one CUDA graph; null: if the device is CUDA"""
    initial_weights: str | None = None
    """checkpoint, run folder or net file whose weights to start from; everything else starts anew. From a net with
    another architecture, the parts that both have in common are taken"""
    validate_every: int = Field(default=1, gt=0, le=2**20)
    """epochs between validations"""
    best_by: str = "loss"
    """the validation figure that selects `best`: loss, score_cross_entropy or result_cross_entropy (lowest),
    result_accuracy, rank_correlation or even_rank_correlation (highest); NAME/loss and so on: of a further set"""
    checkpoint_every: int = Field(default=1, gt=0, le=2**20)
    """epochs between checkpoints; an epoch with a new best validation is saved as well"""
    checkpoint_minutes: float = Field(default=15, ge=0, le=2**20)
    """minutes after which the last checkpoint is updated within an epoch; 0: only at the end of an
    epoch"""
    keep_last: int = Field(default=3, gt=0, le=2**20)
    """how many of the newest checkpoints of epochs to keep; last and best are kept in any case"""
    keep_every: int = Field(default=0, ge=0, le=2**20)
    """epochs between checkpoints that are kept permanently, in addition to the newest ones; 0: none"""
    max_time: float = Field(default=0, ge=0, le=2**20)
    """hours, of all stages, after which the run ends with a checkpoint; a resumed run has the same time again. 0: no
    limit"""
    penalties: list[Annotated[Penalty, PENALTIES]] = Field(default_factory=list)
    """terms that are added to the training loss. On a GPU no kernel includes them, so training is slower"""
    callbacks: list[Annotated[Callback, CALLBACKS]] = Field(default_factory=list)
    """actions during the run"""


@section
class LoggingConfig:
    """Settings of logs and records."""

    every_steps: int = Field(default=100, gt=0, le=2**40)
    """steps between two records of loss, speed and memory"""
    tensorboard: bool = True
    """write TensorBoard events next to metrics.jsonl"""
    unique_positions: bool = True
    """record how many different positions the run has seen, within 0.8 %; off: a few percent less work for the
    loader"""


@section
class Recipe:
    """All of a training run."""

    model: Annotated[Net, NETS]
    data: DataConfig
    loss: Annotated[Loss, LOSSES]
    position_weight: Annotated[PositionWeight, POSITION_WEIGHTS] | None = None
    """how much each position counts in the training loss; null: all as the loss has it. On a GPU no kernel
    includes these weights, so training is slower"""
    lambda_: Annotated[LambdaSchedule, LAMBDAS] = Field(default_factory=ConstantLambda, alias="lambda")
    optimizer: Annotated[OptimizerConfig, OPTIMIZERS] = Field(default_factory=AdamW)
    schedule: Annotated[Schedule, SCHEDULES] = Field(default_factory=Exponential)
    average: Annotated[Average, AVERAGES] | None = None
    """average of the weights, which then is the net that is validated, saved and exported; null: the weights are"""
    validation: ValidationConfig = Field(default_factory=ValidationConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    logging: LoggingConfig = Field(default_factory=LoggingConfig)
    export: Annotated[NetFormat, FORMATS] = Field(default_factory=Nnue)
    """the kind of file that `nnue export` writes by default"""
    seeds: list[Annotated[int, Field(ge=0, lt=2**63)]] = Field(default_factory=list)
    """train once with each of these instead of training.seed, into seed-N of the run folder, and compare them; one at a
    time, or one on each GPU"""
    stages: list[Stage] = Field(default_factory=list)
    """stages that are trained one after the other; each is the recipe with its changes. Empty: the recipe is the only
    stage"""
