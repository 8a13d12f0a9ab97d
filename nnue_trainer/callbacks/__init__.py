"""What happens at the moments of a run. `base` has the class of all callbacks and the registry."""

from nnue_trainer.callbacks.base import CALLBACKS, Callback

__all__ = ["CALLBACKS", "Callback"]
