"""The picture of a tuned recipe: divisors beside those of the best formula, and the loss of both by position."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from ..pictures.schedules import divided_by
from ..pictures.style import ORANGE, figure, ink, line, literal, write
from .result import Tuned


def write_plot(tuned: Tuned, path: Path) -> None:
    """Writes the picture to a .png or .svg file. tuned: what was found. Raises RopeconvError without matplotlib."""
    write(
        figure(partial(divisors, tuned=tuned), partial(curves, tuned=tuned), columns=2, title=Path(tuned.source).name),
        path,
    )


def divisors(axes: Any, tuned: Tuned) -> None:
    """Draws theta_i / inv_freq_i of each pair that rotates. axes: of matplotlib. tuned: what was found."""
    divided_by(axes, {"tuned": tuned.divisors}, {tuned.best_formula: tuned.formula_divisors})


def curves(axes: Any, tuned: Tuned) -> None:
    """Draws losses by position minus those of the best formula, on held-out text. axes, tuned: as in `divisors`."""
    rows = {row.name: row for row in tuned.rows}
    reference = rows[tuned.best_formula].curve
    names = [row.name for row in tuned.rows if row.name.startswith("tuned") or row.recipe is None]
    for number, name in enumerate(reversed(names)):
        differences = [own - best for own, best in zip(rows[name].curve, reference, strict=True)]
        axes.plot(tuned.positions, differences, label=literal(name), **line(number))
    axes.axhline(0, color=ink(), linewidth=0.8)
    axes.axvline(tuned.trained, color=ORANGE, linewidth=0.8, linestyle=":")
    axes.set(xlabel="position, tokens", ylabel="nats per token", title=f"Held-out loss minus {tuned.best_formula}")
    axes.legend()
