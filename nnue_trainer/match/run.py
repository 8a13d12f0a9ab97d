"""A match from its players to its results: who plays whom, the journal, the sequential test, the files.

The folder of a match has the games in `games.journal`, in the order in which they ended; everything else in it is made
of them. A pair of games counts when both are over and all pairs with lower numbers are: so results, and the end of a
sequential test, are a function of the games and not of their order in time, and a match that was divided among machines
gives the bytes of one that was not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, combinations
from pathlib import Path
from typing import Any

from nnue_trainer.base import extras
from nnue_trainer.data.files import WHOLE, Part
from nnue_trainer.data.generate import START
from nnue_trainer.engines.uci import EngineEnded
from nnue_trainer.errors import UserError
from nnue_trainer.files.atomic import check_new, replacing
from nnue_trainer.files.pages.page import plain
from nnue_trainer.match.adjudication import Adjudication
from nnue_trainer.match.journal import MatchJournal
from nnue_trainer.match.openings import OpeningOptions, Openings
from nnue_trainer.match.pgn import RESULTS, game_text
from nnue_trainer.match.play import Arena, Limit, PlayedGame, Player, Task
from nnue_trainer.match.players import does_not_play
from nnue_trainer.match.result import MatchResult, Pairing, counts_of, elo_text
from nnue_trainer.match.statistics import Sprt

JOURNAL = "games.journal"
JSON, PGN, PAGE = "match.json", "games.pgn", "match.html"
FORMAT_VERSION = 1
_START_SECONDS = 10.0  # until a program that is not an engine is given up, before the first game


@dataclass(frozen=True)
class MatchOptions:
    """How a match is played. `pairs` counts pairs of games of each two players; with `sprt`, which takes two players
    or teams, it is the most that are played. `teams` has the number of each player's team: players of one team do not
    meet, and those of a lower number are the first of a pairing. Empty: everyone meets everyone. With `gauntlet` only
    the lowest team, or the first player, meets the others."""

    limit: Limit
    pairs: int
    openings: OpeningOptions = field(default_factory=OpeningOptions)
    adjudication: Adjudication = field(default_factory=Adjudication)
    sprt: Sprt | None = None
    concurrency: int = 1
    teams: Sequence[int] = ()
    gauntlet: bool = False


def journal_of(part: Part) -> str:
    """The name of the journal with the games of a part: every `of`-th pair, from `number` on."""
    return JOURNAL if part.is_whole else f"part-{part.number}-of-{part.of}.journal"


class Count:
    """Counts pairs in the order of their numbers as games come in."""

    def __init__(
        self,
        players: Sequence[str],
        sprt: Sprt | None,
        pairs: int,
        teams: Sequence[int] = (),
        gauntlet: bool = False,
    ) -> None:
        self.players = list(players)
        teams = teams or range(len(players))
        order = sorted(range(len(players)), key=lambda player: teams[player])
        self.pairings = [Pairing(a, b) for a, b in combinations(order, 2) if teams[a] != teams[b]]
        if gauntlet:
            self.pairings = [each for each in self.pairings if teams[each.first] == min(teams)]
        self.sprt = sprt
        self.total = pairs * len(self.pairings)
        self._games: dict[int, PlayedGame] = {}
        self._counted = 0
        self.decided = False

    def __contains__(self, number: int) -> bool:
        return number in self._games

    def __len__(self) -> int:
        return len(self._games)

    @property
    def games(self) -> list[PlayedGame]:
        """All games that are over, those that do not count yet included, by number."""
        return [self._games[number] for number in sorted(self._games)]

    @property
    def over(self) -> bool:
        return self.decided or self._counted == self.total

    def add(self, game: PlayedGame) -> None:
        if game.number >= 2 * self.total:
            return
        self._games.setdefault(game.number, game)
        while not self.over and 2 * self._counted in self._games and 2 * self._counted + 1 in self._games:
            pairing = self.pairings[self._counted % len(self.pairings)]
            points = 0
            for number in (2 * self._counted, 2 * self._counted + 1):
                played = self._games[number]
                own = played.result if played.white == pairing.first else -played.result
                points += own + 1
                pairing.games[own + 1] += 1
            pairing.points.append(points)
            self._counted += 1
            self.decided = self.sprt is not None and self.sprt.verdict(counts_of(self.pairings)) is not None

    def result(self) -> MatchResult:
        games = [self._games[number] for number in range(2 * self._counted)]
        return MatchResult(self.players, self.pairings, games, self.over, self.sprt)


def play_match(
    players: Sequence[Player],
    options: MatchOptions,
    folder: Path,
    *,
    part: Part = WHOLE,
    identity: Mapping[str, Any] | None = None,
    replace_other: bool = False,
    progress: Callable[[int, int], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> MatchResult:
    """Plays what is missing of a match and writes its files into `folder`; a part of a match only plays.

    `identity` is JSON data that identifies the players, for the journal: a match continues with the same ones only.
    Another match in the folder is a UserError; with `replace_other` its files are deleted.
    `progress` gets the games that are over and all of them, `note` lines for the user."""
    sides = len(set(options.teams)) if options.teams else len(players)
    if options.sprt is not None and sides != 2:
        raise UserError(f"match: {sides} {'teams' if options.teams else 'players'}, expected 2 for a sequential test")
    part.range(0)  # for its error
    note = note or (lambda line: None)
    names = [player.name for player in players]
    openings = Openings(options.openings, options.pairs)
    header = match_header(options, names, openings, identity or {})
    count = Count(names, options.sprt, options.pairs, options.teams, options.gauntlet)
    folder.mkdir(parents=True, exist_ok=True)
    # Where engines play against the clock, a slow disk must not hold up their moves.
    waits = not options.limit.timed
    with MatchJournal(folder / journal_of(part), header, replace_other=replace_other, waits=waits) as journal:
        if replace_other and not journal.games:
            for path in files_of(folder):
                path.unlink(missing_ok=True)
        if journal.cut:
            note(
                f"{journal.path}: its last {journal.cut:,} bytes are incomplete games, as after a crash; these games "
                "are played again"
            )
        for game in journal.played():
            count.add(game)
        if part.is_whole:
            for path in sorted(folder.glob("part-*-of-*.journal")):
                with MatchJournal(path, header) as other:
                    for game in other.played():
                        count.add(game)
        total = 2 * len(range(part.number - 1, count.total, part.of))
        stop_early = options.sprt is not None and part.is_whole
        tasks = _tasks(count, openings, part, stop_early)
        first = next(tasks, None)
        if first is not None:
            with Arena(
                players,
                options.limit,
                concurrency=min(options.concurrency, total),
                adjudication=options.adjudication,
                chess960=options.openings.chess960,
            ) as arena:
                _check_players(arena)
                if progress:
                    progress(len(count), total)
                for game in arena.play(chain([first], tasks)):
                    journal.add(game)
                    count.add(game)
                    if game.fault:
                        note(f"game {game.number + 1}: {names[game.loser]} loses: {game.fault}")
                    if progress:
                        progress(len(count), total)
                    if stop_early and count.over:
                        break
    result = count.result()
    if part.is_whole:
        write_files(result, options, header, folder)
    return result


def files_of(folder: Path) -> list[Path]:
    """The results of a match, made of its journal."""
    return [folder / name for name in (JSON, PGN, PAGE)]


def check_folder(folder: Path, overwrite: bool) -> None:
    """UserError if the folder has files under the names of a match's that no match made; `overwrite` removes those of
    another match."""
    journals = [folder / JOURNAL, *folder.glob("part-*-of-*.journal")]
    files = files_of(folder)
    if overwrite:
        for path in (*journals, *files):
            path.unlink(missing_ok=True)
    elif not any(path.exists() for path in journals):
        for path in files:
            check_new(path, overwrite)


def _tasks(count: Count, openings: Openings, part: Part, stop_early: bool) -> Iterator[Task]:
    """The games that are missing, by number. The first player of a pair has white in its first game."""
    for pair in range(part.number - 1, count.total, part.of):
        pairing = count.pairings[pair % len(count.pairings)]
        for number, (white, black) in (
            (2 * pair, (pairing.first, pairing.second)),
            (2 * pair + 1, (pairing.second, pairing.first)),
        ):
            if stop_early and count.over:
                return
            if number not in count:
                yield Task(number, white, black, openings[pair // len(count.pairings)])


def _check_players(arena: Arena) -> None:
    """UserError for an engine that does not start, lacks an option or cannot search with its net."""
    for number, player in enumerate(arena.players):
        try:
            with arena.open(number, _START_SECONDS) as engine:
                engine.new_game()
                engine.send(f"position fen {START}")
                engine.ask("go depth 1", "bestmove")
        except EngineEnded as error:
            raise does_not_play(player, error) from None


def match_header(
    options: MatchOptions, names: Sequence[str], openings: Openings, identity: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything that decides the games. Their number, and the end of a test, may change from call to call."""
    chosen = asdict(options.openings) | {"book": Path(options.openings.book).name if options.openings.book else None}
    limit = {key: value for key, value in asdict(options.limit).items() if value is not None}
    return {
        "players": list(names),
        **({"teams": list(options.teams)} if options.teams else {}),
        **({"gauntlet": True} if options.gauntlet else {}),
        **identity,
        "limit": limit,
        "openings": chosen | {"sha256": openings.digest},
        "adjudication": asdict(options.adjudication),
    }


