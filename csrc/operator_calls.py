"""Writes nnue/operator_calls.h: a C++ function for each operator of library.cpp and stats_library.cpp.

The schemas are the one list of arguments, for Python, for the dispatcher and, through this file, for programs in C++.
setup.py calls `write` with each build.
"""

import re
from pathlib import Path

HERE = Path(__file__).resolve().parent

ARGUMENTS = {
    "Tensor": "const at::Tensor&",
    "Tensor?": "const std::optional<at::Tensor>&",
    "Tensor[]": "at::TensorList",
    "int": "int64_t",
    "int[]": "at::IntArrayRef",
    "float": "double",
    "float[]": "at::ArrayRef<double>",
    "bool": "bool",
    "bool?": "std::optional<bool>",
    "bool[3]": "std::array<bool, 3>",
    "ScalarType": "at::ScalarType",
    "ScalarType?": "std::optional<at::ScalarType>",
}
RESULTS = {"Tensor": "at::Tensor", "int": "int64_t", "bool": "bool"}
DEFAULTS = {"None": "std::nullopt", "True": "true", "False": "false"}

HEAD = """\
// Calls of the operators, generated from their schemas (csrc/library.cpp, stats_library.cpp) by
// csrc/operator_calls.py. Contracts: the headers of csrc/ that these files name. No derivatives: operators.h has them.
// Templates, so that a program compiles those that it calls.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <array>
#include <optional>
#include <string>
#include <tuple>

namespace nnue::calls {

template <class Function>
auto find(const char* name) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}
"""


def schemas() -> list[str]:
    """The schemas of all operators."""
    text = "".join((HERE / name).read_text(encoding="utf-8") for name in ("library.cpp", "stats_library.cpp"))
    found = re.findall(r'm\.def\(((?:\s*"[^"]*")+)\s*\)', text)
    return ["".join(re.findall(r'"([^"]*)"', text)) for text in found]


def _default(value: str) -> str:
    if value.startswith("["):
        return "{" + ", ".join(_default(part.strip()) for part in value[1:-1].split(",")) + "}"
    return DEFAULTS.get(value, value)


def call(schema: str) -> str:
    """The C++ function that calls an operator."""
    matched = re.fullmatch(r"(\w+)\((.*?)\) *-> *(.+)", schema)
    if matched is None:
        raise SystemExit(f"csrc/operator_calls.py: schema {schema!r}: expected name(arguments) -> results")
    name, arguments, results = matched.groups()
    types, declared, passed = [], [], []
    for argument in re.split(r", (?![^\[]*\])", arguments) if arguments else []:
        # "Tensor(a!)" is changed in place. The caller passes it as any other: a tensor is a reference.
        kind, _, rest = re.sub(r"\(\w!\)", "", argument).partition(" ")
        word, _, default = rest.partition("=")
        types.append(ARGUMENTS[kind])
        declared.append(f"{ARGUMENTS[kind]} {word}" + (f" = {_default(default)}" if default else ""))
        passed.append(word)
    kinds = [part.split()[0] for part in results.strip("()").split(", ") if part]
    returned = [RESULTS[kind] for kind in kinds]
    result = returned[0] if len(returned) == 1 else f"std::tuple<{', '.join(returned)}>" if returned else "void"
    return f"""
inline constexpr const char* {name}_name = "nnue::{name}";
template <class = void>
{result} {name}({", ".join(declared)}) {{
    static const auto op = find<{result}({", ".join(types)})>({name}_name);
    return op.call({", ".join(passed)});
}}
"""


def write(header: Path) -> None:
    """Writes the header, unless it has this text already."""
    calls = [call(schema) for schema in schemas()]
    text = HEAD + "".join(calls) + "\n}  // namespace nnue::calls\n"
    if not header.is_file() or header.read_text(encoding="utf-8") != text:
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(text, encoding="utf-8")
