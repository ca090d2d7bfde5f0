"""The pages of `--report` in a real browser: on a wide and a narrow screen, light and dark."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ropeconv.features.evaluation.report import write_evaluation_report as write_evaluation
from ropeconv.features.evaluation.result import write_result
from ropeconv.features.run.report import RunRow, RunTable, write_run_report

from .features.evaluation.results import made
from .support.browser import Browser, browser
from .support.in_process import command

SCREENS = [(1200, "light"), (400, "dark")]
OTHERS = [
    pytest.param(*screen, marks=pytest.mark.nightly) for screen in ((1200, "dark"), (400, "light"))
]
AA = 4.5
"""The least contrast of text, of WCAG 2 level AA: https://www.w3.org/TR/WCAG22/#contrast-minimum"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, tiny: Callable[[str], Path]) -> dict[str, Path]:
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
    done = {"apply": ("done", "1.0 s"), "push": ("done", "2.0 s")}
    rows = [
        RunRow(f"model-{number}", "yarn:4", "q8", done, {"push": {"url": url}})
        for number in range(8)
    ]
    reason = f"config.json of {'x' * 200} is damaged; download it again"
    failed = RunRow(
        "model-9", "yarn:4", "q8", {"apply": ("failed", reason), "push": ("not run", "")}, {}
    )
    results = {"eval": {"path": str(folder / "result.json"), "rows": {}}}
    measured = RunRow("model-1", "", "", {"eval": ("done", "9.0 s")}, results)
    return RunTable(("apply", "push", "eval"), (*rows, failed, measured))


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
    pixels = imread(tmp_path / "page.png")[:, :, :3] * 255
    assert pixels.shape[1] == width
    assert pixels.shape[0] > 1000
    greys, counts = np.unique(pixels.mean(axis=2).round(), return_counts=True)
    background = greys[counts.argmax()]
    assert background > 200 if scheme == "light" else background < 50
    assert counts.max() < 0.98 * counts.sum(), "the page is not blank"
    assert len(greys) > 50
