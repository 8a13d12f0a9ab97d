"""Builds the native parts of the package: four operator libraries and the data module.

_ops_cpu   csrc/library.cpp (op schemas) and csrc/cpu/; LibTorch stable ABI, loaded with torch.ops.load_library
_ops_cuda  csrc/cuda/; the same ABI; built when nvcc is found (FORCE_CUDA=0/1 overrides), never gated on a visible GPU
_stats_cpu, _stats_cuda  the same of statistics: csrc/stats_library.cpp, csrc/cpu/stats/ and csrc/cuda/stats/
_data      data_loader/; torch-free C++20 behind one pybind11 module
lib/       libnnue_data.a and .so, of the objects of _data that are not about Python: docs/cpp.md

Environment: FORCE_CUDA=0|1, NNUE_CUDA_ARCHS="75;80;86;90;100;120" (compute capabilities; csrc/cuda/hopper/ is built
only where 90 is among them), CUDA_HOME, CXX (e.g. "ccache g++"), LD, AR, PYTORCH_NVCC (e.g. "ccache nvcc"), MAX_JOBS.
Only commands that build extensions import torch: metadata and source distribution need only setuptools.
NNUE_NO_EXTENSIONS=1 installs only the Python files, for `make`, which builds the native parts in place. NNUE_PARTS=data
builds only _data and lib/, for which torch is not needed: `make` does it while it installs torch. NNUE_PARTS=stats
builds only the libraries of statistics, and NNUE_PARTS=training all others. NNUE_ISA=native compiles only for the
instruction sets of this CPU, in half the time: for `make quickstart`.
NNUE_LINEINFO=1 adds line numbers to the CUDA kernels.
"""

import logging
import os
import platform
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from itertools import dropwhile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

if os.name == "nt":
    sys.exit("torch-nnue does not build on Windows; use WSL2, as docs/install.md describes")

ROOT = Path(__file__).parent.resolve()

# Where the project is published: the one source is CITATION.cff.
REPOSITORY = re.search(r"^repository-code: *(\S+)", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
# No debug information, which would be most of a library, and no path of this machine, which messages would contain.
CXX_FLAGS = ["-O3", "-std=c++20", "-g0", f"-ffile-prefix-map={ROOT}/=", "-fvisibility=hidden", "-Wall", "-Wextra"]
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "nnue_trainer" / "__init__.py").read_text()).group(1)
# 2.10: the oldest torch whose stable ABI has all that csrc/ uses. Its headers leave parameters unused.
OPS_FLAGS = ["-DTORCH_TARGET_VERSION=0x020a000000000000", "-Wno-unused-parameter"]

# The lowest compute capability that has kernels.
OLDEST_GPU = 75

# Feature sets and records: one definition for the data pipeline, the CPU operator and the CUDA kernel.
SHARED_HEADERS = ("data_loader/base/*.h", "data_loader/chess/*.h", "data_loader/features/*.h")
SHARED_SOURCES = ("data_loader/base/*.cpp", "data_loader/features/*.cpp")


# The rooms of the data library.
DATA_ROOMS = ("chess", "evaluate", "features", "filters", "formats", "pipeline")

# Files of an installed package that lie elsewhere in a checkout, for C++ programs, for feature sets in a header of a
# user, and the sample positions: the root of the files, their folder in the package, and patterns.
FILES = (
    ("data_loader", "include", ("base/*.h", *(f"{room}/*.h" for room in DATA_ROOMS))),
    ("csrc", "include", ("activation.h", "philox.h", "host_device.h", "cuda/general_set.cuh", "cuda/index_check.cuh")),
    ("examples", "examples", ("data/*", "libtorch/*", "engine/*", "engine/features/*", "engine/rust/*", "extending/*")),
    ("samples", "samples", ("*.binpack",)),
)
PRIVATE_HEADERS = ("kernels_impl.h", "kernels_x86.h")


