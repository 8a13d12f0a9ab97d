"""Compares training on one GPU with training on several: positions per second of whole training steps, as a curve.

    python benchmarks/several_gpus.py --data FILE.binpack [--config RECIPE …] [--sizes 1,2,4] [key=value …]

It measures each recipe with 1, 2, 4, … processes, one for each GPU, up to all GPUs of this machine: in floats and
quantisation-aware, where B = `data.batch_size`, with batches of B positions for each process and with batches of B
positions in all. The batches are on the device before the measurement (`preloaded`), or come through the loader: `from
file`, where each process reads all of the data, and `shards`, where it reads its share (`data.shards`). The exchanges
of a step are also measured without the rest. CPU time is that of each process.

All cases of one number of processes are measured in one start of them, one after the other, each for `--seconds`. If
the processes end or a case takes longer than `--limit`, that case has failed and the others are measured after a new
start. Failed cases are named at the end, and the exit status is 1.

Prints a table in Markdown (`--table FILE.json …` prints that of earlier results), and writes a JSON summary for each
recipe and one picture, speed over GPUs. A run on CPUs, where the exchanges go through gloo, only shows that the program
works."""

from __future__ import annotations

import argparse
import copy
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from nnue_trainer import nets
from nnue_trainer.config import Recipe
from nnue_trainer.data import Batch
from nnue_trainer.nets.base import NnueModel, StackedModel
from nnue_trainer.training.assembly import training_batches
from nnue_trainer.training.batches import BatchSource
from nnue_trainer.training.device import choose_device
from nnue_trainer.training.metrics import peak_memory
from nnue_trainer.training.parallel.ranks import Ranks, joined
from report import RESULTS, ROOT, environment, load_recipe, precision_suffix, recipe_data, wait_as_training_does, write
from training_step import Preloaded, copies, measure, synchronize

WARM_UP = 16  # steps, of which the trainer records the last ones
Source = Literal["preloaded", "from file", "shards"]
SOURCES: tuple[Source, ...] = get_args(Source)


@dataclass(frozen=True)
class Case:
    """One measurement, by a number of processes."""

    config: str
    processes: int
    qat: bool = False
    each: bool = True
    """the batch of the recipe for each process; False: between all of them"""
    source: Source = "preloaded"
    exchanges: bool = False
    """measure the exchanges of a step instead"""

    @property
    def name(self) -> str:
        """The key in the results."""
        if self.exchanges:
            return f"{self.processes}, exchanges, {self.batch}"
        between = "" if self.processes == 1 else f", {self.batch}"
        return f"{self.processes}{between}{', qat' if self.qat else ''}, {self.source}"

    @property
    def batch(self) -> str:
        return "the batch each" if self.each else "the batch between them"


def cases_of(config: str, sizes: list[int], sources: Iterable[Source], qat: Iterable[bool]) -> list[Case]:
    """Those of one recipe. Numbers of processes between one and the largest are only measured without shards."""
    found = []
    for size in sizes:
        few = size < max(sizes)
        for rounds in qat:
            for each in (True, False) if size > 1 else (True,):
                for source in sources:
                    # With one batch between them, the loader is not the limit, so one way to read is enough.
                    if (source == "shards" and few) or (source == "from file" and not each):
                        continue
                    found.append(Case(config, size, rounds, each, source))
        if size > 1:
            found += [Case(config, size, each=each, exchanges=True) for each in (True, False)]
    return found


# ---- in the processes that train


