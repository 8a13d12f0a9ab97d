"""The output of `nnue inspect` for an `Inspection`: its page, and JSON data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnue_trainer.analysis.agreement import check_same, scores_against
from nnue_trainer.analysis.net_inspect import BINS, Inspection, TensorFacts
from nnue_trainer.analysis.planes import PIECES, WeightMap
from nnue_trainer.base.arrays import Floats
from nnue_trainer.base.progress import size as bytes_of
from nnue_trainer.data.features import feature_set
from nnue_trainer.data.probe import SQUARES
from nnue_trainer.errors import UserError, shown
from nnue_trainer.export.bounds import accumulator_bound
from nnue_trainer.files.pages.page import Page, Section, Table, plain
from nnue_trainer.files.pages.plots import BAD, INK, SERIES, Plot, thin
from nnue_trainer.modules import PerspectiveTransformer

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def as_dict(found: Inspection) -> dict[str, Any]:
    """Plain JSON data."""
    activity = found.activity
    agreement = found.agreement
    return {
        "path": found.path,
        "architecture": found.net.architecture,
        "name": found.net.name,
        "parameters": found.parameters,
        "bytes": found.bytes,
        "warnings": found.warnings,
        "tensors": [plain(tensor) | {"reach": tensor.reach} for tensor in found.tensors],
        "first_layer": plain(found.first),
        "accumulators": {
            "limit": found.net.accumulator_limit,
            "bound": accumulator_bound(found.quantized) if found.quantized else None,
            "largest_seen": float(activity.largest.max()) * found.accumulator_scale if activity else None,
        },
        "positions": {"count": len(found.positions.records), "from": found.positions.origin},
        "activity": None
        if activity is None
        else {
            "dead": activity.dead.nonzero().flatten().tolist(),
            "stuck": activity.stuck.nonzero().flatten().tolist(),
            "zeros": activity.zeros,
            "positive": plain(activity.positive),
            "saturated": plain(activity.saturated),
        },
        "layers": [plain(layer) for layer in found.layers],
        "float_against_integers": None if agreement is None else _sizes(agreement.difference),
        "against": None
        if not found.against
        else {
            "path": found.against,
            "tensors": [plain(difference) for difference in found.differences],
            "scores": None if found.other_scores is None else _score_difference(found),
        },
    }


def _score_difference(found: Inspection) -> dict[str, Any]:
    assert found.other_scores is not None
    same = plain(check_same([found.scores, found.other_scores]))
    return _sizes(found.other_scores - found.scores) | {"correlation": same}


def _sizes(difference: Floats) -> dict[str, Any]:
    largest = float(np.abs(difference).max(initial=0))
    return {
        "mean": plain(float(difference.mean())),
        "mean_size": plain(float(np.abs(difference).mean())),
        "largest": plain(largest),
    }


def _facts(found: Inspection) -> list[tuple[str, str]]:
    facts = [
        ("net", found.net.name),
        ("input features", found.net.feature_set),
        ("parameters", f"{found.parameters:,}"),
        ("file", bytes_of(found.bytes)),
        ("layer stacks", str(found.net.num_stacks)),
    ]
    activity = found.activity
    if activity is not None:
        largest = float(activity.largest.max()) * found.accumulator_scale
        facts += [
            ("accumulators reach", f"{largest:,.0f} of {found.net.accumulator_limit:,}"),
            ("dead neurons", f"{int(activity.dead.sum()):,} of {len(activity.positive):,}"),
            ("saturated accumulators", f"{float(activity.saturated.mean()):.1%}"),
            ("zeros the layers see", f"{activity.zeros:.1%}"),
        ]
    if found.quantized is not None:
        facts.append(("accumulators cannot pass", f"{accumulator_bound(found.quantized):,}"))
    if found.agreement is not None and len(found.agreement.floats):
        difference = np.abs(found.agreement.difference)
        facts.append(("integers − float", f"mean size {difference.mean():.2f}, largest {difference.max():.0f}"))
    facts.append(("positions", found.positions.origin))
    return facts


def _histogram(fact: TensorFacts) -> Plot:
    def draw(axes: Axes) -> None:
        edges = np.linspace(-fact.span, fact.span, BINS + 1)
        axes.bar(
            edges[:-1], np.maximum(fact.histogram, 0), width=np.diff(edges), align="edge", color=SERIES[0], linewidth=0
        )
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylim(bottom=0)
        if fact.reach > 0.4:
            for side in (-fact.limit, fact.limit):
                axes.axvline(side, color=BAD, linewidth=1, linestyle=(0, (4, 3)))
        axes.set(xlabel="integer steps", ylabel="values")

    return Plot(
        fact.name,
        draw,
        note=f"1.0 is {fact.scale:.6g} steps; limit ±{fact.limit:,}; {fact.zeros:.1%} zeros, {fact.at_limit:.2%} at "
        "the limit.",
        height=2.1,
    )


def _neuron_plots(found: Inspection) -> Iterator[Plot]:
    first, activity = found.first, found.activity
    if first is not None:

        def norms(axes: Axes) -> None:
            x = np.arange(first.neurons)
            for values, color in ((first.l2, SERIES[0]), (first.largest, SERIES[1])):
                ordered = np.sort(values)[::-1]
                axes.plot(*thin(x, ordered, most=400), color=color)
            axes.set_yscale("log" if (first.l2 > 0).all() and (first.largest > 0).all() else "linear")
            axes.set(xlabel="neurons, sorted separately for each curve", ylabel="in units of 1.0")

        yield Plot(
            "Weights of each neuron",
            norms,
            note="A sharp drop on the right shows neurons that training has not used.",
            legend=[("norm (L2)", SERIES[0]), ("largest weight", SERIES[1])],
        )
    if activity is not None:

        def shares(axes: Axes) -> None:
            x = np.arange(len(activity.positive))
            for tensor, color in ((activity.positive, SERIES[0]), (activity.saturated, SERIES[1])):
                axes.plot(*thin(x, 100 * np.sort(tensor.numpy())[::-1], most=400), color=color)
            axes.set(xlabel="neurons, sorted separately for each curve", ylabel="% of accumulators", ylim=(-2, 102))

        yield Plot(
            "How often neurons are active",
            shares,
            note=f"Over {found.positions.origin}, both perspectives. At 0 % a neuron is dead, at 100 % a constant.",
            legend=[("above 0", SERIES[0]), ("at the upper limit", SERIES[1])],
        )

        def reach(axes: Axes) -> None:
            largest = activity.largest.numpy() * found.accumulator_scale
            axes.hist(largest, bins=40, color=SERIES[0], linewidth=0)
            if largest.max(initial=0) > 0.5 * found.net.accumulator_limit:
                axes.axvline(found.net.accumulator_limit, color=BAD, linewidth=1, linestyle=(0, (4, 3)))
            axes.set(xlabel="largest accumulator, integer steps", ylabel="neurons")

        yield Plot("Reach of accumulators", reach, note=f"The engine holds {found.net.accumulator_limit:,}.")


def _compose(boards: Floats, columns: int) -> Floats:
    """Boards [n, 64] side by side with a gap between them, a1 at the lower left of each."""
    rows = -(-len(boards) // columns)
    picture = np.full((rows * 10, columns * 9 - 1), np.nan)
    for number, board in enumerate(boards):
        row, column = divmod(number, columns)
        top = (rows - 1 - row) * 10
        picture[top : top + 8, column * 9 : column * 9 + 8] = board.reshape(8, 8)
    return picture


def _boards(axes: Axes, boards: Floats, names: Sequence[str], signed: bool) -> None:
    import matplotlib

    columns = 6 if len(boards) > 6 else len(boards)
    picture = _compose(boards, columns)
    most = float(np.nanmax(np.abs(picture))) or 1.0
    colormap = matplotlib.colormaps["RdBu_r" if signed else "viridis"].with_extremes(bad=(0, 0, 0, 0))
    low = -most if signed else float(np.nanmin(picture))
    image = axes.imshow(picture, origin="lower", cmap=colormap, vmin=low, vmax=most, interpolation="nearest")
    rows = len(picture) // 10
    for number, name in enumerate(names):
        row, column = divmod(number, columns)
        axes.text(
            column * 9 + 3.5,
            (rows - 1 - row) * 10 + 8.2,
            _short(name),
            ha="center",
            va="bottom",
            fontsize=6,
            color=INK,
        )
    bar = axes.figure.colorbar(image, ax=axes, orientation="horizontal", fraction=0.05, pad=0.02, aspect=50)
    bar.ax.tick_params(labelsize=7, length=2)
    bar.outline.set_visible(False)


def _short(name: str) -> str:
    return "kings" if " and " in name else name


def _ordered(names: Sequence[str]) -> list[int]:
    """Planes in the order of the board's pieces: own first."""
    rank = {name: number for number, name in enumerate(PIECES)}
    return sorted(range(len(names)), key=lambda i: (rank.get(names[i].split(" and ")[0], 99), i))


