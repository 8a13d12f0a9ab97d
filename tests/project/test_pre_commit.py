"""The hooks of pre-commit run what CI runs."""

import re
from pathlib import Path

import yaml

NO_PART_OF_THE_CHECK = {".", "--check", "--force-exclude", "-i"}
SAME = {"tools/clang_format.sh": "clang-format"}


def check(command: str) -> str:
    """The check of a command, for hooks, which get the names of files, and for steps, which take all files."""
    words = command.strip().lstrip("@").replace("$(BIN)/", ".venv/bin/").split()
    return " ".join(SAME.get(word, word) for word in words if word not in NO_PART_OF_THE_CHECK)


def test_hooks_are_the_steps_format_lint_and_types_of_ci(project_root: Path) -> None:
    ci = (project_root / ".ci" / "run").read_text()
    commands: list[str] = []
    for step in ("format", "lint"):
        found = re.search(rf"^step_{step}\(\) \{{ (.*); \}}$", ci, re.MULTILINE)
        assert found is not None
        commands += found[1].split("&&")
    assert "step_types() { make types; }" in ci
    recipe = re.search(r"^types:.*\n((?:\t.*\n)+)", (project_root / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    commands += [line for line in recipe[1].splitlines() if "--platform" not in line]  # once is enough for a commit
    hooks = yaml.safe_load((project_root / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert sorted(check(hook["entry"]) for hook in hooks) == sorted(check(command) for command in commands)
