"""Everything in a Python object that may affect its next steps, as tensors and JSON.

Optimisers of other packages keep their state anywhere: in `state`, in `param_groups`, in attributes, in an
optimiser that they wrap. `capture` walks all of it. Values that the constructor made and that did not change are left
out, so that a changed recipe takes effect in a resumed run; the rest is restored in place, so that objects which share
a list still do.
"""

from __future__ import annotations

import enum
import functools
import json
import logging
import math
import re
import types
import weakref
from collections import deque
from collections.abc import Mapping, Set
from typing import Any

import torch
from torch import Tensor

TEXT = "rule.json"
"""Name of the tensor, uint8, whose bytes are the JSON."""
Node = dict[str, Any]
_KEEP: Node = {"keep": True}
_DEEPEST = 16
_SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "deque": deque, "set": set, "frozenset": frozenset}
_CODE = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type, torch.dtype, torch.device,
    torch.layout, enum.Enum, logging.Logger, re.Pattern, weakref.ref,
)  # fmt: skip


@functools.cache
def _of_torch() -> Set[str]:
    """The names of the attributes that torch adds to every optimiser. The first optimiser of torch in a process imports
    torch._dynamo, which takes seconds, so it is not made when this module is imported."""
    parameter = torch.zeros(1, dtype=torch.float32, device="cpu")
    return vars(torch.optim.SGD([parameter], lr=1.0)).keys() - {"state", "param_groups"}


class Captured:
    """The content of `thing`: `node` is plain JSON data, `tensors` by name those that it refers to, not copies. Tensors
    in the state of a parameter are named `KEY/PARAMETER`.

    Args:
        thing: an optimiser, or any other object.
        parameters: what it trains, by name.
        ours: a tensor in it that the caller sets by himself, such as the learning rate.

    ValueError for something in it that is neither data nor code, which a file cannot hold.
    """

    def __init__(self, thing: object, parameters: Mapping[str, Tensor], ours: Tensor) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._parameters = parameters
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._ours = ours
        self._nodes: dict[int, Node] = {}  # of tensors, lists, dicts and objects by identity
        self._alive: list[Any] = []  # no identity is used twice
        self.node = self._encode(thing, (), None)

    def _encode(self, value: Any, place: tuple[str, ...], of: str | None) -> Node:
        """`of`: the parameter whose state this is part of."""
        if value is None or isinstance(value, bool | str) or type(value) is int:
            return {"value": value}
        if isinstance(value, float):
            return {"value": float(value)} if math.isfinite(value) else {"float": str(float(value))}
        if value is self._ours or isinstance(value, _CODE):
            return {"code": getattr(value, "__qualname__", type(value).__qualname__)}
        if isinstance(value, Tensor) and id(value) in self._names:
            return {"parameter": self._names[id(value)]}
        if id(value) in self._nodes:
            known = self._nodes[id(value)]
            return known if isinstance(value, Tensor) else {"same": known["place"]}
        if len(place) > _DEEPEST:
            raise ValueError(f"{'.'.join(place[:4])}… is nested more than {_DEEPEST} levels deep")
        self._alive.append(value)
        if isinstance(value, torch.Generator):
            return {"generator": self._tensor(value.get_state(), place, of)}
        if isinstance(value, Tensor):
            self._nodes[id(value)] = self._tensor(value, place, of)
            return self._nodes[id(value)]
        self._nodes[id(value)] = node = {"place": "/".join(place) if of is None else f"{'/'.join(place)}/{of}"}
        node |= self._container(value, place, of)
        return node

    def _container(self, value: Any, place: tuple[str, ...], of: str | None) -> Node:
        if isinstance(value, dict):
            return {"dict": [self._entry(key, inner, place, of) for key, inner in value.items()]}
        for kind, sequence in _SEQUENCES.items():
            if isinstance(value, sequence):
                ordered = sorted(value, key=repr) if kind in ("set", "frozenset") else value
                return {kind: [self._encode(each, (*place, str(n)), of) for n, each in enumerate(ordered)]}
        if not hasattr(value, "__dict__"):
            what = f"{type(value).__module__}.{type(value).__qualname__}"
            raise ValueError(f"{'.'.join(place)} is a {what}, expected numbers, text, tensors, lists, dicts or objects")
        left_out: Set[str] = _of_torch() if isinstance(value, torch.optim.Optimizer) else set()
        inside = {name: each for name, each in vars(value).items() if name not in left_out}
        return {"object": {name: self._encode(each, (*place, name), of) for name, each in inside.items()}}

    def _entry(self, key: Any, value: Any, place: tuple[str, ...], of: str | None) -> tuple[Node, Node]:
        if isinstance(key, Tensor) and id(key) in self._names:  # the state of a parameter is named after it
            name = self._names[id(key)]
            return {"parameter": name}, self._encode(value, place, name)
        if not isinstance(key, bool | int | float | str | None):
            raise ValueError(f"{'.'.join(place)} has a key of type {type(key).__qualname__}, expected text or a number")
        return {"value": key}, self._encode(value, (*place, str(key)), of)

    def _tensor(self, tensor: Tensor, place: tuple[str, ...], of: str | None) -> Node:
        inner = ".".join(place[1:] if place[:1] == ("state",) else place)
        name = inner if of is None else f"{inner}/{of}"
        while name in self.tensors:
            name = f"other {name}"
        self.tensors[name] = tensor.detach()
        on_host = self._ours.is_cuda and not tensor.is_cuda
        node = {"tensor": name, "on": "host" if on_host else self._ours.device.type}
        # Several processes may each have some columns of a parameter, and of its state.
        alike = of is not None and tensor.shape == self._parameters[of].shape
        return node | ({"like": of} if alike else {"shape": list(tensor.shape)})


