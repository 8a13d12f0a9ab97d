"""Trust: a file that is read starts no program and imports no code that it names, unless the user consents to it."""

import json
import shutil
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from small_runs import split_sample, written

from nnue_trainer import config, export, registry, schema
from nnue_trainer.analysis import watch
from nnue_trainer.base import programs
from nnue_trainer.callbacks.run import RunCommand
from nnue_trainer.cli.main import app
from nnue_trainer.cli.pipeline import Way
from nnue_trainer.errors import UserError
from nnue_trainer.files import checkpoint
from nnue_trainer.match.players import players_of
from nnue_trainer.registry import Registry

Poison = Callable[[dict[str, Any]], None]
PROGRAM, CODE = "canary", "canary.py"
REFUSED = "names programs to run, or who gets its records"
SINGS = "from pathlib import Path\nPath({log!r}).open('a').write('x')\n"

# Fields with text that no program gets, and why; every other one must be marked.
HARMLESS = {
    "Layered.inputs": "a file of code in it follows --plugin",
    "PieceSquares.states": "names of states",
    "OutputBuckets.squares": "letters of pieces",
    "DataConfig.train": "files to read",
    "DataConfig.validation": "files to read",
    "Group.match": "pattern of parameters",
    "Group.rule": "a class of the optimizers, which the walk below visits",
    "TorchOptimizer.name": "a class in torch.optim",
    "TorchOptimizer.options": "arguments of that class",
    "ValidationSet.name": "prefix of metrics",
    "ValidationSet.files": "files to read",
    "TrainingConfig.best_by": "one of a list",
    "TrainingConfig.device": "pattern",
    "TrainingConfig.initial_weights": "file to read",
    "WeightPenalty.parameters": "patterns of parameters",
    "Match.against": "net file; never an engine (players_of, only_nets)",
    "Match.openings": "file to read",
    "WeightsAndBiases.project": "text for the user's account",
    "WeightsAndBiases.name": "text for the user's account",
    "Nnue.description": "text in a net",
    "RawTensor.tensor": "name of a tensor",
    "Raw.header_namespace": "identifier in a header",
    "Raw.header_include": "path in a header",
    "Stage.name": "identifier",
    **{f"Stage.{name}": "read as a recipe (config.stage_recipes)" for name in config.stages.SECTIONS},
    "Way.folder": "folder to write",
    "DataStep.makes": "file to look for",
    "TrainStep.preset": "a recipe of the package",
    "PermuteStep.data": "file to read",
}


def has_text(annotation: Any) -> bool:
    if typing.get_origin(annotation) is typing.Literal:
        return False
    return annotation in (str, Any) or any(map(has_text, typing.get_args(annotation)))


def sections(kind: type[Any], found: dict[type[Any], None]) -> None:
    """All sections below one, those of every registry included."""
    if kind in found:
        return
    found[kind] = None
    for field in schema._fields(kind).values():
        item = schema._item(field) or field
        known = schema._registry(item) or schema._registry_of_member(item)
        inner = schema._section_in(item.annotation)
        for member in [*(cls for _, cls in known or ()), *([inner] if inner else [])]:
            sections(member, found)


def every_section() -> list[type[Any]]:
    found: dict[type[Any], None] = {}
    sections(config.Recipe, found)
    sections(Way, found)
    for known in registry._registries:
        if known.package.startswith("nnue_trainer."):
            for _, cls in known:
                sections(cls, found)
    return [cls for cls in found if cls.__module__.startswith("nnue_trainer.")]


def test_every_field_with_text_is_marked_or_known_to_reach_no_program():
    fields = {
        f"{cls.__name__}.{name}": field
        for cls in every_section()
        for name, field in schema._fields(cls).items()
        if has_text(field.annotation)
    }
    marked = {key for key, field in fields.items() if programs.is_marked(field)}
    assert fields.keys() - marked == HARMLESS.keys(), "a new field with text: mark it with RUNS, or add it to HARMLESS"
    assert marked >= {"RunCommand.command", "Match.engine", "Match.options", "DataStep.run", "TrainStep.options"}
    assert "WeightsAndBiases.entity" in marked, "a stranger's account would get the records"


def test_a_mark_inside_a_type_counts():
    @schema.section
    class Several:
        commands: list[typing.Annotated[str, programs.RUNS]]
        other: typing.Annotated[str, programs.RUNS] | None = None

    def made(trusted: bool) -> Several:
        programs.forget()
        return schema.validate(Several, {"commands": ["a", "b"], "other": "c"}, lambda _: "x", trusted=trusted)

    assert dict(programs.named(made(False))) == {"commands": ["a", "b"], "other": "c"}
    assert not any(programs.is_allowed(value) for _, value in programs.named(made(False)))
    assert all(programs.is_allowed(value) for _, value in programs.named(made(True)))


