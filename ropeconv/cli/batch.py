"""Show the outputs of one `apply`.

`BatchView.show_plans` is for `--dry-run`. `BatchView.write` is for all other runs: it writes one
output after the other, and shows each at once.
"""

from __future__ import annotations

from typing import Any

from ..bake.modelfile import modelfile_of
from ..bake.output import Output
from ..bake.plan import Plan
from ..bake.quality import quality
from ..engines.probe import Probe
from ..hub.upload_set import merge, planned_upload
from ..verbs.batch import Batch
from ..verbs.output import gets_modelfile
from ..verbs.request import OutputUnit
from ..views.batch import BatchEntry, show_common, show_entry, show_totals
from ..views.plan import show_outcome, show_plan
from .commands.push import show_preview
from .process import complain, explain_failure, print_traceback, reader_gone
from .screen import Screen


def complain_about(unit: OutputUnit, problem: Exception) -> None:
    """Print why one of several outputs failed.

    Raises:
        BrokenPipeError: The problem itself, where the reader of stdout or stderr has gone.
    """
    if isinstance(problem, BrokenPipeError) and reader_gone():
        raise problem
    if print_traceback(problem):
        return
    # many messages begin with the model already
    message, _ = explain_failure(problem)
    if not message.startswith(f"{unit.label} "):
        message = f"{unit.label}: {message}"
    complain(message)


