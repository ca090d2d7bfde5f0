"""The pages of `--report` in a real browser: on a wide and a narrow screen, light and dark."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

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
def page(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    tiny: Callable[[str], Path],
) -> Path:
    """The report of a validation, an evaluation or a run."""
    folder = tmp_path_factory.mktemp("pages")
    if request.param == "validation":
        (folder / "model").symlink_to(tiny("llama"))
        command(folder, "apply", "model", "--yarn", "4", "-o", "out", "-q", code=0)
        options = ("--against", "model", "--length", "256", "--report", "page.html", "-q")
        command(folder, "validate", "out", *options, code=0)
    elif request.param == "evaluation":
        write_evaluation(folder / "page.html")
    else:
        write_run(folder / "page.html")
    return folder / "page.html"


def write_evaluation(page: Path) -> None:
    from ropeconv.features.evaluation.report import write_evaluation_report

    from .features.evaluation.results import made

    write_evaluation_report(made(), page)


def write_run(page: Path) -> None:
    """Write the report of several sources, one of which was evaluated and another one failed."""
    from ropeconv.features.evaluation.result import write_result
    from ropeconv.features.run.report import RunRow, RunTable, write_run_report

    from .features.evaluation.results import made

    result = page.with_name("result.json")
    write_result(made(), result)
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
    results = {"eval": {"path": str(result), "rows": {}}}
    measured = RunRow("model-1", "", "", {"eval": ("done", "9.0 s")}, results)
    table = RunTable(("apply", "push", "eval"), (*rows, failed, measured))
    write_run_report(table, Path("many-models.toml"), page)


@pytest.mark.parametrize(("width", "scheme"), SCREENS + OTHERS)
@pytest.mark.parametrize("page", ["validation", "evaluation", "run"], indirect=True)
def test_a_report_fits_and_can_be_read(
    chromium: Browser, page: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    from matplotlib.image import imread

    chromium.open(page, width, scheme)
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
