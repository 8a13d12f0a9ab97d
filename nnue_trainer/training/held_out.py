"""Held-out positions, the same at each validation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Unpack

import torch

from nnue_trainer.data import Batch, Loader, LoaderOptions, RecordLoader
from nnue_trainer.data.features import FeatureSet
from nnue_trainer.data.opened import OpenedFile
from nnue_trainer.errors import UserError
from nnue_trainer.ops.expand import Expander

# Records of a GPU training that stay in page-locked memory, 32 bytes each, so that each file is read once.
_KEPT_POSITIONS = 2**24


class HeldOut:
    """The first `positions` positions of a loader. Each call returns an iterator over the same batches, on `device` if
    that is a CUDA device and on the CPU otherwise; the values are the same. UserError if a file is missing or is not a
    data file."""

    def __init__(
        self,
        files: Sequence[str],
        positions: int,
        features: str | FeatureSet,
        batch_size: int,
        device: torch.device,
        **options: Unpack[LoaderOptions],
    ):
        self._positions = positions
        self._kept: list[torch.Tensor] | None = None
        # All validations use one loader, so that files are opened, and compressed ones unpacked, only once.
        self._loader: Loader | RecordLoader
        self._expander: Expander | None = None
        self._is_on_gpu = device.type == "cuda"
        if options.get("spare") or device.type == "cuda":
            # The memory is not page-locked, so the copy to the device is done when the call returns, and the loader may
            # use its memory again.
            self._loader = RecordLoader(files, batch_size, **options)
            self._expander = Expander(features, device, spare=self._loader.spare)
        else:
            self._loader = Loader(files, features, batch_size, **options)
        self._loader.open()
        self.files = [list(identity) for identity in self._loader.identities]
        """name, size and digest of each file when it was opened"""

    @property
    def opened(self) -> list[OpenedFile]:
        """The files."""
        return self._loader.opened

    def contents(self) -> torch.Tensor:
        """The content of the files that was read so far (`Loader.contents`)."""
        return self._loader.contents()

    def restore(self, contents: torch.Tensor, what: str) -> None:
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