def write_files(result: MatchResult, options: MatchOptions, header: Mapping[str, Any], folder: Path) -> None:
    """PGN and JSON of a match, and its page where matplotlib is installed. The caller makes the page of a tournament of
    teams."""
    page = None if options.teams else _page(result)
    with replacing(folder / PGN) as output:
        for game in result.games:
            output.write_text(game_text(game, result.players, chess960=options.openings.chess960))
    with replacing(folder / JSON) as output:
        output.write_text(json.dumps(as_json(result, header), indent=1, ensure_ascii=False) + "\n")
    if page is not None:
        with replacing(folder / PAGE) as output:
            output.write_text(page)


def _page(result: MatchResult) -> str | None:
    if extras.missing("matplotlib") is not None:
        return None
    from nnue_trainer.files.pages.page import render
    from nnue_trainer.match.page import match_page

    return render(match_page(result))


def as_json(result: MatchResult, header: Mapping[str, Any]) -> dict[str, Any]:
    """A match as plain JSON data: docs/match.md. Numbers that are not finite become null."""
    return {
        "format_version": FORMAT_VERSION,
        "made_by": "nnue match",
        "settings": dict(header),
        "complete": result.complete,
        "pairings": [_pairing_json(result, pairing) for pairing in result.pairings],
        "games": [
            {
                "game": game.number + 1,
                "pair": game.number // 2 + 1,
                "white": result.players[game.white],
                "black": result.players[game.black],
                "result": RESULTS[game.result],
                "reason": game.reason,
                "plies": len(game.moves),
                **({"fault": game.fault, "loser": result.players[game.loser]} if game.fault else {}),
            }
            for game in result.games
        ],
    }


