"""K32Q2, K16Q2 and `Full_Threats_v2` on random boards, written out from their definitions in plain loops: many queens,
promoted ones, bare and mirrored kings, which positions of games hardly have."""

from collections.abc import Iterator

import numpy as np
import pytest

from nnue_trainer.data import expand
from nnue_trainer.data.fields import pack

PAWN, KNIGHT, BISHOP, ROOK, QUEEN, KING = range(6)
STEPS = {
    KNIGHT: ([(1, 2), (2, 1), (2, -1), (1, -2), (-1, -2), (-2, -1), (-2, 1), (-1, 2)], 1),
    BISHOP: ([(1, 1), (1, -1), (-1, 1), (-1, -1)], 7),
    ROOK: ([(1, 0), (-1, 0), (0, 1), (0, -1)], 7),
    QUEEN: ([(1, 1), (1, -1), (-1, 1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1)], 7),
}
# Slot of each victim, "o" own and "e" enemy of the perspective; by attacker.
SLOTS = {
    "oP": "oP oN oR eN eR",
    "eP": "oP oN oR eP eN eR",
    "N": "oP oN oB oR oQ eP eB eR eQ",
    "B": "oP oN oB oR eP eN eR",
    "R": "oP oN oB oR eP eN eB",
    "Q": "oP oN oB oR oQ eP eN eB eR",
}
SAME_TYPE = {"N": ("eN", 1), "B": ("eB", 2), "R": ("eR", 3), "Q": ("eQ", 4)}
BASES = {"o": [0, 420, 3444, 7364, 13636], "e": [26740, 27244, 30268, 34188, 40460]}

Board = dict[int, tuple[int, int]]
"""(type, colour) by square"""


def boards(count: int) -> Iterator[Board]:
    """Boards with kings anywhere, and with any number of any other pieces, up to 32 in all."""
    chance = np.random.default_rng(5)
    for number in range(count):
        squares = chance.permutation(64).tolist()
        board: Board = {squares.pop(): (KING, 0), squares.pop(): (KING, 1)}
        shares = [[6, 2, 2, 2, 1], [0, 0, 0, 0, 1], [1, 0, 0, 0, 1], [1, 1, 1, 1, 1]][number % 4]
        sides = [(0, 1), (0,), (1,), (0, 1, 1)][number // 4 % 4]
        for _ in range(int(chance.integers(0, 31))):
            kind = int(chance.choice(5, p=np.array(shares) / sum(shares)))
            if kind == PAWN and sum(piece[0] == PAWN for piece in board.values()) == 16:
                continue
            square = next(s for s in squares if kind != PAWN or 8 <= s < 56)
            squares.remove(square)
            board[square] = kind, int(chance.choice(sides))
        yield board


def king_square(board: Board, colour: int) -> int:
    return next(square for square, piece in board.items() if piece == (KING, colour))


def by_queen(board: Board, side: int, *, planes: int, by_rank: bool) -> list[int]:
    flip = 56 if side else 0
    king = king_square(board, side) ^ flip
    mirror = 7 if king % 8 < 4 else 0
    rank, file = divmod(king ^ mirror, 8)
    bucket = 4 * (7 - rank) + 7 - file
    if by_rank:
        f = file - 4
        bucket = (f, 4 + f, 8 + f, 8 + f, 12 + f // 2, 12 + f // 2, 14 + f // 2, 14 + f // 2)[rank]
    has_queen = any(piece == (QUEEN, 1 - side) for piece in board.values())
    found = []
    for square, (kind, colour) in board.items():
        plane = min(2 * kind + (colour != side), planes - 1)
        found.append(64 * planes * (2 * bucket + has_queen) + 64 * plane + (square ^ flip ^ mirror))
    return sorted(found)


def attacks(kind: int, forward: int, square: int, occupied: set[int]) -> set[int]:
    steps, far = ([(-1, forward), (1, forward)], 1) if kind == PAWN else STEPS[kind]
    found = set()
    for df, dr in steps:
        for n in range(1, far + 1):
            file, rank = square % 8 + n * df, square // 8 + n * dr
            if not (0 <= file < 8 and 0 <= rank < 8):
                break
            found.add(8 * rank + file)
            if 8 * rank + file in occupied:
                break
    return found


def offsets(kind: int, forward: int) -> tuple[list[int], int]:
    squares = range(64) if kind != PAWN else range(8, 56)
    sizes = [len(attacks(kind, forward, s, set())) if s in squares else 0 for s in range(64)]
    return [sum(sizes[:s]) for s in range(64)], sum(sizes)


PLACES = {(kind, forward): offsets(kind, forward) for kind in range(5) for forward in (1, -1)}


def threats(board: Board, side: int) -> list[int]:
    turn = (56 if side else 0) ^ (7 if king_square(board, side) % 8 >= 4 else 0)
    found = []
    for start, (kind, colour) in board.items():
        if kind == KING:
            continue
        for end in attacks(kind, 1 if colour == 0 else -1, start, set(board)) & set(board):
            victim, of = board[end]
            attacker = "o" if colour == side else "e"
            letter, other = "PNBRQK"[kind], ("o" if of == side else "e") + "PNBRQK"[victim]
            slots = SLOTS[attacker + "P" if kind == PAWN else letter].split()
            from_, to = start ^ turn, end ^ turn
            if kind == victim and kind != PAWN and from_ < to:
                continue
            if kind == victim and kind != PAWN and colour != of:
                from_, to = to, from_
            if kind == victim and kind != PAWN and other == SAME_TYPE[letter][0]:
                slot = SAME_TYPE[letter][1]
            elif other in slots:
                slot = slots.index(other)
            else:
                continue
            # In the frame of the perspective own pawns go up, whatever their colour.
            forward = 1 if attacker == "o" else -1
            places, total = PLACES[kind, forward]
            rank = sum(square < to for square in attacks(kind, forward, from_, set()))
            found.append(BASES[attacker][kind] + slot * total + places[from_] + rank)
    return sorted(found)


EXPECTED = {
    "K32Q2": lambda board, side: by_queen(board, side, planes=12, by_rank=False),
    "K32Q2_11": lambda board, side: by_queen(board, side, planes=11, by_rank=False),
    "K16Q2": lambda board, side: by_queen(board, side, planes=12, by_rank=True),
    "K16Q2_11": lambda board, side: by_queen(board, side, planes=11, by_rank=True),
    "Full_Threats_v2": threats,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_rows_of_random_boards(name: str) -> None:
    tried, kings = list(boards(400)), set()
    codes = np.zeros((len(tried), 64), np.uint8)
    for row, board in zip(codes, tried, strict=True):
        for square, (kind, colour) in board.items():
            row[square] = 1 + 2 * kind + colour
    batch = expand(pack(codes, np.zeros(len(tried), bool), scores=0, results=0), name)
    for number, board in enumerate(tried):
        for side, rows in enumerate((batch.white, batch.black)):
            kings.add(king_square(board, side))
            found = rows[number]
            assert sorted(found[found >= 0].tolist()) == EXPECTED[name](board, side), (number, side)
    assert len(kings) == 64
