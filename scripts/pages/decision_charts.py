"""Draws the charts that lead to a method and to an engine, for docs/methods.md.

    python -m scripts.pages decision_charts

`choose-method.svg` has the questions of `QUESTIONS` with the command behind each answer, and
`choose-engine.svg` the share of model families for which each runtime computes each way to write
RoPE. tests/docs/test_decision_charts.py compares both with the data.
"""

from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

from ropeconv.rope.methods.method import REGISTRY
from ropeconv.views.plot_style import BLUE, GREEN, GREY, svg

from .tables import newest_counts

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
UNTUNED = round(REGISTRY["yarn"].max_untuned_factor)
"""Up to this factor, the authors of YaRN used it without training."""


class Question(NamedTuple):
    """A question of the chart, and what to run where the answer is yes."""

    question: str
    command: str
    note: str


QUESTIONS = (
    Question(
        "Is the model scaled already?",
        "--on-top, or --replace",
        "keep a trained scaling, or start without it",
    ),
    Question(
        "Does your engine read only rope_theta?",
        "--ntk S",
        "it only changes the base",
    ),
    Question(
        f"At most {UNTUNED} times the trained length?",
        "--yarn S",
        "the first choice; measure it untuned",
    ),
    Question(
        "Will you fine-tune at the new length?",
        "--yarn S, --theta-for TOKENS",
        "then ropeconv train-config",
    ),
    Question(
        "Do you have texts and a GPU?",
        "ropeconv tune, then --recipe",
        "frequencies for your model",
    ),
)
OTHERWISE = Question("", "ropeconv eval --methods base,yarn:8", "measure what is left of quality")
COLUMNS = ("new base,\nNTK", "linear", "Llama 3", "YaRN", "any\nfrequencies")


def draw_method(axes: Any) -> None:
    """Draw the questions below each other, each with its command at the right."""
    height = 1.3
    axes.set(xlim=(0, 10), ylim=(-height * len(QUESTIONS) - 0.75, 0.65))
    axes.axis("off")
    for number, (question, command, note) in enumerate(QUESTIONS):
        y = -height * number
        box(axes, 2.45, y, question, GREY)
        box(axes, 7.9, y + 0.13, command, BLUE)
        axes.text(7.9, y - 0.43, note, ha="center", va="center", fontsize=7)
        arrow(axes, (4.75, y), (5.75, y), "yes")
        arrow(axes, (2.45, y - 0.33), (2.45, y - height + 0.33), "no")
    y = -height * len(QUESTIONS)
    box(axes, 2.45, y, OTHERWISE.command, GREEN)
    axes.text(2.45, y - 0.52, OTHERWISE.note, ha="center", va="center", fontsize=7)


def box(axes: Any, x: float, y: float, words: str, colour: str) -> None:
    """Write words in a frame."""
    frame = {"boxstyle": "round,pad=0.45", "facecolor": "none", "edgecolor": colour}
    axes.text(x, y, words, ha="center", va="center", fontsize=8, bbox=frame)


def arrow(axes: Any, begin: tuple[float, float], end: tuple[float, float], words: str) -> None:
    """Draw an arrow with a word above it, or at its right."""
    style = {"arrowstyle": "->", "color": GREY}
    axes.annotate("", end, begin, arrowprops=style)
    x = (begin[0] + end[0]) / 2
    y = (begin[1] + end[1]) / 2
    is_level = begin[1] == end[1]
    axes.text(
        x if is_level else x + 0.15,
        y + 0.14 if is_level else y,
        words,
        ha="center" if is_level else "left",
        va="bottom" if is_level else "center",
        fontsize=7,
    )


def draw_engine(axes: Any) -> None:
    """Draw a bar for each runtime and way to write RoPE, as long as its share of the families."""
    rows = newest_counts()
    for place, (_, supported, exact) in enumerate(rows):
        for column, count in enumerate(exact):
            share = count / supported
            axes.text(column - 0.4, place - 0.08, f"{100 * share:.0f} %", fontsize=9)
            axes.barh(place + 0.16, 0.8, 0.2, column - 0.4, color=GREY, alpha=0.25)
            axes.barh(place + 0.16, 0.8 * share, 0.2, column - 0.4, color=BLUE)
    axes.set(xlim=(-0.5, len(COLUMNS) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xticks(range(len(COLUMNS)), COLUMNS)
    names = [short_name(name) for name, _, _ in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
    for side in axes.spines.values():
        side.set_visible(False)


def short_name(name: str) -> str:
    """The name of a runtime without the file that converts for it, over two lines where long."""
    return name.replace(" via convert_hf_to_gguf.py", "\n(own converter)").replace(
        "Text Generation Inference", "TGI"
    )


CHARTS = {
    "choose-method": (draw_method, (6.2, 4.6)),
    "choose-engine": (draw_engine, (6.2, 3.6)),
}
"""Charts by the names of their files: what draws them, and their size in inches."""


def drawn(name: str) -> str:
    """Return a chart as SVG."""
    from matplotlib.figure import Figure

    draw, size = CHARTS[name]
    colours = ("text.color", "xtick.color", "ytick.color", "axes.labelcolor")
    style = {"svg.fonttype": "none", "font.family": "sans-serif", "font.size": 8}
    with matplotlib.rc_context({**style, **dict.fromkeys(colours, GREY)}):
        figure = Figure(figsize=size, layout="constrained", facecolor="none")
        draw(figure.add_subplot(facecolor="none"))
        text = svg(figure, text=True)
    return text.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif") + "\n"


def main() -> None:
    """Write both charts."""
    for name in CHARTS:
        (PICTURES / f"{name}.svg").write_text(drawn(name), encoding="utf-8")


if __name__ == "__main__":
    main()