def _pairing_json(result: MatchResult, pairing: Pairing) -> dict[str, Any]:
    found = pairing.statistics
    lost, drawn, won = pairing.games
    data: dict[str, Any] = {
        "first": result.players[pairing.first],
        "second": result.players[pairing.second],
        "pairs": pairing.counts,
        "wins": won,
        "draws": drawn,
        "losses": lost,
        "statistics": plain(found),
    }
    if (test := result.sprt) and len(result.pairings) == 1:
        state = {"lower": test.lower, "upper": test.upper, "llr": test.llr(pairing.counts), "verdict": result.verdict}
        data["sprt"] = asdict(test) | state
    return data


def summary(result: MatchResult) -> list[str]:
    """The result of a match as lines of text."""
    lines = []
    for pairing in result.pairings:
        found = pairing.statistics
        lost, drawn, won = pairing.games
        head = f"{result.players[pairing.first]} vs {result.players[pairing.second]}"
        if found is None:
            lines.append(f"{head}: no pair of games is over")
            continue
        lines.append(f"{head}: {won + drawn + lost:,} games, +{won:,} ={drawn:,} -{lost:,}, pairs {pairing.counts}")
        lines.append(f"  {elo_text(found)}")
        if result.sprt and len(result.pairings) == 1:
            lines.append(f"  {test_text(result)}")
    return lines


def test_text(result: MatchResult) -> str:
    """The state of the sequential test in one line."""
    test = result.sprt
    assert test is not None
    return (
        f"LLR {test.llr(counts_of(result.pairings)):.2f} ({test.lower:.2f} to {test.upper:.2f}) for {test.model} Elo "
        f"{test.elo0:g} to {test.elo1:g}: {result.verdict or 'undecided'}"
    )
