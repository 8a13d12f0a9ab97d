"""Recipes: a YAML file, checked against typed sections, with overrides from the command line.

Every field is documented where it is declared; `reference()` prints them all.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from nnue_trainer import programs, schema
from nnue_trainer.averages import AVERAGES, Average
from nnue_trainer.callbacks import CALLBACKS, Callback
from nnue_trainer.config.stages import Stage, changed
from nnue_trainer.data.filters import Filters
from nnue_trainer.data.formats import DATA_FORMATS, DataFormat
from nnue_trainer.errors import UserError, quoted
from nnue_trainer.files.inputs import became, data_files, read_text
from nnue_trainer.losses import LOSSES, Loss
from nnue_trainer.nets import NETS, Net
from nnue_trainer.nnue_file.formats import FORMATS, NetFormat, Nnue
from nnue_trainer.optim import OPTIMIZERS, AdamW, OptimizerConfig
from nnue_trainer.penalties import PENALTIES, Penalty
from nnue_trainer.position_weights import POSITION_WEIGHTS, PositionWeight
from nnue_trainer.schedules import LAMBDAS, SCHEDULES, ConstantLambda, Exponential, LambdaSchedule, Schedule
from nnue_trainer.schema import section

__all__ = ["load", "parse"]

T = TypeVar("T")

MAX_BYTES = 1 << 20
"""Largest size of a recipe in bytes."""
MAX_NODES = 10_000
"""Largest number of keys and values in a recipe; an alias counts as everything that it stands for."""

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
    """filters of this set; null: those of validation"""
    sample: Sample = "first"
    """first: the first positions that pass the filters; spread: as many from random places of the files, the same every
    time"""


@section
class ValidationConfig:
    """How a net is validated. The held-out positions that decide on `best` are those of data.validation."""

    loss: Annotated[Loss, LOSSES] | None = None
    """loss of the validation; null: that of training"""
    lambda_: Literal["end", "follow"] | Annotated[float, Field(ge=0, le=1)] = Field(default="end", alias="lambda")
    """λ of the validation: end: that of training at its end, so that all epochs compare; a number; follow: that of the
    step, with which losses of different epochs cannot be compared, so the best checkpoint is arbitrary"""
    filters: Filters | None = None
    """filters of held-out positions; null: those of data"""
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
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d{1,2})?)$")
    """auto (cuda if there is one), cpu, cuda or cuda:N"""
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
    checkpoint_every: int = Field(default=1, gt=0, le=2**20)
    """epochs between checkpoints; an epoch with a new best validation loss is saved as well"""
    checkpoint_minutes: float = Field(default=15, ge=0, le=2**20)
    """minutes after which the last checkpoint is updated within an epoch; 0: only at the end of an
    epoch"""
    keep_last: int = Field(default=3, gt=0, le=2**20)
    """how many of the newest checkpoints of epochs to keep; last and best are kept in any case"""
    keep_every: int = Field(default=0, ge=0, le=2**20)
    """epochs between checkpoints that are kept permanently, in addition to the newest ones; 0: none"""
    max_time: float = Field(default=0, ge=0, le=2**20)
    """hours after which the run ends with a checkpoint; a resumed run has the same time again. 0: no limit"""
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


def load(path: str | os.PathLike[str], overrides: Iterable[str] = (), *, trusted: bool = True) -> Recipe:
    """The recipe in a YAML file. UserError, one line, for an unreadable file, an unknown key or a wrong value.
    `trusted` is that of `parse`; False to print the recipe only."""
    return parse(read_yaml(path), overrides, str(path), trusted=trusted)


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """The contents of a small YAML file, as plain data. UserError, one line, if it is unreadable or not YAML."""
    return _read_yaml(read_text(path, MAX_BYTES), str(path))


def parse(data: Any, overrides: Iterable[str] = (), origin: str = "recipe", *, trusted: bool = False) -> Recipe:
    """The recipe in plain data, with `dotted.key=value` overrides whose values are YAML. An override replaces the
    value or whole section of its key. UserError, one line, for an unknown key or a wrong value.

    With `trusted`, `kind: path/to/file.py:Class` imports that file, and programs that the recipe names may run: for a
    recipe that the user hands over, not for one that lies in a checkpoint. Without it, only programs that the overrides
    name may run."""
    if not isinstance(data, dict):
        found = "nothing" if data is None else "a list" if isinstance(data, list) else "a value without a key"
        raise UserError(f"{origin}: found {found}, expected the sections of a recipe")
    origins: dict[tuple[str, ...], str] = {}
    for override in overrides:
        name = f"override {quoted(override)}"
        key, equals, text = override.partition("=")
        if not equals or not re.fullmatch(r"\w+(\.[\w-]+)*", key):
            raise UserError(f"{name}: expected key=value, such as optimizer.lr=1e-3")
        path, value = tuple(key.split(".")), _read_value(text, name)
        origins |= {path[:n]: name for n in range(1, len(path)) if not _holds(data, path[:n])}
        data = _replace(data, path, value)
        origins[path] = name
    recipe = schema.validate(Recipe, data, partial(_origin, origins, origin), trusted=trusted)
    if len(set(recipe.seeds)) < len(recipe.seeds):
        raise UserError(f"{origin}: seeds: found {recipe.seeds}, expected different numbers")
    stage_recipes(recipe, origin, trusted=trusted)  # for its errors
    given = tuple(f"{'.'.join(path)}." for path in origins) if overrides and not trusted else ()
    for key, value in named_programs(recipe).items() if given else ():
        if f"{key}.".startswith(given):
            programs.allow(value)
    return recipe


def named_programs(recipe: Recipe) -> dict[str, Any]:
    """Each field of a recipe and its stages that names a program, or what reaches one, by its dotted key."""
    found = dict(programs.named(recipe))
    for stage, its in zip(recipe.stages, stage_recipes(recipe), strict=False):
        for key, value in programs.named(its):
            if found.get(key) != value:
                found[f"stages.{stage.name}.{key}"] = value
    return found


def require_consent(recipe: Recipe, origin: str = "recipe") -> None:
    """UserError, one line that lists them, for programs that only a file names (nnue_trainer/programs.py)."""
    refused = {key: value for key, value in named_programs(recipe).items() if not programs.is_allowed(value)}
    if refused:
        raise UserError(
            f"{origin}: names programs to run: {'; '.join(program_lines(refused))}; pass --allow-commands to run them, "
            "or the file of a recipe that names them (in Python: nnue_trainer.config.allow_programs)"
        )


def allow_programs(recipe: Recipe) -> list[str]:
    """Consents to all programs that a recipe names; returns a line for each."""
    found = named_programs(recipe)
    for value in found.values():
        programs.allow(value)
    return program_lines(found)


def program_lines(found: Mapping[str, Any]) -> list[str]:
    """One line for each field that names a program."""
    return [f"{key}: {quoted(value, 200)}" for key, value in found.items()]


def _origin(origins: dict[tuple[str, ...], str], recipe: str, path: tuple[str, ...]) -> str:
    """Where the value at `path` comes from. Paths are looked up from the innermost outwards, because the override that
    set the value last is the one to name."""
    for n in range(len(path), 0, -1):
        section = path[: n - 1]
        if path[:n] in origins:
            return origins[path[:n]]
        if section and (*section, "kind") in origins:
            key = ".".join(section)
            override = origins[*section, "kind"]
            return f"{recipe}, whose other fields of {key} remain after {override} ('{key}={{kind: …}}' replaces all)"
    return recipe


def stage_recipes(recipe: Recipe, origin: str = "recipe", *, trusted: bool = False) -> list[Recipe]:
    """The recipe of each stage, without stages of its own; of a recipe without stages, the recipe. UserError, one line
    naming the stage, for what a stage cannot change."""
    _check_outputs(recipe, origin)
    if not recipe.stages:
        return [recipe]
    base, found, names = schema.to_data(recipe), list[Recipe](), set[str]()
    for number, stage in enumerate(recipe.stages):
        where = f"{origin}: stage {stage.name}"
        if stage.name in names:
            raise UserError(f"{where}: the name is given twice, expected different names")
        names.add(stage.name)
        merged = schema.validate(Recipe, changed(base, stage), partial(_always, where), trusted=trusted)
        _check_outputs(merged, where)
        data = schema.to_data(merged)
        for key in _FIXED:
            if data["training"][key] != base["training"][key]:
                raise UserError(f"{where}: training.{key} belongs to the whole run: set it outside of the stages")
        if _without(data["model"], "quantisation") != _without(base["model"], "quantisation"):
            raise UserError(f"{where}: model: found other values, expected only changes of model.quantisation")
        for key, value, default in (("carry", stage.carry, "weights"), ("take", stage.take, "last")):
            if number == 0 and value != default:
                raise UserError(
                    f"{where}: {key}: found {value}, expected {default}, as no stage comes before the first one; "
                    "training.initial_weights begins from the weights of a file, --resume continues a run"
                )
        if number and stage.carry == "optimizer" and merged.optimizer.kind != found[-1].optimizer.kind:
            raise UserError(
                f"{where}: optimizer.kind: found {merged.optimizer.kind!r} with carry: optimizer, expected "
                f"{found[-1].optimizer.kind!r} as in the stage before; another one begins with carry: weights"
            )
        if number and stage.take == "average" and found[-1].average is None:
            raise UserError(f"{where}: take: found average, expected last, as the stage before has none")
        if number and stage.take == "best" and not found[-1].data.validation:
            raise UserError(f"{where}: take: found best, expected last, as the stage before has no validation files")
        found.append(merged)
    return found


def _check_outputs(recipe: Recipe, origin: str) -> None:
    """UserError for a loss that reads other outputs than the net has."""
    for where, loss in (("loss", recipe.loss), ("validation.loss", recipe.validation.loss)):
        if loss is not None and loss.reads not in (0, recipe.model.num_outputs):
            raise UserError(
                f"{origin}: {where}.kind: found {loss.kind!r}, which reads {loss.reads} outputs, but the net "
                f"{recipe.model.kind!r} gives {recipe.model.num_outputs}; expected a net with {loss.reads}, such as "
                "kind: layered with head: wdl for three"
            )


def _always(where: str, path: tuple[str, ...]) -> str:
    return where


_FIXED = ("seed", "device", "deterministic", "initial_weights")
"""Fields of `training` that are the whole run's."""


