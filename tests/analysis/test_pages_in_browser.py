"""The pages in a real browser without a network, on a phone and on a desk, light and dark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from browser import DESKTOP, PHONE, Browser, started
from typed import instance

from nnue_trainer.analysis import report
from nnue_trainer.files.pages.page import Page, Section, Table, save
from nnue_trainer.files.pages.plots import SERIES, Plot

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as found:
        yield found


@pytest.fixture(scope="module")
def pages(trained, tmp_path_factory, project_root):
    """One of each kind, and the worst one: runs with long names, one of them damaged."""
    from typer.testing import CliRunner

    from nnue_trainer.cli.main import app

    folder = tmp_path_factory.mktemp("pages")
    one, two = trained("a-run-with-a-name-" + "that-does-not-end-" * 5), trained("b", "optimizer.lr=5e-3")
    lines = (two / "metrics.jsonl").read_text().splitlines(keepends=True)
    (two / "metrics.jsonl").write_text("".join(lines[:40]) + "no json\n")
    save(report.build([one]), folder / "report.html")
    save(report.build([one, two, folder / "nothing"]), folder / "reports.html")
    sample = str(project_root / "samples" / "val.binpack")
    for arguments in (
        ["inspect", str(one), "--against", str(two), "--data", sample, "--html", str(folder / "inspect.html")],
        ["data", "profile", sample, "--html", str(folder / "profile.html")],
    ):
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize("name", ["report", "reports", "inspect", "profile"])
def test_a_page_is_whole(browser, pages, name, size, dark):
    found = browser.open(pages / f"{name}.html", size, dark=dark)
    assert found["console"] == []
    # The page itself; what it shows is inside it.
    assert [url for url in found["requests"] if not url.startswith("data:")] == [(pages / f"{name}.html").as_uri()]
    assert found["scripts"] == 0
    assert found["width"] == size[0]
    assert found["scrollWidth"] <= found["width"], found["beyond"]
    assert found["beyond"] == []
    assert len(found["plots"]) >= 9
    for plot in found["plots"]:
        assert plot["width"] > 200
        assert plot["height"] > 80
        assert plot["marks"] > 3
    assert len(found["ids"]) == len(set(found["ids"]))
    red, green, blue = map(int, re.findall(r"\d+", found["back"])[:3])
    assert (max(red, green, blue) < 60) if dark else (min(red, green, blue) > 200)


def test_a_name_without_an_end_fits_everywhere(browser, tmp_path):
    """In each place for text: a path of a run can stand in any of them, and no machine's paths are as long."""
    long = "x" * 200
    plot = Plot(long, lambda axes: axes.plot([0, 1]), note=long, legend=[(long, SERIES[0])])
    table = Table([long, long], [[long, long]], title=long)
    section = Section(
        long, long, [(long, long)], [long], [long], [table, replace(table, fold=True)], [plot], long, long
    )
    save(Page(long, long, [section]), tmp_path / "long.html")
    found = browser.open(tmp_path / "long.html", PHONE)
    assert found["beyond"] == []
    assert found["scrollWidth"] <= found["width"]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_wide_table_shows_that_it_goes_on(browser, tmp_path, dark):
    """A shadow at the edge where there is more, and at no other: a number cut there looks like a whole one."""
    from PIL import Image

    table = Table(["name"] + ["a long column"] * 9, [["row"] + ["12,345,678"] * 9] * 3)
    save(Page("wide", sections=[Section("section", tables=[table])]), tmp_path / "wide.html")
    browser.open(tmp_path / "wide.html", PHONE, dark=dark)
    for to, left, right in ((0, False, True), (300, True, True), (9999, True, False)):
        box = browser.scroll_table(to)
        browser.screenshot(tmp_path / "wide.png")
        picture = Image.open(tmp_path / "wide.png").convert("L")
        # Below the text of the last row.
        colors = [picture.getpixel((round(box[side]) + by, round(box["bottom"]) - 5))
                  for side, by in (("left", 3), ("right", -4))]  # fmt: skip
        paper = 31 if dark else 255
        assert [abs(instance(int, color) - paper) > 40 for color in colors] == [left, right]


def test_short_names_are_in_one_line(browser, tmp_path):
    """Also with hyphens, where a browser breaks lines, in a table that is wider than the page."""
    rows = [("muon-seed-1.nnue", *("0.123456 ± 0.000001",) * 12), ("net", *("1",) * 12)]
    table = Table(("net", *("figure",) * 12), rows)
    save(Page("A page", "", [Section("Nets", tables=[table])]), tmp_path / "page.html")
    browser.open(tmp_path / "page.html", DESKTOP)
    heights = browser.heights("tbody tr")
    assert heights[0] <= heights[1] + 1


def test_a_test_of_the_test(browser, tmp_path):
    """Each defect is found: a script that fails, a plot without size, a line too long, a picture from elsewhere."""
    page = tmp_path / "wrong.html"
    page.write_text(
        "<!doctype html><title>w</title><meta name=viewport content='width=device-width'>"
        "<body><div style='width:3000px'>wide</div><figure><svg style='width:0;height:0'></svg></figure>"
        "<img src='http://example.invalid/x.png'><script>throw Error('boo')</script>"
    )
    found = browser.open(page, DESKTOP)
    assert any("boo" in message for message in found["console"])
    assert any("example.invalid" in url for url in found["requests"])
    assert found["beyond"]
    assert found["scrollWidth"] > found["width"]
    assert found["plots"][0]["width"] == 0
    json.dumps(found)
