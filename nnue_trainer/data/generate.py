"""Training data by self-play of any UCI engine.

Game i is a function of (seed, i, engine, limits): each game has its own random generator for the opening, and the
engine plays on one thread and forgets everything between games. So the file is the same for any number of engines, and
an
interrupted run continues where it stopped: finished games are kept, in order, in a journal beside the output until all
are there (`nnue_trainer/data/journal.py`).

A finished output is never replaced unless requested. Beside it lies `OUT.generated.json`, which describes how it was
made; a command that is repeated after it has finished finds this and plays nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from nnue_trainer import _data
from nnue_trainer.base.arrays import Records
from nnue_trainer.data import fields
from nnue_trainer.data.books import Book, Opening
from nnue_trainer.data.fields import NO_SCORE
from nnue_trainer.data.files import WHOLE, Part, StrPath, format_for
from nnue_trainer.data.formats import DataFormat
from nnue_trainer.data.journal import Journal
from nnue_trainer.engines.pool import in_order
from nnue_trainer.engines.uci import Engine
from nnue_trainer.errors import UserError, quoted, shown
from nnue_trainer.files.atomic import check_new, replacing

START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
MATE = 32_000  # internal score of being mated now; one less for every ply until then
MAX_SCORE = 31_000  # the largest score that is not a mate score

_MAX_OPENINGS = 1000  # the run ends with an error after this many unusable openings for one game
_MAX_PLY = 16_383  # a record has 14 bits for it
_BOOK_PLIES = 8  # half-moves of a game
_BOOK_POSITIONS = 1 << 16  # of a data file

# Stockfish divides an internal score by this number, and multiplies by 100, for "score cp". In newer releases the
# divisor depends on the material.
_SCALES = {"15.1": 3.61, "16": 3.28, "16.1": 3.56} | dict.fromkeys(("12", "13", "14", "14.1", "15"), 2.08)

RANGES = {
    "positions": (1, 1 << 62),
    "games": (1, (1 << 32) - 1),
    "seed": (0, (1 << 64) - 1),
    "nodes": (1, (1 << 63) - 1),
    "depth": (1, 1000),
    "random_plies": (0, 1000),
    "win_score": (1, MATE),
    "win_plies": (0, 10_000),
    "draw_score": (0, MATE),
    "draw_plies": (0, 10_000),
    "draw_from_ply": (0, 10_000),
    "max_ply": (1, 10_000),
    "opening_score": (1, MATE),
    "hash_mb": (1, 1 << 25),
}
"""The smallest and the largest value of every option that is a whole number."""
_ALTERNATIVES = ("positions", "games", "nodes", "depth")


@dataclass(frozen=True)
class GenerateOptions:
    """How games are played. Exactly one of `nodes` and `depth` limits the search for a move, and exactly one of
    `positions` and `games` the file: the game that reaches this many positions is the last, or this many are played.

    `score_scale`: internal units per centipawn of the engine's "score cp"; None takes it from the engine's name. All
    other scores are internal units. `book`: a file of openings, as for matches (`nnue_trainer.data.books`): the first 8
    half-moves of each game, or up to 65,536 positions of a data file; None starts every game from the usual position.
    `random_plies` legal moves at random follow. `opening_score`: an opening with a first score
    beyond it is drawn again.
    A move without an exact score makes a position without one (32002).
    Adjudication: a win once both sides have agreed on |score| ≥ `win_score` for `win_plies` plies in a row, a draw once
    |score| ≤ `draw_score` for `draw_plies` plies in a row in a game of at least `draw_from_ply` plies; 0 plies: never.
    `chess960`: play Chess960. Without a book, games start from one of its 960 arrays for both sides, or with "dfrc"
    from one for each side.
    """

    engine: str
    positions: int | None = None
    seed: int = 0
    nodes: int | None = None
    depth: int | None = None
    random_plies: int = 8
    book: str | None = None
    score_scale: float | None = None
    win_score: int = 2500
    win_plies: int = 5
    draw_score: int = 20
    draw_plies: int = 10
    draw_from_ply: int = 80
    max_ply: int = 400
    opening_score: int = 1000
    hash_mb: int = 4
    engine_options: dict[str, str] = field(default_factory=dict)
    chess960: Literal["", "same", "dfrc"] = ""
    games: int | None = None

    def __post_init__(self) -> None:
        if (self.nodes is None) == (self.depth is None):
            raise UserError("generate: give either nodes or depth")
        if (self.positions is None) == (self.games is None):
            raise UserError("generate: give either positions or games")
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if value is None and name in _ALTERNATIVES:
                continue
            if not isinstance(value, int) or not low <= value <= high:
                raise UserError(f"generate: {name} is {value}, expected a whole number from {low} to {high}")
        scale = self.score_scale
        if scale is not None and not (math.isfinite(scale) and 0 < scale <= 1000):
            raise UserError(f"generate: score scale {scale}, expected a positive number up to 1000")


@dataclass
class Generated:
    """The content of a file. `already`: it had been made before, and nothing was played. `losses`: positions in which
    something was dropped or changed because the format has no room for it, by what it was."""

    positions: int
    games: int
    already: bool = False
    losses: Counter[str] = field(default_factory=Counter)


def score_scale(engine_name: str, note: Callable[[str], None] | None = None) -> float:
    """Internal units per centipawn of the engine's "score cp", which `note` takes in words. UserError for an engine
    that is not known."""
    match = re.fullmatch(r"Stockfish (\d+(?:\.\d+)?)(?: .*)?", engine_name)
    if match and match.group(1) in _SCALES:
        scale = _SCALES[match.group(1)]
        if note:
            note(f"scores: {scale:g} internal units per centipawn, by the engine's name, {shown(engine_name)}")
        return scale
    raise UserError(
        f"engine {quoted(engine_name)} does not report its internal units: give --score-scale (1 keeps centipawns)"
    )


def internal_score(kind: str, value: int, scale: float) -> int:
    """A UCI score in internal units; a mate that is n plies away is 32,000 − n, and stays beyond every other score."""
    if kind == "mate":
        score = MATE - (2 * value - 1) if value > 0 else -MATE - 2 * value
        return max(score, MAX_SCORE + 1) if value > 0 else min(score, -MAX_SCORE - 1)
    return max(-MAX_SCORE, min(MAX_SCORE, round(value * scale)))


def start_position(white: int, black: int) -> str:
    """The FEN of a start position of Chess960: number 0 to 959 of the array of each side; 518 is the usual one."""
    ranks = [_array(number) for number in (black, white)]
    letters = ["".join("ABCDEFGH"[file] for file in range(7, -1, -1) if rank[file] == "R") for rank in ranks]
    return f"{ranks[0].lower()}/pppppppp/8/8/8/8/PPPPPPPP/{ranks[1]} w {letters[1]}{letters[0].lower()} - 0 1"


def _array(number: int) -> str:
    """A first rank by its number: bishops, then queen, knights among what is left, and rook, king, rook."""
    rank = [""] * 8
    number, light = divmod(number, 4)
    number, dark = divmod(number, 4)
    rank[2 * light + 1] = rank[2 * dark] = "B"
    number, queen = divmod(number, 6)
    rank[[file for file in range(8) if not rank[file]][queen]] = "Q"
    free = [file for file in range(8) if not rank[file]]
    for place in list(combinations(range(5), 2))[number]:
        rank[free[place]] = "N"
    for piece, file in zip("RKR", [file for file in range(8) if not rank[file]], strict=True):
        rank[file] = piece
    return "".join(rank)


class Openings:
    """Where games start: an opening of the book, or the usual position, and random legal moves. Used by several
    threads.

    `finished` positions of the book are games that are over; they are never drawn.
    """

    def __init__(self, options: GenerateOptions) -> None:
        self.options = options
        self.book = _read_book(options) if options.book else []
        self.usable = [opening for opening in self.book if not _data.Game(opening.fen).outcome()]
        self.finished = len(self.book) - len(self.usable)
        # Openings of the book whose score is beyond the limit, if no random plies follow them.
        self.beyond: set[tuple[str, ...]] = set()
        self._check_book()

    def draw(self, rng: random.Random) -> tuple[str, list[str], _data.Game] | None:
        """The position that a game starts from, its first moves and the game after them; None if the game is over by
        then."""
        variant = self.options.chess960
        moves: list[str] = []
        if self.usable:
            opening = rng.choice(self.usable)
            fen, moves = opening.fen, list(opening.moves)
        elif variant:
            white = rng.randrange(960)
            fen = start_position(white, rng.randrange(960) if variant == "dfrc" else white)
        else:
            fen = START
        game = _data.Game(fen, bool(variant))
        for move in moves:
            game.play(move)
        for _ in range(self.options.random_plies):
            if game.outcome():
                break
            moves.append(rng.choice(game.legal_moves()))
            game.play(moves[-1])
        return None if game.outcome() else (fen, moves, game)

    def is_known_beyond(self, fen: str, moves: list[str]) -> bool:
        """Whether an earlier game found that this opening's first score is beyond the limit."""
        return not self.options.random_plies and (fen, *moves) in self.beyond

    def add_beyond(self, fen: str, moves: list[str]) -> None:
        """Remembers an opening with a first score beyond the limit. UserError if no opening of the book is left."""
        if self.usable and not self.options.random_plies:
            self.beyond.add((fen, *moves))
            self._check_book()

    def unusable(self) -> str:
        """One line on the positions of the book that no game starts from, as far as that is known; "" for none."""
        if not self.finished and not self.beyond:
            return ""
        unusable = self.finished + sum((fen, *moves) in self.beyond for fen, moves, _ in self.usable)
        return (
            f"{self.options.book}: no game starts from {unusable:,} of its {len(self.book):,} positions: "
            f"{self.finished:,} are finished games, {unusable - self.finished:,} have a first score beyond the opening "
            f"score of {self.options.opening_score}"
        )

    def _check_book(self) -> None:
        if self.book and self.beyond.issuperset((fen, *moves) for fen, moves, _ in self.usable):
            raise UserError(self.unusable())