def _without(data: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != key}


def only_stage(recipe: Recipe, name: str) -> Recipe:
    """The recipe of one stage, as a separate run. UserError if there is none of this name."""
    for stage, its in zip(recipe.stages, stage_recipes(recipe), strict=False):
        if stage.name == name:
            return its
    names = ", ".join(stage.name for stage in recipe.stages)
    raise UserError(f"stage {quoted(name)}: found {names or 'a recipe without stages'}, expected one of them")


def with_files(recipe: Recipe) -> tuple[Recipe, list[str]]:
    """The recipe with patterns and folders of data files replaced by the files they stand for now, and lines that list
    what each became. A resumed run thus reads the files it began with. UserError if nothing matches."""
    notes: list[str] = []
    named = {key: getattr(recipe.data, key) for key in ("train", "weights", "validation")}
    data = recipe.data
    for key, value in _found(named, "", notes).items():
        data = _changed(data, key, value)
    stages = []
    for stage in recipe.stages:
        own = stage.data
        if "weights" in own:  # of the entries as they stand in the recipe
            own = {"train": named["train"], **own}
        stages.append(_changed(stage, "data", own | _found(own, f"stage {stage.name}: ", notes)))
    sets = []
    for each in recipe.validation.sets:
        files = data_files(each.files, f"validation.sets.{each.name}.files")
        note = became(each.files, files)
        notes += [f"validation.sets.{each.name}.files: {note}"] if note else []
        sets.append(_changed(each, "files", files))
    recipe = _changed(recipe, "validation", _changed(recipe.validation, "sets", sets))
    return _changed(_changed(recipe, "data", data), "stages", stages), notes


