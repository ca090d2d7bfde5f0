"""Compares the table of runtimes with what the lab saw: the status of every cell, by both."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ropeconv.runtimes.runtime import Runtime
from ropeconv.runtimes.verdict import Verdict, judge

from .cells import Cell


@dataclass(frozen=True)
class Disagreement:
    """A cell for which the table says something else than the lab saw."""

    cell: Cell
    answered: str
    verdict: Verdict

    def __str__(self) -> str:
        stated = self.verdict
        return (
            f"{self.cell.model}: {self.cell.name}: the lab saw {self.answered}, the table says"
            f" {stated.status} ({stated.reason})"
        )


def predicted(cell: Cell, runtime: Runtime) -> Verdict:
    """What the table says of a cell. runtime: one version."""
    return judge(cell.config, cell.family, cell.schedule, cell.before, runtime)


def disagreements(
    runtime: Runtime, cells: Iterable[Cell], statuses: dict[str, str]
) -> Iterator[Disagreement]:
    """Yield the cells for which the table disagrees with the lab.

    What the lab could not see may be stated from reading the source.

    Args:
        runtime: The row, cut to one version.
        cells: The cells of one model.
        statuses: The status of each by its name.
    """
    for cell in cells:
        stated = predicted(cell, runtime)
        unseen = statuses[cell.name] == "unknown" and stated.grade == "read"
        if stated.status != statuses[cell.name] and not unseen:
            yield Disagreement(cell, statuses[cell.name], stated)
