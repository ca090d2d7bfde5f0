"""What goes to a machine of HF Jobs, and what comes back: JSON in a repository."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from .journal import RunLine
from .unit import Job, Unit


class Question(msgspec.Struct, frozen=True):
    """What a job is given. job: to run. texts: names of files of the user, by their names in the repository."""

    job: Job
    texts: dict[str, str]


class Answer(msgspec.Struct, frozen=True):
    """What a job leaves. lines: of its units. results: of evaluations, the text of their files, by task."""

    lines: list[RunLine]
    results: dict[str, str]


def read_answer(job: Job, data: bytes) -> list[RunLine]:
    """The lines of a job as if it had run here, with the files of its results in their places.

    job: as it is here. data: the answer. Raises msgspec.MsgspecError for other data, OSError.
    """
    answer = msgspec.json.decode(data, type=Answer)
    units = {unit.task: unit for unit in job.units}
    for task, text in answer.results.items():
        place = Path(units[task].out)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, "utf-8")
    return [_of_here(line, units[line.task]) for line in answer.lines]


def _of_here(line: RunLine, unit: Unit) -> RunLine:
    result = line.result | ({"path": unit.out} if "path" in line.result else {})
    return msgspec.structs.replace(line, key=unit.key, result=result)


def name_of(job: Job) -> str:
    """The name of a job in the repository: of the keys of its units."""
    return hashlib.sha256("".join(unit.key for unit in job.units).encode()).hexdigest()[:24]
