"""The Rust file with the sizes of a net, for the inference examples/engine/nnue.rs: as `engine_header` is for C++."""

from __future__ import annotations

from collections.abc import Sequence

from nnue_trainer.data.features import FeaturePart, outside_set
from nnue_trainer.nets.base import Net
from nnue_trainer.nets.engine_sizes import piece_squares, rendered, table_of, variables_of

_BLOCKS = tuple[list[int], list[list[int]]]


def _blocks_of_both_sides(slots: Sequence[int], victims: Sequence[Sequence[int]]) -> _BLOCKS:
    """How many blocks each attacker P p N n … K k has, and the block of each such victim. `slots` count the blocks of
    P N B R Q K, own victims before the enemy's; `victims` number the own ones, -1 for a pair that is not a feature."""
    rows = [
        [-1 if of[v // 2] < 0 else v % 2 * count // 2 + of[v // 2] for v in range(12)]
        for count, of in zip(slots, victims, strict=True)
    ]
    return [slots[code // 2] for code in range(12)], [rows[code // 2] for code in range(12)]


_THREATS: dict[str, _BLOCKS] = {
    "Full_Threats_v2": (
        [5, 6, 9, 9, 7, 7, 7, 7, 9, 9, 0, 0],
        [
            [0, -1, 1, 3, -1, -1, 2, 4, -1, -1, -1, -1],
            [0, 3, 1, 4, -1, -1, 2, 5, -1, -1, -1, -1],
            *2 * [[0, 5, 1, 1, 2, 6, 3, 7, 4, 8, -1, -1]],
            *2 * [[0, 4, 1, 5, 2, 2, 3, 6, -1, -1, -1, -1]],
            *2 * [[0, 4, 1, 5, 2, 6, 3, 3, -1, -1, -1, -1]],
            *2 * [[0, 5, 1, 6, 2, 7, 3, 8, 4, 4, -1, -1]],
            *2 * [[-1] * 12],
        ],
    )
}
_PIECES: dict[str, tuple[list[int], list[Sequence[int]]]] = {
    "v10": ([6, 12, 10, 10, 12, 8], [[0, 1, -1, 2, -1, -1], range(6), [0, 1, 2, 3, -1, 4], [0, 1, 2, 3, -1, 4],
                                     range(6), [0, 1, 2, 3, -1, -1]]),
    "v11": ([6, 10, 8, 8, 10, 8], [[0, 1, -1, 2, -1, -1], [0, 1, 2, 3, 4, -1], *2 * [[0, 1, 2, 3, -1, -1]],
                                   [0, 1, 2, 3, 4, -1], [0, 1, 2, 3, -1, -1]]),
    "v12": ([6, 10, 8, 8, 10, 0], [[0, 1, -1, 2, -1, -1], [0, 1, 2, 3, 4, -1], *2 * [[0, 1, 2, 3, -1, -1]],
                                   [0, 1, 2, 3, 4, -1], [-1] * 6]),
    "v16": ([4, 10, 8, 8, 10, 0], [[-1, 0, -1, 1, -1, -1], [0, 1, 2, 3, 4, -1], *2 * [[0, 1, 2, 3, -1, -1]],
                                   [0, 1, 2, 3, 4, -1], [-1] * 6]),
}  # fmt: skip
_PIECES["v14"] = _PIECES["v12"]
_THREATS |= {f"Full_Threats_{name}": _blocks_of_both_sides(*pieces) for name, pieces in _PIECES.items()}


def engine_rust(net: Net, *, skip: int = 0, align: int = 64) -> str | None:
    """The file; None for a net without `integer_forward()`, or with feature sets that the inference does not have."""
    forward = net.integer_forward()
    if forward is None:
        return None
    variables = variables_of(net, forward, skip, align)
    for each in variables["parts"]:
        if (known := _set(each["part"])) is None:
            return None
        each["set"] = known
    return rendered("net.rs.j2", **variables)


def _word(value: bool) -> str:
    return str(value).lower()


def _set(part: FeaturePart) -> str | None:
    if part.name in _THREATS:
        slots, blocks = _THREATS[part.name]
        pushes, merged = _word(part.name == "Full_Threats_v14"), _word(part.name == "Full_Threats_v2")
        return f"Threats {{ slots: {slots}, blocks: {blocks}, pushes: {pushes}, merged: {merged} }}"
    if part.name == "PP_3Wide":
        return "PawnPairs"
    if outside_set(part.name) is not None:
        table = table_of(part, "nnue.rs")
        return (
            f"Table {{ index: &{table.index.tolist()}, counters: &{list(table.counters)}, "
            f"offsets: &{table.offsets.reshape(-1).tolist()} }}"
        )
    known = piece_squares(part)
    if known is None:
        return None
    return (
        f"PieceSquares {{ planes: {known.planes}, unused: {known.unused}, turn: {known.turn}, "
        f"mirror: {known.mirror}, "
        f"interleaved: {_word(known.is_interleaved)}, enemy_first: {_word(known.is_enemy_first)}, "
        f"states: {part.num_states}, counters: &{list(part.states)}, of_square: {known.kings} }}"
    )
