"""Containers of net files: layouts as data, LEB128, a bounded reader, a writer, our record of the architecture.

Nothing here depends on a net. A net (nnue_trainer/nets/) lists the layouts that its file may have; `reader` and
`writer` use them.
"""

from nnue_trainer.base import lazy

__all__ = ["formats"]

__getattr__ = lazy.attributes(__name__, {}, __all__)
