"""A case on the bench: its folder ready, its undisturbed result and its writing calls known, and
runs with faults.
"""

import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from .cases import Case, Command
from .harness import ENDED, KILLED, Call, Fault, Mode, Outcome, Server, lose, tree, under

Tree = dict[str, str]


@dataclass
class Found:
    """What a fault left. outcome: of the command. after: the folder then. again, at_last: the same
    of the rerun.
    """

    outcome: Outcome
    after: Tree
    again: Outcome
    at_last: Tree


class Bench:
    """A case with its folder. server: that runs its commands. folder: for copies of the folder that
    it runs in.
    """

    def __init__(self, server: Server, folder: Path, case: Case) -> None:
        self.server = server
        self.folder = folder
        self.case = case

    def tree(self, folder: Path) -> Tree:
        """What is in a folder; files that say how long something took, without their numbers."""
        everything = tree(folder, self.case.timed)
        return {name: value for name, value in everything.items() if name not in self.case.more}

    @cached_property
    def ready(self) -> Path:
        """The folder as it is before the command."""
        folder = self.folder / "ready"
        folder.mkdir(parents=True)
        self.case.scene(folder)
        for command in self.case.before:
            self.undisturbed(folder, command)
        return folder

    @cached_property
    def expected(self) -> tuple[Tree, list[Call]]:
        """What is there after the command without a fault, and the writing calls that it makes."""
        folder = self.copy()
        outcome = self.undisturbed(folder, self.case.command, Fault(Mode.COUNT))
        return self.tree(folder), outcome.calls()

    @cached_property
    def twice(self) -> Tree:
        """What is there after the command has run again, which it may refuse."""
        folder = self.copy()
        self.undisturbed(folder, self.case.command)
        assert self.server.run(folder, self.case.command).said()
        return self.tree(folder)

    def undisturbed(self, folder: Path, command: Command, fault: Fault | None = None) -> Outcome:
        outcome = self.server.run(folder, command, fault)
        assert outcome.code == 0, f"{command}: {outcome.output}"
        return outcome

    def copy(self) -> Path:
        """A new copy of the folder, where the same command may have been killed before."""
        folder = self.folder / "run"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.ready, folder, symlinks=True)
        if self.case.killed:
            assert (
                self.server.run(folder, self.case.command, Fault(Mode.KILL, self._first_kill)).code
                == KILLED
            )
        return folder

    @cached_property
    def _first_kill(self) -> int:
        folder = Path(shutil.copytree(self.ready, self.folder / "first", symlinks=True))
        return round(
            self.case.killed
            * len(self.server.run(folder, self.case.command, Fault(Mode.COUNT)).calls())
        )

    def strike(self, fault: Fault, cut: bool | None = None) -> Found:
        """Runs the command with a fault, and again without one. cut: of the model of lost power,
        None without it.
        """
        folder = self.copy()
        outcome = self.server.run(folder, self.case.command, fault)
        if cut is not None:
            lose(folder, outcome.report, cut)
        after = self.tree(folder)
        again = self.server.run(folder, self.case.command)
        return Found(outcome, after, again, self.tree(folder))

    def wrong(self, aftermath: Found) -> str:
        """What is wrong with what a fault left; empty where it is sound.

        An error names the hidden things that it leaves. Sources are as they were. Under the final
        name is nothing, the earlier output as a whole, or the new one as a whole. Running the same
        command again ends in 0 (a restored source has no trace of that, and may be refused) and
        leaves exactly what it leaves without a fault; or where the fault came when all was done,
        what it leaves when it runs twice.
        """
        outcome = aftermath.outcome
        again = aftermath.again
        after = aftermath.after
        before, (expected, _), output = self.tree(self.ready), self.expected, self.case.output
        outputs = len(output) if self.case.apart else 1
        if outcome.code != KILLED and not outcome.said(outputs):
            return f"ended in {outcome.code}: {outcome.output[-600:]}"
        done = after
        if "is not stored" in outcome.output:  # a result that a receipt could not take, in a note
            done = {**after, **under(expected, self.case.grows)}
        if outcome.code == 0 and done != expected:
            return f"ended in 0, and left {_difference(done, expected)}"
        left = [
            name
            for name in after
            if name.split("/")[-1][0] == "." and name not in before and "partial/" not in name
        ]
        says = all(name in outcome.output for name in left) or self.case.grows
        if outcome.code not in (0, KILLED, ENDED) and not says:
            return f"left {left} and does not say so: {outcome.output[-600:]}"
        written = (*output, *self.case.grows)
        sources = {name: value for name, value in before.items() if not under({name: ""}, written)}
        now = {
            name: value
            for name, value in under(after, list(sources)).items()
            if name in sources or not (_is_hidden(name) or under({name: ""}, written))
        }
        if now != sources:
            return f"changed sources: {_difference(now, sources)}"
        journal = self.case.in_place and f".{output[0]}.ropeconv-journal" in after
        output = tuple(name for name in output if name not in self.case.grows)
        units = [(name,) for name in output] if self.case.apart else [output]
        for unit in filter(None, units):
            whole = under(after, unit) in (under(before, unit), under(expected, unit))
            if not (journal or unit[0] not in after or whole):
                return f"left a part: {_difference(under(after, unit), under(expected, unit))}"
        restores = self.case.in_place and self.case.command[1] == "restore"
        if not again.said() or (again.code != 0 and not restores):
            return f"the rerun ended in {again.code}: {again.output[-600:]}"
        complete = under(after, output) == under(expected, output)
        if aftermath.at_last != expected and not (complete and aftermath.at_last == self.twice):
            return (
                f"the rerun ({again.code}: {again.output[-300:]}) left"
                f" {_difference(aftermath.at_last, expected)}"
            )
        return ""


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _difference(now: Tree, expected: Tree) -> list[str]:
    """Names that are missing, too many or different."""
    return sorted({name for name, _ in now.items() ^ expected.items()})
