"""Recipes: what is read, what is refused and in which words."""

import re
from pathlib import Path

import pytest
from typed import instance

from nnue_trainer import config, schema
from nnue_trainer.config import yaml_text
from nnue_trainer.errors import UserError
from nnue_trainer.files import presets
from nnue_trainer.losses import SigmoidLoss
from nnue_trainer.nets.stockfish import SfnnV5
from nnue_trainer.optim import AdamW
from nnue_trainer.schedules.curves import Step

MINIMAL = {"model": {"kind": "simple"}, "data": {"train": ["a.binpack"]}, "loss": {"kind": "sigmoid"}}


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def message(*overrides: str, data: object = MINIMAL) -> str:
    with pytest.raises(UserError) as caught:
        config.parse(data, overrides, "r.yaml")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_recipe_is_read_with_overrides(tmp_path):
    path = write(
        tmp_path / "r.yaml",
        "model: {kind: sfnnv5, l1: 64}\ndata: {train: [a.binpack]}\nloss: {kind: win_rate}\noptimizer: {lr: 1e-3}\n",
    )
    recipe = config.load(path, ["optimizer.eps=2e-7", "data.train=[b, c]", "schedule={kind: step, epochs: 3}"])
    assert instance(SfnnV5, recipe.model).l1 == 64
    assert recipe.optimizer.lr == 1e-3
    adamw = instance(AdamW, recipe.optimizer)
    assert adamw.eps == 2e-7
    assert adamw.betas == (0.9, 0.999)
    assert recipe.data.train == ["b", "c"]
    assert instance(Step, recipe.schedule).epochs == 3


def test_an_override_of_a_kind_keeps_the_other_fields_and_an_error_in_them_says_so():
    data = {**MINIMAL, "loss": {"kind": "sigmoid", "scale": 300}}
    remain = "whose other fields of loss remain after override 'loss.kind=win_rate' ('loss={kind: …}' replaces all)"
    assert message("loss.kind=win_rate", data=data).startswith(f"r.yaml, {remain}: loss.scale: unknown key")
    assert message("loss.kind=win_rate", "loss.scale=2", data=data).startswith("override 'loss.scale=2': loss.scale: ")
    config.parse(data, ["loss={kind: win_rate}"])