class ScoreCheck:
    """UserError for an engine that reports no score at all. A few answers have none: those to positions with one legal
    move, or with a bound only."""

    _MOST = 8  # answers

    def __init__(self, engine: Engine, limit: str) -> None:
        self._engine, self._limit = engine, limit
        self._has_scores, self._without = False, 0

    def add(self, kind: str, legal_moves: int) -> None:
        """Takes the kind of the score of the next answer, "" for none, and the number of moves that were legal."""
        self._has_scores |= bool(kind)
        if self._has_scores or legal_moves < 2:
            return
        self._without += 1
        if self._without >= self._MOST:
            raise UserError(
                f"engine {shown(self._engine.path)}: answered 'go {self._limit}' with a move but no exact score "
                f"{self._MOST} times in a row, expected lines such as 'info depth 5 score cp 12'"
            )


def play_game(engine: Engine, options: GenerateOptions, scale: float, openings: Openings, index: int) -> Records:
    """Game number `index` from its opening to its result, uint8 [plies, 32]."""
    rng = random.Random(f"{options.seed}/{index}")
    limit = f"nodes {options.nodes}" if options.nodes is not None else f"depth {options.depth}"
    over = beyond = 0
    while over + beyond < _MAX_OPENINGS:
        opening = openings.draw(rng)
        if opening is None:
            over += 1
            continue
        fen, moves, game = opening
        if openings.is_known_beyond(fen, moves):
            beyond += 1
            continue
        engine.new_game()
        plies = decided = drawish = 0
        scores = ScoreCheck(engine, limit)
        result: int | None = None
        while result is None:
            outcome = game.outcome()
            if outcome:
                mover = 1 if game.white_to_move else -1
                result = -mover if outcome == "checkmate" else 0
                break
            if plies >= options.max_ply or game.ply > _MAX_PLY:
                result = 0
                break
            move, kind, value = engine.search(fen, moves, limit)
            scores.add(kind, 0 if kind else len(game.legal_moves()))
            score = internal_score(kind, value, scale) if kind else NO_SCORE
            if plies == 0 and kind and abs(score) > options.opening_score:
                openings.add_beyond(fen, moves)
                break
            mover = 1 if game.white_to_move else -1
            try:
                game.record(move, score)
            except UserError as error:
                raise UserError(
                    f"engine {shown(engine.path)}: answered 'go {limit}' with a wrong move: {error}"
                ) from None
            moves.append(move)
            plies += 1
            if not kind:
                decided = drawish = 0
                continue
            white = mover * score
            sign = (white > 0) - (white < 0)
            decided = (decided + sign if decided * sign >= 0 else sign) if abs(white) >= options.win_score else 0
            drawish = drawish + 1 if abs(white) <= options.draw_score else 0
            if options.win_plies and abs(decided) >= options.win_plies:
                result = sign
            elif options.draw_plies and drawish >= options.draw_plies and plies >= options.draw_from_ply:
                result = 0
        if plies == 0:
            beyond += 1
        elif result is not None:
            return game.records(result)
    raise UserError(
        f"generate: none of {_MAX_OPENINGS:,} openings drawn for game {index} can be played: {over:,} were over before "
        f"the first move of the engine, {beyond:,} had a first score beyond the opening score of "
        f"{options.opening_score}"
    )


