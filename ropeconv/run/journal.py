"""Journal of a run: every unit that has ended, in a file of JSON lines, so that a killed run can go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ..formats.json_lines import JsonLines, Refusals
from .unit import Unit

FORMAT = 1
REFUSALS = Refusals(
    "another run writes to {path}; wait for its end, or give the plan another `out`",
    "{path} is no journal of a run; give the plan another `out`, or --fresh",
)


class RunHead(msgspec.Struct, frozen=True):
    """The first line."""

    ropeconv_run: int


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """A unit that has ended.

    key: of the unit. task, source, recipe, target: what it was. seconds: it took. failed: why it failed, in a sentence;
    empty where it did not. result: of its task.
    """

    key: str
    task: str
    source: str
    recipe: str = ""
    target: str = ""
    seconds: float = 0.0
    failed: str = ""
    result: dict[str, Any] = {}

    @classmethod
    def of(cls, unit: Unit, seconds: float, failed: str = "", result: dict[str, Any] | None = None) -> RunLine:
        """The line of a unit. seconds, failed, result: as above."""
        about = {} if unit.target is None else {"recipe": unit.recipes[0].name, "target": unit.target.name}
        return cls(
            key=unit.key, task=unit.task, source=unit.source, seconds=round(seconds, 3), failed=failed,
            result=result or {}, **about,
        )  # fmt: skip


class RunJournal:
    """A journal that is open for appending.

    path: of its file. fresh: start an empty one. Raises BadSource for a file that is no journal, and while another run
    writes to it.
    """

    def __init__(self, path: Path, fresh: bool = False) -> None:
        def check(head: RunHead) -> str:
            other = "is the journal of another version of ropeconv; give the plan another `out`, or --fresh"
            return "" if head.ropeconv_run == FORMAT else other

        self.file = JsonLines(path, RunHead(FORMAT), RunLine, check, REFUSALS, fresh)
        self.last = {line.key: line for line in self.file.lines}

    def add(self, line: RunLine) -> None:
        """Appends a unit, and returns when it is on the disk."""
        self.file.append(line)
        self.last[line.key] = line

    def done(self, unit: Unit) -> RunLine | None:
        """The line of a unit that has succeeded; None for others, and where its output is gone."""
        line = self.last.get(unit.key)
        if line is None or line.failed or (unit.task in ("apply", "eval") and not Path(unit.out).exists()):
            return None
        return line

    def __enter__(self) -> RunJournal:
        return self

    def __exit__(self, *problem: object) -> None:
        self.file.close()
