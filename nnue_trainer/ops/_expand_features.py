"""The operators that expand packed positions into index rows: fake kernels, vmap, and their functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from nnue_trainer.base import _library, _registration

EXPAND = "nnue::expand_features"
EXPAND_INTO = "nnue::expand_features_into"


class Expanded(NamedTuple):
    """B positions as index rows, with the fields of `nnue_trainer.data.Batch`: `Batch(*expanded)` makes a batch.

    `white` and `black` are int32 [B, K], the others [B]: `counts` int16 (entries per row), `black_to_move` uint8,
    `score` int16 (engine units) and `result` int8 (−1, 0, 1) from the side to move's view, `piece_count` uint8,
    `material` uint8 (4 · min(3, queens of the side to move) + min(3, queens of the other side)).
    """

    white: Tensor
    black: Tensor
    counts: Tensor
    black_to_move: Tensor
    score: Tensor
    result: Tensor
    piece_count: Tensor
    material: Tensor


_EXPANDED_DTYPES = (
    torch.int32,
    torch.int32,
    torch.int16,
    torch.uint8,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint8,
)

_handles: dict[str, int] = {}
_names_of_handles: dict[int, str] = {}


def feature_set_handle(name: str) -> int:
    """The integer that identifies a feature set in `torch.ops.nnue.expand_features` and `expand_features_into`.

    It is a hash of the name, the same in every process, so graphs may keep it. A process that runs such a graph without
    this module's functions calls this one first; sets that are built in need no call. Whether there is such a set is
    checked when it is used.
    """
    if name not in _handles:
        with _disable_current_modes():  # the caller may be tracing with tensors that have no data
            given = _library.as_bytes(name)
            handle = int(torch.ops.nnue.name_feature_set(given))
            if _library.require().cuda_error is None:
                torch.ops.nnue.name_cuda_feature_set(given)
        _names_of_handles[handle] = name
        _handles[name] = handle
    return _handles[name]


feature_set_handle._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compiler.assume_constant_result


def _expect_records(records: Tensor) -> None:
    _registration.expect(EXPAND, "records", records.dim() == 2, f"{records.dim()} dimensions", "shape [B, 32]")
    _registration.expect(EXPAND, "records", records.dtype == torch.uint8, records.dtype, "uint8")


def _expand_fake(records: Tensor, feature_set: int, check_records: bool = True) -> tuple[Tensor, ...]:
    from nnue_trainer.data.features import BASIC_FEATURE_SETS
    from nnue_trainer.data.features import feature_set as described

    _expect_records(records)
    if feature_set not in _names_of_handles:
        for name in BASIC_FEATURE_SETS:
            feature_set_handle(name)
    known = feature_set in _names_of_handles
    _registration.expect(
        EXPAND, "feature_set", known, f"the unknown handle {feature_set}", "one of ops.feature_set_handle"
    )
    rows = records.shape[0]
    shapes = ((rows, described(_names_of_handles[feature_set]).max_active),) * 2 + ((rows,),) * 6
    return tuple(records.new_empty(shape, dtype=dtype) for shape, dtype in zip(shapes, _EXPANDED_DTYPES, strict=True))


def _expand_into_fake(records: Tensor, feature_set: int, fields: Sequence[Tensor], check_records: bool = True) -> None:
    _expect_records(records)


_registration.register_fakes({EXPAND: _expand_fake, EXPAND_INTO: _expand_into_fake})
_registration.register_vmap(EXPAND)
_registration.register_vmap(
    EXPAND_INTO, _registration.refuse(EXPAND_INTO, "vmap", "call ops.expand_features, which returns new tensors")
)


def expand_features(records: Tensor, feature_set: str, *, check_records: bool = True) -> Expanded:
    """Expands packed positions into the index rows of both perspectives; bit-equal to `nnue_trainer.data.expand`.

    Args:
        records: uint8 [B, 32], positions as binpack files and `nnue_trainer.data.RecordLoader` hold them.
        feature_set: a name such as "HalfKAv2_hm" or "HalfKAv2_hm+Full_Threats_v16" (`nnue_trainer.data.feature_set`).
            A set in a C++ header must be known (call that function first). Sets in Python are not for operators.
        check_records: on CUDA, report a record that is not a position; see `set_index_check`. Use False for records
            that are known to be valid, such as a loader's; an invalid one gets empty rows. The CPU always checks.

    Returns:
        New tensors on the device of `records`.

    Raises:
        RuntimeError: `records` has the wrong shape or dtype, or holds something that is not a position (the error gives
            row and reason), or there is no such feature set.
    """
    _prepare(records, feature_set)
    return Expanded(*torch.ops.nnue.expand_features(records, feature_set_handle(feature_set), check_records))


def expand_features_into(records: Tensor, feature_set: str, out: Expanded, *, check_records: bool = True) -> None:
    """`expand_features` into existing tensors: contiguous, with the same shapes and dtypes, on the same device.

    `records` uint8 [B, 32] and errors are as for `expand_features`.
    """
    _prepare(records, feature_set)
    torch.ops.nnue.expand_features_into(records, feature_set_handle(feature_set), list(out), check_records)


def _prepare(records: Tensor, feature_set: str) -> None:
    """A set in a user's header is compiled for CUDA at its first use there."""
    if records.is_cuda and ":" in feature_set and not torch.compiler.is_compiling():
        from nnue_trainer.data.features import feature_set as described

        described(feature_set).prepare(records.device)
