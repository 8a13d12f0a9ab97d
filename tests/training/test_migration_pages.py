"""Every key of a recipe that the migration pages name exists, in the kind that they name with it."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

from nnue_trainer import config, schema

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("from-nnue-pytorch.md", "from-bullet.md")
KEYS = {key.replace(".N", "") for key, *_ in schema.describe(config.Recipe)}
SECTIONS = {key.split(".")[0] for key in KEYS}


def kinds() -> dict[tuple[str, str], set[str]]:
    """The fields of each kind of a section."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    now: dict[str, str] = {}
    for key, kind, *_ in schema.describe(config.Recipe):
        section, _, field = key.partition(".")
        if field == "kind" and kind.startswith("="):
            now[section] = kind.removeprefix("=").strip()
        if section in now:
            found[section, now[section]].add(field.split(".")[0])
    return found


KINDS = kinds()


def rows(page: str) -> list[tuple[str, str]]:
    """(theirs, ours) of every table row."""
    lines = [line for line in (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [(row[0], row[1]) for row in cells if set(row[0]) != {"-"}]


def wrong_in(cell: str) -> list[str]:
    """What a cell names that no recipe has."""
    wrong, section = [], ""
    for span in re.findall(r"`([^`]+)`", cell):
        flow = re.fullmatch(r"(?:(\w+): )?\{(kind: \w+.*)\}", span)
        dotted = re.fullmatch(r"(\w+(?:\.\w+)+)(?:: .*)?", span)
        if flow:
            sections = [flow[1]] if flow[1] else ["schedule", "lambda", "optimizer", "average"]
            text = re.sub(r"\{[^{}]*\}|\[[^\[\]]*\]|\([^()]*\)|…", "0", flow[2])
            names = re.findall(r"(?:^|, )(\w+):", text)
            kind = re.match(r"kind: (\w+)", text)[1]  # type: ignore[index]
            if not any(set(names) <= KINDS.get((each, kind), set()) for each in sections):
                wrong.append(span)
        elif dotted and dotted[1].split(".")[0] in SECTIONS:
            key = dotted[1]
            section = key.rpartition(".")[0]
            value = re.search(r"\.kind: (\w+)", span)
            known = key in KEYS or any(other.startswith(f"{key}.") for other in KEYS)
            if not known or (value and (section, value[1]) not in KINDS):
                wrong.append(span)
        elif section and (word := re.fullmatch(r"([a-z]\w*)(?:: .*)?", span)):
            known = f"{section}.{word[1]}" in KEYS or (section, word[1]) in KINDS
            if not known and word[1] not in SECTIONS and not any(key.endswith(f".{word[1]}") for key in KEYS):
                wrong.append(span)
    return wrong


@pytest.mark.parametrize("page", PAGES)
def test_every_key_of_the_tables_exists(page: str) -> None:
    table = rows(page)
    assert len(table) > 25
    named = [theirs for theirs, ours in table if any(section in ours for section in SECTIONS)]
    assert len(named) > 20, "the tables are not read"
    assert {theirs: wrong for theirs, ours in table if (wrong := wrong_in(ours))} == {}


@pytest.mark.parametrize("page", PAGES)
def test_the_whole_recipe_of_a_page_is_one(page: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    recipes = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert recipes
    for recipe in recipes:
        (tmp_path / "mine.yaml").write_text(recipe, encoding="utf-8")
        config.load(tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    "cell", ["`loss.in_scale`", "`{kind: linear, final_rate: …}`", "`average: {kind: mean}`", "`optimizer.kind: sgd`"]
)
def test_a_wrong_key_is_found(cell: str) -> None:
    assert wrong_in(cell)
