"""The pages of `--report` in a real browser: on a wide and a narrow screen, light and dark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ropeconv.evaluate.report import write_report as write_evaluation
from ropeconv.evaluate.result import write_result
from ropeconv.receipts import read_receipt
from ropeconv.run.report import write_run_report
from ropeconv.run.table import RunRow, RunTable
from ropeconv.validate.report.page import write_report
from ropeconv.validate.rule.validation import Validation

from .evaluate.results import made
from .support.browser import Browser, browser
from .support.in_process import command

SCREENS = [(1200, "light"), (400, "dark")]
OTHERS = [pytest.param(*screen, marks=pytest.mark.nightly) for screen in ((1200, "dark"), (400, "light"))]
AA = 4.5
"""The least contrast of text, of WCAG 2 level AA: https://www.w3.org/TR/WCAG22/#contrast-minimum"""
GOOD = """<!doctype html><html lang="en"><style>body { font: 16px sans-serif; color: #222; background: #fff }</style>
<h1>Title</h1><h2>Part</h2><p>Text</p><figure><figcaption>Line</figcaption><svg role="img" aria-label="Line"
width="99" height="99" viewBox="0 0 99 99"><text x="9" y="20" style="font-size: 14px">ten</text></svg></figure>"""
FAULTS = {
    "wide": ("<p>", '<p style="width: 1300px">', "the page is"),
    "small": ("<p>", '<p style="font-size: 10px">', '"Text" is 10.0 px'),
    "small in a picture": ("14px", "10px", '"ten" is 10.0 px'),
    "shrunk": ('viewBox="0 0 99 99"', 'viewBox="0 0 199 199"', '"ten" is 7.0 px'),
    "cut off": ('x="9"', 'x="90"', '"ten" is cut off'),
    "picture without a name": ('aria-label="Line"', "", "a svg has no name"),
    "figure without a name": ("<figcaption>Line</figcaption>", "", "a FIGURE has no name"),
    "jump": ("h2>", "h3>", '"Part" is of level 3, after 1'),
    "no title": ("h1>", "b>", "there is not one h1"),
    "script": ("<p>", "<script>1</script><p>", "there is a script"),
    "one id twice": ("<p>", '<i id="a"></i><p id="a">', "an id stands twice"),
}


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, tiny: Callable[[str], Path]) -> dict[str, Path]:
    """A report of each kind, of a tiny model."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "model").symlink_to(tiny("llama"))
    command(folder, "apply", "model", "--yarn", "4", "-o", "out", "-q", code=0)
    options = ("--against", "model", "--length", "256", "--report", "validation.html", "-q")
    command(folder, "validate", "out", *options, code=0)
    write_evaluation(made(), folder / "evaluation.html")
    write_run_report(of_a_run(folder), Path("many-models.toml"), folder / "run.html")
    return {name: folder / f"{name}.html" for name in ("validation", "evaluation", "run")}


def of_a_run(folder: Path) -> RunTable:
    """The table of a run of several sources, one of which was evaluated and another one failed."""
    write_result(made(), folder / "result.json")
    url = f"https://huggingface.co/me/{'a-long-name-' * 5}yarn4/commit/{'0' * 40}"
    times = {"apply": "1.0 s", "push": "2.0 s"}
    rows = [
        RunRow(f"model-{number}", "yarn:4", "q8", dict.fromkeys(times, "done"), times, "", {"push": {"url": url}})
        for number in range(8)
    ]
    reason = f"config.json of {'x' * 200} is damaged; download it again"
    failed = RunRow("model-9", "yarn:4", "q8", {"apply": "failed", "push": "not run"}, {}, reason, {})
    found = {"eval": {"path": str(folder / "result.json"), "rows": {}}}
    measured = RunRow("model-1", "", "", {"eval": "done"}, {"eval": "9.0 s"}, "", found)
    return RunTable(("apply", "push", "eval"), (*rows, failed, measured))


def problems(chromium: Browser, path: Path, text: str | None = None, width: int = 1200) -> list[str]:
    """What is wrong with a page. text: written into it before."""
    if text is not None:
        path.write_text(text)
    chromium.open(path, width, "light")
    found: list[str] = chromium.problems()
    return found


@pytest.mark.parametrize(("width", "scheme"), SCREENS + OTHERS)
@pytest.mark.parametrize("name", ["validation", "evaluation", "run"])
def test_a_report_fits_and_can_be_read(
    chromium: Browser, pages: dict[str, Path], tmp_path: Path, name: str, width: int, scheme: str
) -> None:
    from matplotlib.image import imread

    chromium.open(pages[name], width, scheme)
    assert chromium.problems() == []
    contrast, where = chromium.contrast()
    assert contrast >= AA, where
    chromium.picture(tmp_path / "page.png")
    seen = imread(tmp_path / "page.png")[:, :, :3] * 255
    assert seen.shape[1] == width
    assert seen.shape[0] > 1000
    greys, counts = np.unique(seen.mean(axis=2).round(), return_counts=True)
    background = greys[counts.argmax()]
    assert background > 200 if scheme == "light" else background < 50
    assert counts.max() < 0.98 * counts.sum(), "the page is not blank"
    assert len(greys) > 50


def test_a_page_that_is_in_order_has_no_problem_and_faint_text_is_seen(chromium: Browser, tmp_path: Path) -> None:
    assert problems(chromium, tmp_path / "page.html", GOOD) == []
    assert chromium.contrast()[0] == pytest.approx(15.9, abs=0.1)
    problems(chromium, tmp_path / "page.html", GOOD.replace("<p>", '<p style="color: #888">'))
    assert chromium.contrast() == (pytest.approx(3.54, abs=0.02), "Text")


@pytest.mark.parametrize("fault", list(FAULTS))
def test_each_fault_is_seen(chromium: Browser, tmp_path: Path, fault: str) -> None:
    old, new, said = FAULTS[fault]
    assert old in GOOD
    found = problems(chromium, tmp_path / "page.html", GOOD.replace(old, new))
    assert [one for one in found if one.startswith(said)] != []


def test_names_of_any_length_fit(chromium: Browser, pages: dict[str, Path], tmp_path: Path) -> None:
    """A name without a place to break it, and one with what HTML and formulas are made of."""
    out = pages["validation"].parent / "out"
    result = Validation.from_dict(read_receipt(out).validation or {})
    write_report(result, out, "x" * 200 + "<b>&$a_b$", tmp_path / "page.html")
    assert "<b>&" not in (tmp_path / "page.html").read_text()
    assert [problems(chromium, tmp_path / "page.html", width=width) for width in (1200, 400)] == [[], []]