def test_a_recipe_survives_being_written(tmp_path):
    recipe = config.parse(MINIMAL, ["optimizer.lr=3e-5", "schedule={kind: cosine, final_lr: 1e-9}"])
    assert config.load(write(tmp_path / "r.yaml", config.to_yaml(recipe))) == recipe
    assert config.parse(schema.to_data(recipe)) == recipe


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("optimizer.lrr=1", "override 'optimizer.lrr=1': optimizer.lrr: unknown key (did you mean 'lr'?)"),
        ("optim.lr=1", "override 'optim.lr=1': optim: unknown key (did you mean 'optimizer'?)"),
        ("loss.zzz=1", "loss.zzz: unknown key (expected one of scale, power)"),
        ("optimizer.lr=-1", "optimizer.lr: found -1, expected greater than 0"),
        ("optimizer.lr=.nan", "optimizer.lr: found NaN, expected"),
        ("loss.scale=.inf", "loss.scale: found Infinity, expected a finite number"),
        ("optimizer.lr=fast", 'optimizer.lr: found "fast", expected a valid number'),
        ("optimizer.lr='1'", 'optimizer.lr: found "1", expected a valid number'),
        ("optimizer=3", "optimizer: found 3, expected a section of keys"),
        ("optimizer.betas=[1.5, 0.9]", "optimizer.betas.0: found 1.5, expected less than 1"),
        ("optimizer.betas=[0.9]", "optimizer.betas: found [0.9], expected more items"),
        ("optimizer.exp_avg_dtype=fp16", "optimizer.exp_avg_dtype: found \"fp16\", expected 'fp32' or 'bf16'"),
        (
            "optimizer={kind: muon, others: lion, exp_avg_dtype: bf16}",
            "optimizer: exp_avg_dtype: found bf16, expected fp32, as lion keeps its means in fp32",
        ),
        (
            "optimizer={exp_avg_dtype: bf16, groups: [{match: '*', betas: [0.99, 0.999]}]}",
            "optimizer: exp_avg_dtype: found bf16 and a beta1 of 0.99, expected fp32 or a beta1 of at most 0.95",
        ),
        ("training.epochs=1.5", "training.epochs: found 1.5, expected a valid integer"),
        ("training.deterministic=1", "training.deterministic: found 1, expected a valid boolean"),
        ("training.device=GPU", 'training.device: found "GPU", expected text that matches'),
        ("training.precision=fp16", "training.precision: found \"fp16\", expected 'auto', 'fp32', 'tf32' or 'mixed'"),
        ("data.train=[]", "data.train: found [], expected at least 1 item"),
        ("data.train=[1]", "data.train.0: found 1, expected a valid string"),
        ("schedule={kind: step}", "schedule.epochs: missing, and it has no default"),
        (
            "schedule.kind=cos",
            "schedule.kind: found 'cos', expected one of constant, cosine, cycle, drops, exponential, linear,",
        ),
        (
            "schedule={kind: sequence, parts: [{epochs: 1, schedule: {kind: cosine, final_lr: 1, final: 1}}]}",
            "schedule.parts.0.schedule.final: unknown key (did you mean 'final_lr'?)",
        ),
        (
            "schedule={kind: sequence, parts: [{epochs: 1, epoch: 1, schedule: {kind: constant}}]}",
            "schedule.parts.0.epoch: unknown key (did you mean 'epochs'?)",
        ),
        (
            "lambda.start=2",
            "override 'lambda.start=2': lambda.kind: missing, expected one of constant, cosine, cycle",
        ),
        ("lambda={kind: linear, start: 2}", "lambda.start: found 2, expected less than or equal to 1"),
        ("lambda_={kind: linear}", "lambda_: unknown key (did you mean 'lambda'?)"),
        (
            "optimizer.kind=sgd",
            "optimizer.kind: found 'sgd', expected one of adamw, lion, muon, radam, ranger, ranger_lite, ",
        ),
        (
            "optimizer.kind=torch",
            "r.yaml, whose other fields of optimizer remain after override 'optimizer.kind=torch' "
            "('optimizer={kind: …}' replaces all): optimizer.name: missing, and it has no default",
        ),
        ("optimizer.kind=3", "optimizer.kind: found 3, expected one of adamw"),
        ("optimizer={kind: torch}", "optimizer.name: missing, and it has no default"),
        (
            "optimizer={kind: torch, name: RAdm}",
            "optimizer.name: torch.optim has no optimizer 'RAdm' that can be used here (did you mean 'RA",
        ),
        (
            "optimizer={kind: torch, name: LBFGS}",
            "optimizer.name: torch.optim has no optimizer 'LBFGS' that can be used here",
        ),
        (
            "optimizer={kind: torch, name: RAdam, options: {beta: 1}}",
            "optimizer: options: RAdam has no 'beta' (did you mean 'betas'?)",
        ),
        (
            "optimizer={kind: torch, name: RAdam, options: {betas: [0.9, 2]}}",
            "optimizer: options: RAdam refuses {'betas': [0.9, 2]}: Invalid beta parameter at index 1: 2",
        ),
        ("optimizer={kind: torch, name: SGD, options: {momentum: x}}", "optimizer: options: SGD refuses"),
        ("optimizer={kind: torch, name: SGD, options: {lr: 1}}", "optimizer: options: SGD has no 'lr'"),
        ("schedule={gamma: 1}", "schedule.kind: missing, expected one of constant, cosine"),
        ("model.hidden=7", "override 'model.hidden=7': model.hidden: found 7, expected"),
        ("model=null", "model: found null, expected a section of keys"),
        ("training.seed=2024-99-99", 'training.seed: found "2024-99-99", expected a valid integer'),
        ("data.train=&a [*a]", "override 'data.train=&a [*a]':1:5: alias 'a' holds itself"),
        ("training.seed=2024-01-01", 'training.seed: found "2024-01-01", expected a valid integer'),
        (
            "optimizer.lr=1e39",
            "optimizer.lr: found 1e+39, expected 0, or a number that float32 holds, 1.2e-38 to 3.4e+38",
        ),
        ("optimizer.eps=1e-40", "optimizer.eps: found 1e-40, expected 0, or a number that float32 holds"),
        ("schedule={kind: linear, final_lr: 1e39}", "schedule.final_lr: found 1e+39, expected 0, or a number that"),
        ("training.epochs=1048577", "training.epochs: found 1048577, expected less than or equal to 1048576"),
        ("training.epochs=9223372036854775808", "training.epochs: found 9223372036854775808, expected a number of at"),
        (f"training.seed={10**4000}", "training.seed: found a number of 13,288 bits, expected a number of at most 64"),
        (f"training.seed={'1' * 9000}", "Exceeds the limit (4300 digits) for integer string conversion"),
        ("training.positions_per_epoch=1e30", "training.positions_per_epoch: found 1e+30, expected a valid integer"),
        ("training.device=cuda:99999999999", 'training.device: found "cuda:99999999999", expected text that matches'),
        ("data.filters.max_score=4294967296", "data.filters.max_score: found 4294967296, expected less than"),
        ("data.filters.random_skip=1e30", "data.filters.random_skip: found 1e+30, expected less than"),
        ("data.shuffle_buffer=10000000000000", "data.shuffle_buffer: found 10000000000000, expected less than"),
        ('data.train="a\\0b"', 'data.train: found "a\\u0000b", expected text without control characters'),
        ('data.train="\\uD800"', "data.train: found"),
        ("data.train=!!binary aGk=", "tags such as 'tag:yaml.org,2002:binary' have no meaning here"),
        ("data.train={a: b}", 'data.train: found {"a": "b"}, expected a list'),
        ("data.threads=100000", "data.threads: found 100000, expected less than or equal to 1024"),
        ("schedule={kind: drops, epochs: [9, 5]}", "schedule.epochs: found [9, 5], expected ascending epochs"),
        ("lambda={kind: drops, epochs: [9, 5]}", "lambda.epochs: found [9, 5], expected ascending epochs"),
        (
            "position_weight={kind: knots, by: ply, knots: [[1, 0], [9, 0]]}",
            "found only weights of 0, expected a larger",
        ),
        (
            "data.filters.piece_counts_curve=[0, 0, -1, 0, 0]",
            "data.filters.piece_counts_curve: found [0.0, 0.0, -1.0, 0.0, 0.0], expected a number above 0",
        ),
        ("lr", "override 'lr': expected key=value, such as optimizer.lr=1e-3"),
        ("a..b=1", "override 'a..b=1': expected key=value"),
        ("optimizer.lr={", "override 'optimizer.lr={':1:2: expected the node content"),
    ],
)
def test_wrong_overrides(override, expected):
    assert expected in message(override)


