"""Draws docs/pictures/readme.png, the picture of README.md, from the records of `ropeconv eval`.

    python -m scripts.pages readme_picture

Above is the loss of the same tokens with more and more context before them, below how many hidden
numbers the model still finds. Its background is transparent, and its greys and colours are readable
on white and on black. tests/docs/test_readme_picture.py compares what is drawn with the records.
"""

from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import msgspec

from ropeconv.features.evaluation.result import Result
from ropeconv.views.plot_style import BLUE, GREEN, GREY, ORANGE, RED

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "pictures" / "readme.png"
RECORDS = ROOT / "docs" / "evidence"
TRAINED = 8192
LENGTHS = (2048, 8192, 32768)
"""A quarter of the trained length, the trained length, and four times it."""
ROWS = {
    "base": ("no scaling", RED, "-"),
    "linear:4": ("linear", ORANGE, "--"),
    "ntk:4": ("NTK", GREEN, "-."),
    "yarn:4": ("YaRN", BLUE, "-"),
}
"""Rows of the records that are drawn: the words for them, their colours and dashes."""


class Point(NamedTuple):
    """A point with the ends of its error bar."""

    length: int
    value: float
    low: float
    high: float


def read_record(name: str) -> Result:
    """Return what `eval` measured."""
    return msgspec.json.decode((RECORDS / f"{name}.json").read_bytes(), type=Result)


def losses() -> dict[str, list[Point]]:
    """Return the losses by row, in nats per token, with their standard errors."""
    record = read_record("smollm2-4T")
    points: dict[str, list[Point]] = {}
    for row in ROWS:
        points[row] = []
        for length in LENGTHS:
            cell = record.cell(row, "growth", "loss", length)
            if cell is None:
                continue
            error = cell.error or 0
            points[row].append(Point(length, cell.value, cell.value - error, cell.value + error))
    return points


def passkeys() -> dict[str, list[Point]]:
    """Return the exact answers by row in per cent, with Wilson's intervals of 95 %."""
    record = read_record("smollm2-4T-passkey")
    points: dict[str, list[Point]] = {}
    for row in ROWS:
        cells = [(length, record.cell(row, "passkey", "exact", length)) for length in LENGTHS]
        points[row] = [
            Point(length, 100 * cell.value, 100 * (cell.low or 0), 100 * (cell.high or 0))
            for length, cell in cells
            if cell is not None
        ]
    return points


def draw(path: Path) -> None:
    """Write the picture as PNG, readable at a width of 400 pixels."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    style = {
        "font.size": 9,
        "font.family": "sans-serif",
        "axes.spines.top": False,
        "axes.spines.right": False,
        **dict.fromkeys(
            ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), GREY
        ),
    }
    with matplotlib.rc_context(style):
        figure, (above, below) = pyplot.subplots(
            2, 1, figsize=(4.4, 4.2), sharex=True, layout="constrained", height_ratios=(3, 2)
        )
        draw_curves(above, losses())
        draw_curves(below, passkeys())

        above.set(ylabel="loss in nats per token", ylim=(2.5, 9.2))
        below.set(ylabel="hidden numbers\nfound in %", ylim=(-8, 108), yticks=(0, 50, 100))
        below.set(xlabel="context in tokens", xscale="log", xlim=(1800, 75000))
        below.set_xticks(LENGTHS, [f"{length:,}" for length in LENGTHS])
        below.minorticks_off()
        for axes in (above, below):
            axes.axvline(TRAINED, color=GREY, linestyle=":", linewidth=1)
        above.annotate(
            "trained length",
            (TRAINED, 9.1),
            xytext=(-4, 0),
            textcoords="offset points",
            horizontalalignment="right",
            verticalalignment="top",
        )
        figure.savefig(path, dpi=250, transparent=True, metadata={"Software": None})
        pyplot.close(figure)


def draw_curves(axes: Any, rows: dict[str, list[Point]]) -> None:
    """Draw the rows with their error bars, and name each at its right end."""
    ends = [points[-1].value for points in rows.values()]
    for row, points in rows.items():
        words, colour, dashes = ROWS[row]
        values = [point.value for point in points]
        bars = [
            [point.value - point.low for point in points],
            [point.high - point.value for point in points],
        ]
        axes.errorbar(
            [point.length for point in points],
            values,
            yerr=bars,
            color=colour,
            linestyle=dashes,
            marker="o",
            markersize=4,
            capsize=2,
            elinewidth=1,
            linewidth=2,
        )
        # the names of rows that end at one value would cover each other
        is_shared = ends.count(values[-1]) > 1
        axes.annotate(
            "the others" if is_shared else words,
            (points[-1].length, values[-1]),
            xytext=(7, 0),
            textcoords="offset points",
            color=GREY if is_shared else colour,
            fontweight="bold",
            verticalalignment="center",
        )


if __name__ == "__main__":
    draw(PICTURE)
