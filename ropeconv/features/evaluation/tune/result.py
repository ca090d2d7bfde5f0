"""The result of a search with its file, and the candidates of a search.

`TuningResult` is a recipe with its evidence. `Start` makes candidates for a model.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from ropeconv.formats.drafts import write_file
from ropeconv.formats.jsontext import JsonObject
from ropeconv.rope.errors import RecipeError
from ropeconv.rope.forms import Vector, base_inv_freq
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.methods.vectors import AsIs, LongRopeMethod
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.schedule import Schedule
from ropeconv.rope.spec import RopeSpec
from ropeconv.rope.summary import SummaryTable, TableSummary
from ropeconv.verbs.rows import BASE
from ropeconv.version import __version__

from ..result import SIGNIFICANT

FORMAT = 1
"""The version of the file, under the key `ropeconv_tune`, by which `--recipe` recognises it."""


class WindowMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over held-out windows, in nats per token."""

    value: float
    """The mean."""

    difference: float | None = None
    """The mean minus that of the best formula, paired by window; None in its own row."""

    error: float | None = None
    """The standard error of the difference."""

    margin: float | None = None
    """The smallest significant difference from 0; None where there are too few windows."""

    clusters: int = 0
    """The number of independent windows or texts that the error is from."""

    @property
    def decided(self) -> bool:
        """Whether the difference is significant."""
        if self.difference is None or self.margin is None:
            return False
        return abs(self.difference) > self.margin


