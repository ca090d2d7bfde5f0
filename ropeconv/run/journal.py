"""RunJournal: every unit of a run that has ended, so that a killed run can go on."""

from __future__ import annotations

from pathlib import Path

from ..bake.verify.findings import is_document
from ..bake.verify.output import made_from, verify_output
from ..formats.durable import sha256, text_digest
from ..formats.journal import Journal, JournalKind, Line
from ..formats.jsontext import JsonObject
from ..inspection.receipts.reader import read_receipt
from ..models.gguf import GgufSource
from ..rope.errors import RopeconvError
from ..validate.comparison import Comparison
from .jobs import Unit


class RunLine(Line, frozen=True, kw_only=True):
    """A unit that has ended.

    key: of the unit. task, source, recipe, target: what it was. seconds: it took. failed: why it failed, in a sentence;
    empty where it did not. result: of its task.
    """

    task: str
    source: str
    recipe: str = ""
    target: str = ""
    seconds: float = 0.0
    failed: str = ""
    result: JsonObject = {}

    @classmethod
    def of(cls, unit: Unit, seconds: float, failed: str = "", result: JsonObject | None = None) -> RunLine:
        """The line of a unit. seconds, failed, result: as above."""
        about = {} if unit.target is None else {"recipe": unit.recipes[0].name, "target": unit.target.name}
        return cls(
            key=unit.key, task=unit.task, source=unit.source, seconds=round(seconds, 3), failed=failed,
            result=result or {}, **about,
        )  # fmt: skip


RUN = JournalKind("run", 2, RunLine, "give the plan another `out`")


class RunJournal(Journal[RunLine]):
    """A journal that is open for appending. path, fresh: as in `Journal`, and it raises the same."""

    def __init__(self, path: Path, fresh: bool = False) -> None:
        super().__init__(path, RUN, fresh=fresh)
        self._intact: dict[str, bool] = {}

    def add(self, line: RunLine) -> RunLine:
        """Appends a unit, and returns it when it is on the disk."""
        self._intact.pop(line.key, None)
        return super().add(line)

    def done(self, unit: Unit) -> RunLine | None:
        """The line of a unit that has succeeded; None for others, and where its output is not as it was left."""
        line = self.lines.get(unit.key)
        if line is None or line.failed:
            return None
        if unit.key not in self._intact:
            self._intact[unit.key] = _intact(line)
        return line if self._intact[unit.key] else None

    def verify(self, unit: Unit) -> None:
        """Compares the output of a unit that has succeeded, byte by byte, with what its source and its recipe give.

        One that differs is not done any more.
        """
        line = self.done(unit)
        if unit.task == "apply" and line is not None:
            try:
                verify_output(Comparison.open(Path(line.result["path"]), unit.source))
            except (RopeconvError, OSError):
                self._intact[unit.key] = False


def stamp(path: Path) -> str:
    """Digest of what an output was made of, and of the sizes of its files; documents in it may change.

    path: a folder or GGUF file, or the result of an evaluation, whose whole content counts. Raises BadSource for
    something else, OSError.
    """
    if path.suffix == ".json":
        return sha256(path)
    receipt = read_receipt(path)
    files = GgufSource(path).file.paths if path.suffix == ".gguf" else [path / one.name for one in receipt.files]
    sizes = sorted((one.name, one.stat().st_size) for one in files if not is_document(one.name))
    return text_digest(made_from(receipt).decode(), repr(sizes))


def _intact(line: RunLine) -> bool:
    """Whether what a unit left is as it was left; of tasks that leave nothing here always."""
    if "stamp" not in line.result:
        return True
    try:
        return stamp(Path(line.result["path"])) == str(line.result["stamp"])
    except (RopeconvError, OSError):
        return False
