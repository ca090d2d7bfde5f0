"""The outputs of one command on a screen.

`show_entry` shows each in a short block, `show_common` then shows once what several of them have in
common, and `show_totals` says how many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..bake.output import Output
from ..bake.plan import Plan
from .plan import named_problems, runtime_lines, title
from .sheet import Sheet, sentence


@dataclass(frozen=True)
class BatchEntry:
    """One of several outputs."""

    label: str
    """The source as the user named it, with format and type where it has several outputs."""

    plan: Plan
    done: Output | None = None
    """The output that was written; None where nothing was."""

    validating: str = ""
    """Whether and how a planned output is validated, in words."""


def show_entry(entry: BatchEntry, sheet: Sheet) -> None:
    """Show an output: what it becomes, where it is or would be, and how it is checked."""
    plan = entry.plan
    sheet.say(title(plan))

    # only planned
    output = entry.done
    if output is None:
        verb = "change" if plan.target.in_place else "write"
        _show_fit_problem(plan, sheet)
        sheet.copyable(f"Would {verb} {plan.out}")
        return

    # published: the URL of the commit
    if output.published:
        sheet.copyable(output.published)
        return

    # written on this machine, now or by an earlier run
    was_changed_now = plan.target.in_place and not output.was_complete
    if was_changed_now:
        sheet.copyable(f"Changed {output.path} in place.")
    else:
        sheet.copyable(output.place)  # such as "Wrote out/model.gguf"
    _show_fit_problem(plan, sheet)
    if output.steps.check:  # a command for the user
        sheet.copyable(f"Check: {output.steps.check}")


def _show_fit_problem(plan: Plan, sheet: Sheet) -> None:
    """Show that an output does not fit the machine; one that fits has no line in a list."""
    fit = plan.fit
    if fit is not None and not fit.fits:
        sheet.say(f"Fits: {fit.sentence}")


def show_common(entries: Sequence[BatchEntry], sheet: Sheet) -> None:
    """Show runtimes, checks and warnings once each, with the outputs that they hold for.

    A warning that holds for two of three outputs is one line: "Note (llama-f16, llama-q8_0): ...".

    Args:
        entries: The outputs, written or planned, each with its label.
        sheet: Where it is shown.
    """
    all_labels = [entry.label for entry in entries]

    # outputs with the same runtimes share a table
    by_table: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for entry in entries:
        rows, _ = runtime_lines(entry.plan)
        by_table.setdefault(tuple(rows), []).append(entry.label)
    for table, labels in by_table.items():
        sheet.say("")
        sheet.table(f"Runtimes, {_name_outputs(labels, all_labels)}", ("", ""), table)
    sheet.say("Other runtimes, caches and files: --explain.")

    # outputs with the same result of their check share a sentence
    checks: dict[str, list[str]] = {}
    for entry in entries:
        if entry.done is not None:
            checks.setdefault(_describe_check(entry.done), []).append(entry.label)
    for words, labels in checks.items():
        if words:
            sheet.say(f"{words} ({_name_outputs(labels, all_labels)}).")
    _show_validations(entries, all_labels, sheet)

    # and so do those with the same warning
    warnings: dict[str, list[str]] = {}
    for entry in entries:
        named = named_problems(entry.plan)
        for warning in (*named, *entry.plan.warnings):
            warnings.setdefault(sentence(warning), []).append(entry.label)
    for words, labels in warnings.items():
        sheet.note(f"Note ({_name_outputs(labels, all_labels)}): {words}")


def _show_validations(
    entries: Sequence[BatchEntry], all_labels: Sequence[str], sheet: Sheet
) -> None:
    """Show what validations found, or which ones will follow.

    Outputs with the same result share a sentence: "Validated on cpu: PASS ... (all 3)."

    Args:
        entries: The outputs.
        all_labels: The labels of all outputs, such as "llama (gguf f16)".
        sheet: Where it is shown.
    """
    # the labels of outputs, by the sentence that holds for them
    labels_by_result: dict[str, list[str]] = {}
    labels_by_plan: dict[str, list[str]] = {}
    for entry in entries:
        if entry.done is not None and entry.done.validation is not None:
            validation = entry.done.validation
            result = f"Validated on {validation.device}: {validation.sentence}"
            labels_by_result.setdefault(result, []).append(entry.label)
        elif entry.validating:
            planned = entry.validating  # such as "It will be validated on cpu, ..."
            labels_by_plan.setdefault(planned, []).append(entry.label)
    for result, labels in labels_by_result.items():
        sheet.say(f"{result.removesuffix('.')} ({_name_outputs(labels, all_labels)}).")
    for planned, labels in labels_by_plan.items():
        sheet.note(f"{planned.removesuffix('.')} ({_name_outputs(labels, all_labels)}).")


def _describe_check(output: Output) -> str:
    """Return the result of the check, without the full stop; empty where there was none."""
    if output.reason:
        return f"Not checked: {output.reason}"
    if output.check is None:
        return ""
    return f"Checked: {output.check.result}"


def _name_outputs(labels: Sequence[str], all_labels: Sequence[str]) -> str:
    """Return the outputs that a sentence holds for: `all 3`, or their labels."""
    if len(all_labels) > 1 and len(labels) == len(all_labels):
        return f"all {len(all_labels)}"
    return ", ".join(labels)


def show_totals(
    made: Sequence[Path], refused: Sequence[str], failed: Sequence[str], planned: bool, sheet: Sheet
) -> None:
    """Show how many outputs were made, refused and failed, and where they are.

    Args:
        made: The places of those that were made.
        refused: The labels of those that could not be planned.
        failed: The labels of those whose run failed.
        planned: Whether nothing was to be written.
        sheet: Where it is shown.
    """
    count = len(made) + len(refused) + len(failed)
    verb = "would be made" if planned else "were made"
    words = f"{len(made)} of {count} outputs {verb}"
    folders = list(dict.fromkeys(str(path.parent) for path in made))
    if folders and folders != ["."]:
        words += f", in {', '.join(folders)}"
    if refused:
        words += f"; refused: {', '.join(dict.fromkeys(refused))}"
    if failed:
        words += f"; failed: {', '.join(dict.fromkeys(failed))}"
    sheet.note(f"{words}.")