class BuildPy(build_py):
    """Puts these files into the package; not where it is built in place."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for root, folder, patterns in FILES:
            for path in (found for pattern in patterns for found in (ROOT / root).glob(pattern)):
                if path.name in PRIVATE_HEADERS or not path.is_file():
                    continue
                target = Path(self.build_lib) / "nnue_trainer" / folder / path.relative_to(ROOT / root)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
        relative_includes(Path(self.build_lib) / "nnue_trainer" / "include")


def relative_includes(root: Path) -> None:
    """Makes the headers below root include each other by relative paths.

    They are found first, so an engine may have a chess/types.h in its own include path.
    """
    for header in (path for path in root.rglob("*") if path.suffix in (".h", ".cuh")):

        def relative(found: re.Match[str], folder: Path = header.parent) -> str:
            target = root / found[1]
            return f'#include "{os.path.relpath(target, folder)}"' if target.is_file() else found[0]

        text = header.read_text()
        header.write_text(re.sub(r'^#include "([^"]+)"', relative, text, flags=re.MULTILINE))


def one_unit(name: str, paths: list[str]) -> str:
    """A source that includes these sources: most of a small source's compile time goes into headers."""
    unit = ROOT / "build" / "units" / f"{name}{Path(paths[0]).suffix}"
    write_if_new(unit, "".join(f'#include "{path}"\n' for path in paths))
    return str(unit.relative_to(ROOT))


def one_room(room: str) -> str:
    """All sources of a room of data_loader/. Its CMakeLists.txt, for the C++ tests, compiles each file separately."""
    return one_unit(room, [f"{room}/{path.name}" for path in sorted((ROOT / "data_loader" / room).glob("*.cpp"))])


def cpu_sources() -> list[str]:
    """The sources of the CPU operators. Those with kernels for instruction sets stay units of their own."""
    small = ("library.cpp", "cpu/capabilities.cpp", "cpu/enumerations.cpp", "cpu/integers.cpp")
    return with_one_unit("operators", small, sources("csrc/cpu/*.cpp", *SHARED_SOURCES))


def stats_cpu_sources() -> list[str]:
    """The sources of the CPU operators of statistics."""
    small = ("stats_library.cpp", "cpu/stats/enumerations.cpp", "cpu/stats/ewm.cpp", "cpu/stats/row_function.cpp")
    return with_one_unit("stats_cpu", small, sources("csrc/cpu/stats/*.cpp", "data_loader/base/*.cpp"))


def with_one_unit(name: str, small: tuple[str, ...], others: list[str]) -> list[str]:
    """A unit of these small files below csrc/, and the other sources."""
    return [one_unit(name, list(small)), *(path for path in others if path.removeprefix("csrc/") not in small)]


def cuda_sources(archs: list[str]) -> list[str]:
    """The sources of the CUDA operators for these GPUs, without those of statistics. One folder is one unit."""
    step, stats = (sources(f"csrc/cuda/{name}/*.cu") for name in ("step", "stats"))
    left_out = [*stats, *step, *([] if "90" in archs else sources(f"{HOPPER_FOLDER}*.cu"))]
    others = [path for path in sources("csrc/cuda/*.cu", "csrc/cuda/*/*.cu") if path not in left_out]
    made = one_unit("step", [path.removeprefix("csrc/") for path in step])
    return [*others, made, *sources(*SHARED_SOURCES)]


def stats_cuda_sources() -> list[str]:
    """The sources of the CUDA operators of statistics."""
    every = sources("csrc/cuda/stats/*.cu")
    rolling = [path for path in every if "rolling" in path]  # as long as all the others
    others = [path.removeprefix("csrc/") for path in every if path not in rolling]
    return [*rolling, one_unit("stats_cuda", others)]


def last_change(source: str) -> float:
    """When a source changed, or one that it includes if it is a unit."""
    path = ROOT / source
    included = re.findall(r'^#include "(.+)"', path.read_text(), re.MULTILINE) if path.parent.name == "units" else []
    return max(file.stat().st_mtime for file in (path, *(ROOT / "csrc" / name for name in included)))


def data_sources() -> list[str]:
    """The sources of the data library. Those with levels of instruction sets (isa.h) stay units of their own."""
    pipeline = sources("data_loader/pipeline/*.cpp")
    alone = [path for path in pipeline if "kernels" in path]
    small = [*sources(*(f"data_loader/{room}/*.cpp" for room in ("base", "chess", "filters"))), *pipeline]
    unit = one_unit("pipeline", [path.removeprefix("data_loader/") for path in small if path not in alone])
    return [unit, one_room("formats"), *alone, *sources("data_loader/evaluate/*.cpp", "data_loader/features/*.cpp")]


