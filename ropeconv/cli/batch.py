"""Batch: makes the outputs of one `apply` one after another; where one of several fails, the others are still made."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bake.apply import make_plan
from ..bake.plan import Plan
from ..bake.verify.output import earlier_output
from ..bake.warnings import modelfile_of, run_commands, write_modelfile
from ..bake.writing.execute import refuse_early
from ..errors import Interrupted, UsageError
from ..formats.files import expanded
from ..hub.upload_set import UploadSet, from_gguf, from_plan, merged, planned
from ..models.gguf import GgufSource
from ..models.open import open_source
from ..models.source import Source
from ..rope.errors import RopeconvError
from ..rope.recipe import Recipe
from ..views.plan import Outcome, show_outcome, show_plan
from .commands.push import send, show_preview
from .execution import Flags, execute, recovered
from .output import Output
from .output_options import build_target, split
from .process import complain, explained, reader_gone, traced

if TYPE_CHECKING:
    from ..engines.probe import Probe


@dataclass(frozen=True)
class Unit:
    """One output to make.

    source: as the user named it. given: options of its target, by name. folder: that it is put into, None for the place
    that its target names. label: tells it from the others in messages. modelfile: that names the source, None without.
    """

    source: str
    given: dict[str, Any]
    folder: Path | None
    label: str
    modelfile: Path | None = None

    @property
    def from_gguf(self) -> bool:
        """Whether the source is a GGUF file."""
        return self.source.endswith(".gguf")

    @property
    def to_gguf(self) -> bool:
        """Whether the output is a GGUF file."""
        return bool(self.given["to"] == "gguf" or (self.from_gguf and self.given["to"] is None))

    def to_dict(self) -> dict[str, Any]:
        """Source, format and outtype as JSON-ready data; null for what was not given."""
        return {"source": self.source, "to": self.given["to"], "outtype": self.given["outtype"]}

    def placed(self, plan: Plan) -> Plan:
        """A plan with its output in `folder`, under its own name."""
        if self.folder is None:
            return plan
        out = self.folder / plan.out.name
        return replace(plan, out=out, target=replace(plan.target, out=out))


def units_of(sources: Sequence[str], given: dict[str, Any]) -> list[Unit]:
    """The outputs that a command line asks for, in its order.

    sources: as the user named them. given: options of the target, by name; of several outputs `out` is the folder.
    Raises UsageError where that is the name of a file.
    """
    named = [(source, _resolved(source)) for source in sources]
    parts = [(source, split(given, source.endswith(".gguf")), _modelfile(name, source)) for name, source in named]
    folder = given["out"] if sum(len(each) for _, each, _ in parts) > 1 and not given["in_place"] else None
    if folder is not None and (folder.suffix == ".gguf" or folder.is_file()):
        raise UsageError(f"-o {folder} is one file, and there are several outputs; give a folder for them")
    return [
        Unit(
            source,
            own if folder is None else own | {"out": None},
            folder,
            _label(source, own, len(each) > 1),
            modelfile,
        )
        for source, each, modelfile in parts
        for own in each
    ]


def _resolved(source: str) -> str:
    """A source whose name tells its format. Other kinds are resolved when they are opened, which imports numpy."""
    if not Path(source).name.startswith("Modelfile"):
        return source
    from ..models.source import resolved

    return resolved(source)


def _modelfile(named: str, source: str) -> Path | None:
    """The Modelfile that the user named; None for others. source: its model."""
    return None if named == source else expanded(named)


def _label(source: str, own: dict[str, Any], several: bool) -> str:
    what = " ".join(filter(None, (own["to"], own["outtype"]))) if several else ""
    return f"{source} ({what})" if what else source


def refuse_push(units: Sequence[Unit]) -> None:
    """Raises UsageError where the outputs are not those of one repository: a folder, or GGUF files of one source."""
    if len({unit.source for unit in units}) > 1:
        raise UsageError("--push takes the output of one SOURCE, and there are several; run it for each repository")
    if len(units) > 1 and not all(unit.to_gguf for unit in units):
        raise UsageError(
            "--push takes one folder, or GGUF files that go into one repository; leave it out, and publish each with "
            "`ropeconv push`"
        )


def refuse_collisions(made: Sequence[tuple[Unit, Plan]], units: Sequence[Unit]) -> None:
    """Raises UsageError where an output would have the place of another one or of a source.

    made: units with their plans. units: all of them.
    """
    taken: dict[str, Unit] = {}
    sources = {os.path.realpath(unit.source): unit for unit in units if Path(unit.source).exists()}
    for unit, plan in made:
        for name in [plan.out.name] if plan.is_folder else [file.name for file in plan.files]:
            place = plan.out.with_name(name)
            real = os.path.realpath(place)
            other = taken.setdefault(real, unit)
            if other is not unit:
                raise UsageError(
                    f"{other.label} and {unit.label} would both be written to {place}; run them one by one, each with "
                    "its own -o"
                )
            if real in sources and sources[real].source != unit.source:
                raise UsageError(
                    f"the output of {unit.label} would be written to {place}, which is another SOURCE; choose another "
                    "place with -o"
                )


def make_folder(units: Sequence[Unit]) -> None:
    """Makes the folder of several outputs. Raises RopeconvError where it cannot be, or lies within a source."""
    folder = units[0].folder
    if folder is None or folder.is_dir():
        return
    real = Path(os.path.realpath(folder))
    for unit in units:
        if Path(os.path.realpath(unit.source)) in real.parents:
            raise RopeconvError(f"-o {folder} lies within {unit.source}; choose another place")
    if not folder.parent.is_dir():
        raise RopeconvError(f"{folder.parent} does not exist; create it, or choose another place with -o")
    folder.mkdir()


Made = list[tuple[Unit, Plan]]
DISAGREES = 3


class Batch:
    """The outputs of one `apply`.

    units: what to make. flags: how. output: for everything that is printed. Of a single unit, failures are raised as
    they are. `code` is the exit code: 0, 3 where an output does not compute its schedule, that of all units where they
    fail with the same one, else 1.
    """

    def __init__(self, units: Sequence[Unit], flags: Flags, output: Output) -> None:
        self.units, self.flags, self.output = units, flags, output
        self.several = len(units) > 1
        self.failed: list[tuple[Unit, str, int]] = []

    @property
    def code(self) -> int:
        """The exit code of the command."""
        codes = [code for _, _, code in self.failed]
        if DISAGREES in codes:
            return DISAGREES
        return codes[0] if len(codes) == len(self.units) and len(set(codes)) == 1 else int(bool(codes))

    def plan(self, recipe: Recipe) -> Made:
        """The plans of all outputs but those that are refused.

        Raises UsageError for options that do not go together, and for outputs that would have one place.
        """
        targets = []
        owner = self.flags.how.repo_id.partition("/")[0] if self.flags.how else None
        for unit in self.units:
            targets.append(build_target(unit.given, owner))
            try:
                targets[-1].check(recipe, unit.from_gguf)  # before anything is read or fetched
            except UsageError as problem:
                raise UsageError(f"{unit.label}: {problem}" if self.several else str(problem)) from None
        self.output.note(recipe.method.slow_note)
        made: Made = []
        opened: dict[str, Source | GgufSource] = {}
        for unit, target in zip(self.units, targets, strict=True):
            with self._failing(unit):
                if target.in_place and not self.flags.dry_run:
                    recovered(unit.source, self.output)
                source = opened.get(unit.source) or open_source(unit.source, self.flags.family)
                opened[unit.source] = source
                source.modelfile = unit.modelfile
                plan = unit.placed(make_plan(source, recipe, target))
                if self.flags.ollama and not plan.is_folder:
                    modelfile_of(plan)
                made.append((unit, plan))
        refuse_collisions(made, self.units)
        return [(unit, plan) for unit, plan in made if self._has_place(unit, plan)]

    def _has_place(self, unit: Unit, plan: Plan) -> bool:
        """Whether the place of one of several outputs is free, or has what the same command wrote; reports the rest."""
        if not self.several or self.flags.dry_run or self.flags.how or plan.target.in_place:
            return True
        if not self.flags.force and earlier_output(plan) is not None:
            return True
        failed = len(self.failed)
        with self._failing(unit):
            refuse_early(plan, self.flags.force)
        return len(self.failed) == failed

    def show(self, made: Made) -> None:
        """Prints plans, and what publishing them would do."""
        output, flags = self.output, self.flags
        for unit, plan in made if not output.as_json else []:
            if output.quiet:
                output.copyable(str(plan.out))
            else:
                self._gap(unit, made)
                show_plan(plan, output, flags.explain)
        publication = {}
        if flags.how and made and len(made) == len(self.units):
            shown = output.as_json or not output.quiet
            sets = merged([planned(plan) for _, plan in made])
            publication = {"publication": show_preview(sets, flags.how, output) if shown else {}}
        self._data([plan.to_dict() for _, plan in made], publication)

    def run(self, made: Made, probe: Probe | None) -> None:
        """Executes plans one after another, and publishes their outputs together.

        made: the plans. probe: a running one, or None; the first folder is checked with it.
        """
        if made:
            make_folder(self.units)
        outcomes: list[tuple[Plan, Outcome]] = []
        for number, (unit, plan) in enumerate(made, 1):
            with self._failing(unit, len(outcomes)):
                title = f"Writing {number} of {len(made)}" if self.several else "Writing"
                done = execute(plan, probe, self.flags, self.output, title, again=self.several)
                if probe is not None and plan.is_folder:
                    probe.stop()
                    probe = None
                outcomes.append((plan, done))
                if done.proof is not None and not done.proof.agrees:
                    self.failed.append((unit, done.proof.sentence, DISAGREES))
                elif not self.several:
                    self._publish(outcomes)
                if done.path is not None:
                    modelfile = write_modelfile(plan) if self.flags.ollama and not plan.is_folder else None
                    done.run = run_commands(plan, done.path, modelfile)
                self._gap(unit, made)
                self._show(plan, done)
        if self.failed and self.several:
            without = ", ".join(dict.fromkeys(unit.label for unit, _, _ in self.failed))
            self.output.note(f"{len(outcomes)} of {len(self.units)} outputs were made; what failed: {without}.")
        published = self._publish(outcomes) if self.several else ""
        self._data([plan.to_dict() | done.to_dict() for plan, done in outcomes], {"published": published})
        if published and not self.output.as_json:
            self.output.copyable(published)

    def _show(self, plan: Plan, done: Outcome) -> None:
        """Prints a plan and its outcome; with `quiet` the place or address alone, nothing where JSON is printed."""
        if self.output.as_json:
            return
        if self.output.quiet:
            self.output.copyable(done.published or str(done.path))
        else:
            show_plan(plan, self.output, self.flags.explain)
            show_outcome(plan, done, self.output)

    def _gap(self, unit: Unit, made: Made) -> None:
        """Prints an empty line before all outputs but the first."""
        if unit is not made[0][0] and not (self.output.quiet or self.output.as_json):
            self.output.say("")

    def _publish(self, outcomes: Sequence[tuple[Plan, Outcome]]) -> str:
        """Publishes outputs in one commit and returns its URL; nothing where one of them failed."""
        plan, done = outcomes[0] if outcomes else (None, None)
        if self.flags.how is None or plan is None or done is None or done.published or done.path is None:
            return ""
        if self.failed:
            self.output.note("Nothing was published, since not all outputs were made; the same command goes on.")
            return ""
        what: UploadSet = (
            from_plan(plan, done.path)
            if plan.is_folder
            else merged([from_gguf(one.path) for _, one in outcomes if one.path])
        )
        url = send(what, self.flags.how, self.output)
        if not self.several:
            done.published = url
        return url

    def _data(self, documents: list[dict[str, Any]], more: dict[str, Any]) -> None:
        """Prints the JSON document: that of a single output, or a list of outputs and one of failures."""
        if not self.output.as_json:
            return
        more = {name: value for name, value in more.items() if value != ""}
        if not self.several:
            self.output.data(documents[0] | more)
            return
        failed = [unit.to_dict() | {"error": message, "exit_code": code} for unit, message, code in self.failed]
        self.output.data({"outputs": documents, "failed": failed} | more)

    @contextmanager
    def _failing(self, unit: Unit, finished: int = 0) -> Iterator[None]:
        """Reports a failure of one of several outputs, and goes on. finished: how many outputs are there."""
        try:
            yield
        except (Interrupted, KeyboardInterrupt) as problem:
            if not finished:
                raise
            message = str(problem) or f"interrupted in {unit.label}; the same command starts it again"
            raise Interrupted(f"{message} (written before it: {finished} of {len(self.units)})") from None
        except Exception as problem:
            if not self.several or (isinstance(problem, BrokenPipeError) and reader_gone()):
                raise
            message, code = explained(problem)
            self.failed.append((unit, message, code))
            if not traced(problem):
                complain(message if message.startswith(f"{unit.label} ") else f"{unit.label}: {message}")