def generate(
    out: StrPath,
    options: GenerateOptions,
    *,
    to: str | None = None,
    concurrency: int = 1,
    overwrite: bool = False,
    timeout: float = 600.0,
    progress: Callable[[int, int], None] | None = None,
    note: Callable[[str], None] | None = None,
    part: Part = WHOLE,
) -> Generated:
    """Plays games until there are at least `options.positions` positions, or `options.games` of them, and writes them
    to `out`, whole games only.

    `part`: plays only these of the games; needs `options.games`. All parts, joined by `transform.convert`, are the
    file of one call. `to`: the format, None to take it from the name of `out`. `timeout` in seconds holds for every
    answer of an engine. `progress(positions, games)` is called after each game, `note(line)` with what a user should
    read. After an interruption the next call with the same options continues. An `out` that exists is not changed: the
    result shows it if this call would make the same file, and otherwise it is an error, unless `overwrite` is set.
    """
    out = Path(out)
    note = note or (lambda line: None)
    if not 1 <= concurrency <= 1024:
        raise UserError(f"generate: concurrency is {concurrency}, expected a number from 1 to 1024")
    numbers = _numbers(options, part)
    made = None if overwrite else _read_made(out)
    if made is None:
        check_new(out, overwrite)
    format = format_for(out, to)
    openings = Openings(options)
    if options.chess960 and format.kind in _data.only_standard_castling():
        raise UserError(
            f"{out}: {format.kind} cannot store castling rights of Chess960; write viriformat, marlinformat, plain "
            "or text"
        )
    uci_options = {"Hash": str(options.hash_mb)} | options.engine_options
    if options.chess960:
        uci_options["UCI_Chess960"] = "true"
    engines = [Engine(options.engine, uci_options, timeout=timeout)]
    try:
        scale = options.score_scale if options.score_scale is not None else score_scale(engines[0].name, note)
        header: dict[str, Any] = asdict(options) | {
            "score_scale": scale,
            "engine": engines[0].name,
            "format": format.kind,
        }
        if not options.chess960:  # files that were made without this option stay the same
            del header["chess960"]
        del header["positions" if options.positions is None else "games"]
        if not part.is_whole:
            header["part"] = f"{part.number}/{part.of}"
        if openings.book:  # another book under the same name is another run
            lines = "\n".join(" ".join((fen, *moves)) for fen, moves, _ in openings.book)
            header["book"] = hashlib.sha256(lines.encode()).hexdigest()
        journal_path = out.with_name(out.name + ".journal")
        if made is not None:
            if made["options"] != header:
                raise UserError(f"{out}: {_differences(made['options'], header)}; --overwrite replaces it")
            Journal.remove_finished(journal_path, header)
            return Generated(made["positions"], made["games"], already=True, losses=Counter(made["losses"]))
        engines += [Engine(options.engine, uci_options, timeout=timeout) for _ in range(concurrency - 1)]
        with Journal(journal_path, header) as journal:
            if journal.cut:
                note(
                    f"{journal_path}: its last {journal.cut:,} bytes are incomplete games, as after a crash; these "
                    "games are played again"
                )
            _play_in_order(engines, options, scale, openings, journal, progress, numbers)
            if openings.unusable():
                note(openings.unusable())
            check_new(out, overwrite)  # it may have appeared in the meantime
            losses = _write(out, format, journal, header)
            counts = ScoreCounts()
            for game in journal.read():
                counts.add(game)
            for line in counts.notes():
                note(line)
            journal.remove()
    finally:
        for engine in engines:
            engine.close()
    return Generated(journal.positions, journal.games, losses=losses)