class Worker:
    """One of the processes that measure cases together."""

    def __init__(self, options: argparse.Namespace, ranks: Ranks):
        self._options, self._ranks = options, ranks
        self._models: dict[str, NnueModel] = {}
        self._preloaded: tuple[Any, list[Batch]] = None, []

    def recipe(self, case: Case) -> Recipe:
        options = self._options
        rounds = ["model.quantisation.qat=true", "model.quantisation.qat_from=0"] if case.qat else []
        recipe = load_recipe(Path(case.config), options.data, [*options.overrides, *rounds])
        more = [f"data.batch_size={recipe.data.batch_size * (case.processes if case.each else 1)}"]
        if case.source == "shards":
            more.append(f"data.shards={options.shards}")
        return load_recipe(Path(case.config), options.data, [*options.overrides, *rounds, *more])

    def run(self, case: Case) -> dict[str, Any]:
        recipe = self.recipe(case)
        device = choose_device(recipe.training.device, self._ranks)
        if case.exchanges:
            return self._exchanges(recipe, device)
        key = repr(recipe.model)
        if key not in self._models:
            self._models = {key: nets.build(recipe.model)}
        model = copy.deepcopy(self._models[key])
        source = self._source(case, recipe, model, device)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        try:
            found = measure(recipe, source, device, WARM_UP, 8, self._ranks, seconds=self._options.seconds, model=model)
        finally:
            getattr(source, "close", lambda: None)()
        peaks = self._ranks.each([found.pop("cpu_milliseconds_per_step"), peak_memory(device)])
        what = {"processes": case.processes, "sharding": "one process", "batch": recipe.data.batch_size}
        return (
            what
            | found
            | {
                "cpu_milliseconds_per_step": [cpu for cpu, _ in peaks],
                "peak_memory_bytes": max(peak for _, peak in peaks),
            }
        )

    def _source(self, case: Case, recipe: Recipe, model: NnueModel, device: torch.device) -> BatchSource:
        if case.source != "preloaded":
            return training_batches(recipe, model, device, self._ranks)
        key = model.feature_set, recipe.data.batch_size
        if self._preloaded[0] != key:
            self._preloaded = None, []
            loader = training_batches(recipe, model, device)
            self._preloaded = key, copies(loader, device, model.feature_set)  # whole batches in each process
            loader.close()
        return Preloaded(self._preloaded[1])

    def _exchanges(self, recipe: Recipe, device: torch.device) -> dict[str, Any]:
        """Wall-clock microseconds of each exchange in a step, launched without a CUDA graph: the two of `Columns`, and
        that of all gradients, which `Positions` has. The sums are fp32 [positions, outputs]. The gradients are those of
        a rank's positions, with PSQT, and 10,000 more for the parameters that all ranks have."""
        ranks, positions = self._ranks, recipe.data.batch_size
        model = nets.build(recipe.model)
        assert isinstance(model, StackedModel)
        outputs = model.linears()[0].bias.shape[-1]  # type: ignore[index]
        sums = torch.ones(positions, outputs, device=device)  # type: ignore[arg-type]
        part = torch.ones(positions // ranks.size * (sums.shape[1] + 1) + 10_000, device=device)
        whole = torch.zeros(sum(parameter.numel() for parameter in model.parameters()), device=device)

        def reduce_scatter() -> None:
            with ranks.reduce_scatter(sums):
                pass

        kinds: dict[str, Callable[[], object]] = {
            f"reduce-scatter of {sums.nbytes:,} bytes of sums": reduce_scatter,
            f"all-gather of {part.nbytes:,} bytes of gradients from each": lambda: ranks.all_gather(part),
            f"all-reduce of {whole.nbytes:,} bytes of all gradients": lambda: ranks.all_reduce(whole),
        }
        found = {}
        for name, run in kinds.items():
            for _ in range(3):
                run()
            synchronize(device)
            ranks.any(False)
            started, repeats = time.perf_counter(), 50 if device.type == "cuda" else 3
            for _ in range(repeats):
                run()
            synchronize(device)
            found[name] = round(1e6 * (time.perf_counter() - started) / repeats, 1)
        return {"processes": ranks.size, "batch": positions, "microseconds": found}


def work(options: argparse.Namespace) -> None:
    """Measures the cases of the file `options.work`, and appends a line to the file `options.found` for each."""
    with joined() as ranks:
        worker = Worker(options, ranks)

        def tell(line: dict[str, Any]) -> None:
            if ranks.writes:
                with Path(options.found).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")

        cases = [(number, Case(**case)) for number, case in json.loads(Path(options.work).read_text(encoding="utf-8"))]
        device = choose_device(worker.recipe(cases[0][1]).training.device, ranks)
        tell({"machine": environment(device), "type": device.type})
        for number, case in cases:
            tell({"begun": number})
            tell({"done": number, "found": worker.run(case)})
            gc.collect()  # or the memory of this case is used by the next one as well
            if device.type == "cuda":
                torch.cuda.empty_cache()


# ---- in the process that starts them


def measured(
    cases: list[Case], options: argparse.Namespace, words: list[str]
) -> tuple[dict[Case, Any], dict[str, Any]]:
    """The result of each case, None for those that failed; and the machine with the type of its device. `words`
    are the arguments of the processes that train."""
    results: dict[Case, Any] = {}
    machine: dict[str, Any] = {}
    until = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        while rest := [(number, case) for number, case in enumerate(cases) if case not in results]:
            size = rest[0][1].processes
            now = [(number, asdict(case)) for number, case in rest if case.processes == size]
            plan, found = folder / "cases.json", folder / "found.jsonl"
            plan.write_text(json.dumps(now), encoding="utf-8")
            found.write_text("", encoding="utf-8")
            command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size)]
            command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
            command += [__file__, *words, "--work", str(plan), "--found", str(found)]
            process = subprocess.Popen(command)
            read, begun, changed, reason = 0, now[0][0], time.monotonic(), ""
            while True:
                ended = process.poll() is not None
                whole = found.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()
                for line in map(json.loads, whole[read:]):
                    changed = time.monotonic()
                    begun = line.get("begun", begun)
                    if "machine" in line:
                        machine = line
                    if "done" in line:
                        case = cases[line["done"]]
                        results[case] = line["found"]
                        print(f"{Path(case.config).stem:8}  {case.name:44}  {in_short(line['found'])}", flush=True)
                read = len(whole)
                if ended:
                    break
                if time.monotonic() - changed > options.limit:
                    reason = f"took longer than {options.limit:g} s"
                if time.monotonic() > until:
                    reason = f"there was no time left after {options.minutes:g} minutes"
                if reason:
                    stop(process)
                    break
                time.sleep(0.2)
            if process.returncode != 0 or reason:
                failed = [number for number, _ in rest] if time.monotonic() > until else [begun]
                for number in failed:
                    if cases[number] not in results:
                        why = reason or f"the processes ended with status {process.returncode}"
                        print(f"FAILED: {Path(cases[number].config).stem}  {cases[number].name}: {why}", flush=True)
                        results[cases[number]] = None
    return results, machine