def without(node: Node, initial: Node) -> Node:
    """`node` less everything that is as it was in `initial`. Tensors stay: they may have been written in place."""
    if node == initial and not _tensors_of(node):
        return _KEEP
    if "object" in node and "object" in initial:
        before = initial["object"]
        left = {name: without(each, before.get(name, {})) for name, each in node["object"].items()}
        return {**node, "object": {name: each for name, each in left.items() if each != _KEEP}}
    if "dict" in node and "dict" in initial:
        known = {json.dumps(key): each for key, each in initial["dict"]}
        pairs = [(key, without(each, known.pop(json.dumps(key), {}))) for key, each in node["dict"]]
        return {
            **node,
            "dict": [pair for pair in pairs if pair[1] != _KEEP],
            "gone": [json.loads(key) for key in known],
        }
    if "list" in node and "list" in initial and len(node["list"]) == len(initial["list"]):
        return {**node, "list": [without(*pair) for pair in zip(node["list"], initial["list"], strict=True)]}
    return node


def restore(
    thing: object, node: Any, tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor], *, counts_on_host: bool
) -> None:
    """Makes `thing`, which is as its constructor left it, what it was when `node` and `tensors` were captured.
    `counts_on_host`: whether single numbers of a run on a CPU lie there too when `thing` is on another device.
    ValueError names a tensor that is missing, unknown or of another shape."""
    wanted = _tensors_of(node)
    for name in sorted(wanted.keys() ^ tensors.keys()):
        raise ValueError(f"tensor {name} is {'missing' if name in wanted else 'unknown'}")
    for name, entry in wanted.items():
        like = parameters.get(entry.get("like", ""))
        shape = entry.get("shape") if like is None else list(like.shape)
        if list(tensors[name].shape) != shape:
            raise ValueError(f"tensor {name} has shape {list(tensors[name].shape)}, expected {shape}")
    try:
        _Restoring(tensors, parameters, counts_on_host).decode(node, thing)
    except (AttributeError, ArithmeticError, LookupError, RecursionError, RuntimeError, TypeError) as error:
        raise ValueError(f"tensor {TEXT} does not fit: {type(error).__name__}: {error}") from None


