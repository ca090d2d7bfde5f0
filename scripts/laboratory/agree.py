"""Compares the table of runtimes with what the lab saw: the status of every cell, by both."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ropeconv.runtimes.runtime import Runtime, ServerOption
from ropeconv.runtimes.verdict import PlannedConfig, Verdict, judge, judge_row, judge_with_option

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
    """Return the verdict of the table on a cell, for one version of a runtime."""
    return judge(cell.config, cell.family, cell.schedule, cell.before, runtime)


def with_option(
    runtime: Runtime, option: ServerOption, cells: Iterable[Cell], statuses: dict[str, str]
) -> Iterator[Disagreement]:
    """Yield the cells that the table says are exact with an option of the server, and are not.

    Args:
        runtime: The row, cut to one version.
        option: The option.
        cells: The cells of one model.
        statuses: The results of the lab with the option, by the name of the cell.
    """
    for cell in cells:
        planned = PlannedConfig(cell.config, cell.family, cell.schedule, cell.before)
        stated = judge_with_option(planned, runtime, option, judge_row(planned, runtime))
        if stated is not None and statuses[cell.name] != "exact":
            yield Disagreement(cell, statuses[cell.name], stated)


def disagreements(
    runtime: Runtime, cells: Iterable[Cell], statuses: dict[str, str]
) -> Iterator[Disagreement]:
    """Yield the cells for which the table disagrees with the lab.

    Two kinds of cells are left out: what the lab could not see, where the table has it from reading
    the source; and a family of which the table says nothing.

    Args:
        runtime: The row, cut to one version.
        cells: The cells of one model.
        statuses: The status of each by its name.
    """
    for cell in cells:
        seen = statuses[cell.name]
        stated = predicted(cell, runtime)
        if stated.status == seen:
            continue
        if seen == "unknown" and stated.grade == "read":
            continue
        statement = runtime.statement(cell.family.name, str(cell.config.get("model_type", "")))
        says_nothing = statement is None or statement.unknown
        if stated.status == "unknown" and says_nothing:
            continue
        yield Disagreement(cell, seen, stated)
