"""Batch: makes the outputs of one `apply` one after another; where one of several fails, the others
are still made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bake.apply import apply, make_plan
from ..bake.companions import adapter_plan, draft_plan, paired, write_adapter
from ..bake.execution import refuse_early
from ..bake.findings import Options
from ..bake.hidden import discard
from ..bake.plan import FilePlan, Plan
from ..bake.verify import earlier_output
from ..bake.warnings import modelfile_of, write_modelfile
from ..errors import Disagreement, Interruption, UsageError
from ..hub.card import with_card
from ..hub.options import PublishOptions
from ..hub.upload_set import from_gguf, from_plan, merge, planned_upload
from ..inspection.receipts.places import remember_source
from ..models.gguf import GgufSource
from ..models.open import open_source
from ..models.source import Source
from ..rope.errors import command_line
from ..rope.lengths import parse_tokens
from ..rope.recipe import Recipe
from ..runtimes.programs import program_note
from ..views.batch import BatchEntry, show_common, show_entry, show_totals
from ..views.plan import Outcome, show_outcome, show_plan
from .commands.push import publish_staged, send, show_preview
from .execution import compare_files, recovered, run_validation, steps_after
from .options import build_target
from .process import complain, explained, reader_gone, traced
from .screen import Screen
from .units import Flags, OutputUnit, check_folder, refuse_collisions, refuse_untrained

if TYPE_CHECKING:
    from ..engines.probe import Probe
    from ..validate.validation import Validation


DISAGREES = 3


class Batch:
    """The outputs of one `apply`.

    plans: with their units, once `plan` was called. short: whether each output is shown in a few
    lines, and what they have in common once. failed, refused: units with their message and exit
    code; `refused` are those of `failed` that could not be planned. A failure of a single unit is
    raised, and so is one of a target and its draft.
    """

    def __init__(self, units: list[OutputUnit], flags: Flags, screen: Screen) -> None:
        self.units = units
        self.flags = flags
        self.screen = screen
        self.several = len(units) > 1
        self.pair = any(unit.is_draft for unit in units)
        self.short = self.several and not (self.pair or flags.explain)
        self.refused: list[tuple[OutputUnit, str, int]] = []
        self.failed: list[tuple[OutputUnit, str, int]] = []
        self.plans: list[tuple[OutputUnit, Plan]] = []
        self.adapter: FilePlan | None = None

    @property
    def code(self) -> int:
        """The exit code of the command."""
        codes = [code for _, _, code in self.failed]
        if DISAGREES in codes:
            return DISAGREES
        return (
            codes[0] if len(codes) == len(self.units) and len(set(codes)) == 1 else int(bool(codes))
        )

    def plan(self, recipe: Recipe) -> None:
        """Plans all outputs, and leaves out those that are refused.

        Raises UsageError for options that do not go together, and for outputs that would have one
        place.
        """
        targets = []
        owner = self.flags.publication.repo_id.partition("/")[0] if self.flags.publication else None
        for unit in self.units:
            targets.append(build_target(unit.given, owner))
            try:
                if not unit.is_draft:
                    targets[-1].check(recipe, unit.from_gguf)  # before anything is read or fetched
            except UsageError as problem:
                raise UsageError(
                    f"{unit.label}: {problem}" if self.several else str(problem)
                ) from None
        self.screen.note(recipe.method.slow_note)
        for note in dict.fromkeys(
            program_note(name) for target in targets for name in target.runtimes
        ):
            self.screen.note(note)
        plans: list[tuple[OutputUnit, Plan]] = []
        opened: dict[str, Source | GgufSource] = {}
        for unit, target in zip(self.units, targets, strict=True):
            with self._failing(unit):
                if unit.is_draft:
                    length = self.flags.draft_original_context
                    trained = parse_tokens(length) if length else None
                    plan = with_card(draft_plan(unit.source, plans[0][1], trained))
                    plan.check_packages()
                    plans.append((unit, plan))
                    continue
                if target.in_place and not self.flags.dry_run:
                    recovered(unit.source, self.screen)
                named = unit.named or unit.source
                source = opened.get(named) or open_source(named, self.flags.family)
                opened[named] = source
                plan = unit.placed(make_plan(source, recipe, target))
                plan = paired(plan) if self.pair else plan
                if self.flags.by_length:
                    refuse_untrained(plan, unit.source)
                if not self._publication_alone(plan):  # which makes a card for its repository
                    plan = with_card(plan)
                if self.flags.ollama and not plan.is_folder:
                    modelfile_of(plan)
                plan.check_packages()
                plans.append((unit, plan))
        refuse_collisions(plans, self.units)
        self._refuse_validation(plans)
        if self.flags.adapter:
            unit, plan = plans[0]
            self.adapter = adapter_plan(self.flags.adapter, plan)
            plans[0] = (
                unit,
                replace(
                    plan, target=replace(plan.target, out=plan.out, adapter=self.adapter.out.name)
                ),
            )
        self.plans = [(unit, plan) for unit, plan in plans if self._has_place(unit, plan)]
        self.refused = list(self.failed)

    def _refuse_validation(self, plans: Sequence[tuple[OutputUnit, Plan]]) -> None:
        """Raises UsageError where an output could not be validated after it was written."""
        from ..validate.comparison import Settings

        if self.flags.validate == "off":
            return
        if any(plan.source.kind == "config" for _, plan in plans):
            raise UsageError(
                "--validate runs a model, and this source has no weights; leave it out"
            )
        if self.flags.validate != "auto":
            Settings(device=self.flags.validate).place()

    def _has_place(self, unit: OutputUnit, plan: Plan) -> bool:
        """Whether the place of an output is free, or has what the same command wrote; reports the
        rest.

        A single output refuses its place when it is written, so that here only a dry run does.
        """
        flags = self.flags
        if plan.target.in_place or self._publication_alone(plan):
            return True
        if not flags.dry_run and (flags.publication or not self.several):
            return True
        continues = self.several or self.adapter is not None or flags.publication is not None
        if continues and not flags.force and earlier_output(plan) is not None:
            return True
        failed = len(self.failed)
        with self._failing(unit):
            refuse_early(plan, flags.force)
        return len(self.failed) == failed

    def _publication_alone(self, plan: Plan) -> PublishOptions | None:
        """The publication of an output that is kept nowhere else; None for outputs on this disk."""
        return self.flags.publication if plan.target.out is None and plan.is_folder else None

    def show(self) -> None:
        """Prints plans, and what publishing them would do."""
        screen, flags = self.screen, self.flags
        entries = [BatchEntry(unit.label, plan) for unit, plan in self.plans]
        for unit, plan in self.plans if not screen.as_json else []:
            if screen.quiet:
                screen.copyable(str(plan.out))
            elif self.short:
                show_entry(BatchEntry(unit.label, plan), screen)
            else:
                self._gap(unit)
                show_plan(plan, screen, flags.explain)
                if not self._publication_alone(plan):
                    screen.copyable(
                        f"Would {'change' if plan.target.in_place else 'write'} {plan.out}"
                    )
                if self.adapter:
                    screen.copyable(f"Would write {self.adapter.out}")
        if self.short:
            self._show_end(entries, planned=True)
        publication = {}
        if flags.publication and self.plans and len(self.plans) == len(self.units):
            shown = screen.as_json or not screen.quiet
            sets = merge([planned_upload(plan) for _, plan in self.plans])
            publication = {
                "publication": show_preview(sets, flags.publication, screen) if shown else {}
            }
        self._data((plan.to_dict() for _, plan in self.plans), publication)

    def run(self, probe: Probe | None) -> None:
        """Executes plans one after another, and publishes their outputs together.

        probe: a running one, or None; the first folder is checked with it.
        """
        if self.plans:
            check_folder(self.units)
        outcomes: list[tuple[Plan, Outcome]] = []
        for number, (unit, plan) in enumerate(self.plans, 1):
            with self._failing(unit, len(outcomes)):
                title = f"Writing {number} of {len(self.plans)}" if self.several else "Writing"
                done = self._execute(plan, probe, title)
                if probe is not None and plan.is_folder:
                    probe.stop()
                    probe = None
                outcomes.append((plan, done))
                if done.proof is not None and not done.proof.agrees:
                    self.failed.append((unit, done.proof.sentence, DISAGREES))
                elif not self.several:
                    self._publish(outcomes)
                self._finish(unit, plan, done)
        if self.several and not self.pair:
            by_plan = {id(plan): unit for unit, plan in self.plans}
            self._show_end(
                [BatchEntry(by_plan[id(plan)].label, plan, done) for plan, done in outcomes],
                planned=False,
            )
        published = self._publish(outcomes) if self.several else ""
        self._data(
            (plan.to_dict() | done.to_dict() for plan, done in outcomes), {"published": published}
        )
        if published and not self.screen.as_json:
            self.screen.copyable(published)

    def _show_end(self, entries: list[BatchEntry], planned: bool) -> None:
        """Shows what outputs have in common, and how many there are."""
        if self.short and entries and not (self.screen.quiet or self.screen.as_json):
            show_common(entries, self.screen)
        refused = [unit.label for unit, _, _ in self.refused]
        failed = [unit.label for unit, _, _ in self.failed if unit.label not in refused]
        places = [entry.plan.out for entry in entries if entry.label not in failed]
        show_totals(places, refused, failed, planned, self.screen)

    def _execute(self, plan: Plan, probe: Probe | None, title: str) -> Outcome:
        """Writes the output of a plan, and validates it where that is asked for.

        An output that an earlier run of the same command has written is taken where there are
        several, or where it is published. Where it is published without -o, a folder is written to
        a temporary one and published from there.
        """
        flags, screen = self.flags, self.screen
        if publication := self._publication_alone(plan):
            check, published = publish_staged(plan, probe, publication, screen, flags.checksum)
            return Outcome(check=check, published=published)
        has_companion = self.adapter is not None or flags.ollama
        again = self.several or has_companion or flags.publication is not None
        if again and not (flags.force or plan.target.in_place) and self._written_before(plan):
            screen.note(f"{plan.out} is complete from an earlier run of this command.")
            remember_source(plan.out, plan.source)
            done = Outcome(plan.out)
        else:
            done = self._write(plan, probe, title)
        if flags.validate != "off" and plan.is_folder and done.path is not None:
            done.proof = self._validate(plan, done.path)
        return done

    def _written_before(self, plan: Plan) -> bool:
        """Whether a run that was stopped has written the output. Raises BadSource where files were
        changed since.
        """
        earlier = earlier_output(plan)
        if earlier is None:
            return False
        try:
            compare_files(earlier, Options(), self.screen)
        except Disagreement as problem:
            raise Disagreement(f"{problem}, with --force to replace it") from None
        discard(plan.out)  # a kill may have come between the last name and the end
        return True

    def _write(self, plan: Plan, probe: Probe | None, title: str) -> Outcome:
        flags = self.flags
        try:
            with self.screen.progress(title, plan.bytes) as advance:
                done = apply(
                    plan,
                    link=flags.link and plan.is_folder,
                    force=flags.force,
                    checksum=flags.checksum and plan.is_folder,
                    fsync=not flags.no_fsync,
                    advance=advance,
                    probe=probe,
                )
        except KeyboardInterrupt:
            if plan.target.in_place:
                left = (
                    f"in a change of {plan.out}; the same command undoes it first, and then starts"
                    " again"
                )
                raise Interruption(f"interrupted {left}") from None
            raise Interruption(
                f"interrupted; {plan.out} does not exist yet, and finished files are in a hidden"
                " folder beside it: the same command continues with them"
            ) from None
        if not self.short:
            self.screen.note(done.reason and f"Not checked: {done.reason}.")
        return Outcome(done.path, done.check, unchecked=done.reason, uncomputed=done.uncomputed)

    def _validate(self, plan: Plan, path: Path) -> Validation | None:
        """Validates an output. Returns None, after a note, where `auto` finds no GPU with enough
        memory.
        """
        from ..engines.transformers.load import placed, stored_dtype
        from ..engines.transformers.memory import gpu_bytes
        from ..validate.comparison import Comparison, Settings

        automatic = self.flags.validate == "auto"
        reference = plan.source.reference
        settings = Settings(device="cuda" if automatic else self.flags.validate)
        again = f"`{command_line('validate', path, '--against', reference)}` does it on the CPU"
        if automatic and not gpu_bytes():
            self.screen.note(f"Not validated: there is no GPU; {again}.")
            return None
        comparison = Comparison.open(path, reference)
        if automatic:
            source = comparison.checkpoint
            if placed(source, settings.place(stored_dtype(source.config()))).layer_by_layer:
                self.screen.note(f"Not validated: the GPU is too small; {again}.")
                return None
        return run_validation(comparison, settings, "", "", Options(), self.screen)[0]

    def _finish(self, unit: OutputUnit, plan: Plan, done: Outcome) -> None:
        """Prints what was written, with the commands that run it, and writes its Modelfile and the
        adapter.
        """
        screen, flags = self.screen, self.flags
        if done.path is not None:
            modelfile = write_modelfile(plan) if flags.ollama and not plan.is_folder else None
            draft = next((other for unit, other in self.plans if unit.is_draft), None)
            done.steps = steps_after(plan, done, done.path, modelfile, draft)
            if done.proof is not None:
                done.steps = replace(done.steps, check="")
        if screen.quiet and not screen.as_json:
            screen.copyable(done.published or str(done.path))
        elif self.short and not screen.as_json:
            show_entry(BatchEntry(unit.label, plan, done), screen)
        elif not screen.as_json:
            self._gap(unit)
            show_plan(plan, screen, flags.explain)
            show_outcome(plan, done, screen)
        if self.adapter and done.path and not unit.is_draft:
            write_adapter(self.adapter, not flags.no_fsync)
            screen.note(f"The adapter with this base is in {self.adapter.out}.")

    def _gap(self, unit: OutputUnit) -> None:
        """Prints an empty line before all outputs but the first."""
        if unit is not self.plans[0][0]:
            self.screen.say("")

    def _publish(self, outcomes: list[tuple[Plan, Outcome]]) -> str:
        """Publishes outputs in one commit and returns its URL; nothing where one of them failed."""
        plan, done = outcomes[0] if outcomes else (None, None)
        if (
            self.flags.publication is None
            or plan is None
            or done is None
            or done.published
            or done.path is None
        ):
            return ""
        if self.failed:
            self.screen.note(
                "Nothing was published, because not all outputs were made; the same command"
                " continues."
            )
            return ""
        if plan.is_folder:
            upload = from_plan(plan, done.path)
        else:
            upload = merge([from_gguf(other.path) for _, other in outcomes if other.path])
        url = send(upload, self.flags.publication, self.screen)
        if not self.several:
            done.published = url
        return url

    def _data(self, documents: Iterable[dict[str, Any]], more: dict[str, Any]) -> None:
        """Prints the JSON document: that of a single output, or a list of outputs and one of
        failures.
        """
        if not self.screen.as_json:
            return
        more = {name: value for name, value in more.items() if value != ""}
        more |= {"adapter": str(self.adapter.out)} if self.adapter else {}
        if not self.several:
            self.screen.data(next(iter(documents)) | more)
            return
        failed = [
            unit.to_dict() | {"error": message, "exit_code": code}
            for unit, message, code in self.failed
        ]
        self.screen.data({"outputs": list(documents), "failed": failed} | more)

    @contextmanager
    def _failing(self, unit: OutputUnit, finished: int = 0) -> Iterator[None]:
        """Reports a failure of one of several outputs, and continues. finished: number of
        outputs.
        """
        try:
            yield
        except (Interruption, KeyboardInterrupt) as problem:
            if not finished:
                raise
            message = (
                str(problem) or f"interrupted in {unit.label}; the same command starts it again"
            )
            raise Interruption(f"{message} ({finished} of {len(self.units)} are written)") from None
        except Exception as problem:
            if (
                not self.several
                or self.pair
                or (isinstance(problem, BrokenPipeError) and reader_gone())
            ):
                raise
            message, code = explained(problem)
            self.failed.append((unit, message, code))
            if not traced(problem):
                complain(
                    message if message.startswith(f"{unit.label} ") else f"{unit.label}: {message}"
                )
