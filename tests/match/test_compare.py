"""`nnue compare` from recipes to an answer, with a player that moves by a hash; continued, in parts, and its errors."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from command import nnue
from small_runs import split_sample, written

from nnue_trainer.analysis.comparison import plan as plans
from nnue_trainer.analysis.comparison import run as runs
from nnue_trainer.analysis.comparison.recipes import Entrant, entrants_of
from nnue_trainer.analysis.comparison.result import signed
from nnue_trainer.cli import compare
from nnue_trainer.errors import UserError

FakeEngine = Callable[..., str]
FILES = ("compare.json", "compare.html")


@pytest.fixture(scope="module")
def data(project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return split_sample(project_root, tmp_path_factory.mktemp("positions"), 3_000, 500)


@pytest.fixture
def recipe(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plans, "_REHEARSAL", 0.1)
    return written(tmp_path / "mine.yaml", data, training={"epochs": 1})


def run(recipe: Path, engine: str, *more: object, pairs: int = 4) -> str:
    fixed = ["--engine", engine, "--nodes", 1, "--hash", 1, "-j", 1, "--seeds", 2, "--pairs", pairs, "--plies", 4]
    fixed += ["--net-option", "Hash"]  # which takes anything
    return nnue("compare", recipe, "fast: optimizer.lr=0.02 data.batch_size=125", *fixed, *more)


@pytest.mark.slow
def test_from_recipes_to_an_answer(fake_engine: FakeEngine, tmp_path: Path, recipe: Path) -> None:
    folder = tmp_path / "out"
    printed = run(recipe, fake_engine(), "-o", folder)
    assert "4 of 4 nets to train, about " in printed
    assert "fast against mine: " in printed
    assert "standard deviation between seeds of a recipe" in printed
    found = json.loads((folder / "compare.json").read_text())
    assert [each["recipe"] for each in found["recipes"]] == ["mine", "fast"]
    assert found["recipes"][1]["changes"] == ["data.batch_size: 125", "optimizer.lr: 0.02"]
    assert [each["games"] for each in found["recipes"]] == [8, 8]  # each two nets of different recipes play a pair
    assert found["complete"]
    nets = [net for each in found["recipes"] for net in each["nets"]]
    assert len({net["sha256"] for net in nets}) == 4
    for net in nets:
        assert net["positions"] == 1000
        assert net["seconds"] > 0
        assert net["bytes"] == (folder / "nets" / net["file"]).stat().st_size
        assert {"loss", "score_cross_entropy", "rank_correlation"} <= net["figures"].keys()
    (difference,) = found["differences"]
    assert difference["error"] >= difference["of_games"] > 0
    assert (folder / "compare.png").stat().st_size > 10_000

    # Everything is there, so nothing is trained or played.
    before = [(folder / name).read_bytes() for name in FILES]
    assert "0 of 4 nets to train" in run(recipe, fake_engine(), "-o", folder)
    assert [(folder / name).read_bytes() for name in FILES] == before
    # More pairs play more games of the same nets.
    run(recipe, fake_engine(), "-o", folder, pairs=8)
    more = json.loads((folder / "compare.json").read_text())
    assert more["recipes"][0]["nets"][0]["sha256"] == nets[0]["sha256"]
    assert more["recipes"][0]["games"] == 16
    with pytest.raises(UserError, match="holds a comparison of other recipes, seeds or data"):
        run(recipe, fake_engine(), "-o", folder, "--set", "training.seed=1", "--set", "model.hidden=8")


@pytest.mark.slow
def test_parts_give_the_nets_and_games_of_a_whole(fake_engine: FakeEngine, tmp_path: Path, recipe: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(recipe, fake_engine(), "-o", whole)
    printed = run(recipe, fake_engine(), "-o", parts, "--part", "1/2")
    assert "part 1/2 has its nets; missing are mine-seed-2, fast-seed-2" in printed
    assert sorted(path.name for path in (parts / "nets").glob("*.json")) == ["fast-seed-1.json", "mine-seed-1.json"]
    assert "part 2/2 is played" in run(recipe, fake_engine(), "-o", parts, "--part", "2/2")
    assert "part 1/2 is played" in run(recipe, fake_engine(), "-o", parts, "--part", "1/2")
    run(recipe, fake_engine(), "-o", parts)
    both = [json.loads((folder / "compare.json").read_text()) for folder in (whole, parts)]
    for each in both:
        for recipe_of in each["recipes"]:
            for net in recipe_of["nets"]:
                net.pop("seconds")
    assert both[0] == both[1]
    assert (parts / "match" / "games.pgn").read_bytes() == (whole / "match" / "games.pgn").read_bytes()


def test_of_parts_that_start_together_one_measures(
    tmp_path: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entrants = entrants_of([str(recipe), "fast: optimizer.lr=0.02"])
    measured: list[str] = []
    said: list[str] = []
    began, go_on = threading.Event(), threading.Event()

    def speed(entrant: Entrant, say: object) -> float:
        measured.append(entrant.label)
        began.set()
        assert go_on.wait(60)
        return 1000.0

    monkeypatch.setattr(plans, "_speed", speed)

    def say(text: str) -> None:
        said.append(text)
        go_on.set()

    folder = tmp_path / "out"
    with ThreadPoolExecutor(2) as parts:
        first = parts.submit(plans.make_plan, folder, entrants, [1], "positions", first=True, say=say)
        assert began.wait(60)
        second = parts.submit(plans.make_plan, folder, entrants, [1], "positions", first=False, say=say)
        assert first.result() == second.result()
    assert measured == [entrant.label for entrant in entrants]
    assert said == [f"{folder}: another part measures the speeds"]

    def fails(entrant: Entrant, say: object) -> float:
        raise UserError("no memory")

    monkeypatch.setattr(plans, "_speed", fails)
    with pytest.raises(UserError, match="no memory"):
        plans.make_plan(tmp_path / "other", entrants, [1], "positions", first=True, say=say)
    assert not (tmp_path / "other").exists()
    own = tmp_path / "own"
    own.mkdir()
    with pytest.raises(UserError, match="no memory"):
        plans.make_plan(own, entrants, [1], "positions", first=True, say=say)
    assert own.is_dir()


def test_parts_take_turns_after_one_has_failed(tmp_path: Path) -> None:
    """The one that fails removes its folder, on whose lock the second waits; the third finds that of the second."""
    folder = tmp_path / "out"
    first_is_in, second_waits, second_is_in, third_came = (threading.Event() for _ in range(4))
    done: list[str] = []

    def first() -> None:
        with plans._turn(folder, lambda _: None):
            first_is_in.set()
            assert second_waits.wait(60)
            raise UserError("no memory")

    def second() -> None:
        with plans._turn(folder, lambda _: second_waits.set()):
            second_is_in.set()
            assert third_came.wait(60)
            done.append("second")

    def third() -> None:
        with plans._turn(folder, lambda _: third_came.set()):
            done.append("third")
            third_came.set()

    with ThreadPoolExecutor(3) as parts:
        failing = parts.submit(first)
        assert first_is_in.wait(60)
        others = [parts.submit(second)]
        assert second_is_in.wait(60)
        others.append(parts.submit(third))
        with pytest.raises(UserError, match="no memory"):
            failing.result()
        for each in others:
            each.result()
    assert done == ["second", "third"]


@pytest.mark.slow
def test_it_continues_after_an_interruption_of_a_training(
    fake_engine: FakeEngine, tmp_path: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, real = tmp_path / "out", runs._export

    def killed(nets: Path, plan: plans.Plan, number: int, seed: int, path: Path, as_nnue: bool) -> None:
        if (number, seed) == (1, 1):
            raise RuntimeError("killed")
        real(nets, plan, number, seed, path, as_nnue)

    monkeypatch.setattr(runs, "_export", killed)
    with pytest.raises(RuntimeError, match="killed"):
        run(recipe, fake_engine(), "-o", folder)
    first = (folder / "nets" / "mine-seed-1.nnue").stat().st_mtime_ns
    monkeypatch.setattr(runs, "_export", real)
    assert "2 of 4 nets to train" in run(recipe, fake_engine(), "-o", folder)
    assert (folder / "nets" / "mine-seed-1.nnue").stat().st_mtime_ns == first


@pytest.mark.slow
def test_equal_time_gives_the_slower_recipe_fewer_positions(
    fake_engine: FakeEngine, tmp_path: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds = {"mine": [400.0, 1000.0], "fast": [250.0, 200.0]}  # two rounds, in which other work slows one of them
    monkeypatch.setattr(plans, "_speed", lambda entrant, say: speeds[entrant.label].pop(0))
    folder = tmp_path / "out"
    with pytest.raises(UserError, match="start part 1 first"):
        run(recipe, fake_engine(), "-o", folder, "--equal", "time", "--part", "2/2")
    run(recipe, fake_engine(), "-o", folder, "--equal", "time")
    found = json.loads((folder / "compare.json").read_text())
    assert [each["nets"][0]["positions"] for each in found["recipes"]] == [1000, 250]
    monkeypatch.setattr(plans, "_speed", lambda entrant, say: 1 / 0)  # measured once
    assert "0 of 4 nets to train" in run(recipe, fake_engine(), "-o", folder, "--equal", "time")


@pytest.mark.slow
def test_a_test_ends_the_games(fake_engine: FakeEngine, tmp_path: Path, recipe: Path) -> None:
    printed = run(recipe, fake_engine(), "-o", tmp_path / "out", "--sprt", "0,200", pairs=40)
    assert "fast against mine, of these nets: LLR " in printed.replace("mine against fast", "fast against mine")
    assert json.loads((tmp_path / "out" / "compare.json").read_text())["sprt"]["elo1"] == 200


@pytest.mark.slow
def test_a_gauntlet_plays_only_the_first_recipe(fake_engine: FakeEngine, tmp_path: Path, recipe: Path) -> None:
    run(recipe, fake_engine(), "third: optimizer.lr=0.01", "--gauntlet", "-o", tmp_path / "out", pairs=1)
    found = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert [each["games"] for each in found["recipes"]] == [16, 8, 8]
    assert len(found["differences"]) == 3


def test_recipes_on_the_command_line(recipe: Path) -> None:
    found = entrants_of(
        [str(recipe), "optimizer.lr=0.02", "optimizer.lr=0.02 data.batch_size=125", "x: loss.scale=300"]
    )
    assert [each.label for each in found] == ["mine", "lr=0.02", "lr=0.02,batch_size=125", "x"]
    assert found[2].recipe().data.batch_size == 125
    assert [each.label for each in entrants_of(["sfnnv5", "optimizer.lr=3e-3"], ["data.train=a", "data.validation=b"])]


def test_a_preset_finds_the_samples_from_any_folder(
    tmp_path: Path, project_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    entrants = entrants_of(["quickstart", "optimizer.lr=0.02", "data.train=[mine.binpack]", "quickstart"])
    sample = str(project_root / "samples" / "train.binpack")
    assert [entrant.recipe().data.train for entrant in entrants] == [[sample], [sample], ["mine.binpack"], [sample]]
    assert [entrant.copy for entrant in entrants] == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", [1, 2, 3]), ("7,8,9", [7, 8, 9]), ("61,", [61]), ("1", [1]), ("7,8,", [7, 8])]
)
def test_seeds_are_a_number_or_a_list(text: str, seeds: list[int]) -> None:
    assert compare.seeds_of(text) == seeds
    for wrong in ("", ",", "7,,8", ",7", "a", "-1"):
        with pytest.raises(UserError, match="expected a number of seeds, or a list such as 7,8,9 or 7,"):
            compare.seeds_of(wrong)


def test_a_recipe_named_twice_trains_with_other_seeds(recipe: Path) -> None:
    name = str(recipe)
    entrants = entrants_of([name, "optimizer.lr=0.02", name, f"third: {name}"], ["training.epochs=2"])
    assert [(each.label, each.copy) for each in entrants] == [("mine", 0), ("lr=0.02", 0), ("mine-2", 1), ("third", 2)]
    plan = plans.Plan(tuple(entrants), (7, 9), "positions", (1.0,) * 4)
    assert plan.nets == [(0, 7), (0, 9), (1, 7), (1, 9), (2, 10), (2, 12), (3, 13), (3, 15)]
    assert len({plan.name(*net) for net in plan.nets}) == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine.yaml"], "found 1 recipe, expected two or more"),
        (["optimizer.lr=1", "mine.yaml"], "expected a RECIPE or a preset before it"),
        (["mine.yaml", "missing.yaml"], "missing.yaml: no such file or preset, and no KEY=VALUE"),
        (["mine.yaml", "optimizer.lr=1 muon"], "muon: expected KEY=VALUE"),
        (["mine.yaml", "optimizer.lr=0.02", "again: optimizer.lr=0.02"], "lr=0.02 and again: the same recipe"),
        (["mine.yaml", "training.epochs=2"], "epochs=2 trains on 2,000 positions, mine on 1,000"),
        (["mine.yaml", "seeds=[1,2]"], "the recipe has seeds; leave them out"),
        (["mine.yaml", "optimizer.lr=0.02", "--seeds", "3,3"], "expected 1 to 1000 different seeds"),
        (["mine.yaml", "optimizer.lr=0.02", "--equal", "luck"], "expected positions, time or none"),
    ],
)
def test_errors_come_before_the_work(recipe: Path, fake_engine: FakeEngine, arguments: list[str], message: str) -> None:
    with pytest.raises(UserError) as error:
        nnue("compare", *arguments, "--engine", fake_engine(), "--net-option", "Hash")
    assert message in str(error.value).replace("'", "")
    assert not Path("compare").exists()


def test_an_engine_that_does_not_read_the_nets_is_found_before_the_training(
    recipe: Path, fake_engine: FakeEngine
) -> None:
    with pytest.raises(UserError, match="compare: mine: engine"):
        run(recipe, fake_engine("dies"), "-o", "out")
    assert not Path("out").exists()


@pytest.mark.slow
def test_a_net_that_was_exchanged_is_refused(fake_engine: FakeEngine, tmp_path: Path, recipe: Path) -> None:
    folder = tmp_path / "out"
    run(recipe, fake_engine(), "-o", folder)
    (folder / "nets" / "mine-seed-1.nnue").write_bytes(b"another")
    with pytest.raises(UserError, match=r"mine-seed-1.nnue: not the net that mine-seed-1.json describes"):
        run(recipe, fake_engine(), "-o", folder)


def test_no_difference_has_no_sign_of_a_loss() -> None:
    assert [signed(elo) for elo in (-0.04, -0.0, 0.04, -0.06)] == ["+0.0", "+0.0", "+0.0", "-0.1"]
