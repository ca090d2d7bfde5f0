"""Advised: the methods that reach a length, sorted by numbers that need no run or by what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..bake.advice import CRITERION, Advice, advise
from ..bake.inherited import mscale_of
from ..encode.target import Format
from ..inspection import Inspection, inspect_source
from ..inspection.layers import cannot_gain
from ..sources import GgufSource, Source
from .ranking import Ranking, ranked
from .result import read_result


@dataclass(frozen=True)
class Advised:
    """Advice on a model.

    seen: the model. context: the wanted length in tokens. found: advice, the best first. passed: the reason per method
    that does not fit. criterion: by which it is sorted, in words. ranking: by what was measured, None without an
    evaluation. note: about that evaluation, or empty.
    """

    seen: Inspection
    context: int
    found: list[Advice]
    passed: dict[str, str]
    criterion: str = CRITERION
    ranking: Ranking | None = None
    note: str = ""

    @property
    def source(self) -> str:
        """The model as the user named it."""
        return self.seen.source.reference

    @property
    def useless(self) -> str:
        """Why the model cannot gain from the length, or empty."""
        return cannot_gain(self.seen.spec, self.context)

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready data."""
        cache, ranking = self.seen.kv_cache, self.ranking
        return {
            "source": self.source,
            "sorted_by": self.criterion,
            "advice": [one.to_dict() | ({"measured": ranking.to_dict(one)} if ranking else {}) for one in self.found],
            "passed_over": self.passed,
            "kv_cache": cache.to_dict(self.context, self.seen.spec.context) if cache else None,
            "warnings": [self.useless] if self.useless else [],
        }


def advised(
    source: Source | GgufSource, context: int, measured: Path | None = None, outputs: Sequence[Format] | None = None
) -> Advised:
    """Advice on a model.

    source: the model. context: in tokens. measured: a result of `ropeconv eval` to sort by, None without one.
    outputs: formats that are planned, as for `advise`. Raises as that, `read_result` and `ranked` do.
    """
    found, passed = advise(source, context, outputs)
    seen = inspect_source(source)
    if measured is None:
        return Advised(seen, context, found, passed)
    result, reference = read_result(measured), source.reference
    ranking = ranked(found, result, seen, context, mscale_of(source, seen))
    criterion = f"the loss at {ranking.column:,} tokens in {measured}, then methods without one: {CRITERION}"
    other = Path(result.source).name != Path(reference).name
    note = f"{measured} is an evaluation of {result.source}, and this is {reference}." if other else ""
    return Advised(seen, context, ranking.found, passed, criterion, ranking, note)
