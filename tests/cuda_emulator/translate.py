"""The CUDA sources of some operators as C++, to be built with emulator.cpp: tests of the kernels without a GPU.

    python tests/cuda_emulator/translate.py CSRC OUT

Copies CSRC to OUT and changes what a C++ compiler does not support: launches, dynamic shared memory, and functions that
consist of inline assembly, whose place the functions of the same name in instructions.h take. The operators are
registered as torch.ops.nnue_emulated, on CPU tensors.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

SCHEMA = re.compile(r'm\.def\(\s*((?:"[^"]*"\s*)+)\);')


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*", "", text)


def blocks(text: str) -> list[tuple[int, int]]:
    """(begin, end) of all braces, inner ones first."""
    found, stack = [], []
    for i, c in enumerate(text):
        if c == "{":
            stack.append(i)
        elif c == "}":
            found.append((stack.pop(), i + 1))
    return found


def header(text: str, brace: int) -> str:
    begin = max(text.rfind(c, 0, brace) for c in ";}{")
    return text[begin + 1 : brace]


def split_commas(text: str) -> list[str]:
    parts, depth, now = [], 0, ""
    for c in text:
        depth += (c in "(<[") - (c in ")>]")
        if c == "," and depth == 0:
            parts.append(now)
            now = ""
        else:
            now += c
    return [p.strip() for p in [*parts, now] if p.strip()]


def parameter_name(parameter: str) -> str:
    parameter = parameter.split("=")[0]
    match = re.search(r"\(&(\w+)\)", parameter) or re.search(r"(\w+)\s*(?:\[\w*\])?\s*$", parameter)
    assert match, parameter
    return match[1]


def body_of(head: str, name: str, parameters: str) -> str:
    template = re.search(r"template\s*<([^>]*)>", head)
    values = f"<{', '.join(parameter_name(p) for p in split_commas(template[1]))}>" if template else ""
    arguments = ", ".join(parameter_name(p) for p in split_commas(parameters))
    return f"{{ return emulated::{name}{values}({arguments}); }}"


def without_assembly(text: str) -> str:
    while match := re.search(r"\basm\b", text):
        at = match.start()
        for begin, end in sorted((b for b in blocks(text) if b[0] < at < b[1]), reverse=True):
            head = header(text, begin)
            function = re.search(r"(\w+)\s*\(([^{}]*)\)\s*(?:const)?\s*$", head)
            if function and "__device__" in head:
                text = text[:begin] + body_of(head, function[1], function[2]) + text[end:]
                break
        else:
            sys.exit(f"translate: found {text[at : at + 80]!r}, expected a __device__ function around it")
    return text


# Limits between two ways to do the same, by file (and folder, where two have the name), for cases of a few tiles to go
# both ways.
SMALL_LIMITS = {
    "backward_wgmma.cuh": {"kShareTiles": "6", "kFewLists": "64"},
    "first_layer_backward.cuh": {"kUnitsAhead": "2"},
    "group_features.cuh": {"kMost": "512"},
    "forward_wgmma_16bit.cuh": {"kFewestItems": "2"},
    "gather.cuh": {"kGatherThreads": "128"},
    "portable/plan.cuh": {"kShortestPiece": "4"},
    "feature_transformer_kernels.cuh": {"kLongList": "8"},
    "backward.cuh": {"kFewestPartSlots": "16"},
    "scan.cuh": {"kThreads": "64"},
    "rolling_kernels.cuh": {"kRollThreads": "64", "kLongestInRing": "1300"},
    "quantile_kernels.cuh": {"kMostSorted": "512", "kLongMatrix": "1 << 10"},
}


def with_small_limit(text: str, name: str, limit: str) -> str:
    text, found = re.subn(rf"(constexpr int (?:\w+ = \w+, )?{name} =) [\w <]+;", rf"\g<1> {limit};", text)
    if found != 1:
        sys.exit(f"translate: found {found} definitions of {name}, expected one")
    return text


def translate(text: str) -> str:
    text = without_assembly(without_comments(text))
    text = re.sub(
        r"extern\s+__shared__\s+(?:__align__\(\s*\d+\)\s*)?(\w+)\s+(\w+)\[\];",
        r"\1* const \2 = reinterpret_cast<\1*>(emulator::dynamic_shared());",
        text,
    )
    text = re.sub(
        r"([\w:]+(?:<[\w:, ]*>)?)<<<((?:[^<>]|<(?!<)|>(?!>>))*)>>>\(",
        lambda m: f"emulator::launch_kernel({m[1]}, {m[2]}, ",
        text,
        flags=re.S,
    )
    # ptx::launch_early
    begin = text.find("cudaError_t launch_early(")
    if begin >= 0:
        first, last = next(b for b in sorted(blocks(text)) if b[0] > begin)
        text = (
            text[:first]
            + "{ emulator::launch(grid, block, shared, true, [=] { kernel(parameters...); }); return cudaSuccess; }"
            + text[last:]
        )
    return text


# The sources that become operators on the CPU, below cuda/.
SOURCES = (
    "feature_transformer.cu",
    "perspective_transformer.cu",
    "hopper/bucketed.cu",  # called by the one above, as is the next
    "portable/portable.cu",
    "stacks/layer_stacks.cu",
    "stacks/one_output.cu",
    "step/optimizer.cu",
    "step/integers.cu",
    "step/muon.cu",
    "stats/rolling.cu",
    "stats/rolling_moments.cu",
    "stats/quantile.cu",
    "stats/ewm.cu",
    "stats/random.cu",
    "stats/matrix.cu",
    "stats/graph.cu",
)


def operators(text: str, library: str) -> str:
    """A source with operators on CPU tensors, in a library with its own name."""
    text = text.replace("Device::cuda", "Device::cpu")
    text = re.sub(r"const torch::stable::accelerator::DeviceGuard guard\([^;]*;", "", text)
    text = text.replace("STABLE_TORCH_LIBRARY_IMPL(nnue, CUDA, m)", "STABLE_TORCH_LIBRARY_IMPL(nnue_emulated, CPU, m)")
    text = text.replace(
        "STABLE_TORCH_LIBRARY_IMPL(nnue, Composite", "STABLE_TORCH_LIBRARY_IMPL(nnue_emulated, Composite"
    )
    text = re.sub(r'\n *NNUE_IMPL\(m, "\w+_(available|kernels)".*', "", text)  # which needs a device
    names = re.findall(r'NNUE_IMPL\(m, "(\w+)"', text)
    schemas = [m[0] for m in SCHEMA.finditer(library) if any(f'"{name}(' in m[0] for name in names)]
    assert len(schemas) == len(names), schemas
    if not names:
        return text
    return text + "\nSTABLE_TORCH_LIBRARY_FRAGMENT(nnue_emulated, m) {\n" + "\n".join(schemas) + "\n}\n"


def translated_files(root: Path) -> dict[Path, str]:
    """The translated files by their paths below OUT."""
    files = {path.relative_to(root): path.read_text() for path in root.glob("*.h")}
    for path in (root / "cuda").rglob("*.cuh"):
        text = translate(path.read_text())
        limits = SMALL_LIMITS.get(path.name, SMALL_LIMITS.get(f"{path.parent.name}/{path.name}", {}))
        for name, limit in limits.items():
            text = with_small_limit(text, name, limit)
        if path.name == "common.cuh":
            begin = text.index("cudaStream_t current_stream(")
            first, last = next(b for b in sorted(blocks(text)) if b[0] > begin)
            text = text[:first] + "{ return nullptr; }" + text[last:]
            # Before what an operator has allocated goes out of scope.
            text = text.replace(
                "    if (error == cudaSuccess) return;",
                "    emulator::synchronize();\n    if (error == cudaSuccess) return;",
                1,
            )
        include = '#include "instructions.h"\n' if path.name == "ptx.cuh" else ""
        files[path.relative_to(root)] = text.replace("#pragma once\n", "#pragma once\n" + include, 1)
    library = "".join((root / name).read_text() for name in ("library.cpp", "stats_library.cpp"))
    for name in SOURCES:
        text = operators(translate((root / "cuda" / name).read_text()), library)
        files[(Path("cuda") / name).with_suffix(".cpp")] = text
    return files


def main() -> int:
    root, out = Path(sys.argv[1]), Path(sys.argv[2])
    files = translated_files(root)
    for old in (path for path in out.rglob("*") if path.is_file() and path.relative_to(out) not in files):
        old.unlink()
    for name, text in files.items():
        target = out / name
        if target.is_file() and target.read_text() == text:
            continue  # its time stays, so that ninja compiles only what has changed
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
