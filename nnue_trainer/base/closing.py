"""Objects that are closed at the end of a `with` statement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """A context that calls `close` at its end."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of what the object holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