def write_if_new(path: Path, text: str) -> None:
    """Writes a file unless it has this text: what is compiled from it stays up to date."""
    if not path.is_file() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def sources(*patterns: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern))


def write_version_header() -> str:
    """Writes nnue_version.h for csrc/build_info.h; returns its folder.

    A header, not an option of the compiler, so that a new version compiles two files again and not all of them.
    """
    header = ROOT / "build" / "include" / "nnue_version.h"
    write_if_new(header, f"#define NNUE_VERSION {VERSION}\n")
    return str(header.parent)


def readme() -> str:
    """README.md for a package index, where links into the project lead to the repository, or are only their text."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    if REPOSITORY is None:
        text = re.sub(r"!\[[^]]*\]\((?!https?:)[^)]+\)\n*", "", text)
        return re.sub(r"\[([^]]*)\]\((?!https?:)[^)]+\)", r"\1", text)
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1{REPOSITORY[1]}/raw/v{VERSION}/", text)
    return re.sub(r"(?<!!)(\[[^]]*\]\()(?!https?:)", rf"\1{REPOSITORY[1]}/blob/v{VERSION}/", text)


def metadata() -> dict[str, object]:
    """The fields of pyproject.toml that are dynamic."""
    urls = {"Source": REPOSITORY[1], "Changelog": f"{REPOSITORY[1]}/blob/main/CHANGELOG.md"} if REPOSITORY else {}
    return {"long_description": readme(), "long_description_content_type": "text/markdown", "project_urls": urls}


# With `make`, tools/quiet_build.py uses it as well: it builds again when there is another nvcc.
find_nvcc: Callable[[], str | None] = runpy.run_path(str(ROOT / "tools" / "find_nvcc.py"))["find_nvcc"]


def write_operator_calls(header: Path) -> None:
    """The operators' calls for programs in C++, from their schemas."""
    runpy.run_path(str(ROOT / "csrc" / "operator_calls.py"))["write"](header)


def toolkit_of(nvcc: str) -> Path:
    """The toolkit of this nvcc, as nvcc prints it: nvcc may be a script that calls another one."""
    run = subprocess.run([nvcc, "--dryrun", "-x", "cu", "-c", os.devnull], capture_output=True, text=True, check=False)
    top = re.search(r"^#\$ TOP=(.+)$", run.stderr, re.MULTILINE)
    return Path(top.group(1)).resolve() if top else Path(nvcc).parent.parent


MINIMUM = {"g++": 12, "clang": 16}


def compiler_macros(*options: str) -> str:
    """The macros that the C++ compiler defines with these options."""
    command = [*shlex.split(os.environ.get("CXX", "c++")), *options, "-dM", "-E", "-x", "c++", os.devnull]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def isa_flags(levels: tuple[int, ...]) -> list[str]:
    """The macro of data_loader/base/isa.h with NNUE_ISA=native: the last of these levels that this CPU has."""
    wanted = os.environ.get("NNUE_ISA", "")
    if wanted not in ("", "native"):
        raise SystemExit(f"NNUE_ISA is {wanted!r}, expected native")
    if not wanted or platform.machine() != "x86_64":
        return []
    macros = set(re.findall(r"#define (\w+) 1\b", compiler_macros("-march=native")))
    avx2 = {"__AVX2__", "__BMI__", "__BMI2__", "__FMA__", "__POPCNT__"}
    avx512 = avx2 | {"__AVX512F__", "__AVX512BW__", "__AVX512DQ__", "__AVX512VL__"}
    slow_pext = {"__znver1__", "__znver2__"}
    has = {0: True, 1: avx2 <= macros, 2: avx2 <= macros and not slow_pext & macros, 3: avx512 <= macros}
    return [f"-DNNUE_ONLY_ISA={max(level for level in levels if has[level])}"]


def compiler_problem() -> str | None:
    """The error message if the C++ compiler is missing or too old; None if it can be used."""
    compiler = os.environ.get("CXX", "c++")
    needed = f"torch-nnue needs g++ {MINIMUM['g++']} or clang {MINIMUM['clang']} or newer; set CXX to one"
    try:
        macros = compiler_macros()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"{compiler}: the C++ compiler does not run ({error}); {needed}"
    name, macro = ("clang", "__clang_major__") if "__clang__" in macros else ("g++", "__GNUC__")
    found = re.search(rf"#define {macro} (\d+)", macros)
    if found is not None and int(found[1]) < MINIMUM[name]:
        return f"{compiler} is {name} {found[1]}; {needed}"
    return None


