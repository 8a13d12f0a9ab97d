"""The pages: links lead somewhere, no page is too long to read, and the README fits into a minute."""

import calendar
import re
from pathlib import Path

PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "docs/*.md",
    "benchmarks/**/*.md",
    "examples/**/*.md",
)


def without_code(text: str) -> str:
    return re.sub(r"(?ms)^```.*?^```$", "", text)


def anchors(text: str) -> set[str]:
    """The names that GitHub and mkdocs give to headings."""
    headings = re.findall(r"(?m)^#+ (.*)$", without_code(text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def dead_links(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if re.match(r"https?://|mailto:", link):
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target.read_text())):
            dead.append(link)
    return dead


def test_dead_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A title\n[a](#a-title) [b](#other) [c](missing.md) [d](page.md#a-title) [e](https://example.org)\n"
    )
    assert dead_links(page) == ["#other", "missing.md"]


def test_no_link_is_dead(project_root: Path) -> None:
    pages = [page for pattern in PAGES for page in sorted(project_root.glob(pattern))]
    assert len(pages) > 30
    assert {str(page): dead for page in pages if (dead := dead_links(page))} == {}


def test_tests_and_tools_that_are_named_exist(project_root: Path) -> None:
    """In pages, comments and settings: a file that was moved is not named by its old place."""
    folders = ("csrc", "data_loader", "docs", "examples", "nnue_trainer", "requirements", "tests", "tools", ".github")
    texts = [path for path in project_root.glob("*") if path.suffix in (".md", ".toml") or path.name == "Makefile"]
    texts += [path for folder in folders for path in (project_root / folder).rglob("*")]
    suffixes = {".md", ".py", ".pyi", ".sh", ".cpp", ".h", ".cu", ".cuh", ".in", ".toml", ".txt", ".yml"}
    named = re.compile(r"(?<![\w/.-])(?:tests|tools)/[\w/]+\.(?:py|sh)\b")
    dead = [
        f"{path.relative_to(project_root)}: {name}"
        for path in texts
        if path.suffix in suffixes or path.name == "Makefile"
        for name in named.findall(path.read_text(encoding="utf-8"))
        if not (project_root / name).is_file() and path.name != "CHANGELOG.md"
    ]
    assert dead == []


def test_pages_are_short(project_root: Path) -> None:
    lengths = {page.name: len(page.read_text().splitlines()) for page in (project_root / "docs").glob("*.md")}
    assert {name: length for name, length in lengths.items() if length > 250} == {}


def test_comments_are_above_commands(project_root: Path) -> None:
    """Beside them they would wrap on the site, and on a phone."""
    found = [
        f"{page.name}: {line}"
        for page in [project_root / "README.md", *sorted((project_root / "docs").glob("*.md"))]
        for block in re.findall(r"(?ms)^```(?:sh)?\n(.*?)^```", page.read_text(encoding="utf-8"))
        for line in block.splitlines()
        if re.match(r"(nnue|make|pip|python|cp|torchrun) .*\S\s+# ", line)
    ]
    assert not found, "\n".join(found)


def test_the_readme_is_read_to_its_end(project_root: Path) -> None:
    text = (project_root / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 450
    assert len(re.findall(r"(?<!!)\[[^]]*\]\(", text)) <= 10


def test_every_page_is_reachable(project_root: Path) -> None:
    linked = {
        link.partition("#")[0].rpartition("/")[2]
        for page in [project_root / "README.md", *project_root.glob("docs/*.md")]
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    }
    pages = {page.name for page in project_root.glob("docs/*.md")}
    assert sorted(pages - linked - {"index.md"}) == []  # the site opens with that page


def test_guides_leave_dates_of_measurements_to_the_notebook(project_root: Path) -> None:
    """Only the dates of Stockfish's versions and of the table of rates are allowed."""
    measured = re.compile(rf"\d{{4}}-\d\d-\d\d|\bEPYC\b|\b({'|'.join(calendar.month_name[1:])}) \d{{4}}\b")
    version = re.compile(r"\| (master since|builds from) |^\| date, commit \||from public sources of October 2026")
    found = [
        f"{page.name}:{number}: {line}"
        for page in sorted((project_root / "docs").glob("*.md"))
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        if measured.search(line) and not version.search(line)
    ]
    assert not found, "\n".join(found)