def test_the_file_is_blamed_for_what_is_in_it():
    wrong = {**MINIMAL, "optimizer": {"learning_rate": 1}}
    assert message("optimizer.lr=1", data=wrong).startswith("r.yaml: optimizer.learning_rate: unknown key")
    assert message(data={**MINIMAL, "model": {"kind": "simple", "l1": 8}}).startswith("r.yaml: model.l1: unknown key")
    assert message(data={"data": {}}) == "r.yaml: model: missing, and it has no default (and 2 more)"
    assert message(data=[]) == "r.yaml: found a list, expected the sections of a recipe"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\na: 2\n", "r.yaml:2:1: key 'a' is given twice"),
        ("a: [1\n", "r.yaml:2:1: expected ',' or ']'"),
        ("? [a]\n: 1\n", "r.yaml:1:3: a key must be a word"),
        ("1: 1\n", "r.yaml:1:1: a key must be a word, not '1'"),
        ("a: {yes: 1}\n", "r.yaml:1:5: a key must be a word, not 'yes'"),
        ("2024-01-01: 1\n", "r.yaml: model: missing, and it has no default (and 3 more)"),
        ("~: 1\n", "r.yaml:1:1: a key must be a word, not '~'"),
        ("<<: 1\n", "r.yaml:1:5: expected a mapping or list of mappings for merging"),
        ("!!python/object:os.system a\n", "r.yaml:1:1: tags such as 'tag:yaml.org,2002:python/object:os.system' have"),
        ("a: !!bool x\n", "r.yaml:1:4: tags such as"),
        ("a: " + "[" * 100 + "]" * 100, "r.yaml:1:20: nested deeper than 16 levels"),
        ("- " * 100 + "1", "nested deeper than 16 levels"),
        (f"a: {'[' * 500_000}", "nested deeper than 16 levels"),
        (f"a: [{'1, ' * 20_000}]", "r.yaml:1:4: more than 10,000 keys and values"),
        ("a: *b\n", "r.yaml:1:4: found undefined alias 'b'"),
        ("--- a\n--- b\n", "r.yaml:2:1: a second document, expected one recipe"),
        ("a: \x07\n", "r.yaml: unacceptable character #x0007"),
        ("", "r.yaml: found nothing, expected the sections of a recipe"),
    ],
)
def test_wrong_yaml(tmp_path, text, expected):
    with pytest.raises(UserError) as caught:
        config.load(write(tmp_path / "r.yaml", text))
    assert expected in str(caught.value)


