"""Feature sets in users' C++ headers, `my_features.h:MySet`. They are compiled once, at their first use.

The header holds a struct with four functions (data_loader/features/general_set.h states which). It is compiled with the
compiler of this machine: for the CPU with g++ or clang++, and with nvcc when a CUDA device is to expand. Libraries are
kept in the user's cache folder, under a name that is a hash of every file they are made of, of the compiler and its
options: what has changed is compiled again, and nothing else is.

A header is only ever read because a recipe in hand or `--plugin` names it (nnue_trainer/registry.py).
"""

from __future__ import annotations

import contextlib
import platform
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from nnue_trainer import _data
from nnue_trainer.base import _library
from nnue_trainer.base.progress import Unfailing
from nnue_trainer.data.feature_sets.base import Features
from nnue_trainer.data.feature_sets.view import View
from nnue_trainer.errors import UserError, first_line, shown
from nnue_trainer.files import compile_once
from nnue_trainer.schema import section

_PROJECT = Path(__file__).resolve().parents[3]
_WHAT = "feature sets in C++ headers"

# The text of the user's header stands in the unit itself: an #include in it would search the header's own folder first,
# where a copy of `features/` for nnue.h would be taken for the package's.
_CPU_SOURCE = """\
#include "features/general_set.h"
#line 1 "{header}"
{text}
#line 4 "set"
extern "C" {{
__attribute__((visibility("default"))) extern const nnue::data::CompiledSet nnue_feature_set;
}}
const nnue::data::CompiledSet nnue_feature_set{{nnue::data::kCompiledSetVersion,
    nnue::data::GeneralSetCheck<::{struct}>::kIs, nnue::data::append_general<::{struct}>}};
"""

_CUDA_SOURCE = """\
#include "cuda/general_set.cuh"
#line 1 "{header}"
{text}
#line 4 "set"
extern "C" __attribute__((visibility("default"))) cudaError_t nnue_append_features(
    const uint8_t* records, int64_t n, const nnue::data::AppendRows& rows, const nnue::cuda::FindingSink& sink,
    cudaStream_t stream) {{
    return nnue::cuda::launch_append<::{struct}>(records, n, rows, sink, stream);
}}
"""


class HeaderFeatures(Features):
    """A feature set of a header. The subclass for each struct is made by `load`."""

    header: ClassVar[Path]
    struct: ClassVar[str]

    def _sizes(self) -> tuple[int, ...]:
        ((_, _, *sizes, _, _),) = _data.describe_feature_set(self.name)
        return tuple(sizes)

    @property
    def num_features(self) -> int:
        return self._sizes()[0]

    @property
    def max_active(self) -> int:
        return self._sizes()[1]

    @property
    def bucket_size(self) -> int:
        return self._sizes()[2]

    @property
    def num_virtual(self) -> int:
        return self._sizes()[3]

    def indices(self, view: View) -> npt.NDArray[np.integer[Any]]:
        raise NotImplementedError("sets of headers are expanded by compiled code")

    def register(self) -> None:
        library = str(compiled(self.header, self.struct))
        _data.add_compiled_feature_set(self.name, library)
        if _library.load().cpu_error is None:
            torch.ops.nnue.add_feature_set(*map(_library.as_bytes, (self.name, library)))

    def prepare_cuda(self) -> bool:
        if _library.load().cuda_error is not None:
            return False
        devices = range(torch.cuda.device_count())
        architectures = sorted({"{}{}".format(*torch.cuda.get_device_capability(device)) for device in devices})
        try:
            nvcc = find_nvcc()
        except UserError as error:
            print(f"nnue: note: {shown(error)}: its index rows are made on the CPU", file=Unfailing(sys.stderr))
            return False
        cpu, cuda = compiled(self.header, self.struct), compiled_for_cuda(self.header, self.struct, architectures, nvcc)
        torch.ops.nnue.add_cuda_feature_set(*map(_library.as_bytes, (self.name, str(cpu), str(cuda))))
        return True


class _Structs(ModuleType):
    """The module that `registry.load_plugin` makes for a header; its attributes are the structs as classes, made on
    demand."""

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(name)
        self.path = path

    def __getattr__(self, name: str) -> Any:
        path: Path = self.__dict__["path"]
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = path.read_text(encoding="utf-8")
            if re.fullmatch(r"[A-Za-z_]\w*", name) and re.search(rf"\b(struct|class|using)\s+{name}\b", text):
                values = {"header": path, "struct": name, "__module__": self.__name__, "__annotations__": {}}
                values["__doc__"] = f"The feature set {name} of {path.name}."
                made: type = section(type(name, (HeaderFeatures,), values))
                setattr(self, name, made)
                return made
        raise AttributeError(name)


def load(path: Path, name: str) -> ModuleType:
    """The module for a header. Compiles nothing yet."""
    return _Structs(name, path)