def places(
    kind: type[Any], path: tuple[Any, ...], outer: tuple[Registry[Any], ...]
) -> Iterator[tuple[tuple[Any, ...], Registry[Any]]]:
    """The path of each class of a registry below a section, and the registry. A path has keys, numbers, and kinds as
    `{"kind": …}`."""
    for name, field in schema._fields(kind).items():
        item = schema._item(field)
        here = (*path, name) if item is None else (*path, name, 0)
        known = schema._registry(item or field) or schema._registry_of_member(item or field)
        if known is not None and outer.count(known) < 2:  # a schedule of schedules
            yield here, known
            for tag, cls in known:
                yield from places(cls, (*here, {"kind": tag}), (*outer, known))
        inner = schema._section_in((item or field).annotation)
        if inner is not None:
            yield from places(inner, here, outer)


def put(path: tuple[Any, ...], value: Any, into: Any = None) -> Any:
    """`into` with `value` at a path."""
    if not path:
        return value
    head, *rest = path
    if isinstance(head, dict):  # other fields of another kind do not belong to it
        return {**head, **put(tuple(rest), value, {})}
    if isinstance(head, int):
        return [put(tuple(rest), value)]
    before = into if isinstance(into, dict) else {}
    return {**before, head: put(tuple(rest), value, before.get(head))}


FOUND = [*places(config.Recipe, (), ())]
IN_RECIPES = [path for path, _ in FOUND]
IN_STAGES = [("stages", 0, {"name": "a"}, *path) for path in IN_RECIPES if path[0] in config.stages.SECTIONS]
AS_TEXT = [("model", {"kind": "layered", "hidden": 16}, "inputs", 0)]


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Callable[[], bool]]:
    """A program and a file of code that leave a trace; returns whether one did since the last call."""
    log = tmp_path / "sang"
    code = SINGS.format(log=str(log)) + "class Canary: pass\n"
    (tmp_path / CODE).write_text(code)
    (tmp_path / PROGRAM).write_text(f"#!/bin/sh\necho x >> '{log}'\n")
    (tmp_path / PROGRAM).chmod(0o755)

    def sang() -> bool:
        found = log.exists()
        log.unlink(missing_ok=True)
        registry.forget_plugins()
        return found

    yield sang
    programs.forget()


def test_the_walk_comes_to_every_registry():
    ours = [known for known in registry._registries if known.package.startswith("nnue_trainer.")]
    assert {known.what for _, known in FOUND} == {known.what for known in ours}
    assert any(isinstance(part, dict) for path in IN_RECIPES for part in path), "none inside of another class"


@pytest.mark.parametrize("path", IN_RECIPES + IN_STAGES + AS_TEXT, ids=str)
def test_only_a_recipe_in_hand_imports_a_file_of_code(tmp_path: Path, canary: Callable[[], bool], path: Any) -> None:
    text = f"{tmp_path / CODE}:Canary"
    data = {"model": {"kind": "simple"}, "data": {"train": ["a"]}, "loss": {"kind": "sigmoid"}}
    data = put(path, text if path in AS_TEXT else {"kind": text}, data)
    with pytest.raises(UserError) as refused:
        config.parse(data)
    assert not canary()
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError):  # the class is none of the registry's
        config.parse(data, trusted=True)
    assert canary(), "the walk does not come to this place"