def stop(torchrun: subprocess.Popen[bytes]) -> None:
    """Ends torchrun, which ends its processes, within 30 seconds if they do not end by themselves."""
    torchrun.terminate()
    try:
        torchrun.wait(40)
    except subprocess.TimeoutExpired:
        torchrun.kill()
        torchrun.wait()


def in_short(found: dict[str, Any]) -> str:
    if "microseconds" in found:
        return ", ".join(f"{name} {value:,.0f} us" for name, value in found["microseconds"].items())
    cpu = ", ".join(f"{value:.2f}" for value in found["cpu_milliseconds_per_step"])
    step, speed = found["milliseconds_per_step"], found["positions_per_second"]
    return f"{step:9.3f} ms  {speed:12,.0f} pos/s  CPU ms of each: {cpu}"


def with_times_one(results: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The results of a recipe, where each has its speed as a multiple of one process's of the same kind."""
    for name, found in results.items():
        kind = name.rpartition(", ")[2].replace("shards", "from file")
        alone = results.get(f"1, {'qat, ' if 'qat' in name else ''}{kind}")
        if alone is not None and "positions_per_second" in found:
            found["times_one"] = round(found["positions_per_second"] / alone["positions_per_second"], 3)
    return results


def table(reports: Iterable[dict[str, Any]]) -> str:
    """Markdown: a line for each recipe and way to read, a column for each number of processes and batch; million
    positions per second, and how many times one process's that is."""
    lines: dict[str, dict[str, str]] = {}
    columns: dict[str, None] = {}
    for report in reports:
        for name, found in report["results"].items():
            if "positions_per_second" not in found:
                continue
            size, *middle, source = name.split(", ")
            batch = next((f", {word.removeprefix('the batch ')}" for word in middle if word != "qat"), "")
            rounding = "qat" if "qat" in middle else "floats"
            columns[column := size + batch] = None
            text = f"{found['positions_per_second'] / 1e6:.1f}"
            if "times_one" in found and size != "1":
                text += f" ({found['times_one']:.2f} ×)"
            lines.setdefault(f"{report['name']}, {rounding}, {source}", {})[column] = text
    rows = [["net, batches", *columns], ["---"] * (len(columns) + 1)]
    rows += [[name, *(cells.get(column, "") for column in columns)] for name, cells in lines.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def picture(reports: list[dict[str, Any]], path: Path) -> None:
    """Draws speed as a multiple of one process's over the number of processes, beside the linear one."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots(1, 2)
    colours = ("#3b6fb6", "#c98a2b", "#4a9a63", "#a4508b")
    most = 1
    for axis, batch in zip(axes, ("each", "between them"), strict=True):
        for number, report in enumerate(reports):
            for qat, line in ((False, "-"), (True, "--")):
                for source, marker in (("preloaded", "o"), ("shards", "s")):
                    words = [f"the batch {batch}", *(["qat"] if qat else []), source]
                    own = {
                        found["processes"]: found["times_one"]
                        for name, found in report["results"].items()
                        if name.split(", ")[1:] == words and "times_one" in found
                    }
                    if not own:
                        continue
                    most = max(most, *own)
                    own = {1: 1.0, **own} if source == "preloaded" else own
                    label = f"{report['name']}, {'qat' if qat else 'floats'}, {source}"
                    style = line if source == "preloaded" else "none"
                    axis.plot([*own], [*own.values()], linestyle=style, marker=marker, color=colours[number % 4],
                              fillstyle="none" if qat else "full", label=label)  # fmt: skip
        axis.set_title(f"the batch {batch}", fontsize=10)
        axis.set_xlabel("processes, one for each GPU")
        axis.set_ylabel("speed as a multiple of one")
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes:
        axis.plot([1, most], [1, most], color="#888888", lw=1, linestyle=":", label="linear")
        axis.set_xticks(sorted({found["processes"] for report in reports for found in report["results"].values()}))
    axes[0].legend(fontsize=7)
    figure.savefig(path, dpi=130)
    print(f"written to {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    both = [str(ROOT / "configs" / f"{name}.yaml") for name in ("reference_sfnnv5", "reference_sfnnv16")]
    parser.add_argument(
        "--config", action="append", help="recipe, any number of times; default: the two reference presets"
    )
    parser.add_argument("--data", help="binpack file with at least 8 batches for all processes")
    parser.add_argument("--sizes", help="numbers of processes, such as 1,2; default: 1,2,4,… up to all GPUs")
    parser.add_argument("--sources", default=",".join(SOURCES), help=f"ways to read; default: {','.join(SOURCES)}")
    parser.add_argument("--rounding", choices=["floats", "qat", "both"], default="both", help="default: both")
    parser.add_argument("--shards", type=int, default=8, help="data.shards where there are shards; default: 8")
    parser.add_argument("--seconds", type=float, default=1.2, help="of each measurement; default: 1.2")
    parser.add_argument("--limit", type=float, default=90.0, help="most seconds between two results; default: 90")
    parser.add_argument("--minutes", type=float, default=9.0, help="most minutes for all of it; default: 9")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for JSON and picture")
    parser.add_argument("--table", nargs="+", metavar="FILE.json", help="print the table of these results, and end")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--found", help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", help="recipe fields, such as data.batch_size=4096")
    options = parser.parse_intermixed_args()
    if options.table:
        print(table(json.loads(Path(file).read_text(encoding="utf-8")) for file in options.table))
        return
    if not options.data:
        parser.error("--data: found nothing, expected a binpack file")
    options.config = [str(Path(config).absolute()) for config in options.config or both]
    options.data = str(Path(options.data).absolute())
    wait_as_training_does()
    if options.work:
        work(options)
        return
    gpus = torch.cuda.device_count() or 2
    every = {*(2**n for n in range(gpus.bit_length())), gpus}
    sizes = sorted({int(size) for size in options.sizes.split(",")} if options.sizes else every)
    sources = options.sources.split(",")
    if unknown := set(sources) - set(SOURCES):
        parser.error(f"--sources: found {', '.join(unknown)}, expected some of {','.join(SOURCES)}")
    rounding = {"floats": [False], "qat": [True], "both": [False, True]}[options.rounding]
    cases = [case for config in options.config for case in cases_of(config, sizes, sources, rounding)]
    cases.sort(key=lambda case: sizes.index(case.processes))
    words = ["--data", options.data, "--shards", str(options.shards), "--seconds", str(options.seconds)]
    words += options.overrides
    print(
        f"{len(cases)} cases with {', '.join(map(str, sizes))} processes, about {options.seconds:g} s each", flush=True
    )
    results, machine = measured(cases, options, words)
    reports = []
    for config in options.config:
        found = {case.name: results[case] for case in cases if case.config == config and results[case] is not None}
        if not found:
            continue
        recipe = load_recipe(Path(config), options.data, options.overrides)
        report = {
            "benchmark": "several_gpus",
            "name": Path(config).stem,
            **machine["machine"],
            "processes": max(sizes),
            "data": Path(options.data).name,
            "shards": options.shards,
            "recipe": recipe_data(recipe),
            "results": with_times_one(found),
            "failed": [case.name for case in cases if case.config == config and results[case] is None],
        }
        suffix, batch = precision_suffix(recipe), recipe.data.batch_size
        name = f"several_gpus-{Path(config).stem}{suffix}-{machine['type']}-{max(sizes)}x{batch}"
        write(options.out / f"{name}.json", report)
        reports.append(report)
    if reports:
        picture(reports, options.out / f"several_gpus{precision_suffix(recipe)}-{machine['type']}-{max(sizes)}.png")
        print(table(reports))
    failed = [f"{Path(case.config).stem} {case.name}" for case in cases if results[case] is None]
    if failed:
        sys.exit(f"FAILED: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