def test_unreadable_files(tmp_path):
    with pytest.raises(UserError, match=r"none\.yaml: No such file or directory"):
        config.load(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"model: \xff")
    with pytest.raises(UserError, match=r"binary\.yaml: byte 7 is not UTF-8"):
        config.load(tmp_path / "binary.yaml")


def test_other_files_of_this_project_in_place_of_a_recipe(tmp_path):
    for name in ("last.safetensors", "net.nnue", "run/recipe.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"\xff")
    for name, message in (
        ("last.safetensors", "last.safetensors: found a checkpoint, .* `nnue train --resume RUN` continues it$"),
        ("net.nnue", "net.nnue: found a net, expected a YAML file"),
        (
            "train.binpack",
            "train.binpack: found a data file, expected a YAML file, .* whose data.train names data files",
        ),
        ("run", "run: found a folder, .*; the recipe of this run is .*run/recipe.yaml$"),
        (".", "found a folder, expected a YAML file, such as a recipe$"),
    ):
        with pytest.raises(UserError, match=message):
            config.load(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 1e-3), ("1E5", 1e5), ("-2.5e+2", -250.0), (".5", 0.5), ("3.", 3.0), ("7", 7), ("1e", "1e")],
)
def test_numbers_are_read_as_people_write_them(text, value):
    got = yaml_text._read_yaml(text, "test")
    assert got == value
    assert type(got) is type(value)


def test_every_field_is_documented():
    undocumented = [
        key for key, _, _, text in schema.describe(config.Recipe) if not text and not key.startswith("model.")
    ]
    assert undocumented == []
    reference = config.reference()
    assert "schedule.kind = cosine" in reference
    assert "data.batch_size: int > 0, ≤ 16777216 [16384]\n    positions in a step" in reference


def test_fields_that_several_classes_share_are_described_once():
    lines = config.reference().splitlines()
    assert sum(line.startswith("model.l2: ") for line in lines) == 1
    of_v9 = lines.index("model.kind = sfnnv9")
    shared = "l1 [3072], l2, l3, output_buckets, quantisation.qat, quantisation.qat_from"
    assert lines[of_v9 + 2] == f"    also {shared}: as above"
    assert lines[of_v9 + 3].startswith("model.kind = ")
    assert "validation.filters: as data.filters" in lines


def described_fields(lines: list[str]) -> list[tuple[str, str, str, str]]:
    """The fields that a reference shows, each as (class, key, type and default, meaning). "As above" is
    taken to mean the last description of that key."""
    above: dict[str, tuple[str, str]] = {}  # key -> type and default, meaning
    found = []
    classes = [""]

    def add(key: str, kind: str, text: str) -> None:
        while classes[-1] and not key.startswith(classes[-1].partition("kind = ")[0]):
            classes.pop()
        found.append((classes[-1], key, kind, text))

    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("    also "):
            prefix = classes[-1].partition("kind = ")[0]
            for name, default in re.findall(r"([\w.]+)(?: \[(.*?)\])?(?=, \w|: as above$)", line[len("    also ") :]):
                section = prefix + name
                inside = [key for key in above if key == section or key.startswith(f"{section}.")]
                assert inside, line
                for key in inside:
                    kind, text = above[key]
                    add(key, f"{kind.partition(' [')[0]} [{default}]" if default else kind, text)
        elif line.startswith("    "):
            continue
        elif " = " in line and line.partition(" = ")[0].endswith(".kind"):
            while classes[-1] and not line.startswith(classes[-1].partition("kind = ")[0]):
                classes.pop()
            if classes[-1].partition(" = ")[0] == line.partition(" = ")[0]:
                classes.pop()
            classes.append(line)
        elif match := re.fullmatch(r"(\S+): as (\S+)", line):
            section, source = match.groups()
            for key in [key for key in above if key.startswith(f"{source}.")]:
                add(section + key.removeprefix(source), *above[key])
        else:
            key, _, kind = line.partition(": ")
            above[key] = (kind, following.strip() if following.startswith("    ") else "")
            add(key, *above[key])
    return found


def test_the_reference_describes_every_field_of_every_class():
    lines = []
    for key, kind, default, text in schema.describe(config.Recipe):
        value = f" [{default}]" if default else ""
        lines += [f"{key} {kind}" if kind.startswith("=") else f"{key}: {kind}{value}", f"    {text}"]
    in_several = ("validation.filters.", "validation.sets.N.filters.")  # whose classes are those of data.filters
    found, expected = (
        {("", *row[1:]) if row[1].startswith(in_several) else row for row in described_fields(each)}
        for each in (config.reference().splitlines(), lines)
    )
    assert ("optimizer.kind = muon", "optimizer.eps") in {row[:2] for row in expected}
    assert sorted(found - expected) == []
    assert sorted(expected - found) == []


