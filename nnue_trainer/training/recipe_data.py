"""The training and validation positions of a recipe: which files are read, how, and to which device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nnue_trainer.base.system import usable_cpus
from nnue_trainer.config import Recipe, ValidationSet
from nnue_trainer.data import Batch, Loader, LoaderOptions, RecordLoader
from nnue_trainer.data.features import feature_set
from nnue_trainer.data.filters import Filters
from nnue_trainer.data.opened import OpenedFile
from nnue_trainer.errors import UserError
from nnue_trainer.losses import Loss
from nnue_trainer.nets.activity import spread_over
from nnue_trainer.nets.base import Net, NnueModel
from nnue_trainer.ops.expand import Expander
from nnue_trainer.parallel.ranks import Ranks
from nnue_trainer.position_weights import PositionWeight


def training_batches(
    recipe: Recipe,
    model: NnueModel | Net,
    device: torch.device,
    ranks: Ranks | None = None,
    poll: Callable[[], None] | None = None,
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


# Validation records of a GPU training that stay in page-locked memory, 32 bytes each, so that each file is read once.
_KEPT_POSITIONS = 2**24


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


class HeldOut:
    """The validation positions of the recipe, or of one of its `validation.sets`, which each of `ranks` reads; None: a
    single process; `poll` is that of `Loader`. Each call returns an iterator over the same batches, on `device` if that
    is a CUDA device and on the CPU otherwise; the values are the same. UserError if a file is missing or is not a data
    file."""

    def __init__(
        self,
        recipe: Recipe,
        model: NnueModel | Net,
        device: torch.device,
        ranks: Ranks | None = None,
        which: ValidationSet | None = None,
        poll: Callable[[], None] | None = None,
    ):
        data = recipe.data
        files, positions, options = _held_out(recipe, which)
        spare = _any_uses_spare(options["filters"], recipe.validation.loss or recipe.loss)
        options |= {"cpus": loader_cpus(device, ranks or Ranks()), "reuse": True, "spare": spare, "poll": poll}
        self._positions = positions
        self._kept: list[torch.Tensor] | None = None
        # All validations use one loader, so that files are opened, and compressed ones unpacked, only once.
        self._loader: Loader | RecordLoader
        self._expander: Expander | None = None
        self._is_on_gpu = device.type == "cuda"
        if spare or device.type == "cuda":
            # The memory is not page-locked, so the copy to the device is done when the call returns, and the loader may
            # use its memory again.
            self._loader = RecordLoader(files, data.batch_size, **options)
            self._expander = Expander(model.feature_set, device, spare=self._loader.spare)
        else:
            self._loader = Loader(files, model.feature_set, data.batch_size, **options)
        self._loader.open()
        self.files = [list(identity) for identity in self._loader.identities]
        """name, size and digest of each file when it was opened"""

    @property
    def opened(self) -> list[OpenedFile]:
        """The files."""
        return self._loader.opened

    def contents(self) -> list[str]:
        """The content of the files that was read so far (`Loader.contents`)."""
        return self._loader.contents()

    def restore(self, contents: Any, what: str) -> None:
        """Compares what is read from now on with the contents in a checkpoint. UserError, beginning with `what`, where
        they are damaged."""
        try:
            self._loader.restore_contents(contents)
        except UserError as error:
            raise UserError(f"{what}: validation: {error}") from None

    def __call__(self) -> Iterator[Batch]:
        for fresh in self._read() if self._kept is None else self._kept:
            yield fresh if isinstance(fresh, Batch) else self._expand(fresh)

    def _read(self) -> Iterator[Batch | torch.Tensor]:
        """The batches or records from the files. Records of a whole pass are kept, if there is room."""
        self._loader.restart()
        left, kept = self._positions, []
        keeping = self._is_on_gpu and left <= _KEPT_POSITIONS
        try:
            for fresh in self._loader:
                part = fresh if len(fresh) <= left else fresh.head(left) if isinstance(fresh, Batch) else fresh[:left]
                if keeping and isinstance(part, torch.Tensor):
                    kept.append(part.clone().pin_memory())
                yield part
                left -= len(part)
                if left <= 0:
                    break
            if keeping:
                self._kept = kept
        finally:
            self._loader.close()

    def _expand(self, records: torch.Tensor) -> Batch:
        assert self._expander is not None
        return self._expander(records)

    def close(self) -> None:
        self._loader.close()
