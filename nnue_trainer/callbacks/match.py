"""Matches of the net in training against the last one that passed."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator

from nnue_trainer import schema
from nnue_trainer.base.programs import RUNS
from nnue_trainer.base.system import usable_cpus
from nnue_trainer.callbacks.base import CALLBACKS, Callback, Run, Summary
from nnue_trainer.errors import UserError, shown
from nnue_trainer.files.atomic import replacing
from nnue_trainer.schema import section


@CALLBACKS.register("match")
@section
class Match(Callback):
    """Plays the net of an epoch against the last net that passed, in an engine; training waits. The first net passes
    without a match, with Elo 0, unless `against` names a first opponent. Before the first step the engine is tried with
    a net of zeros."""

    engine: Annotated[str | None, RUNS] = Field(default=None, min_length=1)
    """engine in which the nets play: a path, or a name on PATH; null: the player of `nnue match`"""
    every: int = Field(default=0, ge=0, le=2**20)
    """epochs between matches, a multiple of training.checkpoint_every; 0: only at the end of a run, or of each stage"""
    against: str | None = None
    """net file that is the first opponent, with Elo 0; null: the first net of this run"""
    pairs: int = Field(default=100, gt=0, le=10**6)
    """pairs of games; with sprt, at most"""
    nodes: int = Field(default=1000, gt=0, le=2**62)
    """nodes per move"""
    openings: str | None = None
    """opening book or data file, as for `nnue match`; null: random moves"""
    sprt: list[float] | None = None
    """two Elo values of a sequential test; the net passes if the test accepts. Null: all pairs are played"""
    los: float = Field(default=0.95, ge=0, le=1)
    """likelihood of superiority from which a net passes without a test"""
    concurrency: int = Field(default=0, ge=0, le=256)
    """games at a time; 0: four per CPU"""
    options: Annotated[dict[str, str], RUNS] = Field(default_factory=dict)
    """UCI options of the engine"""
    net_option: Annotated[str, RUNS] = "EvalFile"
    """UCI option that takes the net"""

    @field_validator("sprt")
    @classmethod
    def _bounds(cls, sprt: list[float] | None) -> list[float] | None:
        if sprt is not None and (len(sprt) != 2 or sprt[0] >= sprt[1]):
            raise ValueError(f"found {sprt}, expected two numbers, the lower one first")
        return sprt

    def start(self, run: Run) -> None:
        from nnue_trainer.match.openings import OpeningOptions, Openings
        from nnue_trainer.match.players import check_engine, quantized_net

        for path in (self.against, self.openings):
            if path is not None and not Path(path).is_file():
                raise UserError(f"training.callbacks: {path}: no such file")
        if self.every % run.checkpoint_every:
            raise UserError(
                f"training.callbacks: match: every: found {self.every}, expected a multiple of "
                f"training.checkpoint_every, {run.checkpoint_every}"
            )
        try:
            Openings(OpeningOptions(self.openings, seed=run.seed), 1)
            if self.against and self.engine is None:  # an engine may read nets that we do not
                quantized_net(Path(self.against))
            recipe = schema.to_data(run.recipe)
            check_engine(run.model.architecture, recipe, self.engine, self._options, self.net_option)
        except UserError as error:
            raise UserError(f"training.callbacks: match: {error}") from None
        self._catch_up(run)

    def _catch_up(self, run: Run) -> None:
        """In a resumed run: notes that the match was played, or plays it if the run was killed before its end. The
        checkpoint is older than the match, since it has the net that plays."""
        if run.step == run.first_step:
            return
        if run.was_recorded("match"):
            self.memory["step"] = run.step
        elif self.every and run.at_epoch_end and run.epoch % self.every == 0:
            checkpoint = run.folder.epoch(run.epoch)
            if checkpoint.exists():
                self._play(run, checkpoint)

    @property
    def _options(self) -> dict[str, str]:
        return {"Hash": "16", **self.options}

    def save(self, run: Run, checkpoint: Path, epoch: int | None) -> None:
        if self.every and epoch is not None and epoch % self.every == 0:
            self._play(run, checkpoint)

    def end(self, run: Run, summary: Summary) -> None:
        if not summary.interrupted and self.memory.get("step") != run.step:
            self._play(run, run.folder.last)

    def _play(self, run: Run, checkpoint: Path) -> None:
        from nnue_trainer.match.players import net_of

        folder = run.folder.path / "matches"
        name = f"step-{run.step:09d}"
        data, suffix = net_of(checkpoint, as_nnue=self.engine is None)
        net = folder / f"{name}{suffix}"
        run.folder.will_write(net)
        with replacing(net) as output:
            output.write_bytes(data)
        last = self._last_passed(run, folder)
        values: dict[str, Any] = {"elo": 0.0, "elo_error": 0.0, "passed": 1}
        if last is None:
            self._passed(run, folder, net.name, 0.0)
        else:
            opponent, base = last
            difference, error, passed, games = self._match(run, net, opponent, folder / name)
            values = {
                "elo": base + difference,
                "elo_error": error,
                "difference": difference,
                "passed": int(passed),
                "games": games,
            }
            if passed:
                self._passed(run, folder, net.name, base + difference)
            run.say(
                f"match at step {run.step:,}: Elo {difference:+.1f} ± {error:.1f} against "
                f"{shown(opponent.name)} in {games:,} games, {'passed' if passed else 'not passed'}"
            )
        self.memory["step"] = run.step
        run.record("match", {"epoch": run.epoch, **values})

    def _match(self, run: Run, net: Path, opponent: Path, folder: Path) -> tuple[float, float, bool, int]:
        """Elo, its error, whether the net passed, and games."""

        from nnue_trainer.match.openings import OpeningOptions
        from nnue_trainer.match.play import Limit
        from nnue_trainer.match.players import players_of
        from nnue_trainer.match.run import JOURNAL, MatchOptions, files_of, play_match
        from nnue_trainer.match.statistics import Sprt

        test = Sprt(self.sprt[0], self.sprt[1]) if self.sprt else None
        options = MatchOptions(
            Limit(nodes=self.nodes),
            self.pairs,
            OpeningOptions(self.openings, seed=run.seed),
            sprt=test,
            concurrency=self.concurrency or 4 * usable_cpus(),
        )
        run.folder.will_write(*files_of(folder), folder / JOURNAL)
        with tempfile.TemporaryDirectory(prefix="nnue-match-") as nets:
            players, identity = players_of(
                [str(net), str(opponent)],
                [self.engine] * 2,
                [self._options] * 2,
                Path(nets),
                net_option=self.net_option,
                only_nets=True,
            )
            # A match at this step before the run was resumed may have had another net.
            result = play_match(players, options, folder, identity=identity, replace_other=True, note=run.say)
        found = result.pairings[0].statistics
        assert found is not None
        # A match that one side wins in all games has no finite Elo: half a point is taken from the winner.
        games = 2 * len(result.pairings[0].points)
        if abs(found.elo) == float("inf"):
            from nnue_trainer.match.statistics import elo

            half = 0.5 / games
            difference = elo(1 - half if found.elo > 0 else half)
        else:
            difference = found.elo
        if test is not None:
            passed = result.verdict == "accepted"
        else:
            passed = found.los >= self.los if found.los is not None else found.elo > 0
        error = found.elo_error if found.elo_error < 1e9 else 0.0
        return difference, error, passed, games

    def _last_passed(self, run: Run, folder: Path) -> tuple[Path, float] | None:
        """The net that passed last, and its Elo. The list is a file, since it continues from stage to stage; what a
        resumed run will play again does not count."""
        for entry in reversed(_passed_nets(folder)):
            path = folder / entry["net"]
            if entry["step"] < run.step and path.is_file():
                return path, float(entry["elo"])
        return (Path(self.against), 0.0) if self.against else None

    def _passed(self, run: Run, folder: Path, net: str, elo: float) -> None:
        path = folder / "passed.json"
        before = [entry for entry in _passed_nets(folder) if entry["step"] < run.step]
        run.folder.will_write(path)
        with replacing(path) as output:
            entries = [*before, {"step": run.step, "net": net, "elo": elo}]
            output.write_text(json.dumps(entries, indent=1) + "\n")


def _passed_nets(folder: Path) -> list[dict[str, Any]]:
    path = folder / "passed.json"
    if not path.is_file():
        return []
    try:
        found = json.loads(path.read_bytes())
        return [
            {"step": int(entry["step"]), "net": re.sub(r"[/\\]", "", str(entry["net"])), "elo": float(entry["elo"])}
            for entry in found
        ]
    except (ValueError, TypeError, KeyError):
        raise UserError(f"{path}: damaged, expected the nets that passed; delete it to begin anew") from None