def _map_plots(found: Inspection) -> Iterator[Plot]:
    for each in found.first.maps if found.first is not None else ():
        yield from _plots_of_map(each)


def _plots_of_map(each: WeightMap) -> Iterator[Plot]:
    order = _ordered(each.planes)
    names = [each.planes[i] for i in order]
    several = len(each.sizes) > 1
    yield Plot(
        f"Size of weights by piece and square: {each.part}",
        lambda axes: _boards(axes, each.sizes.mean(0)[order], names, signed=False),
        note="Mean magnitude over all neurons" + (" and buckets" if several else "") + ", own side below.",
        plain=True,
        height=1.75,
    )
    if not several:
        return
    states = len(each.states)

    def kings(axes: Axes) -> None:
        by_bucket = each.sizes.mean((1, 2)).reshape(-1, states).mean(1)
        board = np.where(each.king_buckets >= 0, by_bucket[np.maximum(each.king_buckets, 0)], np.nan).reshape(8, 8)
        image = axes.imshow(board, origin="lower", cmap="viridis", aspect="equal")
        middle = (np.nanmin(board) + np.nanmax(board)) / 2
        for square, bucket in enumerate(each.king_buckets.tolist()):
            if bucket >= 0:
                rank, file = divmod(square, 8)
                color = "white" if board[rank, file] < middle else "black"
                axes.text(file, rank, str(bucket), ha="center", va="center", fontsize=6.5, color=color)
        axes.set_xticks(range(8), list("abcdefgh"))
        axes.set_yticks(range(8), [str(rank + 1) for rank in range(8)])
        axes.tick_params(length=0)
        axes.figure.colorbar(image, ax=axes, shrink=0.9).outline.set_visible(False)

    has_kings = bool((each.king_buckets >= 0).any())
    bucket = "king bucket" if has_kings else "bucket"
    if has_kings:
        yield Plot(
            f"Size of weights by king: {each.part}",
            kings,
            note="Numbers are king buckets. Small weights belong to king squares that are rare in training.",
            plain=True,
            height=2.8,
        )

    def table(axes: Axes) -> None:
        image = axes.imshow(each.sizes.mean(2)[:, order].T, cmap="viridis", aspect="auto")
        axes.set_yticks(range(len(order)), [_short(name) for name in names])
        axes.tick_params(length=0, labelsize=6.5)
        axes.set_xlabel(bucket if states == 1 else f"{bucket}, state")
        ticks = range(0, len(each.sizes), max(1, len(each.sizes) // 8))
        axes.set_xticks(ticks, [str(i) if states == 1 else f"{i // states}, {i % states}" for i in ticks])
        axes.figure.colorbar(image, ax=axes, shrink=0.9).outline.set_visible(False)

    named = "; ".join(f"{number}: {name}" for number, name in enumerate(each.states) if name)
    yield Plot(
        f"Size of weights by {bucket} and piece: {each.part}",
        table,
        note=f"States: {named}." if named else "",
        plain=True,
        height=2.6,
    )


def _single_neurons(found: Inspection, neurons: Sequence[int]) -> Iterator[Plot]:
    """Plots of the neurons that were requested, or else of the six with the largest weights."""
    first = found.first
    if first is None or not first.maps:
        return
    part = next(part for part in feature_set(found.model.feature_set).parts if part.name == first.maps[0].part)
    layer = next(module for module in found.model.modules() if isinstance(module, PerspectiveTransformer))
    chosen = list(neurons) or np.argsort(-first.l2, kind="stable")[:6].tolist()
    names = first.maps[0].planes
    order = _ordered(names)
    for neuron in chosen:
        column = layer.weight.detach()[part.first_feature : part.first_feature + part.num_features, neuron]
        buckets = column.double().numpy().reshape(-1, part.bucket_size)[:, part.bucket_size % SQUARES :]
        boards = buckets.reshape(len(buckets), -1, SQUARES).mean(0)[order]
        draw = partial(_boards, boards=boards, names=[names[i] for i in order], signed=True)
        over = ", mean over king buckets" if len(buckets) > 1 else ""
        active = ""
        if found.activity is not None:
            active = f" Above 0 in {float(found.activity.positive[neuron]):.0%} of the accumulators."
        yield Plot(
            f"Neuron {neuron}",
            draw,
            note=f"Weights{over}: red raises, blue lowers.{active}",
            plain=True,
            height=1.75,
        )


def _integers_and_floats(found: Inspection) -> list[Plot]:
    if found.agreement is None or not len(found.agreement.floats):
        return []
    floats, integers = thin(found.agreement.floats, found.agreement.integers)
    draw = scores_against(floats, integers, "float model, engine units", "integers")
    return [Plot("Float model and integers", draw, note=_differences(_sizes(found.agreement.difference)))]


def _two_nets(found: Inspection) -> list[Plot]:
    if found.other_scores is None or not len(found.other_scores):
        return []
    mine, other = thin(found.scores, found.other_scores)
    draw = scores_against(mine, other, "this net, engine units", "the other net")
    return [Plot("Scores of both nets", draw, note=_differences(_score_difference(found)))]


def _differences(sizes: dict[str, Any]) -> str:
    return f"Differences: {sizes['mean_size']:.2f} in size on average, {sizes['largest']:.0f} at most."


def page(found: Inspection, neurons: Sequence[int] = ()) -> Page:
    """`neurons` are drawn; without them, those with the largest weights. UserError for a number that the first layer
    does not have."""
    count = found.first.neurons if found.first is not None else 0
    for neuron in neurons:
        if not 0 <= neuron < count:
            raise UserError(f"--neuron {neuron}: the first layer has {count} neurons, expected 0 … {count - 1}")
    path = Path(found.path)
    name = f"{path.parent.parent.name}: {path.name}" if path.parent.name == "checkpoints" else path.name
    sections = [Section("Overview", facts=_facts(found), warnings=found.warnings)]
    if found.against:
        sections.append(_difference_section(found))
    sections += [
        _neuron_section(found),
        Section("Weight maps of the first layer", plots=[*_map_plots(found), *_single_neurons(found, neurons)]),
        _tensor_section(found),
    ]
    sections = [section for section in sections if section != Section(section.title)]
    return Page(shown(name), f"{found.net.name}, {found.parameters:,} parameters", sections, headline=found.path)


def _difference_section(found: Inspection) -> Section:
    rows = [
        [
            difference.name,
            f"{difference.mean:.3f}",
            f"{difference.largest:,.1f}",
            f"{difference.changed:.1%}",
            f"{difference.correlation:.4f}" if np.isfinite(difference.correlation) else "–",
        ]
        for difference in found.differences
    ]
    scores = _score_difference(found)
    words = f"{scores['mean']:+.2f} on average, {scores['mean_size']:.2f} in size, largest {scores['largest']:.0f}"
    return Section(
        "Difference",
        f"Against {found.against}, in integer steps; changed: by half a step or more.",
        facts=[("scores", words)],
        tables=[Table(["tensor", "mean", "largest", "changed", "correlation"], rows)] if rows else [],
        plots=_two_nets(found),
    )


def _neuron_section(found: Inspection) -> Section:
    facts, tables = [], []
    if found.first is not None:
        words = ("least", "5 %", "median", "95 %", "most")
        values = np.quantile(found.first.l2, [0, 0.05, 0.5, 0.95, 1])
        norms = ", ".join(f"{word} {value:.3g}" for word, value in zip(words, values, strict=True))
        facts = [("norm of a neuron's weights (L2)", norms)]
    if found.layers:
        rows = [
            [layer.name, f"{layer.zeros:.1%}", f"{layer.at_top:.2%}", f"{layer.dead} of {layer.inputs}"]
            for layer in found.layers
        ]
        tables = [Table(["inputs of a layer", "zeros", "at the top", "dead"], rows)]
    return Section("Neurons", facts=facts, tables=tables, plots=[*_neuron_plots(found), *_integers_and_floats(found)])


def _tensor_section(found: Inspection) -> Section:
    head = ["tensor", "type and shape", "integers", "limit", "reach", "at limit", "zeros", "deviation"]
    rows = [
        [
            fact.name,
            f"{fact.dtype} {'×'.join(map(str, fact.shape))}",
            f"{fact.low:,.0f} … {fact.high:,.0f}",
            f"{fact.limit:,}",
            f"{fact.reach:.1%}",
            f"{fact.at_limit:.3%}",
            f"{fact.zeros:.1%}",
            f"{fact.deviation / fact.scale:.4g}",
        ]
        for fact in found.tensors
    ]
    return Section("Tensors", tables=[Table(head, rows, numbers=2)], plots=[_histogram(fact) for fact in found.tensors])
