"""Quantised nets: the exact integers of a net file, and how a file is recognised, read and written.

A net that is read and written again is the same file, byte for byte: description, padding columns and all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from nnue_trainer.base.foreign import reason
from nnue_trainer.errors import UserError, out_of_memory
from nnue_trainer.files.atomic import replacing
from nnue_trainer.nets.base import NETS, Net, parse
from nnue_trainer.nnue_file import writer
from nnue_trainer.nnue_file.description import described
from nnue_trainer.nnue_file.layout import OWN_VERSION, FileLayout
from nnue_trainer.nnue_file.reader import Header, LayoutError, NetFile, PathLike, Place

Candidate = tuple[Net, FileLayout]
T = TypeVar("T")


@dataclass
class QuantizedNet:
    """The integers of a net, by the names of `net.tensors()`; padding columns are part of a tensor. `layout` is the
    name of one of `net.layouts()`: the layout of the file."""

    net: Net
    description: bytes
    tensors: dict[str, np.ndarray]
    layout: str

    def __post_init__(self) -> None:
        expected = {tensor.name: tensor for tensor in self.net.tensors()}
        if self.tensors.keys() != expected.keys():
            raise ValueError(f"{self.net.name} has tensors {sorted(expected)}, found {sorted(self.tensors)}")
        for name, tensor in expected.items():
            found = self.tensors[name]
            if found.dtype != np.dtype(tensor.dtype) or found.shape != tensor.shape:
                raise ValueError(f"{name}: {found.dtype} {found.shape}, expected {tensor.dtype} {tensor.shape}")

    @property
    def file_layout(self) -> FileLayout:
        """The layout of the file: the one of `net.layouts()` that `layout` names."""
        return next(layout for layout in self.net.layouts() if layout.name == self.layout)


def read_net(
    path: PathLike, arch: str | Net | None = None, note: Callable[[str], None] = lambda _: None
) -> QuantizedNet:
    """Reads a net: one whose description names it, as ours do, or one that is known by its hashes and its
    shape.

    `arch`, a name or a net, overrules the description and decides where the files of two nets look alike (SFNNv4 and
    SFNNv5); `note` is called when that choice was made without it. UserError, one line, names file, offset, section,
    what was found and what was expected.
    """
    with NetFile(path) as file:
        found = recognise(file, known_layouts(note), arch)
        if found.alike:
            names = " and ".join(found.alike)
            note(f"{path}: {names} have the same file layout; read as {found.net.name} (choose with --arch)")
        tensors = found.file.tensors(found.places, found.header, found.layout)
        return QuantizedNet(found.net, found.header.description, tensors, found.layout.name)


class Recognised(NamedTuple):
    """The net of a file. `alike`: other nets that the file may hold, if neither user nor description named one. `file`
    is where its tensors are read: the file, or what its zlib envelope holds."""

    net: Net
    layout: FileLayout
    header: Header
    places: list[Place]
    alike: list[str]
    file: NetFile


def recognise(file: NetFile, known: Sequence[Candidate], arch: str | Net | None = None) -> Recognised:
    """The net and the layout of a file. If the file does not name its net, the net is one of `known`. Compares the
    whole shape of the file, but reads no tensor. UserError as `read_net`."""
    header = file.header(sorted({layout.version for _, layout in known} | {OWN_VERSION}))
    candidates, told = _candidates(file, header, known, arch)
    inflated = file.body(header)
    of_kind = [candidate for candidate in candidates if candidate[1].zlib == (inflated is not None)]
    if not of_kind:
        no_room = " or ".join(dict.fromkeys(net.name for net, _ in candidates))
        raise file.error(header.end, "body", f"a zlib stream, which files of {no_room} cannot contain")
    file = file if inflated is None else inflated
    fitting = _fitting(file, header, of_kind)
    net, layout, places = fitting[-1]
    names = sorted({net.name for net, _, _ in fitting})
    return Recognised(net, layout, header, places, names if len(names) > 1 and not told else [], file)


def known_layouts(note: Callable[[str], None] = lambda _: None) -> list[Candidate]:
    """The nets and layouts of files that do not name their net; of nets that look alike, later versions come last.
    `note` gets a line about each class from outside that fails."""

    def layouts(kind: type[Net]) -> list[Candidate]:
        return [(net, layout) for net in kind.known() for layout in net.layouts()]

    return _of_each_kind(layouts, note)


def _of_each_kind(call: Callable[[type[Net]], Iterable[T]], note: Callable[[str], None] = lambda _: None) -> list[T]:
    """The results of `call` for all classes of nets. Classes from outside come first, so that a file that fits such a
    class and a built-in one is of the built-in one; a class that fails is skipped, since the file may be of another."""
    found: list[T] = []
    for kind, cls in sorted(NETS.kinds().items(), key=lambda item: NETS.is_built_in(item[0])):
        try:
            found += call(cls)
        except Exception as error:
            if NETS.is_built_in(kind) or out_of_memory(error):
                raise
            note(f"{kind} is skipped: files cannot be compared with its layouts: {reason(error, cls.__module__)}")
    return found


def _candidates(
    file: NetFile, header: Header, known: Sequence[Candidate], arch: str | Net | None
) -> tuple[list[Candidate], bool]:
    """The nets and layouts that the header allows, and whether user or description named the net."""
    if isinstance(arch, Net):
        own = [(arch, layout) for layout in arch.layouts()]
        return _of_header(own, header) or own, True
    if arch is not None:
        named = [candidate for candidate in known if candidate[0].name == arch]
        if not named:
            named = [(net, layout) for net in _named(arch) for layout in net.layouts()]
        if not named:
            names = ", ".join(dict.fromkeys(net.name for net, _ in known))
            raise UserError(
                f"unknown architecture {arch!r:.80}, expected one of {names}, or such a name with other sizes of "
                "layers, as sfnnv5-l1-512-l2-24"
            )
        return _of_header(named, header) or named, True
    architecture = described(header.description, str(file.path))
    if architecture is not None:
        net = parse(architecture, f"{file.path}: description")
        own = [(net, layout) for layout in net.layouts()]
        return _of_header(own, header) or own, True
    if header.version == OWN_VERSION:
        raise file.error(
            12,
            "description",
            "no architecture record; pass its recipe or checkpoint: nnue import --model FILE or nnue eval --model FILE",
        )
    found = _of_header(known, header)
    if not found:
        raise file.error(4, "file hash", f"0x{header.file_hash:08X} {_unknown(file, header, known)}")
    return found, False


def _named(arch: str) -> list[Net]:
    found = (kind.named(arch) for kind in NETS.kinds().values())
    return [net for net in found if net is not None]


def _unknown(file: NetFile, header: Header, known: Sequence[Candidate]) -> str:
    """The reason why a file hash is unknown: it is of another net, or of one with other sizes, which `--arch` can
    state, or of one with other stacks, which only `--model` can."""
    body, others = file.body(header) or file, list[Net]()
    if body.size >= header.end + 4:
        transformer_hash = body.u32(header.end, "feature transformer hash")
        others = _of_each_kind(lambda kind: kind.of_other_sizes(header.version, transformer_hash))
    if not others:
        return f"is not a known architecture ({', '.join(dict.fromkeys(net.name for net, _ in known))})"
    fitting = [net for net in others if any(layout.file_hash == header.file_hash for layout in net.layouts())]
    names = ", ".join(net.name for net in fitting or others)
    sizes = max((net.unreadable or "" for net in fitting or others), key=len)
    if fitting:
        return f"is of a net without a record: {sizes}; give its name as --arch: {names}"
    first = f"{sizes}; " if sizes else ""
    return (
        f"is of a net without a record, with other sizes of layers or other stacks: {first}pass its recipe or "
        f"checkpoint: nnue import --model FILE, or nnue eval --model FILE; or, with the stacks of the version, its "
        f"name and all its sizes as --arch, such as {others[-1].name_with_sizes} (by its first layer one of {names})"
    )


def _of_header(candidates: Sequence[Candidate], header: Header) -> list[Candidate]:
    return [
        (net, layout)
        for net, layout in candidates
        if header.version == layout.version and layout.file_hash in (header.file_hash, None)
    ]


def _fitting(
    file: NetFile, header: Header, candidates: Sequence[Candidate]
) -> list[tuple[Net, FileLayout, list[Place]]]:
    """The candidates whose shape matches the whole file. Several architectures share version and hashes, so the header
    is not enough to decide the name of a file. LayoutError of the closest candidate if none matches."""
    fitting, failures = [], []
    for net, layout in candidates:
        try:
            fitting.append((net, layout, file.walk(layout, header, net.name)))
        except LayoutError as error:
            failures.append((error, net, layout))
    if fitting:
        return fitting

    # Prefer the candidate with the most correct hashes and magics; among equals, the one that fails last.
    def closeness(failure: tuple[LayoutError, Net, FileLayout]) -> tuple[int, int]:
        return failure[0].evidence, failure[0].offset

    best = max(map(closeness, failures))
    closest = [failure for failure in failures if closeness(failure) == best]
    nearest, _, layout = closest[0]
    names = dict.fromkeys(net.name for _, net, _ in closest)
    if len(names) == 1:
        raise nearest
    file.walk(layout, header, " or ".join(names))
    raise AssertionError("the file changed while it was read")


def to_bytes(net: QuantizedNet) -> bytes:
    """The bytes of the file of `net`, as `write_net` writes them and `read_net` reads them."""
    return writer.to_bytes(net.file_layout, net.description, net.tensors)


def write_net(net: QuantizedNet, path: PathLike) -> None:
    """Writes the file of `net` to `path` atomically. UserError where that fails: the old file stays as it was."""
    with replacing(path) as output:
        output.write_bytes(to_bytes(net))