def _numbers(options: GenerateOptions, part: Part) -> range:
    """The numbers of the games that a part may play. UserError if it has none."""
    if options.games is None:
        if not part.is_whole:
            raise UserError(
                f"generate: part {part.number}/{part.of} of a number of positions: expected a number of games "
                "(--games), as where a part begins would depend on the lengths of all games before it"
            )
        return range(1 << 62)
    numbers = range(*part.range(options.games))
    if not numbers:
        raise UserError(f"generate: part {part.number}/{part.of} of {options.games} games has none: use fewer parts")
    return numbers


class ScoreCounts:
    """Counts missing scores of an engine, and those that are limited to `MAX_SCORE`."""

    def __init__(self) -> None:
        self.unscored = self.limited = 0

    def add(self, records: Records) -> None:
        scores = fields.scores(records)
        self.unscored += int((scores == NO_SCORE).sum())
        self.limited += int(((scores == MAX_SCORE) | (scores == -MAX_SCORE)).sum())

    def notes(self) -> list[str]:
        found = []
        if self.unscored:
            found.append(
                f"{self.unscored:,} positions have no score ({NO_SCORE}): the engine gave a move only, or a bound"
            )
        if self.limited:
            found.append(
                f"{self.limited:,} scores of {MAX_SCORE:,} internal units or more, such as wins in a table base, are "
                f"written as {MAX_SCORE:,}"
            )
        return found


