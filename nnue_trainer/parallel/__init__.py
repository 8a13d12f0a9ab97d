"""One training on several GPUs, in as many processes: all code that deals with more than one process.

`ranks.py`: the processes, what they exchange and agree on; `watch.py`: how they end together; `division.py`: who has
what of the net and of a batch; `split.py`: columns of tensors. docs/training.md says what users see of it.
"""

import os


def is_first() -> bool:
    """Whether this process is the one of the run that prints and writes. Of processes that torchrun has started it is
    the one of rank 0."""
    return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"