@cache
def builds_cuda(nvcc: str | None) -> bool:
    forced = os.environ.get("FORCE_CUDA", "")
    if forced not in ("", "0", "1"):
        raise SystemExit(f"FORCE_CUDA is {forced!r}, expected 0 or 1")
    if forced == "1" and nvcc is None:
        raise SystemExit("FORCE_CUDA=1, but no nvcc: put it on PATH or set CUDA_HOME to the CUDA toolkit")
    if forced != "0" and names_no_gpu_with_kernels():
        message = (
            f"NNUE_CUDA_ARCHS is {os.environ['NNUE_CUDA_ARCHS']!r}: kernels need a compute capability of 7.5 or later"
        )
        if forced == "1":
            raise SystemExit(message)
        print(f"CUDA: not built: {message}; training.device=cuda uses PyTorch's operators", file=sys.stderr)
        return False
    return nvcc is not None if forced == "" else forced == "1"


def names_no_gpu_with_kernels() -> bool:
    """Whether NNUE_CUDA_ARCHS is set, but to no capability from 7.5 on: empty in a notebook without a GPU, whose P100
    has 6.0."""
    text = os.environ.get("NNUE_CUDA_ARCHS")
    return text is not None and all(arch.isdigit() and int(arch) < OLDEST_GPU for arch in capabilities(text))


def capabilities(text: str) -> list[str]:
    return [arch.strip() for arch in text.split(";") if arch.strip()]


def cuda_build(nvcc: str | None) -> str:
    """Whether the CUDA library is built, or why not, for `nnue info`; the words are in base/_library.py."""
    if builds_cuda(nvcc):
        return "built"
    if os.environ.get("FORCE_CUDA", "") != "":
        return "forced_off"
    return "no_nvcc" if nvcc is None else "old_gpu"


@cache
def release_of(nvcc: str) -> tuple[int, int]:
    """Major and minor version of the toolkit; (0, 0) if nvcc does not print them."""
    run = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False)
    release = re.search(r"release (\d+)\.(\d+)", run.stdout)
    return (int(release[1]), int(release[2])) if release else (0, 0)


def architectures(nvcc: str) -> list[str]:
    # 8.9 runs the code for 8.6, which has the same instructions.
    every = "75;80;86;90;100;120" if release_of(nvcc) >= (12, 8) else "75;80;86;90"
    if "NNUE_CUDA_ARCHS" not in os.environ and os.environ.get("TORCH_CUDA_ARCH_LIST", "").strip():
        return architectures_of_torch(os.environ["TORCH_CUDA_ARCH_LIST"])
    archs = capabilities(os.environ.get("NNUE_CUDA_ARCHS", every))
    if not archs or not all(a.isdigit() for a in archs):
        raise SystemExit(f"NNUE_CUDA_ARCHS is {';'.join(archs)!r}, expected compute capabilities such as '80;90'")
    return sorted((arch for arch in archs if int(arch) >= OLDEST_GPU), key=int)


@cache
def architectures_of_torch(text: str) -> list[str]:
    """The compute capabilities in a list for torch's extensions, "8.0;9.0+PTX"; those below 7.5 are left out."""
    found = set()
    for word in re.split(r"[;, ]+", text.strip(" ;,")):
        match = re.fullmatch(r"(\d+)\.(\d)[af]?(\+PTX)?", word)
        if not match:
            raise SystemExit(
                f"TORCH_CUDA_ARCH_LIST has {word!r}, expected numbers such as '8.0;9.0'; or set "
                "NNUE_CUDA_ARCHS='80;90', which comes first"
            )
        found.add(match[1] + match[2])
    archs = sorted((arch for arch in found if int(arch) >= OLDEST_GPU), key=int)
    if not archs:
        raise SystemExit(f"TORCH_CUDA_ARCH_LIST is {text!r}, expected a compute capability of 7.5 or later")
    print(
        f"CUDA: built for {';'.join(archs)} (TORCH_CUDA_ARCH_LIST={text}; NNUE_CUDA_ARCHS comes first)", file=sys.stderr
    )
    return archs


