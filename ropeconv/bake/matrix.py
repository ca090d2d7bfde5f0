"""What every runtime does with every family and rope type, for the table of `ropeconv runtimes --matrix`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..encode import EncodeRequest, Target, all_encodings
from ..errors import RopeconvError
from ..families.family import Family
from ..families.registry import families
from ..families.sample import sample_config
from ..rope.errors import RecipeError
from ..rope.methods import REGISTRY
from ..rope.recipe import Recipe
from ..runtimes.read_config import read_spec
from ..runtimes.verdict import Verdict

METHODS: dict[str, tuple[str, str]] = {
    "theta": ("ntk", "native"),
    "linear": ("linear", "native"),
    "llama3": ("llama3", "native"),
    "yarn": ("yarn", "native"),
    "factors": ("mixed", "factors"),
}
"""The method and the encoding that stand for each way to write RoPE; any other method is written in one of them."""


@dataclass(frozen=True)
class MatrixCell:
    """A verdict on a family. writing: a key of METHODS."""

    family: str
    writing: str
    verdict: Verdict

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready data."""
        return {"family": self.family, "writing": self.writing, **self.verdict.to_dict()}


@cache
def matrix() -> tuple[MatrixCell, ...]:
    """A cell per family, way to write RoPE, and row of the table of runtimes.

    A family has none for a way that its stock class does not take.
    """
    return tuple(cell for family in families() if not family.refuse for cell in _of_family(family))


def _of_family(family: Family) -> Iterator[MatrixCell]:
    config = sample_config(family)
    spec = read_spec(config, family)
    base = spec.unscaled() if spec.scaled else spec
    for writing, (method, encoding) in METHODS.items():
        try:
            schedule = Recipe(REGISTRY[method](4.0)).schedule(base)  # type: ignore[call-arg]
            request = EncodeRequest(schedule, base, family, config, Target(encoding=encoding))
            result = all_encodings()[encoding].encode(request)
        except (RopeconvError, RecipeError):
            continue
        yield from (MatrixCell(family.name, writing, verdict) for verdict in result.verdicts)


def counts(cells: Iterable[MatrixCell]) -> dict[str, int]:
    """How many cells are known by execution ("run"), from the source ("read"), and not at all ("unknown")."""
    found = Counter(cell.verdict.grade or "unknown" for cell in cells)
    return {grade: found[grade] for grade in ("run", "read", "unknown")}


def letters(cells: Iterable[MatrixCell]) -> str:
    """One family in one row, for display.

    A letter for each way to write RoPE that is exact, a dot for one that is not; "-" where there is no such model and
    "?" where nobody looked.
    """
    found = {cell.writing: cell.verdict.status for cell in cells}
    if set(found.values()) <= {"unsupported"}:
        return "-"
    if set(found.values()) <= {"unknown"}:
        return "?"
    return "".join(LETTERS[name] if found.get(name) == "exact" else "." for name in METHODS)


LETTERS = {"theta": "T", "linear": "L", "llama3": "3", "yarn": "Y", "factors": "F"}
