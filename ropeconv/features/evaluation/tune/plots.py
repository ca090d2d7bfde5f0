"""The picture of a search: the frequencies that it found, and their losses."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ropeconv.verbs.rows import BASE
from ropeconv.views.plot_style import curve_style, escape_dollars, figure, mark, text_colour, write
from ropeconv.views.schedule_plots import draw_divisors

from .result import TuningResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write_plot(tuned: TuningResult, path: Path) -> None:
    """Write the picture of a search to a .png or .svg file.

    Args:
        tuned: The result of the search.
        path: The file.

    Raises:
        RopeconvError: matplotlib is not installed.
    """
    divisors_panel = partial(divisors, tuned=tuned)
    curves_panel = partial(curves, tuned=tuned)
    write(figure(divisors_panel, curves_panel, title=Path(tuned.source).name), path)


def divisors(axes: Axes, tuned: TuningResult) -> None:
    """Draw theta_i / inv_freq_i of each pair that rotates."""
    draw_divisors(axes, {"tuned": tuned.divisors}, {tuned.best_formula: tuned.formula_divisors})


def curves(axes: Axes, tuned: TuningResult) -> None:
    """Draw two curves: the held-out loss by position, minus the loss of the best formula.

    The curves are of the tuned frequencies and of the unchanged model. A formula is a method such
    as YaRN; the best formula is the line at 0.
    """
    formula_losses: list[float] = []
    tuned_rows = []
    unchanged_rows = []
    for row in tuned.rows:
        if row.name == tuned.best_formula:
            formula_losses = row.curve
        if row.name.startswith("tuned"):  # "tuned factors", the result of the search
            tuned_rows.append(row)
        elif row.name == BASE:  # the unchanged model
            unchanged_rows.append(row)

    for number, row in enumerate(tuned_rows + unchanged_rows):
        differences = []
        for loss, formula_loss in zip(row.curve, formula_losses, strict=True):
            differences.append(loss - formula_loss)
        style = curve_style(number)  # the colour and dashes of a curve
        axes.plot(tuned.positions, differences, label=escape_dollars(row.name), **style)

    axes.axhline(0, color=text_colour(), linewidth=0.8)
    mark(axes, {"trained": tuned.trained})  # a vertical line at the trained context
    axes.set(
        xlabel="position, tokens",
        ylabel="nats per token",
        title=f"Held-out loss, compared with {tuned.best_formula}",
    )
    axes.legend()