def architecture_flags(archs: list[str]) -> list[str]:
    """Machine code for each, from PTX for the lowest of those with the same sources: 7.5, 8.0 and later, 9.0 and later.

    Most of nvcc's time goes into PTX. The last one is added to the library: for GPUs that are not among archs.
    """

    def kind(arch: str) -> int:
        return (int(arch) >= 80) + (int(arch) >= 90)

    source = {arch: next(low for low in archs if kind(low) == kind(arch)) for arch in archs}
    flags = [f"-gencode=arch=compute_{source[arch]},code=sm_{arch}" for arch in archs]
    last = source[archs[-1]]
    return [*flags, f"-gencode=arch=compute_{last},code=compute_{last}"]


# Only 90a has Hopper's tensor-core instructions. Every device of capability 9.0 runs it, and no other GPU runs its PTX,
# so no PTX is added.
HOPPER_FOLDER = "csrc/cuda/hopper/"
HOPPER_FLAG = "-gencode=arch=compute_90a,code=sm_90a"


DATA_MODULE = "nnue_trainer._data"
# The linker of macOS has no version scripts, no SONAME and no GNU ld scripts. Not run there yet (docs/supported.md).
MACOS = sys.platform == "darwin"
# The largest unit has no hot loop; -O1 saves a third of its compile time.
BINDINGS = "-O1"