# ---- compiling -------------------------------------------------------------------------------------------------------


def compiled(header: Path, struct: str) -> Path:
    """The shared library for the CPU. UserError if there is no compiler, or with its first errors."""
    compiler = compile_once.find_compiler(_WHAT)
    flags = ["-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", *_instruction_sets()]
    source = _CPU_SOURCE.format(header=_quotable(header), text=_text(header), struct=struct)
    return _library_of(header, struct, source, ".cpp", compiler, [*flags, "-shared"], "the CPU", compiler)


def compiled_for_cuda(header: Path, struct: str, architectures: list[str], nvcc: str) -> Path:
    """The shared library for CUDA devices of the compute capabilities, such as "90"."""
    flags = ["-std=c++20", "-O3", "--expt-relaxed-constexpr", "-shared", "-Xcompiler=-fPIC,-fvisibility=hidden"]
    flags += ["-cudart=static", *(f"-gencode=arch=compute_{a},code=sm_{a}" for a in architectures)]
    source = _CUDA_SOURCE.format(header=_quotable(header), text=_text(header), struct=struct)
    # The host compiler lists the files that it is made of, which is quicker and gives the same list.
    what = "CUDA " + ", ".join(f"{a[:-1]}.{a[-1]}" for a in architectures)
    return _library_of(header, struct, source, ".cu", [nvcc], flags, what, compile_once.find_compiler(_WHAT))


def find_nvcc() -> str:
    """nvcc of $CUDA_HOME, on PATH or in its usual place."""
    return compile_once.find_nvcc(_WHAT)[0]


def include_folders() -> list[Path]:
    """Where our headers are: in the package where it is installed, in the project where it is not."""
    installed = _PROJECT / "nnue_trainer" / "include"
    return [installed] if (installed / "features").is_dir() else [_PROJECT / "data_loader", _PROJECT / "csrc"]


def _instruction_sets() -> list[str]:
    """The options for the instruction set that the data library has chosen."""
    isa = _data.isa()
    if isa == "baseline" or platform.machine() != "x86_64":
        return []
    return ["-march=x86-64-v3", *(["-DNNUE_BMI2"] if isa == "avx2_bmi2" else [])]


def _quotable(header: Path) -> str:
    path = str(header.resolve())
    if re.search(r'["\\\n\r]', path):
        raise UserError(f"{header}: expected a path without quotes and backslashes, as compilers do")
    return path


def _text(header: Path) -> str:
    """The text of a header, to be compiled in the middle of a file."""
    try:
        text = header.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{header}: cannot be read as text: {first_line(error)}") from None
    return re.sub(r"(?m)^[ \t]*#[ \t]*pragma[ \t]+once\b.*$", "", text)


def _library_of(
    header: Path,
    struct: str,
    source: str,
    suffix: str,
    command: list[str],
    flags: list[str],
    what: str,
    host_compiler: list[str],
) -> Path:
    name = f"{header.name}:{struct}"
    includes = [f"-I{path}" for path in (*include_folders(), header.resolve().parent)]
    shorter = str(header.resolve()), str(header)
    return compile_once.library_of(
        name,
        "feature-sets",
        source,
        suffix,
        command,
        [*flags, *includes],
        target=what,
        prefix=f"{struct}-",
        made_of=lambda unit: _files_of(name, shorter, unit, host_compiler, includes),
        error_name=f"feature set {name}",
        shorter=shorter,
    )


def _files_of(name: str, shorter: tuple[str, str], unit: Path, compiler: list[str], includes: list[str]) -> list[Path]:
    """Every file that a unit includes, without the system's; their text goes into the library's name. UserError
    for a file that a header of the user's includes in place of the package's."""
    source = unit.with_name("files.cpp")
    own = [path for path in (folder / "cuda" for folder in include_folders()) if path.is_dir()]
    text = unit.read_text(encoding="utf-8")
    if unit.suffix == ".cu":
        text = text.replace('#include "cuda/general_set.cuh"', '#include "features/general_set.h"', 1)
    source.write_text(text, encoding="utf-8")
    kept = compile_once.included(compiler, ["-std=c++20", *includes], source, f"feature set {name}", shorter)
    folders = [folder.resolve() for folder in include_folders()]
    for path in (path.resolve() for path in kept):
        is_ours = any(path.is_relative_to(folder) for folder in folders)
        if not is_ours and any((folder / path.parent.name / path.name).is_file() for folder in folders):
            raise UserError(
                f"{name}: {path} is included in place of {path.parent.name}/{path.name} of nnue_trainer; move it away, "
                "or include it from the header itself only"
            )
    if unit.suffix == ".cu":
        kept += [folder / "general_set.cuh" for folder in own] + [folder / "index_check.cuh" for folder in own]
    return sorted(kept)
