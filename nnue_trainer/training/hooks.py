"""The callbacks of one run: which of them are called for which event, and their state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnue_trainer.base.foreign import explaining, returned
from nnue_trainer.callbacks.base import Callback

_HOOKS = ("start", "step", "epoch", "validation", "save", "metrics", "end")


class Hooks:
    """Calls the callbacks of a run, in the order of the recipe; with `active` false none, as in processes that do not
    write."""

    def __init__(self, callbacks: Sequence[Callback], *, active: bool) -> None:
        self._callbacks = list(callbacks) if active else []
        self._by_hook = {
            hook: [
                getattr(callback, hook)
                for callback in self._callbacks
                if getattr(type(callback), hook) is not getattr(Callback, hook)
            ]
            for hook in _HOOKS
        }
        for callback in self._callbacks:
            callback.memory.clear()  # a recipe may be trained twice in one process

    def __contains__(self, hook: str) -> bool:
        """Whether any callback defines a method."""
        return bool(self._by_hook[hook])

    def call(self, hook: str, *arguments: Any) -> None:
        for method in self._by_hook[hook]:
            with explaining(method):
                value = method(*arguments)
            # A generator or a coroutine, for example, whose body never runs.
            returned(method.__self__, hook, value, value is None, "None")

    def state(self) -> list[dict[str, Any]]:
        """Their state, for a checkpoint."""
        return [{"kind": callback.kind, "memory": dict(callback.memory)} for callback in self._callbacks]

    def load(self, state: Sequence[dict[str, Any]]) -> None:
        """Gives back what callbacks remembered, by kind and order; of new ones nothing."""
        left = [dict(entry) for entry in state]
        for callback in self._callbacks:
            entry = next((entry for entry in left if entry.get("kind") == callback.kind), None)
            if entry is not None:
                left.remove(entry)
                callback.memory.update(entry.get("memory") or {})