class BuildData(build_ext):
    """Builds the data module, for which nothing of torch is needed, and the libraries for programs in C++."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.force = True  # ninja decides what is up to date

    def run(self) -> None:
        package = (ROOT if self.inplace else Path(self.build_lib)) / "nnue_trainer"
        write_operator_calls(package / "include" / "nnue" / "operator_calls.h")
        super().run()
        if any(ext.name == DATA_MODULE for ext in self.extensions):
            self.make_data_libraries(package / "lib")

    def build_extension(self, ext: Extension) -> None:
        # One folder for each library: what two of them compile from one source is not one object.
        self.build_temp = str(Path(self.build_temp).with_name(ext.name))
        if not self.inplace:  # a library in place keeps its symbols, for profilers
            ext.extra_link_args = [*ext.extra_link_args, "-Wl,-x" if MACOS else "-Wl,-s"]
        if ext.name != DATA_MODULE or shutil.which("ninja") is None:
            super().build_extension(ext)
            return
        compile_of_others = self.compiler.compile
        self.compiler.compile = self.compile_with_ninja
        try:
            build_ext.build_extension(self, ext)
        finally:
            self.compiler.compile = compile_of_others

    def compile_with_ninja(
        self, sources: list[str], output_dir: str, include_dirs: list[str], extra_postargs: list[str], **_: object
    ) -> list[str]:
        """The objects of the sources; only what changed is compiled, with the same commands whether torch is there."""
        folder = Path(output_dir).resolve()
        objects = [str((folder / source).with_suffix(".o")) for source in sources]
        python = list(dropwhile(lambda word: not word.startswith("-"), self.compiler.compiler_so))
        flags = [*python, *(f"-I{path}" for path in (*include_dirs, *self.compiler.include_dirs))]
        flags += [flag for flag in extra_postargs if not flag.startswith("-DTORCH_")]
        compiler = os.environ.get("CXX", "c++")
        for object_file in objects:
            Path(object_file).parent.mkdir(parents=True, exist_ok=True)

        def path(text: str | Path) -> str:
            return re.sub(r"([$ :])", r"$\1", str(text))

        rules = [
            f"builddir = {path(folder)}",
            "rule compile",
            # Not by name: a ccache that is installed later changes no command.
            f"  command = $$NNUE_LAUNCHER {compiler} -MMD -MF $out.d {shlex.join(flags)} $options -c $in -o $out",
            "  depfile = $out.d",
            "  deps = gcc",
            *(
                f"build {path(o)}: compile {path(ROOT / s)}\n  options = {BINDINGS if 'bindings' in s else ''}"
                # The longest first, so that no core waits for it at the end.
                for o, s in sorted(zip(objects, sources, strict=True), key=lambda pair: "bindings" not in pair[1])
            ),
        ]
        write_if_new(folder / "build.ninja", "\n".join(rules) + "\n")
        launcher = "ccache" if shutil.which("ccache") and "ccache" not in compiler else ""
        jobs = ["-j", jobs] if (jobs := os.environ.get("MAX_JOBS")) else []
        run = ["ninja", "-v", "-f", str(folder / "build.ninja"), *jobs]
        if subprocess.run(run, check=False, env=os.environ | {"NNUE_LAUNCHER": launcher}).returncode:
            raise SystemExit("the data module does not compile; the compiler's messages are above")
        # Last: of an inline function that several objects have, the linker takes the first, and bindings have -O1.
        return sorted(objects, key=lambda path: "bindings" in path)

    def make_data_libraries(self, folder: Path) -> None:
        """Links the objects of the data library once more, for programs in C++."""
        built = Path(self.build_temp).with_name(DATA_MODULE)
        objects = [str((built / source).with_suffix(".o")) for source in data_sources()]
        folder.mkdir(exist_ok=True)
        # The version is in the name that a program looks for when it starts: the interface may change with it. For the
        # linker's -l there is a script, since a wheel cannot have symbolic links.
        release = ".".join(VERSION.split(".")[:2])
        soname = f"libnnue_data.{release}.dylib" if MACOS else f"libnnue_data.so.{release}"
        archive, shared, whole = folder / "libnnue_data.a", folder / soname, built / "nnue_data.o"
        script, text = folder / "libnnue_data.so", f"/* GNU ld script */\nINPUT({soname})\n"
        if MACOS:
            script, text = folder / "libnnue_data.version", f"{soname}\n"
        newest = max(Path(path).stat().st_mtime for path in objects)
        of_now = script.exists() and script.read_bytes() == text.encode()
        if of_now and all(path.exists() and path.stat().st_mtime > newest for path in (archive, shared)):
            return
        for old in (*folder.glob("libnnue_data.so*"), *folder.glob("libnnue_data.*.dylib")):
            old.unlink()
        self.announce(f"building the C++ libraries of {DATA_MODULE!r}", level=logging.INFO)
        # One object, not many: a linker leaves objects without references out, and nothing refers to a data format.
        archive.unlink(missing_ok=True)
        subprocess.run([*shlex.split(os.environ.get("LD", "ld")), "-r", "-o", str(whole), *objects], check=True)
        subprocess.run([*shlex.split(os.environ.get("AR", "ar")), "rcs", str(archive), str(whole)], check=True)
        compiler = [*shlex.split(os.environ.get("CXX", "c++")), "-shared", "-pthread", "-o", str(shared)]
        exported = f"-Wl,-soname,{soname},--version-script={ROOT / 'data_loader' / 'exported.map'},--strip-all"
        linked = [f"-Wl,-install_name,@rpath/{soname},-x"] if MACOS else [exported, "-ldl"]
        subprocess.run([*compiler, *objects, *linked], check=True)
        script.write_text(text)
        whole.unlink()


def data_module() -> Extension:
    if find_spec("pybind11") is None:
        raise SystemExit("pybind11 cannot be imported: run `pip install pybind11`")
    if (problem := compiler_problem()) is not None:
        raise SystemExit(problem)
    import pybind11

    packages = Path(pybind11.__file__).parents[1]
    levels = (0,) if "__clang__" in compiler_macros() else (0, 1, 2)  # as data_loader/pipeline/kernels.cpp has
    visible = [f"-ffile-prefix-map={packages}/=", "-fvisibility=default", "-fno-semantic-interposition", "-pthread"]
    return Extension(
        DATA_MODULE,
        [*data_sources(), one_room("bindings")],
        include_dirs=[str(ROOT / "data_loader"), pybind11.get_include()],
        # Symbols are visible for libnnue_data.so, which is linked of the same objects. The module hides them again.
        extra_compile_args=[*CXX_FLAGS, *visible, *isa_flags(levels)],
        extra_link_args=["-Wl,-exported_symbol,_PyInit__data"]
        if MACOS
        else ["-pthread", "-ldl", f"-Wl,--version-script={ROOT / 'data_loader' / 'module.map'}"],
        language="c++",
    )


def no_paths_of_torch(language: str) -> list[str]:
    """Flags that take the folder of torch's headers out of the texts of their checks."""
    import torch

    packages = Path(torch.__file__).parents[1]
    flags = [f"-ffile-prefix-map={folder}/=" for folder in sorted({str(packages), str(packages.resolve())})]
    return [f"-Xcompiler={flag}" for flag in flags] if language == "nvcc" else flags