def _found(data: dict[str, Any], where: str, notes: list[str]) -> dict[str, Any]:
    """The files, and their weights, that `train` and `validation` of a section data stand for."""
    found: dict[str, Any] = {}
    for key in ("train", "validation"):
        names = data.get(key)
        if names is None:
            continue
        names = [names] if isinstance(names, str) else names
        files = [data_files([name], f"{where}data.{key}") for name in names]
        found[key] = [file for each in files for file in each]
        if key == "train" and data.get("weights"):
            weights = zip(data["weights"], files, strict=True)
            found["weights"] = [weight for weight, each in weights for _ in each]
        note = became(names, found[key])
        notes += [f"{where}data.{key}: {note}"] if note else []
    return found


def with_precision(recipe: Recipe, precision: Precision) -> Recipe:
    """The recipe with this `training.precision`."""
    return _changed(recipe, "training", _changed(recipe.training, "precision", precision))


def with_seed(recipe: Recipe, seed: int) -> Recipe:
    """The recipe with this `training.seed`."""
    return _changed(recipe, "training", _changed(recipe.training, "seed", seed))


def with_only_seed(recipe: Recipe, seed: int) -> Recipe:
    """The recipe of one of its seeds."""
    return _changed(with_seed(recipe, seed), "seeds", [])


