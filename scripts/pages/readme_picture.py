"""Draws docs/pictures/readme.png, the picture of README.md, from the measured table in
docs/evaluating.md.

    python -m scripts.pages readme_picture
"""

import re
from pathlib import Path

import matplotlib

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "pictures" / "readme.png"
TRAINED = 8192
TOKENS = (2048, 8192, 16384)
"""Lengths of the columns 1/4T, 1T and 2T of the table."""
ROWS = {"base": "without scaling", "yarn:2": "with YaRN"}
"""Rows of the table that are drawn, with the words for them."""


def losses() -> dict[str, list[float]]:
    """Return the losses of each row by length, in nats per token. Rows after `base` are printed as
    differences.
    """
    text = (ROOT / "docs" / "evaluating.md").read_text("utf-8")
    table = text.partition("--methods base,linear:2")[2].partition("\n...\n")[0]
    numbers = {
        name: [float(number) for number in re.findall(r"([+-]?\d+\.\d+)\*?\s+±", line)][
            : len(TOKENS)
        ]
        for name in ROWS
        for line in re.findall(rf"^{name} .*$", table, re.MULTILINE)
    }
    base = numbers["base"]
    return {
        name: [b + d for b, d in zip(base, row, strict=True)] if row is not base else row
        for name, row in numbers.items()
    }


def draw(path: Path) -> None:
    """Write the picture as PNG, readable at a width of 400 pixels."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(
        {"font.size": 9, "font.family": "sans-serif", "axes.spines.top": False}
    ):
        figure, axes = pyplot.subplots(figsize=(4, 2.5), layout="constrained")
        for (name, row), colour in zip(losses().items(), ("#b3261e", "#1a66b3"), strict=True):
            axes.plot(TOKENS, row, marker="o", color=colour, linewidth=2)
            above = name == "base"
            axes.annotate(
                ROWS[name],
                (TOKENS[-1], row[-1]),
                xytext=(-6, -2 if above else 6),
                textcoords="offset points",
                horizontalalignment="right",
                color=colour,
                fontweight="bold",
            )
        axes.axvline(TRAINED, color="#666666", linestyle=":", linewidth=1)
        axes.annotate(
            "trained\nlength",
            (TRAINED, 8),
            xytext=(-4, 0),
            textcoords="offset points",
            color="#555555",
            horizontalalignment="right",
            verticalalignment="top",
        )
        axes.spines["right"].set_visible(False)
        axes.set(
            xlabel="length of the prompt in tokens", ylabel="loss (lower is better)", ylim=(0, 8)
        )
        axes.set_xticks(TOKENS, [f"{tokens:,}" for tokens in TOKENS])
        figure.savefig(path, dpi=300, facecolor="white", metadata={"Software": None})
        pyplot.close(figure)


if __name__ == "__main__":
    draw(PICTURE)
