"""Outcome: what a run measured, and what it could not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .asked import in_trained
from .case import Observation


@dataclass(frozen=True)
class Refusal:
    """Why something was not measured.

    row: its name. reason: in a sentence. measure: that could not be run; empty for all. column: of its table; None for
    all.
    """

    row: str
    reason: str
    measure: str = ""
    column: int | None = None


@dataclass
class Outcome:
    """What was measured.

    observations: by the name of the row. refusals: what was not run, and why. seconds: that the cases took, also in
    earlier runs. cases: how many were run or found in the journal. stopped: whether it was stopped before the end.
    """

    observations: dict[str, list[Observation]]
    refusals: list[Refusal] = field(default_factory=list)
    seconds: float = 0.0
    cases: int = 0
    stopped: bool = False

    def refused(self, row: str, measure: str = "", column: int | None = None) -> str:
        """Why a row, a measure of it, or a column of that was not run; empty where nothing was refused.

        row: its name. measure, column: as in Refusal; a refusal of the whole row counts for its measures too.
        """
        for one in self.refusals:
            if one.row == row and one.measure in ("", measure) and one.column in (None, column):
                return one.reason
        return ""

    def sentences(self, trained: int, rows: Sequence[str] = ()) -> list[str]:
        """What was refused, once for each reason. trained: context in tokens. rows: names that are left out where the
        whole row was refused.
        """
        places: dict[tuple[str, str, str], list[str]] = {}
        for one in self.refusals:
            if one.measure or one.row not in rows:
                lengths = places.setdefault((one.row, one.measure, one.reason.rstrip(".")), [])
                lengths += [] if one.column is None else [in_trained(one.column, trained)]
        return [
            f"{row}{measure and f', {measure}'}{' at ' * bool(lengths)}{', '.join(lengths)}: {reason}."
            for (row, measure, reason), lengths in places.items()
        ]