def _changed(instance: T, name: str, value: Any) -> T:
    """A section with another value in one field; `dataclasses.replace` does not support aliases."""
    changed = copy.copy(instance)
    object.__setattr__(changed, name, value)  # frozen, as all sections are
    return changed


def to_yaml(recipe: Recipe) -> str:
    """Every field, defaults included; `load` reads it back as the same recipe."""
    return yaml.safe_dump(schema.to_data(recipe), sort_keys=False, allow_unicode=True, width=120)


def reference() -> str:
    """All fields of a recipe with type, default and meaning, for people to read. A field of a class is "as above" if
    the last description of its key has the same type and meaning, and so is a whole section of equal fields. Sections
    that occur in several places are described once."""
    lines: list[str] = []
    described: dict[str, tuple[str, str, str]] = {}  # key -> type, meaning and default where it was last described
    rows: set[tuple[str, str, str, str]] = set()
    sections: dict[str, str] = {}  # "filters.min_ply" -> "data.filters.min_ply"
    head, prefix = 0, ""  # of the class whose fields come now: its line in `lines`, and what its keys begin with
    shared: dict[str, str] = {}  # key -> its default, if that differs

    def end_of_class() -> None:
        names: dict[str, None] = {}
        for key, differing in shared.items():
            section = prefix + key.removeprefix(prefix).split(".")[0]
            inside = [other for other in described if other == section or other.startswith(f"{section}.")]
            is_whole = all(shared.get(other) == "" for other in inside)
            names[(section if is_whole else key).removeprefix(prefix) + differing] = None
        if names:
            lines[head] += f"\n    also {', '.join(names)}: as above"
        shared.clear()

    for key, kind, default, text in schema.describe(Recipe):
        value = f" [{default}]" if default else ""
        inner, same = _seen_elsewhere(key, sections)
        rows.add((key, kind, text, default))
        if (same, kind, text, default) in rows:
            line = f"{key.removesuffix(inner)}: as {same.removesuffix(inner)}"
            if line not in lines:
                end_of_class()
                lines.append(line)
                prefix = key.removesuffix(inner)
            continue
        if not key.startswith(prefix):
            end_of_class()
        if kind.startswith("="):
            end_of_class()
            head, prefix = len(lines), key.removesuffix("kind")
        else:
            if text and key in described and described[key][:2] == (kind, text):
                shared[key] = "" if described[key][2] == default else value
                continue
            described[key] = (kind, text, default)
        start = f"{key} {kind}" if kind.startswith("=") else f"{key}: {kind}{value}"
        lines.append(f"{start}\n    {text}" if text else start)
    end_of_class()
    return "\n".join(lines)


