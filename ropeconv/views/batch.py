"""Shows the outputs of one command: a short block for each, and then once what several of them have
in common.
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
    """Shows an output: what it becomes, where it is or would be, and how it is checked."""
    plan, done = entry.plan, entry.done
    sheet.say(title(plan))
    in_place = plan.target.in_place
    if done is None:
        sheet.copyable(f"Would {'change' if in_place else 'write'} {plan.out}")
    elif done.published:
        sheet.copyable(done.published)
    else:
        sheet.copyable(f"Changed {done.path} in place." if in_place else f"Wrote {done.path}")
        if done.steps.check:  # which is left to the user
            sheet.copyable(f"Check: {done.steps.check}")


def show_common(entries: Sequence[BatchEntry], sheet: Sheet) -> None:
    """Shows runtimes, checks and warnings once each, with the outputs that they hold for."""
    labels = [entry.label for entry in entries]
    runtimes: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for entry in entries:
        rows, _ = runtime_lines(entry.plan)
        runtimes.setdefault(tuple(rows), []).append(entry.label)
    for rows_of_group, held in runtimes.items():
        sheet.say("")
        sheet.table(f"Runtimes, {_holders(held, labels)}", ("", ""), rows_of_group)
    sheet.say("Other runtimes, caches and files: --explain.")

    checks: dict[str, list[str]] = {}
    for entry in entries:
        if entry.done is not None:
            checks.setdefault(_check(entry.done), []).append(entry.label)
    for words, held in checks.items():
        if words:
            sheet.say(f"{words} ({_holders(held, labels)}).")
    _show_validations(entries, labels, sheet)

    warnings: dict[str, list[str]] = {}
    for entry in entries:
        named = named_problems(entry.plan)
        for warning in (*named, *entry.plan.warnings):
            warnings.setdefault(sentence(warning), []).append(entry.label)
    for words, held in warnings.items():
        sheet.note(f"Note ({_holders(held, labels)}): {words}")


def _show_validations(entries: Sequence[BatchEntry], labels: Sequence[str], sheet: Sheet) -> None:
    """Shows what validations found, or which ones will follow."""
    found: dict[str, list[str]] = {}
    planned: dict[str, list[str]] = {}
    for entry in entries:
        if entry.done is not None and entry.done.validation is not None:
            validation = entry.done.validation
            words = f"Validated on {validation.device}: {validation.sentence}"
            found.setdefault(words, []).append(entry.label)
        elif entry.validating:
            planned.setdefault(entry.validating, []).append(entry.label)
    for words, held in found.items():
        sheet.say(f"{words.removesuffix('.')} ({_holders(held, labels)}).")
    for words, held in planned.items():
        sheet.note(f"{words.removesuffix('.')} ({_holders(held, labels)}).")


def _check(done: Output) -> str:
    """Return the result of the check, without the full stop; empty where there was none."""
    if done.reason:
        return f"Not checked: {done.reason}"
    if done.check is None:
        return ""
    return f"Checked: {done.check.result}"


def _holders(held: Sequence[str], labels: Sequence[str]) -> str:
    """The outputs that something holds for: `all 3`, or their names."""
    return f"all {len(labels)}" if len(held) == len(labels) > 1 else ", ".join(held)


def show_totals(
    made: Sequence[Path], refused: Sequence[str], failed: Sequence[str], planned: bool, sheet: Sheet
) -> None:
    """Shows how many outputs were made, refused and failed, and where they are.

    made: their places. refused, failed: labels of those that could not be planned, and of those
    whose run failed. planned: whether nothing was to be written.
    """
    count = len(made) + len(refused) + len(failed)
    folders = list(dict.fromkeys(str(path.parent) for path in made))
    where = f", in {', '.join(folders)}" if folders and folders != ["."] else ""
    verb = "would be made" if planned else "were made"
    words = [f"{len(made)} of {count} outputs {verb}{where}"]
    for name, labels in (("refused", refused), ("failed", failed)):
        if labels:
            words.append(f"{name}: {', '.join(dict.fromkeys(labels))}")
    sheet.note(f"{'; '.join(words)}.")