@pytest.fixture(scope="module")
def trained(project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a recipe and its finished run."""
    folder = split_sample(project_root, tmp_path_factory.mktemp("trust"), 2000, 500)
    recipe = written(folder / "recipe.yaml", folder, training={"epochs": 1})
    from nnue_trainer.training.run import train

    train(config.load(recipe), folder / "run")
    return folder


RUN = {"kind": "run", "command": f"./{PROGRAM}", "at": "start"}
ENGINE = {"kind": "match", "engine": f"./{PROGRAM}"}
CANARY = {"kind": f"{CODE}:Canary"}


def programs_everywhere(recipe: dict[str, Any]) -> None:
    recipe["training"].update(callbacks=[ENGINE, RUN])
    recipe["stages"] = [{"name": "a"}, {"name": "b", "training": {"callbacks": [RUN, ENGINE]}}]


# Few, since each is tried with every command. What is refused at one place does not hide the others: all fields of a
# recipe are read before one is refused (test_only_a_recipe_in_hand_imports_a_file_of_code has the places one by one).
POISONS: dict[str, Poison] = {
    "programs": programs_everywhere,
    "classes": lambda recipe: recipe.update(loss=CANARY, stages=[{"name": "a", "loss": CANARY}]),
    "net": lambda recipe: recipe.update(model={"kind": f"{CODE}:Canary"}),
    "feature set": lambda recipe: recipe.update(model={"kind": "layered", "inputs": [f"{CODE}:Canary"]}),
}

READERS = {
    "train": ["train --resume run training.epochs=2", "train plain.yaml training.initial_weights=run --run-dir new"],
    "config": ["config poisoned.yaml", "config poisoned.yaml --reference"],
    "explain": ["explain poisoned.yaml"],
    "export": ["export run new.nnue"],
    "import": ["import poisoned.nnue new.safetensors", "import net.nnue new.safetensors --model poisoned.yaml"],
    "eval": ["eval run --data val.binpack", "eval poisoned.nnue --data val.binpack",
             "eval net.nnue --data val.binpack --model run"],
    "verify": ["verify poisoned.nnue --engine false"],
    "check": ["check run --data val.binpack --positions 9"],
    "report": ["report run"],
    "watch": ["watch run"],
    "inspect": ["inspect run", "inspect run/checkpoints/last.safetensors", "inspect poisoned.nnue"],
    "permute": ["permute run new.nnue --data val.binpack --engine none",
                "permute poisoned.nnue new.nnue --data val.binpack --engine none"],
    "match": ["match run net.nnue --engine false", "match program.nnue net.nnue --engine false"],
    "data rescore": ["data rescore val.binpack new.bin --net run",
                     "data rescore val.binpack new.bin --net poisoned.nnue"],
}  # fmt: skip
NO_READERS = {
    "presets", "info", "doctor", "run", "compare", "data info", "data head", "data convert", "data filter",
    "data shuffle", "data index",
    "data split", "data dedup", "data interleave", "data validate", "data generate", "data profile", "data count",
}  # fmt: skip
"""Commands that open neither recipes, checkpoints nor nets; `run` executes the file that the user names, and
`compare` trains the recipes that the user names."""


def test_every_command_is_tried_below():
    def names(group: typer.Typer, prefix: str = "") -> Iterator[str]:
        for one in group.registered_commands:
            yield prefix + str(one.name or one.callback.__name__)  # type: ignore[union-attr]
        for more in group.registered_groups:
            assert more.typer_instance is not None
            yield from names(more.typer_instance, f"{prefix}{more.name} ")

    assert set(names(app)) == READERS.keys() | NO_READERS


def poisoned(trained: Path, folder: Path, poison: Poison) -> None:
    """`folder` with a poisoned run, recipe and net beside sound ones."""
    for name in ("train.binpack", "val.binpack"):
        (folder / name).symlink_to(trained / name)
    shutil.copytree(trained / "run", folder / "run")
    shutil.copy(trained / "recipe.yaml", folder / "plain.yaml")
    whole = yaml.safe_load((folder / "run/recipe.yaml").read_text())
    poison(whole)
    for path in (folder / "run/recipe.yaml", folder / "poisoned.yaml"):
        path.write_text(yaml.safe_dump(whole))
    for name in ("best", "last"):
        path = folder / f"run/checkpoints/{name}.safetensors"
        saved = checkpoint.load(path)
        net = export.net_from_checkpoint(saved, str(path))
        saved.recipe = whole
        if whole["model"]["kind"] != "simple":
            saved.architecture = whole["model"]
        path.unlink()
        checkpoint.save(path, saved)
    export.write_net(net, folder / "net.nnue")
    record = net.description.replace(b'"simple"', json.dumps(whole["model"]["kind"]).encode())
    net.description = record
    export.write_net(net, folder / "poisoned.nnue")
    (folder / "program.nnue").write_bytes((folder / PROGRAM).read_bytes())
    (folder / "program.nnue").chmod(0o755)


@pytest.mark.slow
@pytest.mark.parametrize("name", POISONS)
def test_no_reader_runs_what_a_file_names(tmp_path, trained, canary, nnue, monkeypatch, name):
    poisoned(trained, tmp_path, POISONS[name])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(watch.Server, "serve_forever", watch.Server.page)  # one page, then the end
    refused = set()
    for lines in READERS.values():
        for line in lines:
            done = nnue(*line.split())
            assert not canary(), line
            errors = [text for text in done.stderr.splitlines() if text.startswith("nnue: error: ")]
            assert len(errors) == (done.returncode != 0), (line, done)
            assert done.returncode in (0, 1), (line, done)
            refused |= {line} if errors else set()
    assert "train --resume run training.epochs=2" in refused
    # The canaries are alive: with consent they sing.
    nnue("train", "--resume", "run", "training.epochs=2", "--allow-commands", "--plugin", CODE)
    assert canary()


WRONG_KINDS: list[tuple[tuple[Any, ...], Any, str]] = [
    (("data", "validation"), [{"a": 1}], "report run"),
    (("data",), ["x"], "inspect run"),
    (("model", "quantisation"), ["x"], "check run --data val.binpack --positions 9"),
    (("validation", "sets"), 5, "train plain.yaml --resume run --run-dir run training.epochs=2"),
    (("stages",), [{"name": ["x"]}], "train plain.yaml --resume run --run-dir run training.epochs=2"),
    (("data", "train"), [["x"]], "train plain.yaml --resume run --run-dir run training.epochs=2"),
]


@pytest.mark.parametrize(("path", "value", "line"), WRONG_KINDS)
def test_wrong_kinds_in_a_recipe_that_is_read_are_no_internal_error(
    tmp_path, trained, canary, nnue, monkeypatch, path, value, line
):
    def poison(recipe: dict[str, Any]) -> None:
        recipe.update(put(path, value, recipe))

    poisoned(trained, tmp_path, poison)
    monkeypatch.chdir(tmp_path)
    assert nnue(*line.split()).returncode in (0, 1)


def test_consent(tmp_path, trained, canary, nnue, monkeypatch):
    poisoned(trained, tmp_path, lambda recipe: recipe["training"].update(callbacks=[RUN]))
    monkeypatch.chdir(tmp_path)
    resume = ("train", "--resume", "run", "training.epochs=2")
    done = nnue(*resume)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"run: {REFUSED}: training.callbacks.0.command: './canary'; pass --allow-commands" in done.stderr
    assert not canary()
    done = nnue(*resume, "--allow-commands")
    assert done.returncode == 0
    assert "run: allowed: training.callbacks.0.command: './canary'" in done.stdout + done.stderr
    assert canary()
    assert nnue("train", "poisoned.yaml", "--resume", "run", "--run-dir", "run", "training.epochs=3").returncode == 0
    assert canary(), "the recipe is in the user's hand"
    other = "training.callbacks=[{run: ./canary other, at: start}]"
    assert nnue("train", "--resume", "run", "training.epochs=4", other).returncode == 0
    assert canary(), "the user wrote the command"
    for override in ("training.callbacks.0.every=1", "training.callbacks.0.at=end"):
        assert nnue("train", "--resume", "run", "training.epochs=5", override).returncode == 1
        assert not canary(), override


def test_in_python_code_consents_and_data_does_not(tmp_path, trained, canary, monkeypatch):
    from nnue_trainer.training import seeds
    from nnue_trainer.training.run import train

    monkeypatch.chdir(trained)
    programs.forget()
    data = yaml.safe_load((trained / "run/recipe.yaml").read_text())
    data["training"]["callbacks"] = [{"kind": "run", "command": str(tmp_path / PROGRAM), "at": "start"}]
    recipe = config.parse(data)
    for training in (lambda: train(recipe, tmp_path / "new"), lambda: seeds.train_seeds(recipe, tmp_path / "new")):
        with pytest.raises(UserError, match=rf"^recipe: {REFUSED}: training\.callbacks\.0\.command"):
            training()
    assert not (tmp_path / "new").exists()
    assert config.allow_programs(recipe) == [f"training.callbacks.0.command: '{tmp_path / PROGRAM}'"]
    train(recipe, tmp_path / "new")
    assert canary()
    programs.forget()
    RunCommand(command=str(tmp_path / PROGRAM))  # by code of the user's
    train(recipe, tmp_path / "another")
    assert canary()


def test_an_opponent_that_a_file_names_is_no_engine(tmp_path, canary):
    opponent, nets = str(tmp_path / PROGRAM), tmp_path / "nets"
    (player,), _ = players_of([opponent], ["true"], [{}], nets, only_nets=True)
    assert Path(player.path).name == "true"
    assert player.options["EvalFile"] == opponent
    for suffix in (".nnue", ".bin", ".safetensors"):
        net = tmp_path / f"net{suffix}"
        shutil.copy(opponent, net)
        with pytest.raises(UserError, match=r"net\.(nnue|bin|safetensors): "):
            players_of([str(net)], [None], [{}], nets)


def test_the_opponent_in_a_recipe_is_no_engine(tmp_path, trained, canary, fake_engine, monkeypatch):
    from nnue_trainer.training.run import train

    monkeypatch.chdir(trained)
    match = {"kind": "match", "engine": fake_engine(), "pairs": 1, "nodes": 1, "net_option": "Hash"}
    match["against"] = str(tmp_path / PROGRAM)
    recipe = config.load(trained / "recipe.yaml", [f"training.callbacks={json.dumps([match])}"])
    train(recipe, tmp_path / "new")
    assert not canary()
    assert [*(tmp_path / "new/matches").glob("*/match.json")]
