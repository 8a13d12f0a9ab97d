"""Turns packed positions in host memory into index rows on a device: 32 bytes per position cross the bus, not 264.

On CUDA the operator `expand_features` expands them there. It works on a CPU too, with the same bits, but there the
loader's own threads are faster (`Loader`).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from nnue_trainer import ops
from nnue_trainer.data.batch import Batch
from nnue_trainer.data.features import FeatureSet, expand, feature_set
from nnue_trainer.data.fields import SPARE_PLACES

__all__ = ["Expander"]


class Expander:
    """Turns records, uint8 [B, 32], into a `Batch` on `device`, in memory that is allocated at the first batch (and
    again only for a larger one).

    Batches take turns in a number of `buffers`: a batch is valid until that many more have been made. All work is
    queued on the current stream, so all earlier work that reads the buffer must come before it on that stream. The copy
    from page-locked memory is asynchronous: the records must not change until it is done. With `records`, each batch
    has its records, too.

    The device's operators do not support sets in Python: their rows are made on the CPU, in the calling thread, and
    copied. `spare`: the number of spare bytes in a record, for `Batch.spare`; set it before the first batch.
    """

    def __init__(
        self,
        features: str | FeatureSet,
        device: torch.device | str,
        *,
        buffers: int = 2,
        records: bool = False,
        spare: int = 0,
    ) -> None:
        self.spare = spare
        self.feature_set = feature_set(features)
        self.device = torch.device(device)
        self.buffers = buffers
        self._on_device = self.feature_set.prepare(self.device)
        # Records of a loader are sound, so only the rows of sets from outside are checked.
        self._checks = self.feature_set.is_from_outside
        self._with_records = records
        self._size = -1
        self._batches: list[Batch] = []
        self._turn = 0

    def _allocate(self, size: int) -> None:
        self._size = size
        self._handle = ops.feature_set_handle(self.feature_set.name) if self._on_device else 0
        self._batches = [
            replace(
                Batch.allocate(size, self.feature_set.max_active, device=self.device),
                buffer=number,
                is_legal=not self._checks,
                spare=torch.empty(size, self.spare, dtype=torch.uint8, device=self.device) if self.spare else None,
            )
            for number in range(self.buffers)
        ]
        # One buffer of records is enough, unless batches keep them: copy and expansion follow each other on one stream.
        count = self.buffers if self._with_records else 1
        self._records = [torch.empty(size, 32, dtype=torch.uint8, device=self.device) for _ in range(count)]

    @property
    def launches_only(self) -> bool:
        """Whether `expand` only launches kernels, so that it can be recorded in a CUDA graph."""
        return self._on_device and not self._checks

    def grows(self, size: int) -> bool:
        """Whether `load` would replace its buffers by larger ones for a batch of `size` positions."""
        return size > self._size

    def __call__(self, records: Tensor) -> Batch:
        return self.expand(*self.load(records))

    def load(self, records: Tensor, begin: int = 0, size: int | None = None) -> tuple[Tensor, Batch]:
        """The records on the device, and the buffer that is next, for `expand`. The records are valid until the next
        call. With `size`, they are a part of a batch of this many, from position `begin` on; the caller must fill in
        the others before `expand`."""
        size = len(records) if size is None else size
        if size > self._size:
            self._allocate(size)
        batch, own = self._batches[self._turn], self._records[self._turn % len(self._records)]
        self._turn = (self._turn + 1) % self.buffers
        if size < self._size:
            batch = batch.head(size)
        moved = self._on_device or self._with_records
        if size > len(records) or (moved and records.device != own.device):
            own[begin : begin + len(records)].copy_(records, non_blocking=True)
            records = own[:size]
        return records, batch

    def expand(self, records: Tensor, batch: Batch) -> Batch:
        """Fills the buffer, which it returns."""
        if batch.spare is not None:
            for column, place in enumerate(SPARE_PLACES[self.spare]):
                batch.spare[:, column].copy_(records[:, place], non_blocking=True)
                if self._with_records:
                    records[:, place].zero_()  # as they were read
        if self._with_records:
            batch = replace(batch, records=records)
        if not self._on_device:
            return self._through_host(records, batch)
        out = ops.Expanded(batch.white, batch.black, batch.counts, batch.black_to_move, batch.score, batch.result,
                           batch.piece_count, batch.material)  # fmt: skip
        torch.ops.nnue.expand_features_into(records, self._handle, out, self._checks)
        return batch

    def _through_host(self, records: Tensor, batch: Batch) -> Batch:
        made = expand(records.cpu().numpy(), self.feature_set)
        for field in ops.Expanded._fields:
            getattr(batch, field).copy_(getattr(made, field))
        return batch