class TuningRow(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule on the held-out windows."""

    name: str
    """The name of the candidate."""

    recipe: dict[str, Any] | None
    """The recipe; None for the unchanged model, and as-is for one that is scaled already."""

    beyond: WindowMeasurement
    """The loss beyond the trained context."""

    inside: WindowMeasurement
    """The loss inside the trained context."""

    total: WindowMeasurement
    """The sum `beyond + price * inside + needles * needle`."""

    needle: WindowMeasurement | None = None
    """The loss of hidden numbers; None without these."""

    curve: list[float] = []
    """The loss by position, at `positions` of the result, in nats per token."""


class TuningResult(TableSummary, msgspec.Struct, frozen=True, kw_only=True):
    """A tuned recipe, or the best formula where no better one was found, with its evidence."""

    recipe: dict[str, Any]
    """The recipe to apply."""

    better: bool
    """Whether the search found the recipe, and it beats every formula on held-out text.

    For a model that is scaled already, it beats the model's own scaling too.
    """

    sentence: str
    """The verdict in words."""

    best_formula: str
    """The name of the row that the others are compared with."""

    source: str
    """The model as the user named it."""

    identity: str
    """The digest that tells the model from others."""

    runtime: str
    """Name and version of the runtime that computed the losses."""

    device: str
    dtype: str

    trained: int
    """The trained context in tokens."""

    context: int
    """The context to reach in tokens."""

    steps: int
    """The steps of the search that were done."""

    seed: int

    regularise: float
    """The weight of the distance from the first formula."""

    price: float
    """The weight of the loss inside the trained context."""

    needles: float
    """The weight of the loss of hidden numbers."""

    texts: list[str]
    """The names of the texts that were searched with."""

    held_out: list[str]
    """The names of the held-out texts."""

    tokens_sha256: str
    """The sha256 over the tokens of all texts."""

    windows: int
    """The number of windows of the search."""

    held_windows: int
    """The number of held-out windows."""

    searched: float
    """The total minus that of the formula that the search began with, on its own windows."""

    trace: list[float]
    """`searched` of the best candidate after each step."""

    divisors: list[float]
    """theta_i / inv_freq_i of each pair that rotates, of the frequencies that were found."""

    formula_divisors: list[float]
    """The divisors of the best formula."""

    attention_factor: float
    """The attention factor that was found."""

    positions: list[int]
    """The positions of the curves of rows, in tokens."""

    rows: list[TuningRow]

    notes: list[str] = []
    """Sentences that belong to the numbers."""

    apply_options: list[str] = []
    """Options that `apply` needs beside the recipe, such as --replace."""

    ropeconv_tune: int = FORMAT
    """The version of this form."""

    ropeconv: str = __version__
    """The version of ropeconv that searched."""

    record_keys: ClassVar[tuple[str, ...]] = (
        "name",
        "beyond",
        "inside",
        "needle",
        "total",
        "difference",
        "error",
        "margin",
        "decided",
        "clusters",
    )

    def summary(self) -> dict[str, str]:
        """Return what is shown, by name."""
        return {
            "sentence": self.sentence,
            "source": self.source,
            "context": f"{self.trained:,} -> {self.context:,} tokens",
            "best_formula": self.best_formula,
            "runtime": self.runtime,
            "device": self.device,
            "dtype": self.dtype,
            "steps": f"{self.steps:,}",
            "notes": "\n".join(self.notes),
        }

    def shown_tables(self) -> list[SummaryTable]:
        """Return a table of losses on held-out text, with a line for each candidate.

        The columns are the loss beyond the trained context, that inside it, that of a hidden number
        (needle), their weighted total, and how far the total is from that of the best formula.
        """
        has_needles = any(row.needle for row in self.rows)
        columns = ["", "beyond", "inside"]
        if has_needles:
            columns.append("needle")
        columns += ["total", "minus best formula"]

        lines = []
        for row in self.rows:
            cells = [row.name, f"{row.beyond.value:.4f}", f"{row.inside.value:.4f}"]
            if row.needle:
                cells.append(f"{row.needle.value:.4f}")
            elif has_needles:
                cells.append("-")
            cells += [f"{row.total.value:.4f}", _describe_difference(row.total)]
            lines.append(cells)
        table = SummaryTable(
            name="rows",
            columns=tuple(columns),
            rows=lines,
            title="held-out losses in nats per token",
        )
        return [table]

    def records(self) -> list[JsonObject]:
        """Return a row for each schedule: its losses, and its total minus the best formula's."""
        records = []
        for row in self.rows:
            record = {
                "name": row.name,
                "beyond": row.beyond.value,
                "inside": row.inside.value,
                "needle": row.needle.value if row.needle else None,
                "total": row.total.value,
                "difference": row.total.difference,
                "error": row.total.error,
                "margin": row.total.margin,
                "decided": row.total.decided,
                "clusters": row.total.clusters,
            }
            records.append(record)
        return records

    def to_dict(self) -> JsonObject:
        """Return the result as JSON-ready data, as its file has it."""
        data: JsonObject = msgspec.to_builtins(self)
        return data


def _describe_difference(total: WindowMeasurement) -> str:
    """Return the difference with its error and a mark where it is significant."""
    if total.difference is None:
        return "-"
    if total.error is None:
        return f"{total.difference:+z.4f}"
    mark = SIGNIFICANT if total.decided else " "
    return f"{total.difference:+z.4f} ± {total.error:.4f}{mark}"


def write_tuned(tuned: TuningResult, path: Path) -> None:
    """Write a result as JSON, for `--recipe`."""
    write_file(path, msgspec.json.format(msgspec.json.encode(tuned)) + b"\n")


FORMULAS = ("linear", "ntk", "ntk-old", "ntk-fixed", "mixed", "by-parts", "yarn")
"""Methods that are compared before a search, with the factor that reaches the context."""
DIGITS = 9
"""Digits of the numbers in a tuned recipe; float32 has fewer."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A recipe with its schedule."""

    name: str
    """The name in tables."""

    recipe: Recipe | None
    """The recipe; None for the unchanged model, and as-is for one that is scaled already."""

    schedule: Schedule

    @property
    def method(self) -> str:
        """The name of its method; empty for the unchanged model."""
        return self.recipe.method.name if self.recipe else ""

    @property
    def keeps_scaling(self) -> bool:
        """Whether its recipe keeps the scaling that the model has, so that none is replaced."""
        if self.recipe is None:
            return True
        return self.recipe.on_top or isinstance(self.recipe.method, AsIs)


@dataclass(frozen=True)
class Start:
    """A model to tune."""

    spec: RopeSpec
    """Its unscaled RoPE."""

    context: int
    """The tokens to reach."""

    schedule: Callable[[Recipe], Schedule]
    """Returns the schedule of a recipe for this model."""

    present: RopeSpec | None = None
    """The RoPE that the model has, if that is another one: it is scaled already."""

    on_top: bool = False
    """Whether formulas extend that scaling, with which the model was trained."""

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods to compare: `FORMULAS`, and the kind of a scaling that they extend."""
        if not self.on_top or self.present is None:
            return FORMULAS
        kind = self.present.form.kind
        # LongRoPE, for example, has no factor that reaches a context
        has_factor = kind in REGISTRY and REGISTRY[kind].for_context(self.spec, self.context)
        if kind in FORMULAS or not has_factor:
            return FORMULAS
        return (*FORMULAS, kind)

    @property
    def base(self) -> Vector:
        """The unscaled frequencies of the pairs that rotate, radians per token, float64."""
        return base_inv_freq(self.spec.rope_theta, self.spec.rotary_dim)[: self.spec.rotating_pairs]

    def formula(self, method: str) -> Candidate:
        """Return a method, such as "yarn", with the factor that reaches the context.

        The candidate is called "yarn 4", say, for a context of four times the trained one. For a
        scaling that is kept, it is "yarn 2 on top" for a context of twice the declared one.

        Args:
            method: The name of the method.

        Raises:
            RecipeError: The method does not have one.
        """
        length = self.spec.original_context
        context = self.context
        ending = ""
        if self.on_top and self.present is not None:
            # `for_context` divides by the length before the scaling: with a trained 8k and a
            # declared 128k, the factor 2 is for 16k
            length = self.present.context
            context = math.ceil(self.context * self.spec.original_context / length)
            ending = " on top"
        with_factor = REGISTRY[method].for_context(self.spec, context)
        if with_factor is None:
            raise RecipeError(f"{method} has no single number that reaches a length")

        recipe = Recipe(with_factor, context=self.context, on_top=self.on_top)
        name = f"{method} {self.context / length:.6g}{ending}"
        return Candidate(name, recipe, _for_long_prompts(self.schedule(recipe)))

    def unchanged(self) -> Candidate:
        """Return the unchanged model.

        For a model that is scaled already, it has a recipe, which keeps the scaling.
        """
        recipe = None
        rope = self.spec
        if self.present is not None:
            recipe = Recipe(AsIs(), context=self.context)
            rope = self.present
        schedule = replace(rope.current(), context=self.context)
        return Candidate(BASE, recipe, _for_long_prompts(schedule))

    def divisors(self, schedule: Schedule) -> Vector:
        """Return theta_i / inv_freq_i of the pairs that rotate, float64 [rotating pairs]."""
        return np.asarray(self.base / schedule.inv_freq[: len(self.base)], dtype=np.float64)

    def factors(
        self, divisors: Sequence[float] | Vector, attention_factor: float, name: str = ""
    ) -> Candidate:
        """Return a candidate with a divisor of its own for each frequency, as LongRoPE has.

        Args:
            divisors: For each pair that rotates, unscaled over scaled frequency; rounded here.
            attention_factor: The attention factor, rounded to DIGITS here.
            name: The name in tables.
        """
        rounded_divisors = tuple(_round(divisor) for divisor in divisors)
        recipe = Recipe(
            LongRopeMethod(rounded_divisors),
            context=self.context,
            attention_factor=_round(attention_factor),
        )
        return Candidate(name, recipe, self.schedule(recipe))


def _for_long_prompts(schedule: Schedule) -> Schedule:
    """Return a schedule with one list of frequencies: of LongRoPE's two that for long prompts.

    All windows of a search are longer than the prompts that have the other list.
    """
    if schedule.short_inv_freq is None:
        return schedule
    return replace(schedule, short_inv_freq=None)


def _round(value: float) -> float:
    """Return a number with DIGITS significant digits."""
    return float(f"{value:.{DIGITS}g}")
