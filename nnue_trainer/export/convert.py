"""Between checkpoints (floating point) and nets (integers), by the table of the net (`Net.tensors`).

Export rounds to nearest and refuses values that do not fit; the error names tensor, index, value and limit. Where
several rows of a parameter share one row of the net (the planes of the two kings), export takes the rows that positions
can have, and import separates them again, so that import → export gives the same file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nnue_trainer.base.foreign import explaining, returned
from nnue_trainer.errors import UserError
from nnue_trainer.export.net import QuantizedNet
from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.nets.base import NETS, Net, NetTensor, parse
from nnue_trainer.nnue_file.description import describe, record_in
from nnue_trainer.nnue_file.formats import FORMATS, Exported, ExportedTensor, NetFormat, ReadTensor, TensorKind
from nnue_trainer.nnue_file.layout import OWN_VERSION
from nnue_trainer.schema import validate

_CHUNK = 1 << 20  # elements at a time: the scratch arrays may be of float64


def quantize(tensor: NetTensor, values: np.ndarray, where: str) -> np.ndarray:
    """round(values · scale) as integers of the tensor's dtype, `values` being the range of rows of the parameter, fp32.
    UserError names the first value that is not finite or does not fit."""
    if tensor.is_float:
        return _finite(tensor, values, where)
    out = np.empty(values.shape, tensor.dtype)
    flat, result = values.reshape(-1), out.reshape(-1)
    for begin in range(0, flat.size, _CHUNK):
        steps = _steps(tensor, flat[begin : begin + _CHUNK])
        wrong = _are_wrong(tensor, steps)
        if wrong.any():
            first = begin + int(wrong.argmax())
            index = [int(i) for i in np.unravel_index(first, values.shape)]
            index[0] += tensor.first_row
            chunks = (flat[begin : begin + _CHUNK] for begin in range(0, flat.size, _CHUNK))
            count = sum(int(_are_wrong(tensor, _steps(tensor, chunk)).sum()) for chunk in chunks)
            advice = (
                f"; model.{tensor.limit_option} in the recipe can set a larger limit"
                if tensor.limit_option and np.isfinite(flat[first])
                else ""
            )
            raise UserError(
                f"{where}: {tensor.source_parameter}{index} is {float(flat[first]):.6g}, limit "
                f"±{tensor.limit / tensor.scale:.6g} ({tensor.limit} steps of 1/{tensor.scale:.6g}); "
                f"{count} of {flat.size} values do not fit{advice}"
            )
        result[begin : begin + _CHUNK] = steps
    return out


def _finite(tensor: NetTensor, values: np.ndarray, where: str) -> np.ndarray:
    """Floats as they are. UserError names the first one that is not finite."""
    wrong = ~np.isfinite(values)
    if wrong.any():
        index = [int(i) for i in np.unravel_index(int(wrong.argmax()), values.shape)]
        found = values[tuple(index)]
        raise UserError(f"{where}: {tensor.source_parameter}{index} is {found}, expected a finite number")
    return np.ascontiguousarray(values, tensor.dtype)


def _are_wrong(tensor: NetTensor, steps: np.ndarray) -> np.ndarray:
    """Which numbers of steps do not fit, NaN among them."""
    return np.asarray(~((steps >= tensor.lowest) & (steps <= tensor.limit)))


def _steps(tensor: NetTensor, values: np.ndarray) -> np.ndarray:
    """fp32 values in whole steps, in the precision in which quantisation-aware training rounds."""
    precision: Any = np.float64 if tensor.steps.wide else np.float32
    with np.errstate(over="ignore"):  # infinity does not fit, and is refused
        return np.asarray(np.rint(values.astype(precision) * precision(tensor.scale)))


def parameter_shapes(net: Net) -> dict[str, tuple[int, ...]]:
    """Shapes of the float model's parameters, by name."""
    shapes: dict[str, tuple[int, ...]] = {}
    for tensor in net.tensors():
        rows, *rest = tensor.source_shape
        known, *_ = shapes.get(tensor.source_parameter, (0,))
        shapes[tensor.source_parameter] = (max(known, tensor.first_row + rows), *rest)
    return shapes