class _Restoring:
    def __init__(self, tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor], counts_on_host: bool) -> None:
        self._tensors, self._parameters, self._counts_on_host = tensors, parameters, counts_on_host
        self._device = next(iter(parameters.values())).device
        self._made: dict[str, Any] = {}  # tensors by name, and containers by place

    def decode(self, node: Node, existing: Any) -> Any:
        """The object that `node` stands for; `existing` is in its place now, and is changed where that is possible."""
        if node == _KEEP or "code" in node:
            return existing
        if "value" in node:
            return node["value"]
        if "float" in node:
            return float(node["float"])
        if "parameter" in node:
            return self._parameters[node["parameter"]]
        if "tensor" in node:
            return self._tensor(node, existing)
        if "generator" in node:
            existing.set_state(self._tensors[node["generator"]["tensor"]].cpu())
            return existing
        if "same" in node:
            return self._made.get(node["same"], existing)
        kind = next(kind for kind in ("object", "dict", *_SEQUENCES) if kind in node)
        if kind == "object":
            if type(existing).__dict__.get("__dict__") is None and not hasattr(existing, "__dict__"):
                raise TypeError(
                    f"{node['place']}: found {type(existing).__name__}, expected an object as when it was saved"
                )
            self._made[node["place"]] = existing
            for name, each in node["object"].items():
                value = self.decode(each, vars(existing).get(name))
                vars(existing)[name] = value
            return existing
        if kind == "dict":
            whole = existing if isinstance(existing, dict) else {}
            self._made[node["place"]] = whole
            if "gone" not in node:
                stay = [self.decode(key, None) for key, _ in node["dict"]]
                for key in [key for key in whole if not any(key is other or _same(key, other) for other in stay)]:
                    del whole[key]
            for key, _ in ((self.decode(key, None), None) for key in node.get("gone", ())):
                whole.pop(key, None)
            for key, each in node["dict"]:
                name = self.decode(key, None)
                whole[name] = self.decode(each, whole.get(name))
            return whole
        before = list(existing) if isinstance(existing, _SEQUENCES[kind]) else []
        before += [None] * len(node[kind])
        if kind not in ("list", "deque"):
            return _SEQUENCES[kind](map(self.decode, node[kind], before))
        whole = existing if isinstance(existing, _SEQUENCES[kind]) else _SEQUENCES[kind]()
        self._made[node["place"]] = whole
        made = list(map(self.decode, node[kind], before))
        whole.clear()
        whole.extend(made)
        return whole

    def _tensor(self, node: Node, existing: Any) -> Tensor:
        name = node["tensor"]
        if name not in self._made:
            saved = self._tensors[name]
            fits = isinstance(existing, Tensor) and existing.shape == saved.shape and existing.dtype == saved.dtype
            if fits:
                existing.detach().copy_(saved)
                self._made[name] = existing
            else:
                host = node["on"] == "host" or (node["on"] == "cpu" and self._counts_on_host and saved.dim() == 0)
                self._made[name] = saved.detach().to("cpu" if host else self._device, copy=True)
        made: Tensor = self._made[name]
        return made


def _same(one: Any, other: Any) -> bool:
    return not isinstance(one, Tensor) and not isinstance(other, Tensor) and bool(one == other)


def _tensors_of(node: Any) -> dict[str, Node]:
    """The nodes of tensors in `node`, by name."""
    found: dict[str, Node] = {}
    left = [node]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            if isinstance(each.get("tensor"), str):
                found[each["tensor"]] = each
            left.extend(each.values())
        elif isinstance(each, list | tuple):
            left.extend(each)
    return found


def to_tensor(node: Node) -> Tensor:
    """The JSON text of `node`."""
    return torch.tensor(list(json.dumps(node, allow_nan=False).encode()), dtype=torch.uint8, device="cpu")


def from_tensor(text: Tensor) -> Any:
    """The inverse of `to_tensor`; ValueError for other bytes."""
    try:
        return json.loads(bytes(text.to(torch.uint8).flatten().tolist()))
    except (ValueError, RecursionError):
        raise ValueError(f"tensor {TEXT} is not JSON") from None
