"""`nnue info`: installed versions, the operator libraries and whether they load, and the devices that torch finds."""

from __future__ import annotations

import json
import platform
import sys
from typing import Any

from nnue_trainer.base import distribution
from nnue_trainer.cli.outputs import AsJson


def collect() -> dict[str, Any]:
    """All that `nnue info` prints, as JSON data."""
    from nnue_trainer.base import _library

    try:
        from nnue_trainer import _data  # noqa: F401

        data_error = None
    except ImportError as error:
        data_error = " ".join(str(error).split())
    stats = _library.load_stats()
    return {
        "nnue_trainer": distribution.version,
        "python": platform.python_version(),
        "platform": platform.platform(),
        **_library.facts(),
        "stats_cpu_ops": {"built": _library.build_info(_library.STATS_CPU_LIBRARY), "error": stats.cpu_error},
        "stats_cuda_ops": {"built": _library.build_info(_library.STATS_CUDA_LIBRARY), "error": stats.cuda_error},
        "data": {"error": data_error},
        "other_distributions": distribution.others(),
    }


def _library_line(library: dict[str, Any]) -> str:
    built, error = library["built"], library["error"]
    if built is None:
        return f"not built: {error}"
    parts = [f"built by {built['compiler']} against torch {built['torch_headers']}"]
    if "architectures" in built:
        architectures = built["architectures"].split("+")
        parts.append(f"CUDA {built['cuda']}, {', '.join(f'sm_{a}' for a in architectures)} and PTX")
    if error is None:
        return f"loaded; {', '.join(parts)}"
    if error.startswith("built, "):
        return f"{error}; {', '.join(parts)}"
    return f"not loaded: {error}; {', '.join(parts)}"


def info_command(as_json: AsJson = False) -> None:
    """Print versions, the operator libraries and what they were built for, and the devices that torch finds."""
    info = collect()
    if as_json:
        json.dump(info, sys.stdout, indent=2)
        print()
        return
    for name, text in rows(info):
        print(f"{name:14} {text}")


def rows(info: dict[str, Any]) -> list[tuple[str, str]]:
    """The lines of the text: names, "" for a line that continues, and values."""
    cuda = f"CUDA {info['torch_cuda']}" if info["torch_cuda"] else "no CUDA"
    devices = [
        f"cuda:{index}  {d['name']}, compute capability {d['compute_capability']}, {d['memory_bytes'] / 2**30:.0f} GiB"
        for index, d in enumerate(info["cuda_devices"])
    ]
    return [
        (distribution.NAME, info["nnue_trainer"]),
        ("python", f"{info['python']}, {info['platform']}"),
        ("torch", f"{info['torch']} ({cuda}); the op libraries need {info['target_torch']} or newer"),
        ("CPU operators", _library_line(info["cpu_ops"])),
        ("CUDA operators", _library_line(info["cuda_ops"])),
        ("CPU stats", _library_line(info["stats_cpu_ops"])),
        ("CUDA stats", _library_line(info["stats_cuda_ops"])),
        ("data module", info["data"]["error"] or "loaded"),
        ("devices", f"cpu     {info['cpu_threads']} threads"),
        *(("", device) for device in devices),
    ]
