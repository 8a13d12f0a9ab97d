"""Recipes and overrides made wrong in every way a seed can think of: each is read, or refused in one line.

Used by tests/faults/test_recipes.py (a few thousand) and tools/attack_recipes.py (as many as you like).
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from nnue_trainer import config, schema
from nnue_trainer.errors import UserError, shown
from nnue_trainer.files import presets

SCALARS = [
    *[
        "0",
        "-1",
        "1",
        "1.5",
        "1e39",
        "1e-50",
        "1e400",
        "-0.0",
        ".nan",
        ".inf",
        "-.inf",
        "2147483648",
        "9223372036854775807",
    ],
    *[
        "9223372036854775808",
        "1" + "0" * 5000,
        "0x7fffffffffffffff",
        "0o17",
        "1_000",
        "1:30",
        "true",
        "null",
        "~",
        "''",
    ],
    *[
        '"a\\0b"',
        '"\\uD800"',
        '"\\e[2J"',
        "2024-13-40",
        "*a",
        "&a x",
        "&a [*a]",
        "!!float x",
        "!!bool x",
        "!!timestamp x",
    ],
    *[
        "!!python/name:os.system",
        "!",
        "<<",
        "=",
        "{",
        "}",
        "[",
        "]",
        "{}",
        "[]",
        "[[[]]]",
        "{a: {b: {c: d}}}",
        "- -",
        "? x",
    ],
    *[
        "|\n x",
        ">\n x",
        "%YAML 9.9",
        "---",
        "...",
        "#",
        "@",
        "`",
        "é\u202e",
        "\x85",
        "\ufeff",
        "\t",
        "cuda:99",
        "*.binpack",
    ],
    *[
        "[" * 50,
        "{a: " * 50,
        "[x, " * 20_000,
        "'" * 3,
        '"',
        "kind",
        "{kind: simple}",
        "{kind: [1]}",
        "{kind: {}}",
        "{kind: 7}",
    ],
]


def keys() -> list[str]:
    return sorted({key for key, _, _, _ in schema.describe(config.Recipe)})


def mutated(rng: random.Random, text: str) -> str:
    """A recipe with a few characters, lines or values changed."""
    for _ in range(rng.randint(1, 4)):
        lines = text.split("\n")
        at = rng.randrange(len(lines))
        match rng.randrange(7):
            case 0:
                place = rng.randrange(len(text) + 1)
                text = (
                    text[:place] + chr(rng.choice([0, 7, 9, 10, 27, 58, 91, 123, 0x85, 0x2028, 0xFEFF])) + text[place:]
                )
                continue
            case 1:
                place = rng.randrange(len(text) + 1)
                text = text[:place] + text[place + rng.randint(1, 20) :]
                continue
            case 2:
                lines[at] = lines[at].partition(":")[0] + ": " + rng.choice(SCALARS)
            case 3:
                lines.insert(at, lines[rng.randrange(len(lines))])
            case 4:
                lines[at] = " " * rng.randrange(6) + lines[at].strip()
            case 5:
                lines.insert(at, rng.choice(SCALARS) + ": " + rng.choice(SCALARS))
            case _:
                del lines[at]
        text = "\n".join(lines)
    return text


def attack(seed: int, count: int, folder: Path) -> Counter[str]:
    """How many recipes were read and how many refused. AssertionError for a line that is none; whatever is raised but
    UserError comes through."""
    rng = random.Random(seed)
    originals = [presets.path(name).read_text(encoding="utf-8") for name in presets.names()]
    names = keys()
    outcome: Counter[str] = Counter()
    path = folder / "r.yaml"
    for _ in range(count):
        text = rng.choice(originals)
        if rng.random() < 0.6:
            text = mutated(rng, text)
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        overrides = [f"{rng.choice(names)}={rng.choice(SCALARS)}" for _ in range(rng.choice([0, 0, 1, 3]))]
        recipe, message = None, ""
        try:
            recipe = config.load(path, overrides)
        except UserError as error:
            message = str(error)
        outcome["refused" if recipe is None else "read"] += 1
        assert "\n" not in message, (text, overrides)
        assert len(shown(message)) < 1000, (text, overrides)
        assert recipe is None or config.parse(schema.to_data(recipe)) == recipe, (text, overrides)
    return outcome
