"""The data of a recipe: which files are read, how, and to which device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from nnue_trainer.base.system import usable_cpus
from nnue_trainer.config import Recipe, ValidationSet
from nnue_trainer.data import Loader, LoaderOptions, RecordLoader
from nnue_trainer.data.features import feature_set
from nnue_trainer.data.filters import Filters
from nnue_trainer.data.opened import OpenedFile
from nnue_trainer.errors import UserError
from nnue_trainer.losses import Loss
from nnue_trainer.losses.position_weights import PositionWeight
from nnue_trainer.nets.activity import spread_over
from nnue_trainer.nets.base import Net, NnueModel
from nnue_trainer.schedules import ConstantLambda
from nnue_trainer.training import plausibility
from nnue_trainer.training.held_out import HeldOut
from nnue_trainer.training.parallel.ranks import Ranks
from nnue_trainer.training.stage_data import DataSources, Poll


def data_sources(recipe: Recipe, model: NnueModel | Net, device: torch.device, ranks: Ranks) -> DataSources:
    """The data of a stage for its net, or for the section of the recipe that it will be built from."""

    def check(batches: Loader | RecordLoader, held_out: list[OpenedFile], warn: Callable[[str], None]) -> None:
        of_score = recipe.lambda_ != ConstantLambda(value=0.0)
        loss = recipe.loss if of_score else None
        weight, features = recipe.position_weight, model.feature_set
        plausibility.check(recipe.data, batches, weight, features, warn, loss=loss, held_out=held_out)

    def opener(which: ValidationSet | None) -> Callable[[Poll], HeldOut]:
        return lambda poll: held_out(recipe, model, device, ranks, which, poll)

    return DataSources(
        features=model.feature_set,
        batches=lambda poll: training_batches(recipe, model, device, ranks, poll),
        validation=opener(None) if recipe.data.validation else None,
        more={each.name: opener(each) for each in recipe.validation.sets},
        check=check if ranks.writes else None,
    )


def training_batches(
    recipe: Recipe,
    model: NnueModel | Net,
    device: torch.device,
    ranks: Ranks | None = None,
    poll: Poll | None = None,
) -> Loader | RecordLoader:
    """The endless stream of training batches of the recipe. For a CUDA `device` it yields packed records, which are
    expanded there, and so it does where the weight of a position reads them; otherwise, or if the feature set is
    written in Python, it yields index rows. The order of positions and the state are the same in both cases.

    If several `ranks` train together, with `data.shards` the stream yields this rank's share of each batch. UserError
    if they cannot share the shards equally. None: a single process. `poll` is that of `Loader`."""
    data, ranks = recipe.data, ranks or Ranks()
    if data.shards > 1 and data.shards % ranks.size:
        raise UserError(
            f"data.shards: found {data.shards}, which {ranks.size} processes cannot share equally: expected a multiple "
            f"of {ranks.size}, or 1"
        )
    uses_spare = _any_uses_spare(data.filters, recipe.loss, recipe.position_weight)
    options: LoaderOptions = {
        "seed": recipe.training.seed,
        "repeat": True,
        "formats": data.formats,
        "filters": data.filters,
        "shuffle": data.shuffle_buffer > 0,
        "shuffle_buffer": max(data.shuffle_buffer, 1),
        "weights": data.weights or None,
        "skip_bad_chunks": data.skip_bad_chunks,
        "threads": data.threads,
        "cpus": loader_cpus(device, ranks),
        "reuse": True,
        "pin_memory": device.type == "cuda",
        "spare": uses_spare,
        "count_unique": recipe.logging.unique_positions,
        "poll": poll,
    }
    if data.shards > 1:
        options |= {"shards": data.shards, "rank": ranks.rank, "world_size": ranks.size}
    reads_records = uses_spare or (recipe.position_weight is not None and recipe.position_weight.reads_records)
    if reads_records or (device.type == "cuda" and feature_set(model.feature_set).prepare(device)):
        return RecordLoader(data.train, data.batch_size, **options)
    return Loader(data.train, model.feature_set, data.batch_size, **options)


def _any_uses_spare(*parts: Filters | Loss | PositionWeight | None) -> bool:
    """Whether the spare bytes of data files must be read for one of these."""
    return any(part is not None and part.uses_spare for part in parts)


_SPREAD = 8  # batches that are mixed for a spread sample; its chunks are drawn at random before


def loader_cpus(device: torch.device, ranks: Ranks) -> int:
    """The number of CPUs that the loader of this process uses by default. The processes of a machine share its CPUs.
    Where a GPU trains, two of eight or more are left to the thread that launches its work. With a reading thread on
    every CPU, that one has to wait: an H200 was idle for a fifth of a short step."""
    share = max(1, usable_cpus() // ranks.local_size)
    return share - 2 if device.type == "cuda" and share >= 8 else share


def _held_out(recipe: Recipe, which: ValidationSet | None = None) -> tuple[list[str], int, LoaderOptions]:
    """The files of the recipe's validation or of one of its `validation.sets`, how many of their positions count, and
    the options of a loader for them."""
    data, validation = recipe.data, recipe.validation
    files, positions = (data.validation, data.validation_positions) if which is None else (which.files, which.positions)
    spread = (validation if which is None else which).sample == "spread"
    own = None if which is None else which.filters
    return (
        files,
        positions,
        {
            "formats": data.formats,
            "filters": own or validation.filters or data.filters,
            "shuffle": spread,
            "shuffle_buffer": _SPREAD * data.batch_size if spread else 1,
            "drop_last": False,
            "skip_bad_chunks": data.skip_bad_chunks,
            "threads": data.threads,
        },
    )


def neuron_sample(recipe: Recipe) -> npt.NDArray[np.uint8]:
    """The records, uint8 [n, 32], that neurons are counted on with every validation of the recipe. UserError if a file
    is missing or is not a data file."""
    files, left, options = _held_out(recipe)
    parts = [torch.zeros(0, 32, dtype=torch.uint8, device="cpu")]
    with RecordLoader(files, recipe.data.batch_size, **options) as loader:
        for records in loader:
            parts.append(spread_over(records[:left]))
            left -= len(records)
            if left <= 0:
                break
    return torch.cat(parts).numpy()


def held_out(
    recipe: Recipe,
    model: NnueModel | Net,
    device: torch.device,
    ranks: Ranks | None = None,
    which: ValidationSet | None = None,
    poll: Poll | None = None,
) -> HeldOut:
    """The validation positions of the recipe, or of one of its `validation.sets`, which each of `ranks` reads; None: a
    single process; `poll` is that of `Loader`."""
    files, positions, options = _held_out(recipe, which)
    spare = _any_uses_spare(options["filters"], recipe.validation.loss or recipe.loss)
    options |= {"cpus": loader_cpus(device, ranks or Ranks()), "reuse": True, "spare": spare, "poll": poll}
    return HeldOut(files, positions, model.feature_set, recipe.data.batch_size, device, **options)
