"""What a subject reports: tables, comparisons and pictures; as JSON, as Markdown and as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ropeconv.bake.proof import ALPHA
from ropeconv.views.plot_style import GREY, Panel, curve_style, figure, write

from .comparing import Comparison, Estimate


@dataclass(frozen=True)
class Table:
    """A table with cells of text."""

    title: str
    head: Sequence[str]
    """The titles of its columns."""

    lines: Sequence[Sequence[str]]
    note: str = ""
    """A sentence below it."""

    def markdown(self) -> str:
        rows = [self.head, ["---"] * len(self.head), *self.lines]
        text = "\n".join("| " + " | ".join(row) + " |" for row in rows)
        return f"**{self.title}**\n\n{text}\n" + (f"\n{self.note}\n" if self.note else "")


@dataclass(frozen=True)
class Report:
    """The results of a subject, such as fine-tuning."""

    name: str
    """The name of its files."""

    title: str
    source: str
    """The paper that it reproduces."""

    tables: Sequence[Table]
    comparisons: Sequence[Comparison]
    panels: Sequence[Panel]
    """The panels of its picture, side by side."""

    numbers: dict[str, Any] = field(default_factory=dict)
    """Further results, JSON-ready."""

    unit: str = "percentage points"
    """The unit of the differences."""

    def markdown(self) -> str:
        """The section of a page, without its picture."""
        parts = [
            f"### {self.title}\n\n{self.source}\n",
            *(table.markdown() for table in self.tables),
        ]
        if self.comparisons:
            parts.append(compared(self.comparisons, self.unit).markdown())
        return "\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready data, without its pictures."""
        tables = []
        for table in self.tables:
            tables.append(
                {"title": table.title, "head": list(table.head), "lines": list(table.lines)}
            )
        comparisons = []
        for comparison in self.comparisons:
            difference = comparison.difference
            comparisons.append(
                {
                    "name": comparison.name,
                    "difference": difference.value,
                    "error": difference.error,
                    "between_documents": difference.between_documents,
                    "between_models": difference.between_models,
                    "agreeing": comparison.agreeing,
                    "models": difference.models,
                    "documents": difference.documents,
                    "freedom": difference.freedom,
                    "published": comparison.published,
                    "claimed": comparison.claimed,
                    "decided": comparison.decided,
                    "verdict": comparison.verdict,
                }
            )
        return {
            "source": self.source,
            "tables": tables,
            "unit": self.unit,
            "comparisons": comparisons,
            **self.numbers,
        }

    def draw(self, folder: Path, prefix: str = "") -> Path:
        """Writes the picture of the subject as SVG, and returns its path. prefix: of its name."""
        path = folder / f"{prefix}{self.name}.svg"
        write(figure(*self.panels), path)
        return path


def compared(comparisons: Sequence[Comparison], unit: str) -> Table:
    """Return the table of comparisons.

    Args:
        comparisons: The comparisons, one for each line.
        unit: The unit of the differences, such as "nats".
    """
    lines = []
    for comparison in comparisons:
        difference = comparison.difference
        lines.append(
            [
                comparison.name,
                _signed(difference.value),
                _plain(difference.between_documents),
                _plain(difference.between_models),
                str(difference.freedom),
                f"{comparison.agreeing} of {difference.models}",
                comparison.expected,
                comparison.verdict,
            ]
        )
    head = [
        "difference",
        unit,
        "error, documents",
        "error, models",
        "freedom",
        "models of that sign",
        "published",
        "verdict",
    ]
    note = (
        f"Decided: p < {ALPHA:.4f} by Student's t, with the root of the sum of both squared errors"
        " and its degrees of freedom (Welch), and each of at least two models has the sign."
    )
    return Table("Differences, paired by model and document", head, lines, note)


def _signed(value: float) -> str:
    return f"{value:+.2f}" if abs(value) >= 0.1 else f"{value:+.4f}"


def _plain(value: float | None) -> str:
    return "" if value is None else (f"{value:.2f}" if value >= 0.1 else f"{value:.4f}")


def percent(value: Estimate) -> str:
    """A share in percent with its error."""
    return f"{value.value:.1f}" + ("" if value.error is None else f" ± {value.error:.1f}")


def nats(value: Estimate) -> str:
    """A loss in nats with its error."""
    return f"{value.value:.3f}" + ("" if value.error is None else f" ± {value.error:.3f}")


def bars(
    names: Sequence[str], values: Sequence[float], errors: Sequence[float], label: str, title: str
) -> Panel:
    """Return a function that draws a panel with a horizontal bar for each row.

    Args:
        names: The rows.
        values: Their values.
        errors: The standard errors of these.
        label: The label of the axis.
        title: The title of the panel.
    """

    def draw(axes: Any) -> None:
        places = range(len(names))
        axes.barh(
            places,
            values,
            xerr=errors,
            height=0.7,
            color=curve_style(0)["color"],
            ecolor=GREY,
            error_kw={"lw": 0.8},
        )
        axes.set_yticks(places, names, fontsize=6)
        axes.invert_yaxis()
        axes.set(xlabel=label, title=title)
        axes.grid(axis="y", visible=False)

    return draw


@dataclass(frozen=True)
class Curve:
    """A curve with errors."""

    name: str
    """Its name in the legend."""

    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float]
    """The standard errors of y."""

    @classmethod
    def of(cls, name: str, x: Sequence[float], estimates: Sequence[Estimate]) -> Curve:
        """The curve of estimates, with their errors over models and documents; 0 where none is
        known.
        """
        return cls(
            name,
            x,
            [point.value for point in estimates],
            [point.error or 0.0 for point in estimates],
        )


def curves(
    curves: Sequence[Curve],
    axis: str,
    label: str,
    title: str,
    marks: Sequence[tuple[float, str]] = (),
    log: bool = False,
) -> Panel:
    """Return a function that draws a panel of curves.

    Args:
        curves: The curves.
        axis: The label of x.
        label: The label of y.
        title: The title of the panel.
        marks: Vertical lines, each with its name. One without a name has the colour of the curve of
            the same number.
        log: Whether x is logarithmic.
    """

    def draw(axes: Any) -> None:
        for number, curve in enumerate(curves):
            axes.errorbar(
                curve.x,
                curve.y,
                curve.error,
                label=curve.name,
                markersize=3,
                marker="o",
                lw=1.1,
                **curve_style(number),
            )
        for number, (place, name) in enumerate(marks):
            style = curve_style(number) if not name else {"color": GREY, "linestyle": "--"}
            axes.axvline(place, lw=0.9, alpha=0.8, **style)
            if name:
                axes.annotate(
                    name,
                    (place, 0.98),
                    xycoords=("data", "axes fraction"),
                    rotation=90,
                    fontsize=6,
                    va="top",
                )
        if log:
            axes.set_xscale("log")
        axes.set(xlabel=axis, ylabel=label, title=title)
        axes.legend(fontsize=7)

    return draw
