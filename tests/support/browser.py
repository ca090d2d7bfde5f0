"""A real browser without a window, for pages: what overflows, what is too small to read, what has
no name.
"""

import base64
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
SMALLEST = 11
"""Pixels of the smallest type that is read without effort."""
PROBLEMS = """
const found = [], page = document.documentElement;
if (page.scrollWidth > page.clientWidth) found.push(`the page is ${page.scrollWidth} wide, of ${page.clientWidth}`);
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const text = walk.currentNode.data.trim(), element = walk.currentNode.parentElement;
  if (!text || !element.checkVisibility()) continue;
  const svg = element.closest("svg");
  const scale = svg ? svg.getScreenCTM().a : 1;
  const size = scale * parseFloat(getComputedStyle(element).fontSize);
  if (size < arguments[0]) found.push(`"${text}" is ${size.toFixed(1)} px`);
  if (svg && element.closest("text")) {
    const box = element.getBoundingClientRect(), frame = svg.getBoundingClientRect();
    if (box.left < frame.left - 1 || box.right > frame.right + 1) found.push(`"${text}" is cut off`);
  }
}
for (const one of document.querySelectorAll("figure, svg, img")) {
  const named = document.getElementById(one.getAttribute("aria-labelledby") || "");
  const caption = one.querySelector("figcaption");
  const name = one.getAttribute("alt") || one.getAttribute("aria-label") || (named || caption || {}).textContent;
  if (!name || !name.trim()) found.push(`a ${one.tagName} has no name`);
}
let level = 0;
for (const one of document.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
  const next = Number(one.tagName[1]);
  if (next > level + 1) found.push(`"${one.textContent}" is of level ${next}, after ${level}`);
  level = next;
}
if (document.querySelectorAll("h1").length != 1) found.push("there is not one h1");
const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
if (new Set(ids).size != ids.length) found.push("an id stands twice");
if (document.scripts.length) found.push("there is a script");
return found;
"""
CONTRAST = """
const rgb = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
  .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
  .reduce((sum, c, n) => sum + c * [0.2126, 0.7152, 0.0722][n], 0);
const behind = (element) => {
  for (let one = element; one; one = one.parentElement) {
    const found = rgb(getComputedStyle(one).backgroundColor);
    if (found.length == 3 || found[3] == 1) return found;
  }
};
let lowest = 100, where = "";
for (const one of document.querySelectorAll("body *")) {
  const own = [...one.childNodes].some((node) => node.nodeType == 3 && node.data.trim());
  const style = getComputedStyle(one), svg = one.closest("svg");
  const inMap = svg && svg.querySelector("image") && /^rgb\\((0, 0, 0|255, 255, 255)\\)$/.test(style.fill);
  if (!own || !one.checkVisibility() || inMap) continue;
  const colour = rgb(svg ? style.fill : style.color);
  const [a, b] = [light(colour), light(behind(one))].sort((x, y) => y - x);
  const contrast = (a + 0.05) / (b + 0.05);
  if (contrast < lowest) [lowest, where] = [contrast, one.textContent.trim().slice(0, 40)];
}
return [lowest, where];
"""


@contextmanager
def browser(profile: Path) -> Iterator["Browser"]:
    """A browser with an empty profile. profile: a folder for it. Skips the test where there is
    none.
    """
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="selenium is not installed: ./scripts/setup test"
    )
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("chromium is not installed: ./scripts/setup test --system")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


class Browser:
    """Looks at pages. driver: of selenium."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def show(self, width: int, scheme: str) -> None:
        """Sets the width of the window, in pixels, and its scheme: "light" or "dark"."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self, page: Path, width: int, scheme: str) -> None:
        """Opens a page in a window of that width and scheme."""
        self.show(width, scheme)
        self.driver.get(page.as_uri())

    def problems(self) -> list[str]:
        """What is wrong with the page that is open: a sentence each."""
        return list(self.driver.execute_script(PROBLEMS, SMALLEST))

    def contrast(self) -> tuple[float, str]:
        """The lowest contrast of a text with what is behind it, by WCAG 2, and that text. Heat maps
        are left out.
        """
        lowest, where = self.driver.execute_script(CONTRAST)
        return float(lowest), str(where)

    def picture(self, path: Path, height: int = 20_000) -> None:
        """Writes the page as PNG, up to that many pixels of its height."""
        height = min(
            height, self.driver.execute_script("return document.documentElement.scrollHeight")
        )
        width = self.driver.execute_script("return window.innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        options = {"format": "png", "captureBeyondViewport": True, "clip": clip}
        path.write_bytes(
            base64.b64decode(self.driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"])
        )