def _write(out: Path, format: DataFormat, journal: Journal, header: dict[str, Any]) -> Counter[str]:
    """Writes the games of the journal to `out`, and next to it a description of how they were made. The description
    comes first: after a crash in between, `out` is missing or does not fit the description, and the journal is still
    whole."""
    with replacing(out, journal.check_owned) as output:
        writer = format.open_writer(out, output.fd)
        for game in journal.read():
            writer.write(game)
        writer.finish()
        output.sync()
        losses = Counter({what: count for what, count in writer.losses.items() if count})
        made = {
            "made_by": "nnue data generate",
            "options": header,
            "positions": journal.positions,
            "games": journal.games,
            "losses": losses,
            "file": _fingerprint(output.fd),
        }
        with replacing(_made_path(out)) as description:
            description.write_text(json.dumps(made, indent=2) + "\n")
    return losses


def _made_path(out: Path) -> Path:
    return out.with_name(out.name + ".generated.json")


def _read_made(out: Path) -> dict[str, Any] | None:
    """The description next to `out` of how it was made; None if there is none, or if `out` has become another file."""
    if not out.is_file():
        return None
    try:
        with _made_path(out).open(encoding="utf-8") as text:
            made = json.loads(text.read(1 << 20))
        with out.open("rb") as file:
            found = _fingerprint(file.fileno())
        if made["file"] != found or not isinstance(made["options"], dict):
            return None
        return {
            "options": made["options"],
            "positions": int(made["positions"]),
            "games": int(made["games"]),
            "losses": {str(what): int(count) for what, count in made["losses"].items()},
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _fingerprint(descriptor: int) -> dict[str, int | str]:
    """Size of an open file, and a digest of sixteen pieces of it."""
    size = os.fstat(descriptor).st_size
    digest = hashlib.blake2b(digest_size=16)
    for piece in range(16):
        digest.update(os.pread(descriptor, 4096, max(0, size - 4096) * piece // 15))
    return {"size": size, "digest": digest.hexdigest()}


def _differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    """How the options of the run that made a file differ from these."""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return "was made with " + ", ".join(
        f"{name} {quoted(before.get(name))}, not {quoted(now.get(name))}" for name in names[:3]
    )


def _read_book(options: GenerateOptions) -> list[Opening]:
    book = Book(
        str(options.book), plies=_BOOK_PLIES, chess960=bool(options.chess960), seed=options.seed, count=_BOOK_POSITIONS
    )
    if book.has_moves:
        return [book[number] for number in range(len(book))]
    return [Opening(fen) for fen in book.fens()]


def _play_in_order(
    engines: list[Engine],
    options: GenerateOptions,
    scale: float,
    openings: Openings,
    journal: Journal,
    progress: Callable[[int, int], None] | None,
    numbers: range,
) -> None:
    """Every free engine takes the next one of `numbers`; games enter the journal in this order."""

    def play(engine: Engine, index: int) -> Records:
        return play_game(engine, options, scale, openings, index)

    enough = math.inf if options.positions is None else options.positions
    if journal.positions >= enough:
        return
    with contextlib.closing(in_order(engines, iter(numbers[journal.games :]), play)) as games:
        for game in games:
            journal.append(game)
            if progress:
                progress(journal.positions, journal.games)
            if journal.positions >= enough:
                break