def build_command() -> type[BuildData]:
    """build_ext for the operator libraries too, on top of torch's."""
    from torch.utils import cpp_extension

    class BuildExtension(BuildData, cpp_extension.BuildExtension):
        def get_ext_filename(self, fullname: str) -> str:
            """The op libraries hold no Python ABI, so their names hold none: one file serves every Python."""
            if fullname.split(".")[-1].startswith(("_ops_", "_stats_")):
                return str(Path(*fullname.split("."))) + ".so"
            return super().get_ext_filename(fullname)

        def build_extension(self, ext: Extension) -> None:
            """Drops CUDA objects older than a header: with a CPU build of torch, ninja gets none of their headers.

            Then compiles the sources for Hopper with flags of their own, which an Extension has no place for.
            """
            if not self.inplace and ext.name != DATA_MODULE:
                for language, flags in ext.extra_compile_args.items():
                    ext.extra_compile_args[language] = [*flags, *no_paths_of_torch(language)]
            self.build_temp = str(Path(self.build_temp).with_name(ext.name))
            newest = max((Path(header).stat().st_mtime for header in ext.depends), default=0)
            for source in (s for s in ext.sources if s.endswith(".cu")):
                built = Path(self.build_temp, source).with_suffix(".o")
                if built.exists() and built.stat().st_mtime < max(newest, last_change(source)):
                    built.unlink()
            hopper = [source for source in ext.sources if source.startswith(HOPPER_FOLDER)]
            if hopper:
                ext.sources = [source for source in ext.sources if source not in hopper]
                ext.depends = [*ext.depends, *hopper]  # the library is linked again when one of them changed
                nvcc_flags = [f for f in ext.extra_compile_args["nvcc"] if not f.startswith("-gencode")]
                self.announce(f"building the Hopper kernels of {ext.name!r}", level=logging.INFO)
                ext.extra_objects += self.compiler.compile(
                    hopper,
                    output_dir=self.build_temp,
                    include_dirs=ext.include_dirs,
                    debug=self.debug,
                    extra_postargs={**ext.extra_compile_args, "nvcc": [*nvcc_flags, HOPPER_FLAG]},
                )
            super().build_extension(ext)

    return BuildExtension


def cpu_library(name: str, of: list[str], nvcc: str | None, version_folder: str) -> Extension:
    from torch.utils import cpp_extension

    cpu_ops = cpp_extension.CppExtension(
        f"nnue_trainer.{name}",
        of,
        depends=sources("csrc/*.h", "csrc/cpu/*.h", "csrc/cpu/*/*.h", *SHARED_HEADERS),
        include_dirs=[str(ROOT / "csrc"), str(ROOT / "data_loader"), version_folder],
        # Contraction off: every instruction set level computes the same bits. No errno: roots are one instruction. No
        # traps: loops with a condition become vector instructions. psabi: vectors never cross a real call.
        extra_compile_args={
            "cxx": [
                *(*CXX_FLAGS, *OPS_FLAGS, "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"),
                f"-DNNUE_CUDA_BUILD={cuda_build(nvcc)}",
                *isa_flags((0, 1, 3)),
            ]
        },
    )
    cpu_ops.extra_link_args = ["-ldl"]  # compiled feature sets of users
    # The stable ABI is all in libtorch: nothing of Python, nothing of c10.
    cpu_ops.libraries = ["torch_cpu"]
    return cpu_ops