def _seen_elsewhere(key: str, sections: dict[str, str]) -> tuple[str, str]:
    """For "validation.filters.min_ply": ".min_ply", and "data.filters.min_ply", the first key with this end. Empty for
    a key that is the first one with each of its ends."""
    parts = key.split(".")
    for at in range(1, len(parts) - 1):
        end = ".".join(parts[at:])
        if "N" not in parts[at : at + 2] and (first := sections.setdefault(end, key)) != key:
            return end.removeprefix(parts[at]), first
    return "", ""


class _Loader(yaml.SafeLoader):
    """YAML as people mean it: 1e-3 is a number, a date is text, and a key that occurs twice is an error. It refuses
    what a recipe does not need and what could become huge: tags, keys other than words, deep nesting, and aliases that
    turn a few lines into millions."""

    def __init__(self, text: str):
        super().__init__(text)
        self._depth = 0
        self._sizes: dict[yaml.Node, int] = {}  # nodes in it, each alias counted as what it stands for

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        mark = event.start_mark
        if getattr(event, "tag", None) is not None:
            raise yaml.MarkedYAMLError(
                problem=f"tags such as {quoted(event.tag)} have no meaning here", problem_mark=mark
            )
        if self._depth > schema.MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {schema.MAX_DEPTH} levels", problem_mark=mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return None
        if isinstance(event, yaml.AliasEvent):
            if node not in self._sizes:
                raise yaml.MarkedYAMLError(problem=f"alias {quoted(event.anchor)} holds itself", problem_mark=mark)
        else:
            inner = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
            self._sizes[node] = 1 + (sum(map(self._sizes.__getitem__, inner)) if isinstance(inner, list) else 0)
            if self._sizes[node] > MAX_NODES:
                raise yaml.MarkedYAMLError(problem=f"more than {MAX_NODES:,} keys and values", problem_mark=mark)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag not in (
                "tag:yaml.org,2002:str",
                "tag:yaml.org,2002:merge",
            ):
                what = f", not {quoted(key.value)}" if isinstance(key, yaml.ScalarNode) else ""
                raise yaml.MarkedYAMLError(problem=f"a key must be a word{what}", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {quoted(key.value)} is given twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag not in ("tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(\d[\d_]*(\.[\d_]*)?([eE][-+]?\d+)?|\.\d[\d_]*([eE][-+]?\d+)?|\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)


def _read_yaml(text: str, origin: str) -> Any:
    loader = None
    try:
        loader = _Loader(text)
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        what = error.problem or error.context or "not YAML"
        if what == "but found another document":  # PyYAML has the first half of this sentence elsewhere
            what = "a second document, expected one recipe"
        raise UserError(f"{origin}{where}: {what}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number of thousands of digits
        raise UserError(f"{origin}: {' '.join(str(error).split())}") from None
    finally:
        if loader is not None:
            loader.dispose()


def _read_value(text: str, origin: str) -> Any:
    """The value of an override. A pattern of file names such as *.binpack is text, although YAML has aliases."""
    return text if re.match(r"\*\S", text) else _read_yaml(text, origin)


def _holds(data: Any, path: tuple[str, ...]) -> bool:
    for part in path:
        data = _inner(data, part)
        if data is None:
            return False
    return True


def _inner(data: Any, part: str) -> Any:
    """The value of a section under a key, or of a list at a number or under a name: `stages.late.training.epochs`."""
    if isinstance(data, list):
        place = _place(data, part)
        return None if place is None else data[place]
    return data.get(part) if isinstance(data, dict) else None


def _place(items: list[Any], part: str) -> int | None:
    named = (i for i, item in enumerate(items) if isinstance(item, dict) and item.get("name") == part)
    number = int(part) if part.isdecimal() and int(part) < len(items) else None
    return next(named, number)


def _replace(data: Any, path: Sequence[str], value: Any) -> Any:
    head, *rest = path
    inner = _replace(_inner(data, head), rest, value) if rest else value
    if isinstance(data, list) and (place := _place(data, head)) is not None:
        return [*data[:place], inner, *data[place + 1 :]]
    return {**(data if isinstance(data, dict) else {}), head: inner}
