#!/usr/bin/env python3
"""Makes a release: checks, version, changelog, source distribution, wheel, tag.

    make release VERSION=0.2.0            everything; the tag is made here and not pushed
    tools/release.py 0.2.0 --dry-run      prints what would be done, and changes nothing

Stops at the first step that fails. Nothing is published. The last lines are what to do next: push commit and tag,
then upload dist/. The wheel is for the Python of .venv; the job `wheels` of CI keeps those for the other versions.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INIT = ROOT / "nnue_trainer" / "__init__.py"
CITATION = ROOT / "CITATION.cff"
CONDA = ROOT / "packaging" / "conda" / "recipe.yaml"
CHANGELOG = ROOT / "CHANGELOG.md"


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def dated_changelog(text: str, version: str, day: str) -> str:
    """The changelog with the section of `version` dated. SystemExit if none can be dated."""
    heading = re.search(rf"^## \[{re.escape(version)}\]( - .*)?$", text, re.MULTILINE)
    if heading is None:
        raise SystemExit(f"CHANGELOG.md: no section '## [{version}]': write what changed first")
    if not re.fullmatch(r" - (unreleased|\d{4}-\d\d-\d\d)", heading[1] or " - unreleased"):
        raise SystemExit(f"CHANGELOG.md: '{heading[0]}' cannot be dated: expected 'unreleased' or a day")
    body = text[heading.end() :].partition("\n## ")[0].strip()
    if not body:
        raise SystemExit(f"CHANGELOG.md: the section '## [{version}]' is empty: write what changed first")
    return text[: heading.start()] + f"## [{version}] - {day}" + text[heading.end() :]


def with_version(text: str, version: str) -> str:
    return re.sub(r'^__version__ = ".*"$', f'__version__ = "{version}"', text, count=1, flags=re.MULTILINE)


def packaged(text: str, version: str) -> str:
    """The conda recipe with this version."""
    return re.sub(r'^  version: ".*"$', f'  version: "{version}"', text, count=1, flags=re.MULTILINE)


def cited(text: str, version: str, day: str) -> str:
    """CITATION.cff with this version and day."""
    for key, value in (("version", version), ("date-released", day)):
        if not re.search(rf"^{key}:", text, re.MULTILINE):
            text = f"{text.rstrip()}\n{key}: {value}\n"
        text = re.sub(rf"^{key}:.*$", f"{key}: {value}", text, count=1, flags=re.MULTILINE)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a release: checks, version, changelog, wheel, tag.")
    parser.add_argument("version", help="Version such as 0.3.0.")
    parser.add_argument("--dry-run", action="store_true", help="Print the steps and change nothing.")
    parser.add_argument("--skip-checks", action="store_true", help="Leave out .ci/run, for a commit that passed it.")
    arguments = parser.parse_args()
    version, day = arguments.version, datetime.datetime.now(datetime.UTC).date().isoformat()
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        raise SystemExit(f"version: found {version!r}, expected a number such as 0.3.0 or 0.3.0rc1")
    if git("tag", "--list", f"v{version}"):
        raise SystemExit(f"tag v{version}: exists: choose another version")
    if git("status", "--porcelain") and not arguments.dry_run:
        raise SystemExit("the working tree has changes: commit them first")

    files = {
        CHANGELOG: dated_changelog(CHANGELOG.read_text(encoding="utf-8"), version, day),
        INIT: with_version(INIT.read_text(encoding="utf-8"), version),
        CONDA: packaged(CONDA.read_text(encoding="utf-8"), version),
        CITATION: cited(CITATION.read_text(encoding="utf-8"), version, day),
    }
    changed = [path for path, text in files.items() if text != path.read_text(encoding="utf-8")]
    commands = [
        *([] if arguments.skip_checks else [[".ci/run"]]),
        ["rm", "-rf", "dist"],
        ["make", "wheel"],
        ["tools/check_wheel.sh"],
        *([["git", "commit", "-q", "-am", f"Bump version to {version}"]] if changed else []),
        ["git", "tag", "-a", f"v{version}", "-m", f"Version {version}"],
    ]
    for path, text in files.items():
        print(f"{path.relative_to(ROOT)}: {'changes' if path in changed else 'unchanged'}")
        if not arguments.dry_run:
            path.write_text(text, encoding="utf-8")
    for command in commands:
        print("+", " ".join(command), flush=True)
        if not arguments.dry_run and (code := subprocess.run(command, cwd=ROOT, check=False).returncode):
            print(f"release: {command[0]} failed with status {code}; undo the files: git checkout .", file=sys.stderr)
            raise SystemExit(1)
    if arguments.dry_run:
        print("dry run: nothing was changed")
        return
    print("next: git push --follow-tags")
    print("      copy the wheels for other versions of Python (without CUDA) from the CI job `wheels` to dist/,")
    print("      and upload dist/")


if __name__ == "__main__":
    main()