def cuda_library(name: str, of: list[str], nvcc: str, version_folder: str) -> Extension:
    from torch.utils import cpp_extension

    cuda_home = toolkit_of(nvcc)
    # torch's own discovery gives up where torch is a CPU build; its compile rules need only this variable.
    cpp_extension.CUDA_HOME = str(cuda_home)
    archs = architectures(nvcc)
    defines = ["-DUSE_CUDA", f"-DNNUE_CUDA_ARCHS={'+'.join(archs)}"]
    cuda_ops = cpp_extension.CppExtension(
        f"nnue_trainer.{name}",
        of,
        depends=sources("csrc/*.h", "csrc/cuda/*.cuh", "csrc/cuda/*/*.cuh", *SHARED_HEADERS),
        include_dirs=[
            *(str(ROOT / "csrc"), str(ROOT / "data_loader"), version_folder),
            str(cuda_home / "include"),
        ],
        library_dirs=[
            str(path)
            for path in (cuda_home / "lib64", cuda_home / "lib", *cuda_home.glob("targets/*/lib"))
            if path.is_dir()
        ],
        extra_compile_args={
            "cxx": [*CXX_FLAGS, *OPS_FLAGS, *defines],
            "nvcc": [
                "-O3",
                "-std=c++20",
                "--expt-relaxed-constexpr",
                # For profilers. It makes machine code three times larger, and compression three times slower.
                *(["-lineinfo"] if os.environ.get("NNUE_LINEINFO") == "1" else []),
                "-Xcompiler=-fvisibility=hidden",
                # Headers of CUB name their file in a message.
                f"-Xcompiler=-g0,-ffile-prefix-map={ROOT}/=,-ffile-prefix-map={cuda_home}/=",
                # Both take -D; -W is the host compiler's.
                *(flag if flag.startswith("-D") else f"-Xcompiler={flag}" for flag in OPS_FLAGS),
                *defines,
                *architecture_flags(archs),
                # With CUDA 12, it would need a newer driver than the library does otherwise.
                *(["--compress-mode=size"] if release_of(nvcc) >= (13, 0) else []),
            ],
        },
        # cudart static: free of the machine's CUDA runtime version. libtorch.so named as needed: it is what
        # brings in libtorch_cuda, where the current stream is requested.
        extra_link_args=["-lcudart_static", "-ldl", "-lrt", "-Wl,--no-as-needed", "-ltorch", "-Wl,--as-needed"],
    )
    cuda_ops.libraries = ["torch_cpu"]
    return cuda_ops


def native_parts() -> dict[str, object]:
    """The arguments of setup() for the extensions; only this function imports torch."""
    parts = os.environ.get("NNUE_PARTS", "")
    if parts not in ("", "stats", "training"):
        raise SystemExit(f"NNUE_PARTS is {parts!r}, expected data, stats or training")
    only_stats = parts == "stats"
    needed = ("torch",) if only_stats else ("torch", "pybind11")
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise SystemExit(
            f"torch-nnue: {' and '.join(missing)} cannot be imported: without --no-build-isolation pip fetches "
            "what the build needs; or run `pip install 'torch>=2.10' pybind11 setuptools ninja` first"
        )
    if (problem := compiler_problem()) is not None:
        raise SystemExit(problem)
    from torch.utils import cpp_extension

    # A torch that wraps the compilers in ccache itself takes CC and CXX for one word.
    if hasattr(cpp_extension, "_wrap_compiler"):
        os.environ.update(
            {name: os.environ[name].removeprefix("ccache ") for name in ("CC", "CXX") if name in os.environ}
        )

    nvcc = find_nvcc()
    version_folder = write_version_header()
    extensions = []
    on_cuda = nvcc if builds_cuda(nvcc) else None
    if parts != "training":
        extensions.append(cpu_library("_stats_cpu", stats_cpu_sources(), nvcc, version_folder))
        if on_cuda is not None:
            extensions.append(cuda_library("_stats_cuda", stats_cuda_sources(), on_cuda, version_folder))
    if not only_stats:
        extensions += [cpu_library("_ops_cpu", cpu_sources(), nvcc, version_folder), data_module()]
        if on_cuda is not None:
            made = cuda_sources(architectures(on_cuda))
            extensions.append(cuda_library("_ops_cuda", made, on_cuda, version_folder))
    return {"ext_modules": extensions, "cmdclass": {"build_ext": build_command(), "build_py": BuildPy}}


# Commands that build or install extensions. Others, such as egg_info and sdist, need neither compiler nor torch.
NATIVE_COMMANDS = {"bdist", "bdist_wheel", "build", "build_ext", "develop", "editable_wheel", "install"}


def parts() -> dict[str, object]:
    if os.environ.get("NNUE_NO_EXTENSIONS") == "1" or not NATIVE_COMMANDS.intersection(sys.argv):
        return {"cmdclass": {"build_py": BuildPy}}
    if os.environ.get("NNUE_PARTS") == "data":
        return {"ext_modules": [data_module()], "cmdclass": {"build_ext": BuildData, "build_py": BuildPy}}
    return native_parts()


if sys.argv[1:] == ["architectures"]:  # for tools/check_cuda_library.sh
    print(";".join(architectures(find_nvcc() or "nvcc")))
else:
    setup(**metadata(), **parts())
