"""TuningResult, a recipe with its evidence, its file, and the candidates of a search."""

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
from ropeconv.rope.methods.vectors import LongRopeMethod
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
    """A mean over held-out windows, in nats per token.

    value: the mean. difference: minus that of the best formula, paired by window; None in its own
    row. error: standard error of the difference. margin, clusters: as in a cell of an evaluation.
    """

    value: float
    difference: float | None = None
    error: float | None = None
    margin: float | None = None
    clusters: int = 0

    @property
    def decided(self) -> bool:
        """Whether the difference is significant."""
        return (
            self.difference is not None
            and self.margin is not None
            and abs(self.difference) > self.margin
        )


class TuningRow(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule on the held-out windows.

    recipe: None for the unchanged model. beyond, inside, needle: losses beyond and inside the
    trained context, and of hidden numbers, None without these. total:
    `beyond + price * inside + needles * needle`. curve: loss by position, at `positions`, in nats
    per token.
    """

    name: str
    recipe: dict[str, Any] | None
    beyond: WindowMeasurement
    inside: WindowMeasurement
    total: WindowMeasurement
    needle: WindowMeasurement | None = None
    curve: list[float] = []


class TuningResult(TableSummary, msgspec.Struct, frozen=True, kw_only=True):
    """A tuned recipe, or the best formula where no better one was found, with its evidence.

    recipe: to apply. better: whether it was found by the search, and is significantly better than
    every formula on held-out text. sentence: says so. best_formula: name of the row that the others
    are compared with. source: how the user named the model. identity: what tells it from others.
    runtime, device, dtype: which computed it. trained, context: in tokens. steps, seed, regularise:
    of the search, with the steps that were done. price, needles: weights of the loss inside and of
    hidden numbers. texts: names of what was searched with, held_out: of the rest. tokens_sha256: of
    all tokens. windows, held_windows: how many. searched: total minus that of the formula that the
    search began with, on its own windows. trace: the same after each step. divisors: theta_i /
    inv_freq_i of each pair that rotates in what was found, formula_divisors: those of the best
    formula. attention_factor: that was found. positions: of the curves of rows, in tokens. notes:
    sentences that belong to the numbers.
    """

    recipe: dict[str, Any]
    better: bool
    sentence: str
    best_formula: str
    source: str
    identity: str
    runtime: str
    device: str
    dtype: str
    trained: int
    context: int
    steps: int
    seed: int
    regularise: float
    price: float
    needles: float
    texts: list[str]
    held_out: list[str]
    tokens_sha256: str
    windows: int
    held_windows: int
    searched: float
    trace: list[float]
    divisors: list[float]
    formula_divisors: list[float]
    attention_factor: float
    positions: list[int]
    rows: list[TuningRow]
    notes: list[str] = []
    ropeconv_tune: int = FORMAT
    ropeconv: str = __version__

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
        """Return the losses on held-out text, with a line for each schedule."""
        with_needles = any(row.needle for row in self.rows)
        columns = ["", "beyond", "inside", "total", "minus best formula"]
        if with_needles:
            columns.insert(3, "needle")
        lines = []
        for row in self.rows:
            cells = [row.name, f"{row.beyond.value:.4f}", f"{row.inside.value:.4f}"]
            if with_needles:
                cells.append(f"{row.needle.value:.4f}" if row.needle else "-")
            cells += [f"{row.total.value:.4f}", _describe_difference(row.total)]
            lines.append(cells)
        return [SummaryTable("rows", tuple(columns), lines, "held-out losses in nats per token")]

    def records(self) -> list[JsonObject]:
        """Return a row for each schedule: its losses, and its total minus the best formula's."""
        return [
            {
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
            for row in self.rows
        ]

    def to_dict(self) -> JsonObject:
        """Return the result as JSON-ready data, as its file has it."""
        data: JsonObject = msgspec.to_builtins(self)
        return data


def _describe_difference(total: WindowMeasurement) -> str:
    """The difference with its error and a mark where it is significant."""
    if total.difference is None:
        return "-"
    if total.error is None:
        return f"{total.difference:+.4f}"
    mark = SIGNIFICANT if total.decided else " "
    return f"{total.difference:+.4f} ± {total.error:.4f}{mark}"


def write_tuned(tuned: TuningResult, path: Path) -> None:
    """Write a result as JSON, for `--recipe`."""
    write_file(path, msgspec.json.format(msgspec.json.encode(tuned)) + b"\n")


FORMULAS = ("linear", "ntk", "ntk-old", "ntk-fixed", "mixed", "by-parts", "yarn")
"""Methods that are compared before a search, with the factor that reaches the context."""
DIGITS = 9
"""Digits of the numbers in a tuned recipe; float32 has fewer."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A recipe with its schedule. name: in tables. recipe: None for the unchanged model."""

    name: str
    recipe: Recipe | None
    schedule: Schedule

    @property
    def method(self) -> str:
        """The name of its method; empty for the unchanged model."""
        return self.recipe.method.name if self.recipe else ""


@dataclass(frozen=True)
class Start:
    """A model to tune. spec: its unscaled RoPE. context: tokens to reach. schedule: of a recipe for
    this model.
    """

    spec: RopeSpec
    context: int
    schedule: Callable[[Recipe], Schedule]

    @property
    def base(self) -> Vector:
        """The unscaled frequencies of the pairs that rotate, radians per token, float64."""
        return base_inv_freq(self.spec.rope_theta, self.spec.rotary_dim)[: self.spec.rotating_pairs]

    def formula(self, method: str) -> Candidate:
        """The method of that name with the factor that reaches the context."""
        reaching = REGISTRY[method].for_context(self.spec, self.context)
        if reaching is None:
            raise RecipeError(f"{method} has no single number that reaches a length")
        recipe = Recipe(reaching, context=self.context)
        return Candidate(
            f"{method} {self.context / self.spec.original_context:.6g}",
            recipe,
            self.schedule(recipe),
        )

    def unscaled(self) -> Candidate:
        """The model without an extension."""
        return Candidate(BASE, None, replace(self.spec.current(), context=self.context))

    def divisors(self, schedule: Schedule) -> Vector:
        """theta_i / inv_freq_i of the pairs that rotate, float64."""
        return np.asarray(self.base / schedule.inv_freq[: len(self.base)], dtype=np.float64)

    def factors(
        self, divisors: Sequence[float] | Vector, attention_factor: float, name: str = ""
    ) -> Candidate:
        """A recipe of the divisors of the pairs that rotate, rounded to DIGITS."""
        rounded = tuple(float(f"{value:.{DIGITS}g}") for value in divisors)
        recipe = Recipe(
            LongRopeMethod(rounded),
            context=self.context,
            attention_factor=float(f"{attention_factor:.{DIGITS}g}"),
        )
        return Candidate(name, recipe, self.schedule(recipe))