def test_a_bomb_of_aliases_is_refused_before_it_is_unfolded(tmp_path):
    """330 bytes that stand for 10^12 words."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(UserError, match=r"r\.yaml:4:5: more than 10,000 keys and values"):
        config.load(write(tmp_path / "r.yaml", "\n".join(lines)))


def test_anchors_may_still_save_typing(tmp_path):
    text = "model: &m {kind: simple}\ndata: {train: [a]}\nloss: {kind: sigmoid, <<: {scale: 300}}\n"
    assert instance(SigmoidLoss, config.load(write(tmp_path / "r.yaml", text)).loss).scale == 300


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/urandom", "sparse"])
def test_endless_files_are_no_recipes(tmp_path, path):
    if path == "sparse":
        path = tmp_path / path
        with path.open("wb") as file:
            file.truncate(1 << 40)
    with pytest.raises(UserError, match=r"larger than 1,048,576 bytes"):
        config.load(path)


def test_one_file_is_a_list_of_one():
    recipe = config.parse(MINIMAL, ["data.train=one.binpack", "data.validation=*.binpack"])
    assert recipe.data.train == ["one.binpack"]
    assert recipe.data.validation == ["*.binpack"]
    assert config.parse({**MINIMAL, "data": {"train": "a"}}).data.train == ["a"]
    assert "schedule" in message("schedule=cosine")  # of no other kind of field


def test_folders_and_patterns_become_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ["d/b.binpack", "d/a.binpack.zst", "d/.hidden.binpack", "d/readme.md", "d/e/c.bin", "odd[1].binpack"]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    (tmp_path / "empty").mkdir()

    def files(names: str) -> list[str]:
        return config.with_files(config.parse(MINIMAL, [f"data.train={names}"]))[0].data.train

    assert files("d") == ["d/a.binpack.zst", "d/b.binpack"]
    assert files("d/*.binpack*") == ["d/a.binpack.zst", "d/b.binpack"]
    assert files("**/*.bin") == ["d/e/c.bin"]
    assert files("['x', 'd/e', 'odd[1].binpack']") == [
        "x",
        "d/e/c.bin",
        "odd[1].binpack",
    ]
    for names, complaint in [
        ("*.bim", "data.train: '*.bim': no file matches"),
        ("empty", "a folder without data files"),
    ]:
        with pytest.raises(UserError) as caught:
            files(names)
        assert complaint in str(caught.value)
    recipe, notes = config.with_files(config.parse(MINIMAL, ["data.train=d", "data.validation=[d/b.binpack]"]))
    assert notes == ["data.train: d: 2 files, d/a.binpack.zst, d/b.binpack"]
    assert config.with_files(recipe) == (recipe, [])


def test_presets_are_recipes_and_say_what_they_are_for(project_root):
    assert set(presets.names()) >= {"quickstart", "sfnnv5", "simple"}
    for name in presets.names():
        assert 20 < len(presets.description(name)) <= 110
        config.load(presets.path(name))
        assert (project_root / "configs" / f"{name}.yaml").samefile(presets.path(name))
    with pytest.raises(UserError, match=r"preset 'nope': expected one of .*quickstart"):
        presets.path("nope")


@pytest.mark.parametrize("page", ["from-nnue-pytorch", "from-bullet"])
def test_the_recipe_on_a_migration_page_is_one(project_root, tmp_path, page):
    text = (project_root / "docs" / f"{page}.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    config.load(write(tmp_path / "recipe.yaml", block))


@pytest.mark.parametrize("page", ["from-nnue-pytorch", "from-bullet"])
def test_fields_on_the_migration_pages_exist(project_root, page):
    """Every dotted field in code marks of the second column is one of the reference."""
    known = {key for key, *_ in schema.describe(config.Recipe)}
    text = (project_root / "docs" / f"{page}.md").read_text(encoding="utf-8")
    cells = [line.split(" | ")[1] for line in text.splitlines() if line.startswith("| ") and line.count(" | ") >= 1]
    for cell in cells:
        for field in re.findall(
            r"`((?:model|data|training|loss|lambda|schedule|optimizer|validation)\.[a-z0-9_.]+)", cell
        ):
            assert field in known or any(key.startswith(f"{field}.") for key in known), field
