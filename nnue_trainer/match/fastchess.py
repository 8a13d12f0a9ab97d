"""Matches that fastchess plays: it gets our players, openings and limits, and its PGN becomes our games.

The openings go to it as positions in our order, so a match has the same ones with either program.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nnue_trainer import _data
from nnue_trainer.base import process_groups
from nnue_trainer.data.files import read_games
from nnue_trainer.errors import UserError, shown
from nnue_trainer.files.atomic import replacing
from nnue_trainer.match.journal import MatchJournal
from nnue_trainer.match.openings import Openings
from nnue_trainer.match.play import PlayedGame, Player
from nnue_trainer.match.result import MatchResult
from nnue_trainer.match.run import JOURNAL, Count, MatchOptions, match_header, write_files

BOOK, GAMES, OUTPUT, STATE = "fastchess.epd", "fastchess.pgn", "fastchess.log", "fastchess.json"
_RESULTS = {"1-0": 1, "1/2-1/2": 0, "0-1": -1}
_FAULTS = {
    "time forfeit": "time",
    "illegal move": "illegal move",
    "rules infraction": "illegal move",
    "abandoned": "engine ended",
    "stalled connection": "no answer",
}
# A score of 0 has no sign, "ERR" stands for none, and a mate counts plies.
_SCORE = re.compile(r"\s*(?:([+-]?)(M?)(\d+(?:\.\d+)?)|ERR)/(\d+)")


def find(program: str) -> str:
    """The path of fastchess. UserError if it is not installed."""
    found = shutil.which(program)
    if found is None:
        raise UserError(
            f"--fastchess {shown(program)}: no such program on PATH; leave the option out to play without it"
        )
    return found


def play_with_fastchess(
    program: str,
    players: Sequence[Player],
    options: MatchOptions,
    folder: Path,
    *,
    identity: Mapping[str, Any] | None = None,
    note: Callable[[str], None] | None = None,
) -> MatchResult:
    """Plays a whole match of two players with the fastchess at the path `program`, and writes the files of a match into
    `folder`. A match that is there already is not played again. UserError if fastchess fails."""
    if len(players) != 2:
        raise UserError(f"match: {len(players)} players, expected 2 for fastchess")
    names, openings = [player.name for player in players], Openings(options.openings, options.pairs)
    header = match_header(options, names, openings, dict(identity or {}) | {"played_by": "fastchess"})
    count = Count(names, options.sprt, options.pairs)
    folder.mkdir(parents=True, exist_ok=True)
    with MatchJournal(folder / JOURNAL, header) as journal:
        for game in journal.played():
            count.add(game)
        if not count.over:
            if len(count):
                raise UserError(f"{folder}: fastchess cannot continue a match; --overwrite starts a new one")
            with replacing(folder / BOOK) as output:
                output.write_text("".join(f"{_position(openings, n, options)}\n" for n in range(options.pairs)))
            (folder / GAMES).unlink(missing_ok=True)
            with (folder / OUTPUT).open("wb") as log:
                words = command(program, players, options, folder)
                status = process_groups.run(words, stdout=log, stderr=log).returncode
            if status != 0 or not (folder / GAMES).exists():
                raise UserError(f"fastchess: exit status {status}, its output is in {folder / OUTPUT}")
            for game in games_of(folder / GAMES, names, options):
                journal.add(game)
                count.add(game)
                if game.fault and note:
                    note(f"game {game.number + 1}: {game.fault}")
    result = count.result()
    write_files(result, options, header, folder)
    return result


def command(program: str, players: Sequence[Player], options: MatchOptions, folder: Path) -> list[str]:
    """The command that starts fastchess."""
    words, limit, rules = [program], options.limit, options.adjudication
    for player in players:
        given = [f"option.{name}={value}" for name, value in player.options.items()]
        words += ["-engine", f"cmd={player.path}", f"name={player.name}", *given]
    if limit.clock:
        each = [f"tc={limit.clock[0]:g}+{limit.clock[1]:g}", f"timemargin={round(1000 * limit.margin)}"]
    elif limit.movetime:
        each = [f"st={limit.movetime / 1000:g}", f"timemargin={round(1000 * limit.margin)}"]
    else:
        each = [f"nodes={limit.nodes}" if limit.nodes else f"depth={limit.depth}", "tc=inf"]
    words += ["-each", *each, "-games", "2", "-repeat", "-rounds", str(options.pairs), "-recover"]
    words += ["-concurrency", str(options.concurrency), "-force-concurrency"]  # more games than CPUs
    words += ["-config", f"outname={folder / STATE}"]  # not into the current folder
    words += ["-openings", f"file={folder / BOOK}", "format=epd", "order=sequential"]
    if rules.resign_moves:
        two_sided = "true" if rules.resign_two_sided else "false"
        words += ["-resign", f"movecount={rules.resign_moves}", f"score={rules.resign_score}", f"twosided={two_sided}"]
    if rules.draw_moves:
        words += ["-draw", f"movenumber={rules.draw_from_move}", f"movecount={rules.draw_moves}"]
        words += [f"score={rules.draw_score}"]
    if rules.max_moves:
        words += ["-maxmoves", str(rules.max_moves)]
    if options.openings.chess960:
        words += ["-variant", "fischerandom"]
    if (test := options.sprt) is not None:
        words += ["-sprt", f"elo0={test.elo0:g}", f"elo1={test.elo1:g}", f"alpha={test.alpha:g}", f"beta={test.beta:g}"]
        words += [f"model={test.model}"]
    return [*words, "-pgnout", f"file={folder / GAMES}"]


def games_of(path: Path, names: Sequence[str], options: MatchOptions) -> list[PlayedGame]:
    """The games of fastchess's PGN by number: rounds are pairs, and the first player has white in the first game."""
    found = []
    for game in read_games(path, chess960=options.openings.chess960):
        tags = game.tags
        number = re.match(r"\d+", tags.get("round", ""))
        if number is None or tags.get("result") not in _RESULTS:
            continue  # a game that was broken off
        white = names.index(tags["white"])
        termination, result = tags.get("termination", "normal"), _RESULTS[tags["result"]]
        if game.problem and termination != "illegal move":  # then it is the last move, as the engine gave it
            raise UserError(f"{game.where}: {game.problem}")
        board = _data.Game(game.fen, options.openings.chess960)
        for move in game.moves:
            board.play(move)
        scores = [_score(*match.groups("")) if (match := _SCORE.match(text)) else "-" for text in game.comments]
        reason = _FAULTS.get(termination, board.outcome() or termination)
        fault = ""
        if termination in _FAULTS:
            fault = f"{names[1 - white] if result > 0 else names[white]}: {termination}"
        place = 2 * (int(number[0]) - 1) + white
        moves = tuple(game.moves)
        found.append(PlayedGame(place, white, 1 - white, game.fen, (), moves, tuple(scores), result, reason, fault))
    return sorted(found, key=lambda game: game.number)


def _score(sign: str, mate: str, value: str, depth: str) -> str:
    if not value:
        return "-"
    # A mate is given in plies; the mating side plays the last one.
    number = (int(float(value)) + (sign != "-")) // 2 if mate else round(100 * float(value))
    return f"{'mate' if mate else 'cp'}{'-' if sign == '-' else ''}{number}/{depth}"


def _position(openings: Openings, number: int, options: MatchOptions) -> str:
    """The position after an opening."""
    opening = openings[number]
    board = _data.Game(opening.fen, options.openings.chess960)
    for move in opening.moves:
        board.play(move)
    return board.fen
