"""Where the time of a training step goes: the calls, time, bytes and floor of each operator, and on CUDA its kernels.

    python benchmarks/step_profile.py --data FILE.binpack [--config RECIPE.yaml] [--name NAME] [key=value …]

Prints a table, and writes it as JSON and as a picture into benchmarks/results/. All figures are per step:

- `ms`: on a CPU the wall-clock time of an operator, from torch.profiler, without the operators that it calls. On CUDA
  the time of its kernels, which are listed below the operator that launched them. The step is not a CUDA graph here,
  because the profiler cannot assign the kernels of a replayed graph to operators.
- `CPU ms`: the CPU time of all threads of the process while the operator ran. It changes little when other programs use
  the machine, which wall-clock time does not. Only on a CPU.
- `MB`: the bytes that an operator must move if nothing is in a cache: each argument read once and each result written
  once. An operator that gathers rows from a table counts the whole table.
- `floor ms`: the time that these bytes take at the rate of a large copy on the same machine, measured in the same run.
  On a CPU it is CPU time.

Times are medians over the steps. Operators of a phase that take less than 0.4 % of the step share one row. On a busy
machine use one thread (OMP_NUM_THREADS=1): with two, the time that one waits until the other gets a core counts, too.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

from nnue_trainer import nets
from nnue_trainer.config import Recipe
from nnue_trainer.training.assembly import assemble, training_batches
from nnue_trainer.training.device import choose_device, set_up_torch
from nnue_trainer.training.step import FusedStep
from nnue_trainer.training.trainer import Trainer
from optimizer import copy_rate
from report import RESULTS, ROOT, environment, load_recipe, recipe_data, wait_as_training_does, write
from training_step import Preloaded, copies, synchronize

PHASES = ("forward", "loss", "backward", "optimizer", "rest")
SMALL = 0.004  # operators below this share of the step are added up in one row of their phase

SUMMED = ("calls", "ms", "cpu_ms", "bytes", "floor_ms")  # the columns that are added up

Row = tuple[str, str]  # phase, operator


class Phases:
    """Marks the phases of a trainer's steps for the profiler and for `Counter`. It replaces functions of the trainer,
    of its recipe and of torch; `close` restores the latter two."""

    def __init__(self, trainer: Trainer) -> None:
        self.now = "rest"
        recipe: Any = trainer.run.recipe
        terms, step = recipe.loss.terms, trainer.optimizer.step
        loss, current = trainer.validator.evaluation, trainer.current_step.step
        loss.forward = self._marked("forward", loss.forward)
        if isinstance(current, FusedStep):
            first, stacks = current.first, current.stacks
            first.forward = self._marked("forward", first.forward)  # type: ignore[method-assign]
            stacks.loss = self._marked("loss", stacks.loss)  # type: ignore[method-assign]
            stacks.backward = self._marked("backward", stacks.backward)  # type: ignore[method-assign]
        object.__setattr__(recipe.loss, "terms", self._marked("loss", terms))
        self._replaced = recipe.loss
        trainer.optimizer.step = self._marked("optimizer", step)  # type: ignore[method-assign]
        self._backward = Tensor.backward
        Tensor.backward = self._marked("backward", Tensor.backward)  # type: ignore[method-assign]

    def _marked(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            before, self.now = self.now, name
            with record_function(f"phase/{name}"):
                result = function(*args, **kwargs)
            self.now = before
            return result

        return call

    def close(self) -> None:
        Tensor.backward = self._backward  # type: ignore[method-assign]
        object.__delattr__(self._replaced, "terms")


class Counter(TorchDispatchMode):
    """Adds up the CPU time and the bytes of a step by phase and operator."""

    def __init__(self, phases: Phases) -> None:
        super().__init__()
        self._phases = phases
        self.bytes: dict[Row, int] = defaultdict(int)
        self.cpu: dict[Row, float] = defaultdict(float)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        began = time.process_time()
        result = function(*args, **(kwargs or {}))
        ended = time.process_time()
        row = (self._phases.now, function._schema.name)
        self.cpu[row] += 1e3 * (ended - began)
        if not is_view(function):
            self.bytes[row] += moved(function, args, kwargs or {}, result)
        return result


def is_view(function: Any) -> bool:
    """Whether the operator returns only views, so that it moves no bytes."""
    returned = [r.alias_info for r in function._schema.returns]
    return bool(returned) and all(alias is not None and not alias.is_write for alias in returned)


def moved(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> int:
    """The bytes that an operator must read and write: all its arguments, those that it changes in place once more, and
    all results that are not arguments."""
    total, seen = 0, set()
    writes_only = function._schema.name in ("aten::fill_", "aten::zero_", "aten::copy_")
    for index, argument in enumerate(function._schema.arguments):
        value = args[index] if index < len(args) else kwargs.get(argument.name)
        written = argument.alias_info is not None and argument.alias_info.is_write
        for tensor in tensors_in(value):
            seen.add(tensor.data_ptr())
            total += size(tensor) * (2 if written and not writes_only else 1)
    return total + sum(size(tensor) for tensor in tensors_in(result) if tensor.data_ptr() not in seen)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in an argument: itself, the items of a list, or indices and values of a sparse tensor."""
    if isinstance(value, Tensor):
        if value.layout == torch.sparse_coo:
            yield from (value._indices(), value._values())
        else:
            yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def size(tensor: Tensor) -> int:
    """The bytes of a tensor's distinct elements; the elements of an expanded dimension (stride 0) count once."""
    sizes = [length for length, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0]
    return int(torch.Size(sizes).numel()) * tensor.element_size()


