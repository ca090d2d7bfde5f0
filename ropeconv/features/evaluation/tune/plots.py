"""The picture of a search: the frequencies that it found, and their losses."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ropeconv.views.plot_style import figure, ink, line, literal, mark, write
from ropeconv.views.schedule_plots import divided_by

from .result import TuningResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write_plot(tuned: TuningResult, path: Path) -> None:
    """Writes the picture to a .png or .svg file. tuned: what was found. Raises RopeconvError
    without matplotlib.
    """
    write(
        figure(
            partial(divisors, tuned=tuned),
            partial(curves, tuned=tuned),
            title=Path(tuned.source).name,
        ),
        path,
    )


def divisors(axes: Axes, tuned: TuningResult) -> None:
    """Draws theta_i / inv_freq_i of each pair that rotates."""
    divided_by(axes, {"tuned": tuned.divisors}, {tuned.best_formula: tuned.formula_divisors})


def curves(axes: Axes, tuned: TuningResult) -> None:
    """Draws losses by position minus those of the best formula, on held-out text."""
    rows = {row.name: row for row in tuned.rows}
    reference = rows[tuned.best_formula].curve
    names = [row.name for row in tuned.rows if row.name.startswith("tuned") or row.recipe is None]
    for number, name in enumerate(reversed(names)):
        differences = [
            value - best for value, best in zip(rows[name].curve, reference, strict=True)
        ]
        axes.plot(tuned.positions, differences, label=literal(name), **line(number))
    axes.axhline(0, color=ink(), linewidth=0.8)
    mark(axes, {"trained": tuned.trained})
    axes.set(
        xlabel="position, tokens",
        ylabel="nats per token",
        title=f"Held-out loss, compared with {tuned.best_formula}",
    )
    axes.legend()
