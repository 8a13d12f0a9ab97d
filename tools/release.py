#!/usr/bin/env python3
"""Makes a release: checks, version, changelog, source distribution, wheel, tag.

    make release VERSION=0.2.0            everything; the tag is made here and not pushed
    tools/release.py 0.2.0 --dry-run      prints what would be done, and changes nothing
    tools/release.py 0.2.0 --notes        prints the section of the changelog, for .github/workflows/publish.yml
    tools/release.py 0.2.0 --sbom         prints the packages that build and package need, as SPDX JSON

Stops at the first step that fails. Nothing is published. The last lines are what to do next: push commit and tag, which
starts .github/workflows/publish.yml. The wheel is for the Python of .venv, as a check.
"""

from __future__ import annotations

import argparse
import datetime
import json
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


def notes(text: str, version: str) -> str:
    """The section of a version in the changelog, without its heading. SystemExit if there is none."""
    heading = re.search(rf"^## \[{re.escape(version)}\].*$", text, re.MULTILINE)
    if heading is None:
        raise SystemExit(f"CHANGELOG.md: no section '## [{version}]': write what changed first")
    return text[heading.end() :].partition("\n## ")[0].strip()


def sbom(version: str) -> dict[str, object]:
    """An SPDX document: the package, the packages of its environment with the digests that pip checks, and torch."""
    packages = [
        {"name": "torch-nnue", "SPDXID": "SPDXRef-torch-nnue", "versionInfo": version, "licenseDeclared": "MIT",
         "downloadLocation": "NOASSERTION"}
    ]  # fmt: skip
    for file in ("torch.txt", "runtime.txt", "build.txt"):
        text = (ROOT / "requirements" / file).read_text(encoding="utf-8").replace("\\\n", " ")
        for name, found in re.findall(r"(?m)^([A-Za-z][\w.-]*)==([\w.+]+)", text):
            identifier = f"SPDXRef-{name}"
            if all(package["SPDXID"] != identifier for package in packages):
                place = f"pkg:pypi/{name.lower()}@{found}"
                packages.append(
                    {
                        "name": name,
                        "SPDXID": identifier,
                        "versionInfo": found,
                        "downloadLocation": "NOASSERTION",
                        "externalRefs": [  # type: ignore[dict-item]
                            {
                                "referenceCategory": "PACKAGE-MANAGER",
                                "referenceType": "purl",
                                "referenceLocator": place,
                            }
                        ],
                    }
                )
    day = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"torch-nnue-{version}",
        "documentNamespace": f"urn:torch-nnue:{version}",
        "creationInfo": {"created": day, "creators": ["Tool: tools/release.py"]},
        "packages": packages,
        "relationships": [
            {
                "spdxElementId": "SPDXRef-torch-nnue",
                "relationshipType": "DEPENDS_ON",
                "relatedSpdxElement": package["SPDXID"],
            }
            for package in packages[1:]
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a release: checks, version, changelog, wheel, tag.")
    parser.add_argument("version", help="Version such as 0.3.0.")
    parser.add_argument("--dry-run", action="store_true", help="Print the steps and change nothing.")
    parser.add_argument("--skip-checks", action="store_true", help="Leave out .ci/run, for a commit that passed it.")
    parser.add_argument("--notes", action="store_true", help="Print the section of the changelog.")
    parser.add_argument("--sbom", action="store_true", help="Print the packages that are needed, as SPDX JSON.")
    arguments = parser.parse_args()
    if arguments.notes:
        print(notes(CHANGELOG.read_text(encoding="utf-8"), arguments.version))
        return
    if arguments.sbom:
        print(json.dumps(sbom(arguments.version), indent=1))
        return
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
    print("      the tag starts .github/workflows/publish.yml: wheels for each Python, index, release")


if __name__ == "__main__":
    main()