class BatchView:
    """The view of a batch on a terminal."""

    def __init__(self, batch: Batch, screen: Screen, explain: bool) -> None:
        """Prepare the view of a batch.

        Args:
            batch: The outputs, planned together.
            screen: Where they are shown.
            explain: Whether all numbers and all runtimes are shown.
        """
        self.batch = batch
        self.screen = screen
        self.explain = explain

        self.is_list = batch.several and not batch.pair
        """Whether there are several models, each of which may fail on its own. False for a single
        model, and for a model with its draft (`pair`), which are shown as one."""

        self.short = self.is_list and not explain
        """Whether each output is shown in a few lines, and what they have in common once."""

    def show_plans(self) -> None:
        """Print the plans of --dry-run, and what publishing the outputs would do."""
        entries = []  # for the list on the screen
        documents = []  # for --json
        for unit, plan in self.batch.plans:
            validation = self.batch.validation_of(plan)  # whether `apply` would validate the output
            entries.append(BatchEntry(unit.label, plan, validating=validation.sentence))
            documents.append(plan.to_dict() | {"validating": validation.to_dict()})

        # each plan, in one line of a list (`short`) or in full
        if not self.screen.as_json:
            for unit, plan in self.batch.plans:
                self._show_planned(unit, plan)
        # the end of a list: what the outputs have in common, such as the runtimes
        if self.short:
            self._show_end(entries, planned=True)

        publication = self._show_publication()
        if self.screen.as_json:
            self._print_document(documents, publication)

    def write(self, probe: Probe | None) -> None:
        """Write the outputs, print each when it is finished, and publish them if that is asked.

        Args:
            probe: A process with the installed transformers, in which outputs are checked; None to
                start one where it is needed.
        """
        screen = self.screen
        entries = []
        documents = []
        for unit, output in self.batch.write(probe):
            assert isinstance(output.plan, Plan)
            entry = BatchEntry(unit.label, output.plan, output)
            entries.append(entry)
            documents.append(output.to_dict())
            self._show_written(unit, entry, output)

        # the end of a list: what the outputs have in common, such as the runtimes
        if self.is_list:
            self._show_end(entries, planned=False)

        url = self.batch.publish()
        if screen.as_json:
            publication = {"published": url} if url else {}
            self._print_document(documents, publication)
        elif url:
            screen.copyable(url)

        # A single output whose validation failed is kept, and the failure is printed here. (Of
        # several outputs, each failure was printed when it came. Any other failure of a single
        # output has ended the command.)
        if self.batch.one_failure_ends_all:
            for _, problem in self.batch.failures:
                complain(str(problem))

    def _show_planned(self, unit: OutputUnit, plan: Plan) -> None:
        """Print the plan of one output: its path with --quiet, one line in a list, or all of it.

        Args:
            unit: The output, as the user asked for it.
            plan: The plan of the output.
        """
        screen = self.screen
        if screen.quiet:
            screen.copyable(str(plan.out))
            return
        if self.short:
            show_entry(BatchEntry(unit.label, plan), screen)
            return

        # the plan, whether the output fits the machine, and a study of its method
        self._print_separator_before(unit)
        show_plan(plan, screen, self.explain)
        if plan.fit:
            screen.say(f"Fits: {plan.fit.sentence}")
        measured = quality(plan)
        if measured:
            screen.say(f"Quality: {measured}")
        screen.note(self.batch.validation_of(plan).sentence)  # whether `apply` validates the output

        # the files that `apply` would write; an output may only be published, and not kept here
        is_kept = not self.batch.publication_if_not_kept(plan)
        if is_kept:
            verb = "change" if plan.target.in_place else "write"
            screen.copyable(f"Would {verb} {plan.out}")
            if gets_modelfile(plan, self.batch.request.ollama):
                screen.copyable(f"Would write {modelfile_of(plan)}")
        if self.batch.adapter:
            screen.copyable(f"Would write {self.batch.adapter.out}")

    def _show_written(self, unit: OutputUnit, entry: BatchEntry, output: Output) -> None:
        """Print an output that was written, and the commands that follow.

        Args:
            unit: The output, as the user asked for it.
            entry: The output, as an entry of a list.
            output: The output with the results of its checks.
        """
        screen = self.screen
        # on stderr: why transformers or llama.cpp did not check the output; empty if it did
        why_not_checked = output.reason
        if why_not_checked and not self.short:
            screen.note(f"Not checked: {why_not_checked}.")
        if screen.as_json:  # one document for all outputs is printed at the end
            return

        if screen.quiet:
            # only the place: a page on the Hub, or a path
            screen.copyable(output.published or str(output.path))
        elif self.short:
            # one line in a list
            show_entry(entry, screen)
        else:
            self._print_separator_before(unit)
            show_plan(entry.plan, screen, self.explain)
            show_outcome(output, screen)
        if output.adapter:
            screen.note(f"The adapter with this base is in {output.adapter}.")

    def _show_end(self, entries: list[BatchEntry], planned: bool) -> None:
        """Print what outputs have in common, and how many there are."""
        screen = self.screen
        if self.short and entries and not screen.quiet and not screen.as_json:
            show_common(entries, screen)

        # outputs that could not be planned, those that could not be written, and all others
        refused = [unit.label for unit, _ in self.batch.refused]
        failed = [unit.label for unit, _ in self.batch.failures if unit.label not in refused]
        places = [entry.plan.out for entry in entries if entry.label not in failed]
        show_totals(places, refused, failed, planned, screen)

    def _show_publication(self) -> dict[str, Any]:
        """Print what publishing would do, and return it for the JSON document."""
        publication = self.batch.request.publication
        plans = [plan for _, plan in self.batch.plans]
        if publication is None or not plans or len(plans) != len(self.batch.units):
            return {}
        if self.screen.quiet and not self.screen.as_json:
            return {}
        upload = merge([planned_upload(plan) for plan in plans])
        return {"publication": show_preview(upload, publication, self.screen)}

    def _print_separator_before(self, unit: OutputUnit) -> None:
        """Print an empty line before an output, unless it is the first."""
        first_unit, _ = self.batch.plans[0]
        if unit is not first_unit:
            self.screen.say("")

    def _print_document(self, documents: list[dict[str, Any]], more: dict[str, Any]) -> None:
        """Print the JSON document: that of one output, or a list of outputs and of failures.

        Args:
            documents: The documents of the outputs.
            more: Further keys, about all of them.
        """
        further_keys = dict(more)
        if self.batch.adapter:
            further_keys["adapter"] = str(self.batch.adapter.out)

        # the document of a single output has no list around it, since most runs have one
        if not self.batch.several:
            (document,) = documents
            self.screen.data(document | further_keys)
            return
        failed = []
        for unit, problem in self.batch.failures:
            message, code = explain_failure(problem)
            failed.append(unit.to_dict() | {"error": message, "exit_code": code})
        self.screen.data({"outputs": documents, "failed": failed} | further_keys)
