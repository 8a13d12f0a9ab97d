"""Training one net on several GPUs, with one process for each GPU.

`ranks.py`: the processes, their exchanges and their common decisions; `watch.py`: how they end together; `sharding.py`:
how they divide the net and the batches; `split.py`: how a tensor is split into columns. docs/several-gpus.md
describes it for users.
"""

import os


def is_first() -> bool:
    """Whether this process prints and writes files: the process of rank 0 under torchrun, or any process without
    torchrun."""
    return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"
