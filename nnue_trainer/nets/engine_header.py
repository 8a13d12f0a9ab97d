"""The C++ header with the sizes of a net, for the inference of examples/engine."""

from __future__ import annotations

import re
from typing import Any

from nnue_trainer.data.feature_sets.header import HeaderFeatures
from nnue_trainer.data.features import FeaturePart, outside_set
from nnue_trainer.nets.base import Net
from nnue_trainer.nets.engine_sizes import piece_squares, rendered, table_of, variables_of
from nnue_trainer.nets.integer_forward import INT16_MAX, IntegerForward


def engine_header(
    net: Net, include: str = "nnue.h", namespace: str = "", *, skip: int = 0, align: int = 64
) -> str | None:
    """The header; None for a net without `integer_forward()`, or with parts that examples/engine does not have.
    `include` is the name of the inference in it, `namespace` one for what is declared.

    Raises:
        UserError: a feature set in Python that is not a table.
    """
    forward = net.integer_forward()
    if forward is None or not _is_known(forward):
        return None
    variables = variables_of(net, forward, skip, align)
    inputs: list[str] = []
    headers: dict[str, None] = {}
    for number, each in enumerate(variables["parts"]):
        known = _set(each["part"], f"Set{number}")
        if known is None or each["shape"] != (each["features"], variables["hidden"]):
            return None
        each |= known
        inputs.append(f"NNUE_NAMESPACE::Part<NNUE_NAMESPACE::{known['type']}, std::int{each['bits']}_t>")
        headers |= dict.fromkeys(known.get("headers", ()))
    return rendered("net.h.j2", **variables, include=include, namespace=namespace, inputs=inputs, headers=list(headers))


def _is_known(forward: IntegerForward) -> bool:
    """Whether the inference can hold the first activations: 15 bits, or products of two accumulators that stay apart
    and are the only inputs of those layers that read them, as the evaluator also requires."""
    first = forward.first
    if first.activation == "crelu" or (first.product_shift and first.largest <= INT16_MAX):
        return True
    return all(layer.inputs == (0,) or 0 not in layer.inputs for layer in forward.layers)


def _set(part: FeaturePart, struct: str) -> dict[str, Any] | None:
    """The type of a feature set in examples/engine/nnue.h, the numbers of the struct that it takes, and the headers
    that it needs; None for a set that examples/engine does not have."""
    name, plain = part.name, {"squares": None, "table": None}
    if name.startswith("Full_Threats_v"):
        return plain | {"type": f"Threats<NNUE_NAMESPACE::ThreatsV{name.removeprefix('Full_Threats_v')}>"}
    if name == "PP_3Wide":
        return plain | {"type": "PawnPairs"}
    outside = outside_set(name)
    if isinstance(outside, HeaderFeatures):
        headers = ["features/general_set.h", outside.header.name]
        return plain | {"type": f"General<::{outside.struct}, ::nnue::data::CodePlanes>", "headers": headers}
    if outside is not None:
        table = table_of(part, "nnue.h")
        number = "std::int16_t" if part.num_features <= INT16_MAX else "std::int32_t"
        numbers = {"table": table, "states": table.offsets.shape[1], "counters": table.counters, "number": number}
        return plain | numbers | {"type": f"Tabled<{struct}>", "struct": struct, "title": name}
    squares = piece_squares(part)
    if squares is None:
        return None
    numbers = {"squares": squares, "states": part.num_states, "counters": part.states}
    title = re.sub(",kings=[0-9.]+", "", name)
    return plain | numbers | {"type": f"PieceSquares<{struct}>", "struct": struct, "title": title}
