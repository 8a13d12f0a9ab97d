"""A real browser for tests of pages: Debian's chromium without a window, driven by selenium, without a network."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PHONE, DESKTOP = (360, 740), (1440, 900)

# Faults of a page as it is laid out, which a reader would see.
_MEASURE = """
const width = document.documentElement.clientWidth;
const inScroller = element => element.closest('.scroll, pre') !== null;
const plots = [...document.querySelectorAll('figure svg')].map(svg => {
  const box = svg.getBoundingClientRect();
  return {width: box.width, height: box.height, marks: svg.querySelectorAll('path, use, image').length,
          smallest: Math.min(...[...svg.querySelectorAll('text')].map(t => t.getBoundingClientRect().height))};
});
const beyond = [...document.body.querySelectorAll('*')]
  .filter(e => !inScroller(e) && !e.ownerSVGElement)
  .filter(e => e.getBoundingClientRect().right > width + 1)
  .map(e => e.tagName + ': ' + (e.textContent || '').slice(0, 60));
return {width, scrollWidth: document.documentElement.scrollWidth, plots, beyond,
        back: getComputedStyle(document.body).backgroundColor, text: document.body.innerText,
        scripts: document.scripts.length, title: document.title,
        ids: [...document.querySelectorAll('[id]')].map(e => e.id)};
"""


class Browser:
    def __init__(self, driver: Any):
        self._driver = driver

    def open(self, page: Path, size: tuple[int, int], *, dark: bool = False) -> dict[str, Any]:
        """Loads the page and describes how it is laid out, with every message in the console."""
        driver = self._driver
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        driver.get_log("browser")
        driver.get_log("performance")
        driver.get(page.resolve().as_uri())
        found = driver.execute_script(_MEASURE)
        found["console"] = [entry["message"] for entry in driver.get_log("browser")]
        events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
        sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        found["requests"] = [params["request"]["url"] for params in sent]
        return found

    def scroll_table(self, to: int) -> dict[str, float]:
        """Scrolls the first table of the page to this column of pixels, and gives where it is."""
        script = "const e = document.querySelector('.scroll'); e.scrollLeft = arguments[0]; "
        where: dict[str, float] = self._driver.execute_script(script + "return e.getBoundingClientRect().toJSON()", to)
        return where

    def heights(self, selector: str) -> list[float]:
        """The heights of the elements that match, in pixels."""
        script = "return [...document.querySelectorAll(arguments[0])].map(e => e.getBoundingClientRect().height)"
        found: list[float] = self._driver.execute_script(script, selector)
        return found

    def screenshot(self, path: Path, *, height: int | None = None) -> None:
        """Saves a picture of the whole page, or of its first `height` pixels."""
        size = self._driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        options = {"format": "png", "captureBeyondViewport": True, "clip": clip}
        data = self._driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def started() -> Iterator[Browser]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    # As root in a container there is no sandbox; a page of ours runs no script.
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    # Nothing outside can be reached: every host name leads nowhere.
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        driver.set_page_load_timeout(120)
        driver.execute_cdp_cmd("Network.enable", {})
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
        yield Browser(driver)
    finally:
        driver.quit()
