"""Actions at the start and end of a run, at epochs, validations and saves. `base` has their class and the registry."""

from nnue_trainer.callbacks.base import CALLBACKS, Callback

__all__ = ["CALLBACKS", "Callback"]
