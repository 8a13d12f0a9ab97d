"""A device "fake", which torch treats as a GPU: tensors on it and on the CPU cannot be mixed. It computes on the CPU,
in wrapped tensors. `calls` counts the operators that ran on it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_map_only

calls: Counter[str] = Counter()


class FakeTensor(torch.Tensor):
    """A tensor on the device; `held` is its value on the CPU."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> FakeTensor:
        made: FakeTensor = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=torch.device("fake", 0),
        )  # fmt: skip
        made.held = held
        return made

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"fake {self.held!r}"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = dict(kwargs or {})
        calls[str(func)] += 1
        to_host = kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cpu"
        if kwargs.get("device") is not None:
            kwargs["device"] = "cpu"
        name = func._schema.name
        if name not in ("aten::copy_", "aten::_to_copy"):
            for each in (*args, *kwargs.values()):
                mixed = type(each) is torch.Tensor and each.dim() > 0
                assert not mixed, f"{name}: tensors on the CPU and on the device"
        held = tree_map_only(FakeTensor, lambda tensor: tensor.held, (args, kwargs))
        result = func(*held[0], **held[1])
        alias = func._schema.arguments[0].alias_info if func._schema.arguments else None
        if alias is not None and alias.is_write:
            return args[0]
        return result if to_host else tree_map_only(torch.Tensor, wrap, result)


def wrap(held: torch.Tensor) -> FakeTensor:
    return held if isinstance(held, FakeTensor) else FakeTensor(held)


def register() -> None:
    backend_registration._setup_privateuseone_for_python_backend("fake")
    module: Any = torch.get_device_module("fake")
    module.get_amp_supported_dtype = lambda: [torch.bfloat16]

    @torch.library.impl("aten::empty.memory_format", "PrivateUse1")
    def empty(
        size: Any,
        dtype: Any = None,
        layout: Any = None,
        device: Any = None,
        pin_memory: Any = None,
        memory_format: Any = None,
    ) -> FakeTensor:
        return FakeTensor(torch.empty(size, dtype=dtype))

    @torch.library.impl("aten::empty_strided", "PrivateUse1")
    def empty_strided(
        size: Any, stride: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
    ) -> FakeTensor:
        return FakeTensor(torch.empty_strided(size, stride, dtype=dtype))

    # Torch's own would resize an empty tensor, which a wrapper cannot do.
    for name in ("aten::arange", "aten::arange.start", "aten::arange.start_step"):

        @torch.library.impl(name, "PrivateUse1")
        def arange(*limits: Any, dtype: Any = None, **_: Any) -> FakeTensor:
            return FakeTensor(torch.arange(*limits, dtype=dtype))
