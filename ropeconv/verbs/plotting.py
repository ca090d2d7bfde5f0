"""`plot`: the frequencies of methods, as pictures, tables and data.

`SchedulePlot` is its result, and the document and pictures of `ropeconv plot`.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from ..formats.drafts import write_file
from ..formats.files import expand_home
from ..formats.jsontext import JsonObject
from ..keywords import RecipeKeywords, StrPath
from ..rope.forms import Vector, base_inv_freq
from ..rope.schedule import Schedule
from ..rope.summary import SummaryTable, TableSummary
from ..views.plot_style import check_picture, figure
from ..views.plot_style import write as write_picture
from ..views.schedule_plots import FARTHEST, lengths_of, pictures_of
from ..views.schedule_plots import numbers as numbers_of_curve
from .arguments import check_keywords, check_value, list_keywords
from .given_model import GivenModel, of_inspection
from .inspecting import inspect
from .recipes import as_texts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLE_SUFFIX = ".csv"


class PairRow(NamedTuple):
    """A dimension pair of a schedule."""

    pair: int

    inv_freq: float
    """Radians per token."""

    wavelength: float
    """Tokens of one rotation; infinite for a pair that does not rotate."""

    divided_by: float
    """The divisor of the frequency of the unscaled model."""


@dataclass(frozen=True)
class SchedulePlot(TableSummary):
    """The schedules of a model by several methods."""

    model: GivenModel

    @property
    def name(self) -> str:
        """The model, for display."""
        return self.model.name

    @property
    def sentence(self) -> str:
        """The schedules in words."""
        return f"{self.name} with {', '.join(self.schedules)}, up to {self.context:,} tokens."

    @cached_property
    def schedules(self) -> dict[str, Schedule]:
        """The schedules by the label of their method."""
        return self.model.schedules()

    @property
    def context(self) -> int:
        """The longest context of the schedules, in tokens."""
        return max(schedule.context for schedule in self.schedules.values())

    @property
    def curves(self) -> dict[str, Vector]:
        """The frequencies that differ from those of the unscaled model, by label."""
        if not self.model.recipes and not self.model.spec.scaled:
            return {}
        return {name: schedule.inv_freq for name, schedule in self.schedules.items()}

    def rows(self, schedule: Schedule) -> Iterator[PairRow]:
        """Yield the dimension pairs of a schedule, compared with those of the unscaled model."""
        spec = self.model.spec
        unscaled = spec.unscaled() if spec.scaled else spec
        before = unscaled.form.inv_freq(unscaled.rotary_dim).tolist()
        after = schedule.inv_freq.tolist()
        for pair, (old, new) in enumerate(zip(before, after, strict=True)):
            if new == 0:  # the pair does not rotate
                yield PairRow(pair=pair, inv_freq=0.0, wavelength=math.inf, divided_by=math.inf)
                continue
            yield PairRow(pair=pair, inv_freq=new, wavelength=math.tau / new, divided_by=old / new)

    def figure(self, dark: bool = False) -> Figure:
        """Return the pictures: wavelengths, divisors, and the preference for near tokens."""
        pictures = pictures_of(self.model.spec, self.curves, self.context)
        return figure(*[picture.draw for picture in pictures], title=self.model.name, dark=dark)

    def csv(self) -> str:
        """Return the numbers in full precision; with one schedule, `inv_freq=` reads them again."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if len(self.schedules) == 1:
            (schedule,) = self.schedules.values()
            writer.writerow(PairRow._fields)
            writer.writerows(self.rows(schedule))
            return text.getvalue()

        writer.writerow(["schedule", *PairRow._fields])
        for name, schedule in self.schedules.items():
            for row in self.rows(schedule):
                writer.writerow([name, *row])
        return text.getvalue()

    def write(self, path: Path, dark: bool = False) -> None:
        """Write a picture (.png or .svg) or the numbers (.csv).

        Args:
            path: The file.
            dark: Whether a picture has a dark background.

        Raises:
            UsageError: For the name of another kind of file.
        """
        if path.suffix.lower() == TABLE_SUFFIX:
            write_file(path, self.csv())
        else:
            # refuses other names; the message for them also names the other ways to get the numbers
            check_picture(path, ", the numbers like plot.csv, or print them with --json")
            write_picture(self.figure(dark), path)

    def summary(self) -> dict[str, str]:
        """Return what is shown, by name."""
        return {
            "sentence": self.sentence,
            "name": self.name,
            "context": f"{self.context:,}",
        }

    def to_dict(self, picture: Path | None = None) -> JsonObject:
        """Return the document that `ropeconv plot --json` prints.

        Args:
            picture: The path of the written picture; None if no picture was written.
        """
        # the frequencies of each recipe; without recipes, the frequencies of the model
        schedules: dict[str, JsonObject] = {}
        recipes = self.model.recipes or (None,)
        for recipe, name in zip(recipes, self.schedules, strict=True):
            document = self.schedules[name].to_dict()
            if recipe is not None:
                document = recipe.to_dict() | document
            schedules[name] = document

        # The numbers of the plots: wavelengths, divisors of frequencies, and how attention scores
        # may fall with the distance of two tokens. "before" is RoPE with the base of the model and
        # without scaling.
        spec = self.model.spec
        unscaled_inv_freq = base_inv_freq(spec.rope_theta, spec.rotary_dim)
        largest_distance = min(2 * self.context, FARTHEST)  # in tokens
        inv_freq_by_name = {"before": unscaled_inv_freq, **self.curves}
        curves = {}
        for name, inv_freq in inv_freq_by_name.items():
            # half the number of dimensions of a head that do not rotate
            unrotated_pairs = spec.unrotated
            curves[name] = numbers_of_curve(
                unscaled_inv_freq, inv_freq, unrotated_pairs, largest_distance
            )
        return {
            "model": self.model.name,
            "picture": None if picture is None else str(picture),
            "lengths": lengths_of(spec, self.context),
            "schedules": schedules,
            "curves": curves,
        }

    def records(self) -> list[dict[str, Any]]:
        """Return a row for each dimension pair of each schedule."""
        rows = []
        for name, schedule in self.schedules.items():
            rows += [{"schedule": name, **row._asdict()} for row in self.rows(schedule)]
        return rows

    def shown_tables(self) -> list[SummaryTable]:
        """Return a table of the dimension pairs for each schedule."""
        tables = []
        for name, schedule in self.schedules.items():
            rows = []
            for row in self.rows(schedule):
                numbers = (row.inv_freq, row.wavelength, row.divided_by)
                rows.append((str(row.pair), *(f"{number:,.6g}" for number in numbers)))
            tables.append(
                SummaryTable(name="schedules", columns=PairRow._fields, rows=rows, title=name)
            )
        return tables

    def _repr_png_(self) -> bytes:
        """Return the pictures for a notebook."""
        image = io.BytesIO()
        self.figure().savefig(image, format="png")
        return image.getvalue()


@list_keywords(RecipeKeywords)
def plot(
    model: object,
    out: StrPath | None = None,
    *,
    dark: bool = False,
    **keywords: Unpack[RecipeKeywords],
) -> SchedulePlot:
    """Compare the frequencies of methods: `plot("Qwen/Qwen3-8B", yarn=4, mixed=4)`.

    Args:
        model: As in `inspect`.
        out: Where the picture (.png or .svg) or the numbers (.csv) are written; None for nowhere.
        dark: Draw for a dark background.
        keywords: Methods, their settings and modifiers. They are listed below.

    Returns:
        The schedules, with `figure()`, `to_pandas()` and `write()`. A notebook shows the pictures.

    Raises:
        UsageError: For keywords that do not exist, and for another kind of file.
        BadSource: As `inspect` does.
    """
    given = check_keywords("plot", keywords, RecipeKeywords)
    check_value("dark", dark, bool)
    drawn = SchedulePlot(of_inspection(inspect(model), as_texts(given)))
    if out is not None:
        check_value("out", out, StrPath)
        drawn.write(expand_home(os.fspath(out)), dark)
    return drawn
