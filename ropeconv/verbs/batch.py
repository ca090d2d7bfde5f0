"""Batch: the outputs of one `apply`, planned together and then written one after another.

Where one of several outputs fails, the others are still made. A single output, and a target with
its draft, fail as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..bake.apply import AppliedPlan, check_earlier
from ..bake.companions import (
    AdapterPlan,
    adapter_plan,
    draft_plan,
    name_draft,
    paired,
    write_adapter,
)
from ..bake.execution import ApplyOptions, refuse_early, write_ahead
from ..bake.findings import Options
from ..bake.gguf import ExportPlan, bytes_together, share_reading, write_together
from ..bake.hidden import HiddenFolder, discard_stopped_run
from ..bake.modelfile import modelfile_of
from ..bake.output import Output
from ..bake.plan import Plan
from ..bake.verify import change_done, earlier_output
from ..convert.target import Target
from ..engines.probe import Probe, SharedProbe
from ..errors import Disagreement, Interruption, UsageError
from ..formats.disk import free_bytes
from ..hub.card import with_card
from ..hub.options import PublishOptions
from ..hub.upload_set import from_gguf, from_plan, merge
from ..inspection.receipts.places import remember_source
from ..models.gguf import GgufSource
from ..models.open import open_source
from ..models.source import Source
from ..options import MachineOptions, ValidateOn, copied
from ..reporting import Reporter
from ..rope.errors import RopeconvError
from ..rope.lengths import parse_tokens
from ..rope.recipe import Recipe
from ..runtimes.programs import program_note
from .asking import asking_installed
from .output import (
    Writing,
    finish_output,
    gets_modelfile,
    plan_output,
    recover_file,
    write_output,
)
from .request import (
    ApplyRequest,
    OutputUnit,
    build_target,
    check_folder,
    refuse_collisions,
)
from .validation import ValidationChoice, choose_validation, compare_files, disagreement_of

DISAGREES = 3
"""The exit code where an output does not compute the method."""
Failure = tuple[OutputUnit, Exception]
OnFailure = Callable[[OutputUnit, Exception], None]


def _name_adapter(plan: Plan, adapter: AdapterPlan) -> Plan:
    """Return the plan of an output whose receipt names the adapter that is written beside it."""
    target = replace(
        plan.target, out=plan.out, adapter=adapter.out.name, adapter_digest=adapter.digest
    )
    warnings = plan.warnings
    if adapter.warning:
        warnings = (*warnings, adapter.warning)
    return replace(plan, target=target, warnings=warnings)


def _reraise(unit: OutputUnit, problem: Exception) -> None:
    """Let a failure of one output end the batch."""
    raise problem


class Batch:
    """The outputs of one `apply`: `plan` or `take` first, then `write`, then `publish`."""

    def __init__(
        self,
        units: Sequence[OutputUnit],
        request: ApplyRequest,
        reporter: Reporter,
        on_failure: OnFailure = _reraise,
    ) -> None:
        """Prepare a batch.

        Args:
            units: The outputs that are asked for.
            request: The options of `apply` that are not about one output.
            reporter: Receives what happens.
            on_failure: Called with a unit and its error where one of several outputs fails. By
                default it raises the error.
        """
        self.units = list(units)
        self.request = request
        self.reporter = reporter
        self.on_failure = on_failure
        self.several = len(self.units) > 1

        self.pair = any(unit.is_draft for unit in self.units)
        """Whether these are a model and its draft model, for speculative decoding."""

        self.plans: list[tuple[OutputUnit, Plan]] = []
        """The plans with their units, after `plan`."""

        self.failures: list[Failure] = []
        """The units that could not be planned, written or validated, each with its error."""

        self.refused: list[Failure] = []
        """The failures of planning, after `plan` or `take`."""

        self.adapter: AdapterPlan | None = None
        """The copy of a PEFT adapter that is written beside the output; None without one."""

        self._changed_by_earlier_run: list[Path] = []
        """GGUF files that --in-place has changed already, in an earlier run of the same command."""

        self._validation_choices: dict[Path, ValidationChoice] = {}
        """Whether and where each output is validated, by its path."""

        self._finished: list[Output] = []
        """The outputs that are written, for `publish`."""

    @property
    def one_failure_ends_all(self) -> bool:
        """Whether this is one output, or a target with its draft, for which a failure is final."""
        return not self.several or self.pair

    @property
    def code(self) -> int:
        """The exit code of the command: 3 where a validation failed, else that of the failures."""
        codes = [getattr(problem, "exit_code", 1) for _, problem in self.failures]
        if not codes:
            return 0
        if DISAGREES in codes:
            return DISAGREES
        # all outputs failed for the same kind of reason
        all_failed = len(codes) == len(self.units)
        if all_failed and len(set(codes)) == 1:
            return int(codes[0])
        return 1

    def plan(self, recipe: Recipe, sources: Sequence[Source | GgufSource] = ()) -> None:
        """Plan all outputs; the plans are stored in `self.plans`, and errors in `self.failures`.

        Args:
            recipe: The method and its modifiers.
            sources: Models that the caller has opened. All others are opened here.

        Raises:
            UsageError: Options do not go together, or two outputs have the same path.
        """
        targets = self._make_targets(recipe)
        self.reporter.note(recipe.method.slow_note)  # says that a method takes long to compute
        self._note_programs(targets)  # what to know about the runtimes that the user named

        named_runtimes: list[str] = []
        for target in targets:
            named_runtimes += target.runtimes
        opened = {source.reference: source for source in sources}

        # If one of several outputs cannot be planned, `_catch_failure` adds its error to the
        # failures, and the next output is planned.
        plans: list[tuple[OutputUnit, Plan]] = []
        with asking_installed(named_runtimes, self.request.python, self.reporter.note):
            for unit, target in zip(self.units, targets, strict=True):
                with self._catch_failure(unit):
                    if unit.is_draft:
                        # a model and its draft model: `units` has the model first
                        _model_unit, model_plan = plans[0]
                        plan = self._plan_draft(unit, model_plan)
                    else:
                        plan = self._plan_unit(unit, target, recipe, opened)
                    plans.append((unit, plan))
        refuse_collisions(plans, self.units)  # raises if two outputs have the same path
        self._complete_plans(plans)

    def take(self, plan: Plan) -> None:
        """Take a plan that was made before, in place of planning; its draft is planned here.

        A file may have changed in place since the plan was made, or before: the change of the plan
        is made only once.
        """
        if plan.target.in_place:
            plan = self._take_change_in_place(plan)
        if gets_modelfile(plan, self.request.ollama):
            modelfile_of(plan)  # refuses a model that Ollama cannot run
        if self.pair:
            plan = paired(plan)
        plans = [(self.units[0], with_card(plan))]
        for unit in self.units[1:]:
            plans.append((unit, self._plan_draft(unit, plan)))
        plan.check_packages()
        self._complete_plans(plans)

    def _take_change_in_place(self, plan: Plan) -> Plan:
        """Return a plan of a change in place, or the plan of the same change if it is made already.

        The file is read again, since the plan has it as it was when it was planned.
        """
        reference = plan.source.reference
        if not self.request.dry_run:
            recover_file(reference, self.reporter)
        source = open_source(reference)
        source.modelfile = plan.source.modelfile  # its reference is the GGUF file of a Modelfile
        finished_change = self._find_finished_change(source, plan.recipe, plan.target)
        if finished_change is None:
            return plan
        return replace(finished_change, asked=plan.asked, with_ollama=plan.with_ollama)

    def _find_finished_change(
        self, source: Source | GgufSource, recipe: Recipe, target: Target
    ) -> Plan | None:
        """Return the plan of a change in place that an earlier run has made, and note its file.

        It is None for other outputs, and where the file was not changed in this way.
        """
        if not target.in_place or not isinstance(source, GgufSource):
            return None
        finished_change = change_done(source, recipe, target)
        if finished_change is not None:
            self._changed_by_earlier_run.append(finished_change.out)
        return finished_change

    def _complete_plans(self, plans: list[tuple[OutputUnit, Plan]]) -> None:
        """Store the plans of all outputs that can be written in `self.plans`.

        Also set are `self.adapter`, `self._validation_choices` and `self.refused`.

        Args:
            plans: The outputs that the user asked for, each with its plan. The first plan may be
                replaced in this list.
        """
        # A model and its draft model: the receipt of the model names the draft.
        if self.pair and len(plans) > 1:
            (model_unit, model_plan), (_draft_unit, plan_of_draft) = plans
            plans[0] = (model_unit, name_draft(model_plan, plan_of_draft))

        # A PEFT adapter of the model: the receipt of the model names the copy of the adapter.
        if self.request.adapter:
            model_unit, model_plan = plans[0]
            self.adapter = adapter_plan(self.request.adapter, model_plan)
            plans[0] = (model_unit, _name_adapter(model_plan, self.adapter))

        for _unit, plan in plans:
            choice = choose_validation(plan, self._where_to_validate(plan))
            self._validation_choices[plan.out] = choice

        # an output is left out if there is another file or folder at its path
        self.plans = []
        for unit, plan in plans:
            is_refused = self._refuse_taken_path(unit, plan)
            if not is_refused:
                self.plans.append((unit, plan))
        self.refused = list(self.failures)

    def validation_of(self, plan: Plan) -> ValidationChoice:
        """Return whether the output of a plan is validated after it was written."""
        return self._validation_choices[plan.out]

    def publication_if_not_kept(self, plan: Plan) -> PublishOptions | None:
        """Return how an output is published that is kept nowhere else; None for the others."""
        if plan.target.out is None and plan.is_folder:
            return self.request.publication
        return None

    def write(self, probe: Probe | None = None) -> Iterator[tuple[OutputUnit, Output]]:
        """Write the outputs one after another, and yield each output when it is finished.

        If a single output fails, its error is raised. If one of several outputs fails, its error is
        added to `self.failures`, and the next output is written.

        Args:
            probe: A process that has imported transformers, to check the first folder; None to
                start a process.

        Yields:
            The output that the user asked for, and the written output.
        """
        if self.plans:
            check_folder(self.units)
        self._write_conversions_together()  # GGUF files that differ only in their types
        self._finished = []

        # several conversions are checked in one process, which imports transformers once
        conversions = [plan for _unit, plan in self.plans if isinstance(plan, ExportPlan)]
        if probe is None and len(conversions) > 1 and Probe.available():
            probe = SharedProbe()

        for number, (unit, plan) in enumerate(self.plans, 1):
            title = "Writing"
            if self.several:
                title = f"Writing {number} of {len(self.plans)}"

            output = None  # stays None if the block catches an error
            with self._catch_failure(unit, finished_count=len(self._finished)):
                output = self._write_unit(unit, plan, probe, title)

                # a process is used for one folder; the next folder starts another process
                if probe is not None and plan.is_folder:
                    probe.stop()
                    probe = None

                # an output that a validation does not confirm is kept, and counts as a failure
                self._note_disagreement(unit, output)

                # several outputs are published later, in one commit (`publish`)
                if not self.several and not output.published:
                    output = replace(output, published=self._publish([output]))
                self._finished.append(output)
            if output is not None:
                yield unit, output

    def _write_conversions_together(self) -> None:
        """Convert a model to several GGUF files while its weights are read only once.

        An example is `--to gguf --outtype f16 --outtype q8_0`. The files are written into hidden
        folders beside the outputs. `write` finds them there, checks each file, and renames it.
        """
        conversions = self._conversions_together()
        if len(conversions) < 2:
            return

        # the options of the command that have the same names in ApplyOptions (`copied`)
        options = copied(ApplyOptions, self.request, fsync=not self.request.no_fsync)
        # these two are for folders of safetensors
        options = replace(options, link=False, checksum=False)

        title = f"Converting {len(conversions)} files"
        total_bytes = sum(plan.bytes for plan in conversions)
        write_files = partial(write_together, conversions)
        try:
            with self.reporter.progress(title, total_bytes) as advance:
                # prepares the hidden folders, and calls `write_files`
                write_ahead(conversions, options, write_files, advance)
        except (RopeconvError, OSError):
            # Nothing is left here. `write` converts each file separately, and reports the error of
            # the file that fails.
            return
        except KeyboardInterrupt:
            raise Interruption(
                f"interrupted in {conversions[0].out}; the same command starts it again"
            ) from None

    def _conversions_together(self) -> list[ExportPlan]:
        """The conversions that are written from one reading of the weights.

        For `--to gguf --outtype f16 --outtype q8_0` these are both: the first conversion, and those
        of the same model to other types. There are none where the disk lacks space for all at once.
        """
        together = list[ExportPlan]()
        for _, plan in self.plans:
            if not isinstance(plan, ExportPlan):
                continue
            # something at the place, or files of an earlier run, are dealt with one by one
            if os.path.lexists(plan.out) or HiddenFolder(plan.out).root.exists():
                continue
            if not together:
                together.append(plan)
                continue
            first = together[0]
            is_in_same_folder = plan.out.parent == first.out.parent
            if is_in_same_folder and share_reading(first, plan):
                together.append(plan)

        if together and bytes_together(together) > free_bytes(together[0].out.parent):
            return []
        return together

    def _note_disagreement(self, unit: OutputUnit, output: Output) -> None:
        """Put an output that a validation does not confirm among the failures."""
        problem = disagreement_of(output.validation, output.path)
        if problem is None:
            return
        self.failures.append((unit, problem))
        if not self.one_failure_ends_all:
            self.on_failure(unit, problem)

    def publish(self) -> str:
        """Publish several outputs in one commit and return its URL; empty where nothing was asked
        for, and after a note where one of them failed.
        """
        if not self.several:  # it was published when it was written
            return ""
        return self._publish(self._finished)

    def _make_targets(self, recipe: Recipe) -> list[Target]:
        """Return the options of each output as a `Target`, checked before anything is read.

        Raises:
            UsageError: Options do not go together; with several outputs it names the wrong one.
        """
        # the owner of the repository that the outputs are published in
        owner = ""
        if self.request.publication:
            owner, _, _ = self.request.publication.repo_id.partition("/")

        targets = []
        for unit in self.units:
            target = build_target(unit.given, owner)
            targets.append(target)
            if unit.is_draft:  # it has the method and format of the model that it drafts for
                continue
            try:
                target.check(recipe, unit.from_gguf)
            except UsageError as problem:
                if not self.several:
                    raise
                raise UsageError(f"{unit.label}: {problem}") from None
        return targets

    def _note_programs(self, targets: Sequence[Target]) -> None:
        """Note once each what is to know about the programs that outputs are written for."""
        noted = set()
        for target in targets:
            for name in target.runtimes:
                note = program_note(name)
                if note not in noted:
                    noted.add(note)
                    self.reporter.note(note)

    def _plan_draft(self, unit: OutputUnit, target: Plan) -> Plan:
        """Plan the draft of a target."""
        length = self.request.draft_original_context
        trained = parse_tokens(length) if length else None
        plan = with_card(draft_plan(unit.source, target, trained))
        plan.check_packages()
        return plan

    def _plan_unit(
        self,
        unit: OutputUnit,
        target: Target,
        recipe: Recipe,
        opened: dict[str, Source | GgufSource],
    ) -> Plan:
        """Plan one output: open its source, and choose its encoding and its files.

        Nothing is written, except that a file is repaired if an earlier run with --in-place was
        interrupted.

        Args:
            unit: The output that the user asked for.
            target: The format and the path of the output.
            recipe: The method and its modifiers.
            opened: The opened sources by name. The source of this output is added.
        """
        request = self.request
        if target.in_place and not request.dry_run:
            recover_file(unit.source, self.reporter)

        # open the source, under the name that the user gave it
        source_name = unit.named or unit.source
        if source_name not in opened:
            opened[source_name] = open_source(source_name, request.family)
        source = opened[source_name]

        # --in-place: an earlier run of the same command may have changed the file already
        finished_change = self._find_finished_change(source, recipe, target)
        if finished_change is not None:
            return finished_change

        # --push without -o: the model card is added later, since it names the repository
        is_only_published = request.publication is not None and target.out is None
        machine_options = copied(MachineOptions, request)  # fields with the same names
        plan = plan_output(
            source,
            recipe,
            target,
            by_length=request.by_length,
            with_draft=self.pair,
            card=not is_only_published,
            machine=machine_options,
            ollama=request.ollama,
            place=unit.move_into_folder,  # changes the path if -o is a folder of several outputs
        )

        # a model that Ollama cannot run is refused before anything is written
        if gets_modelfile(plan, request.ollama):
            modelfile_of(plan)
        return plan

    def _refuse_taken_path(self, unit: OutputUnit, plan: Plan) -> bool:
        """Refuse an output if there is another file or folder at its path.

        Returns:
            Whether the output is refused. Its error is then in `self.failures`.

        Raises:
            RopeconvError: The path is taken, and this is a single output.
        """
        request = self.request

        # --in-place, and --push without -o: the output has no path of its own.
        if plan.target.in_place or self.publication_if_not_kept(plan):
            return False

        # A single output, and outputs that are published: the functions that write them check the
        # path. In a dry run nothing is written, so it is checked here.
        is_checked_when_written = request.publication is not None or not self.several
        if is_checked_when_written and not request.dry_run:
            return False

        # The output of an earlier run of this command is at the path, and is kept.
        keeps_earlier_output = self._accepts_earlier_output(plan) and not request.force
        if keeps_earlier_output and earlier_output(plan) is not None:
            return False

        # `refuse_early` raises an error if the path is taken; `_catch_failure` stores that error.
        is_refused = True
        with self._catch_failure(unit):
            refuse_early(plan, request.force)
            is_refused = False  # only reached without an error
        return is_refused

    def _accepts_earlier_output(self, plan: Plan) -> bool:
        """Return whether an output of an earlier run of the same command is accepted unchanged."""
        request = self.request
        has_companion = self.adapter is not None or gets_modelfile(plan, request.ollama)
        return self.several or has_companion or request.publication is not None

    def _where_to_validate(self, plan: Plan) -> ValidateOn:
        """Return --validate for a plan; an output that is kept nowhere cannot be validated."""
        # a head is nothing without its target; a smaller model is compared like any other
        if plan.target.drafts_for and plan.draft:
            return "off"
        if self.request.validate == "auto" and self.publication_if_not_kept(plan):
            return "off"
        return self.request.validate

    def _write_unit(self, unit: OutputUnit, plan: Plan, probe: Probe | None, title: str) -> Output:
        """Write, check and validate one output; an output of an earlier run is kept.

        Args:
            unit: The output that the user asked for, or its draft model.
            plan: The plan of the output.
            probe: A process that has imported transformers, to check a folder; None to start one.
            title: The title of the progress bar.
        """
        request = self.request
        validation = self.validation_of(plan)

        # --push without -o: a temporary folder is written and published
        publication = self.publication_if_not_kept(plan)
        if publication:
            from .publishing import publish_staged

            return publish_staged(
                plan,
                publication,
                self.reporter,
                probe=probe,
                checksum=request.checksum,
                check=not request.no_check,
                validation=validation,
            )

        # the draft model, which the commands for running the output name; there is at most one
        plan_of_draft = None
        for other_unit, other_plan in self.plans:
            if other_unit.is_draft:
                plan_of_draft = other_plan

        if self._is_complete(plan):
            output = self._finish_earlier_output(plan, validation, plan_of_draft)
        else:
            # `copied` takes all options of `Writing` that have the same name in the request; three
            # options have other names
            writing = copied(
                Writing,
                request,
                fsync=not request.no_fsync,
                check=not request.no_check,
                modelfile=request.ollama,
            )
            output = write_output(
                plan, writing, validation, self.reporter, probe, title, plan_of_draft
            )

        # a PEFT adapter is copied beside the model
        if self.adapter is not None and not unit.is_draft:
            write_adapter(self.adapter, not request.no_fsync)
            output = replace(output, adapter=self.adapter.out)
        return output

    def _finish_earlier_output(
        self, plan: Plan, validation: ValidationChoice, draft: Plan | None
    ) -> Output:
        """Return an output that an earlier run of this command has written, and validate it.

        Args:
            plan: The plan of the output.
            validation: Whether and on which device the output is validated.
            draft: The plan of its draft model; None without a draft model.

        Raises:
            Disagreement: The transformers that is installed now computes another RoPE from it.
        """
        self.reporter.note(f"{plan.out} is complete from an earlier run of this command.")

        # Note on this machine where the source of the output is. A file that was changed in place
        # has no source any more.
        was_changed_in_place = plan.out in self._changed_by_earlier_run
        if not was_changed_in_place:
            remember_source(plan.out, plan.source)

        if self.request.no_check:
            written = AppliedPlan(plan.out, was_complete=True)
        else:
            written = check_earlier(plan)
        return finish_output(plan, written, self.request.ollama, validation, self.reporter, draft)

    def _is_complete(self, plan: Plan) -> bool:
        """Whether an earlier run of the command has changed the file in place, or written it all.

        Raises as `_confirm_earlier_output`.
        """
        if plan.out in self._changed_by_earlier_run:
            return True
        if plan.target.in_place or self.request.force:
            return False
        if not self._accepts_earlier_output(plan):
            return False
        return self._confirm_earlier_output(plan)

    def _confirm_earlier_output(self, plan: Plan) -> bool:
        """Return whether an earlier run of this command has written the output of a plan.

        Raises:
            BadSource: Files of that output cannot be read.
            Disagreement: Files of that output were changed since they were written.
        """
        earlier = earlier_output(plan)
        if earlier is None:
            return False
        try:
            compare_files(earlier, Options(), self.reporter)
        except Disagreement as problem:
            # `problem` ends with "... run apply again"
            raise Disagreement(f"{problem}, with --force to replace it") from None

        # The earlier run may have been killed after it moved the last file out of its hidden
        # folder, and before it removed that folder.
        discard_stopped_run(plan.out)
        return True

    def _publish(self, outputs: Sequence[Output]) -> str:
        """Publish outputs in one commit and return its URL; empty where one of them failed."""
        publication = self.request.publication
        kept = [output for output in outputs if output.path is not None]
        if publication is None or not kept:
            return ""
        if self.failures:
            self.reporter.note(
                "Nothing was published, because not all outputs were made; the same command"
                " continues."
            )
            return ""

        # one folder, or GGUF files for one repository: `check_request` has refused all else, so
        # that the first output tells which
        plan = kept[0].plan
        if plan.is_folder:
            assert isinstance(plan, Plan)
            assert kept[0].path is not None
            upload = from_plan(plan, kept[0].path)
        else:
            upload = merge([from_gguf(output.path) for output in kept if output.path])
        from .publishing import send

        return send(upload, publication, self.reporter)

    @contextmanager
    def _catch_failure(self, unit: OutputUnit, finished_count: int = 0) -> Iterator[None]:
        """Catch the errors of a with block, if it makes one of several outputs.

        The error is shown to the user (`on_failure`) and added to `self.failures`. For a single
        output, and for a model with its draft model, the error is raised.

        Args:
            unit: The output that the block plans or writes.
            finished_count: How many outputs have been written already.

        Raises:
            Interruption: At Ctrl-C, which ends the whole command.
        """
        try:
            yield
        except (Interruption, KeyboardInterrupt) as problem:
            if finished_count == 0:
                raise
            # the message says how many outputs are written
            message = (
                str(problem) or f"interrupted in {unit.label}; the same command starts it again"
            )
            raise Interruption(
                f"{message} ({finished_count} of {len(self.units)} are written)"
            ) from None
        except Exception as problem:
            if self.one_failure_ends_all:
                raise
            self.on_failure(unit, problem)
            self.failures.append((unit, problem))