def operator_of(event: Any) -> Any:
    """The operator that an event of the profiler belongs to: itself, or the innermost one that it is part of, such as
    one of ours for the event of its autograd function. None if there is none."""
    while event is not None and ("::" not in event.name or event.name.startswith("autograd::")):
        event = event.cpu_parent
    return event


def times(trainer: Trainer, device: torch.device, steps: int) -> tuple[dict[Row, Any], float]:
    """For each phase and operator: its calls and milliseconds per step, and on CUDA those of its kernels. Also the
    wall-clock milliseconds of a whole step under the profiler. Milliseconds are medians over the steps, calls means."""
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    milliseconds: dict[Row, list[float]] = defaultdict(lambda: [0.0] * steps)
    calls: dict[Row, int] = defaultdict(int)
    kernels: dict[Row, dict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0] * steps))
    launches: dict[Row, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    whole = []
    for step in range(steps):
        synchronize(device)
        with profile(activities=activities) as profiler:
            began = time.perf_counter()
            trainer.advance()
            synchronize(device)
            whole.append(1e3 * (time.perf_counter() - began))
        events = [e for e in profiler.events() if e.device_type == DeviceType.CPU]
        spans = [(e.time_range.start, e.time_range.end, e.name[6:]) for e in events if e.name.startswith("phase/")]
        for event in events:
            if event.name.startswith("phase/"):
                continue
            operator = operator_of(event)
            if operator is None:
                continue
            start = operator.time_range.start
            # The innermost phase that contains the call.
            inside = [(end - begin, name) for begin, end, name in spans if begin <= start <= end]
            row = (min(inside)[1] if inside else "rest", operator.name)
            calls[row] += event is operator
            if device.type == "cuda":
                for kernel in event.kernels:
                    milliseconds[row][step] += kernel.duration / 1e3
                    kernels[row][kernel.name][step] += kernel.duration / 1e3
                    launches[row][kernel.name] += 1
            elif event is operator:
                # Inside the event of one of our operators is the event of its autograd function, which has no row here.
                # The self time would leave that event out, so take the total time.
                ours = event.name.startswith("nnue::")
                milliseconds[row][step] += (event.cpu_time_total if ours else event.self_cpu_time_total) / 1e3
    found: dict[Row, Any] = {}
    for row, each in milliseconds.items():
        found[row] = {"calls": calls[row] / steps, "ms": statistics.median(each)}
        if kernels[row]:
            found[row]["kernels"] = [
                {"kernel": name, "launches": launches[row][name] / steps, "ms": statistics.median(ms)}
                for name, ms in sorted(kernels[row].items(), key=lambda item: -statistics.median(item[1]))
            ]
    return found, statistics.median(whole)


def core_copy_rate() -> float:
    """The bytes that a large element-wise kernel on all threads reads and writes per second of CPU time, in TB/s."""
    source = torch.randn(32 << 20)
    to, rates = torch.empty_like(source), []
    for _ in range(6):
        began = time.process_time()
        torch.neg(source, out=to)
        rates.append(2 * source.nbytes / (time.process_time() - began) / 1e12)
    return statistics.median(rates[1:])


def step_times(trainer: Trainer, device: torch.device, steps: int) -> dict[str, float]:
    """Milliseconds of a step without the profiler: median and least wall-clock time, and the mean of the CPU time of
    all threads together."""
    wall, cpu = [], []
    for _ in range(steps):
        synchronize(device)
        began, cpu_began = time.perf_counter(), time.process_time()
        trainer.advance()
        synchronize(device)
        wall.append(1e3 * (time.perf_counter() - began))
        cpu.append(1e3 * (time.process_time() - cpu_began))
    return {
        "milliseconds": round(statistics.median(wall), 3),
        "cpu_milliseconds": round(statistics.mean(cpu), 3),
        "least_milliseconds": round(min(wall), 3),
    }


def look(recipe: Recipe, data: Any, device: torch.device, warmup: int, steps: int) -> dict[str, Any]:
    """Makes all measurements, with one trainer: steps without the profiler, then with it, then with `Counter`."""
    set_up_torch(recipe.training, device)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ending:
        trainer = assemble(recipe, nets.build(recipe.model).to(device), data, None, Path(folder))
        for _ in range(warmup):
            trainer.advance()
        plain = step_times(trainer, device, steps)
        phases = Phases(trainer)
        ending.callback(phases.close)
        found, profiled = times(trainer, device, steps)
        counters = [Counter(phases) for _ in range(steps)]
        for counter in counters:
            with counter:
                trainer.advance()
        if trainer.optimizer.failed():
            raise SystemExit("a step was not finite: nothing measured here would mean anything")
    rate = copy_rate(device, 50) if device.type == "cuda" else core_copy_rate()
    rows = []
    for row, values in found.items():
        count = int(statistics.mean(c.bytes.get(row, 0) for c in counters))
        cpu = statistics.median(c.cpu.get(row, 0.0) for c in counters)
        own = {"phase": row[0], "operator": row[1], **values}
        if device.type == "cpu":
            own["cpu_ms"] = cpu
        rows.append({**own, "bytes": count, "floor_ms": count / rate / 1e9})
    rows.sort(key=lambda row: (PHASES.index(row["phase"]), -row.get("cpu_ms", row["ms"])))
    return {"step": plain, "profiled_milliseconds": profiled, "copy_tb_s": rate, "rows": rows}


def shortened(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, with the small ones of each phase added up in one row."""
    key = "cpu_ms" if "cpu_ms" in rows[0] else "ms"
    total, short = sum(row[key] for row in rows), []
    for phase in PHASES:
        own = [row for row in rows if row["phase"] == phase]
        large = [row for row in own if row[key] >= SMALL * total]
        small = [row for row in own if row[key] < SMALL * total]
        short += large
        if small:
            sums = {name: sum(row[name] for row in small) for name in SUMMED if name in small[0]}
            short.append({"phase": phase, "operator": f"{len(small)} others", **sums})
    return short


def table(report: dict[str, Any]) -> str:
    lines = [f"{'phase':10} {'operator':40} {'calls':>6} {'ms':>9} {'CPU ms':>9} {'MB':>8} {'floor ms':>9}"]
    rows = shortened(report["rows"])
    sums = {key: sum(row[key] for row in rows) for key in SUMMED if key in rows[0]}
    for row in [*rows, {"phase": "all", "operator": "", **sums}]:
        cpu = f"{row['cpu_ms']:9.3f}" if "cpu_ms" in row else f"{'':9}"
        figures = f"{row['calls']:6.0f} {row['ms']:9.3f} {cpu} {row['bytes'] / 1e6:8.1f} {row['floor_ms']:9.3f}"
        lines.append(f"{row['phase']:10} {row['operator'][:40]:40} {figures}")
        lines += [
            f"{'':10}   {kernel['kernel'][:38]:38} {kernel['launches']:6.0f} {kernel['ms']:9.3f}"
            for kernel in row.get("kernels", [])
        ]
    return "\n".join(lines)


def picture(report: dict[str, Any], path: Path) -> None:
    """Draws a bar for the time of each row, phase by phase, with a mark at its floor."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    rows = shortened(report["rows"])
    on_cpu = "cpu_ms" in rows[0]
    shown = "cpu_ms" if on_cpu else "ms"
    colours = dict(zip(PHASES, ("#3b6fb6", "#c98a2b", "#7a4ea3", "#3f8f5f", "#888888"), strict=True))
    figure, axes = plt.subplots(figsize=(9, 0.8 + 0.26 * len(rows)))
    places = range(len(rows))
    axes.barh(places, [row[shown] for row in rows], color=[colours[row["phase"]] for row in rows], height=0.7)
    axes.scatter([row["floor_ms"] for row in rows], places, marker="|", s=120, color="black", zorder=3, label="floor")
    names = [row["operator"] for row in rows]
    axes.set_yticks(places, [name if len(name) < 45 else f"{name[:44]}…" for name in names], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(f"{'CPU ' if on_cpu else ''}milliseconds of a step")
    handles: list[Any] = [Patch(color=colours[phase]) for phase in PHASES]
    marks, labels = axes.get_legend_handles_labels()
    axes.legend(handles + marks, [*PHASES, *labels], fontsize=8, loc="lower right")
    axes.set_title(
        f"{report['title']}: {sum(row[shown] for row in rows):.1f} {'CPU ' if on_cpu else ''}ms", fontsize=10
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(f"written to {path}")


def rounded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = ("ms", "cpu_ms", "floor_ms", "calls", "launches")
    for row in rows:
        for values in (row, *row.get("kernels", [])):
            values |= {name: round(values[name], 4) for name in names if name in values}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "reference_sfnnv5.yaml")
    parser.add_argument("--data", required=True, help="data file with at least as many batches as --batches")
    parser.add_argument("--batches", type=int, default=32, help="how many different batches the steps use in turn")
    parser.add_argument("--warmup", type=int, default=0, help="steps before measuring; default: as many as --batches")
    parser.add_argument("--steps", type=int, default=10, help="steps to measure")
    parser.add_argument("--name", default="", help="added to the file names, behind net, device and batch")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for JSON and picture")
    parser.add_argument("overrides", nargs="*", help="recipe fields, such as data.batch_size=4096")
    options = parser.parse_intermixed_args()
    wait_as_training_does()

    recipe = load_recipe(options.config, options.data, ["training.cuda_graph=false", *options.overrides])
    device = choose_device(recipe.training.device)
    machine = environment(device)
    model = nets.build(recipe.model)
    loader = training_batches(recipe, model, device)
    data = Preloaded(copies(loader, device, model.feature_set, options.batches))
    loader.close()
    report = {
        "benchmark": "step_profile",
        **machine,
        "data": Path(options.data).name,
        "batches": options.batches,
        "steps": options.steps,
        "title": f"{recipe.model.kind}, batch {recipe.data.batch_size:,}, {machine['device']}",
        "recipe": recipe_data(recipe),
        **look(recipe, data, device, options.warmup or options.batches, options.steps),
    }
    print(report["title"])
    print(table(report))
    step = report["step"]
    print(f"a step without the profiler: {step['milliseconds']} ms, {step['cpu_milliseconds']} CPU ms; ", end="")
    print(f"load average before: {machine['load_average']}; copy {1e3 * report['copy_tb_s']:.1f} GB/s")
    report["rows"] = rounded(report["rows"])
    name = f"step_profile-{recipe.model.kind}-{device.type}-{recipe.data.batch_size}"
    name += f"-{options.name}" if options.name else ""
    write(options.out / f"{name}.json", report)
    picture(report, options.out / f"{name}.png")


if __name__ == "__main__":
    main()
