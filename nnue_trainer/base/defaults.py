"""The defaults of torch for new tensors, whatever a program around this package has set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def torch_defaults(device: torch.device | str = "cpu") -> Iterator[None]:
    """Within the block, and on this thread, new tensors are on `device` unless they name another one, and are float32
    unless they name another type. `torch.set_default_device` and `torch.set_default_dtype` have no effect on it.

    This package names the device of each tensor that it makes. The block is for other people's code that names none:
    torch's optimisers, nets and losses of users."""
    device, dtype = torch.device(device), torch.get_default_dtype()
    with ExitStack() as stack:
        if torch.get_default_device().type != device.type:
            stack.enter_context(device)
        if dtype != torch.float32:
            stack.callback(torch.set_default_dtype, dtype)
            torch.set_default_dtype(torch.float32)
        yield