def net_from_checkpoint(checkpoint: Checkpoint, where: str, *, any_l1: bool = False) -> QuantizedNet:
    """Makes the net of `checkpoint`. `where` names it in errors; `any_l1` allows sizes and stacks that no
    Stockfish reads.

    UserError for these without `any_l1`, and for a tensor that is missing, unknown, of another shape or out of its
    integer range.
    """
    net = parse(checkpoint.architecture, where)
    if net.unreadable is not None and not any_l1:
        raise UserError(f"{where}: architecture.{net.unreadable}; --any-l1 writes it anyway")
    model = checkpoint.tensors.get("model", {})
    kept = checkpoint.tensors.get("net", {})
    shapes = parameter_shapes(net)
    for name in sorted(model.keys() ^ shapes.keys()):
        if name in model and name.startswith(net.training_only):
            continue
        raise UserError(f"{where}: tensor model/{name} is {'unknown' if name in model else 'missing'}")
    for name, shape in shapes.items():
        if tuple(model[name].shape) != shape:
            found = list(model[name].shape)
            raise UserError(f"{where}: tensor model/{name} has shape {found}, expected {list(shape)}")
    tensors: dict[str, np.ndarray] = {}
    for tensor in net.tensors():
        integers = quantize(tensor, _source_rows(tensor, model), where)
        if tensor.source is not None:
            integers = integers[tensor.source]
        if tensor.columns is not None and tensor.columns != tensor.shape[-1]:
            # Rows are padded to whole vectors; an imported net keeps the padding of its file.
            padding = np.zeros((*tensor.shape[:-1], tensor.shape[-1] - tensor.columns), tensor.dtype)
            if tensor.name in kept:
                padding = _kept_padding(kept[tensor.name], padding, tensor.name, where)
            integers = np.concatenate([integers, padding], axis=-1)
        tensors[tensor.name] = integers
    description, layout = _origin(checkpoint, net, where)
    return QuantizedNet(net, description, tensors, layout)


def _source_rows(tensor: NetTensor, model: Mapping[str, Tensor]) -> np.ndarray:
    """The range of rows of the parameter that a tensor is made of, fp32."""
    return np.asarray(tensor.rows_of(model).detach().cpu().float().contiguous().numpy())


def exported(quantized: QuantizedNet, checkpoint: Checkpoint) -> Exported:
    """The net of `checkpoint` for a file format; `quantized` is the result of `net_from_checkpoint`."""
    model = checkpoint.tensors["model"]

    def values_of(tensor: NetTensor) -> Callable[[], np.ndarray]:
        def values() -> np.ndarray:
            rows = _source_rows(tensor, model)
            rows = rows if tensor.source is None else rows[tensor.source]
            missing = tensor.shape[-1] - rows.shape[-1]
            padding = np.zeros((*rows.shape[:-1], missing), rows.dtype)
            return np.concatenate([rows, padding], axis=-1) if missing else rows

        return values

    tensors = [
        ExportedTensor(tensor.name, quantized.tensors[tensor.name], tensor.scale, values_of(tensor))
        for tensor in quantized.net.tensors()
    ]

    def graph(rounded: bool, where: str) -> bytes:
        from nnue_trainer.export.onnx_graph import onnx_graph

        weights = checkpoint_from_net(quantized, where).tensors["model"] if rounded else model
        return onnx_graph(quantized.net, weights, where)

    layout, net = quantized.file_layout, quantized.net
    record = b""
    if layout.version == OWN_VERSION or net.unreadable is not None or not NETS.is_built_in(net.kind):
        record = record_in(quantized.description) or record_in(describe(net.name, net.architecture))
    around = [_kept_bytes(checkpoint, key) for key in ("head", "tail")]
    return Exported(tensors, layout, net.layouts(), quantized.description, graph, record, *around)


def _kept_bytes(checkpoint: Checkpoint, key: str) -> bytes:
    """Bytes that `read_format` has kept of a file; none if a checkpoint has none."""
    origin = checkpoint.state.get("net", {})
    text = origin.get(key, "") if isinstance(origin, dict) else ""
    try:
        return bytes.fromhex(str(text))
    except ValueError:
        return b""


def format_of(checkpoint: Checkpoint, where: str) -> NetFormat:
    """The file format that the recipe in a checkpoint states, by default `nnue`."""
    return parse_format((checkpoint.recipe or {}).get("export", {}), f"{where}: recipe: export")


def parse_format(data: Any, where: str) -> NetFormat:
    """The file format that plain JSON data describes. UserError names `where`, the key, the value found and
    the value expected."""
    if not isinstance(data, dict):
        raise UserError(f"{where}: found {data!r:.80}, expected a section of keys")
    kind = data.get("kind", FORMATS.default)
    if not isinstance(kind, str):
        raise UserError(f"{where}: kind: found {kind!r:.80}, expected one of {', '.join(FORMATS.names())}")
    try:
        found = FORMATS.find(kind, may_import=False)
    except UserError as error:
        raise UserError(f"{where}: kind: {error}") from None
    return validate(found, {key: value for key, value in data.items() if key != "kind"}, lambda _: where)


def _kept_padding(found: Tensor, expected: np.ndarray, name: str, where: str) -> np.ndarray:
    values = found.numpy()
    if values.shape != expected.shape or values.dtype != expected.dtype:
        raise UserError(
            f"{where}: tensor net/{name} is {values.dtype} {list(values.shape)}, expected {expected.dtype} "
            f"{list(expected.shape)}"
        )
    return values


