"""Values with the narrower type that a test relies on. Each function checks it."""

from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor

from nnue_trainer.data import Batch

T = TypeVar("T")


def present(value: T | None) -> T:
    """The value, which is not None."""
    assert value is not None
    return value


def instance(kind: type[T], value: object) -> T:
    """The value, which is of this class."""
    assert isinstance(value, kind), type(value)
    return value


def grad_of(tensor: Tensor | None) -> Tensor:
    """The gradient that the tensor has."""
    return present(present(tensor).grad)


def batch_from(tensors: Mapping[str, Tensor]) -> Batch:
    """A batch of tensors by the names of its fields, each with its own memory."""
    fields: dict[str, Any] = dict(tensors)
    return Batch(**fields)