def _origin(checkpoint: Checkpoint, net: Net, where: str) -> tuple[bytes, str]:
    """Description and layout of the file that a checkpoint was imported from, or else a new net's."""
    layouts = [layout.name for layout in net.layouts()]
    origin = checkpoint.state.get("net", {})
    if not isinstance(origin, dict):
        raise UserError(f"{where}: metadata state.net is {origin!r:.80}, expected a mapping")
    text, layout = origin.get("description"), origin.get("layout", layouts[0])
    if layout not in layouts:
        raise UserError(f"{where}: metadata state.net.layout is {layout!r:.80}, expected one of {', '.join(layouts)}")
    if text is None:
        return describe(net.name, net.architecture), layout
    try:
        return str(text).encode("latin-1"), layout
    except UnicodeEncodeError:
        raise UserError(f"{where}: metadata state.net.description holds characters that are not bytes") from None


def checkpoint_from_net(quantized: QuantizedNet, where: str) -> Checkpoint:
    """A checkpoint that exports to exactly the file of `quantized`: it also keeps what floats cannot hold. `where`
    names the net in errors. The tensors of its group `model` are fp32, of the shapes of the parameters."""
    net = quantized.net
    shapes = parameter_shapes(net)
    model = {name: torch.zeros(shape, dtype=torch.float32, device="cpu") for name, shape in shapes.items()}
    kept: dict[str, Tensor] = {}
    for tensor in net.tensors():
        steps = quantized.tensors[tensor.name]
        if tensor.columns is not None and tensor.columns != tensor.shape[-1]:
            padding = steps[..., tensor.columns :]
            if padding.any():
                kept[tensor.name] = torch.from_numpy(padding.copy())
            steps = steps[..., : tensor.columns]
        into = tensor.rows_of(model).numpy()  # writing to it changes the parameter
        if tensor.source is None:
            _dequantize(tensor, np.ascontiguousarray(steps), where, into)
        else:
            into[tensor.source] = _dequantize(tensor, np.ascontiguousarray(steps), where)
    description = quantized.description.decode("latin-1")
    state = {"net": {"name": net.name, "description": description, "layout": quantized.layout}}
    tensors = {"model": model, "net": kept} if kept else {"model": model}
    return Checkpoint(net.architecture, tensors, None, state)


def read_format(
    data: bytes, file_format: NetFormat, net: Net, where: str, note: Callable[[str], None]
) -> tuple[QuantizedNet, Checkpoint]:
    """Reads a file of a format that does not describe its content, such as a raw one. Returns its integers, and the
    checkpoint that exports to the same file. Values that the file holds as floats, or at another scale than the net,
    are rounded for the integers and kept for the checkpoint. `note` gets a message about this, and also if the same
    file cannot be made again."""
    kinds = [TensorKind(tensor.name, tensor.dtype, tensor.shape, tensor.scale) for tensor in net.tensors()]
    with explaining(file_format):
        found = file_format.from_bytes(data, kinds, where, note)
    fits = isinstance(found, dict) and all(isinstance(found.get(kind.name), ReadTensor) for kind in kinds)
    returned(file_format, "from_bytes", found, fits, "a ReadTensor for each tensor of the net")
    others = [tensor for tensor in net.tensors() if found[tensor.name].integers is None]
    integers: dict[str, np.ndarray] = {}
    for tensor in net.tensors():
        read = found[tensor.name]
        if read.integers is None:
            assert read.values is not None
            integers[tensor.name] = quantize(replace(tensor, parameter=tensor.name, first_row=0), read.values, where)
        else:
            integers[tensor.name] = read.integers
    if others:
        names = ", ".join(tensor.name for tensor in others)
        note(f"{where}: {names}: not in the net's type and scale, so rounded; an engine's evaluation differs")
    quantized = QuantizedNet(net, describe(net.name, net.architecture), integers, net.layouts()[0].name)
    checkpoint = checkpoint_from_net(quantized, where)
    for key, kept in zip(("head", "tail"), file_format.around(data, kinds), strict=True):
        if any(kept):
            checkpoint.state["net"][key] = kept.hex()
    for tensor in others:
        values = found[tensor.name].values
        assert values is not None
        into = tensor.rows_of(checkpoint.tensors["model"]).numpy()
        values = values[..., : tensor.columns] if tensor.columns else values
        into[... if tensor.source is None else tensor.source] = values
    return quantized, checkpoint


def _dequantize(tensor: NetTensor, steps: np.ndarray, where: str, out: np.ndarray | None = None) -> np.ndarray:
    """The values of the integers `steps`, fp32, in `out` if it is given."""
    values = np.empty(steps.shape, np.float32) if out is None else out
    if tensor.is_float:
        values[...] = _finite(tensor, steps, where)
        return values
    flat, result = steps.reshape(-1), values.reshape(-1)
    for begin in range(0, flat.size, _CHUNK):
        part = slice(begin, begin + _CHUNK)
        result[part] = flat[part] / tensor.scale
        if steps.itemsize < 4:
            continue  # the 24 bits of a float's fraction hold every 16-bit integer
        lost = np.rint(result[part].astype(np.float64) * tensor.scale) != flat[part]
        if lost.any():
            at = begin + int(lost.argmax())
            index = [int(i) for i in np.unravel_index(at, steps.shape)]
            raise UserError(
                f"{where}: {tensor.name}{index} is {flat[at]}, too large for a 32-bit float to hold exactly"
            )
    return values
