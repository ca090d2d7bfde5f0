"""Shows plans as tables and sentences."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..bake.plan import Plan
from ..convert.encoding import CheckpointResult
from ..convert.fold import Fold
from ..formats.jsontext import JsonObject
from ..inspection.document import describe_layers
from ..rope.bound.reach import effective_length
from ..rope.errors import counted
from ..rope.forms import count_zero
from ..rope.lazy import Vector
from ..rope.on_top import rotating
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..runtimes.gguf_readers import find_any
from ..runtimes.grouping import grouped
from ..runtimes.verdict import describe, frequencies
from .sheet import PLAN, Sheet, legend, sentence, statuses

if TYPE_CHECKING:
    from ..inspection.receipts.receipt import CheckRecord
    from ..validate.validation import Validation


def show_plan(plan: Plan, sheet: Sheet, explain: bool = False) -> None:
    """Shows a plan: RoPE before and after, the verdicts, the files, and warnings.

    explain: every runtime with its reason, and why each encoding was selected or not.
    """
    before, schedule = plan.source_spec, plan.schedule
    vectors = (before.form.inv_freq(before.rotary_dim), schedule.inv_freq)
    rows = [
        ("frequencies", describe(before.form), frequencies(schedule)),
        ("slowest wavelength", *map(_slowest, vectors)),
        ("attention factor", f"{before.attention_factor:.6g}", f"{schedule.attention_factor:.6g}"),
        ("context", f"{before.context:,}", f"{schedule.context:,}"),
        ("effective length", *(_effective(one, before) for one in (before.current(), schedule))),
    ]
    still = [count_zero(vector) for vector in vectors]
    if any(still):
        rows.insert(2, ("pairs that do not rotate", *(f"{n} of {before.rotary_dim // 2}" for n in still)))
    sheet.table(f"{plan.source.reference} -> {plan.out}", ("", "before", "after"), rows)
    sheet.say(legend(PLAN, (name for name, *_ in rows)))
    for note in plan.notes:
        sheet.say(sentence(note))
    sheet.say(f"Encoding: {plan.result.encoding}. {_layers(before)}")
    if isinstance(plan.result, CheckpointResult) and plan.result.fold:
        sheet.say(_folded(plan.result.fold, plan.result.in_config.attention_factor == schedule.attention_factor))
    if plan.kv_cache:
        sheet.say(plan.kv_cache.sentence(schedule.context, before.context))
    sheet.say("")
    if explain:
        reasons = [(one.encoding, "selected" if one.selected else "", one.reason) for one in plan.result.considered]
        sheet.table("Encodings", ("encoding", "", "reason"), reasons)
    _show_runtimes(plan, sheet, explain)
    sheet.table(
        "Files", ("file", "", "bytes"), [(f.name, f.action, f"{f.size:,}") for f in plan.files], right=("bytes",)
    )
    for warning in plan.warnings:
        sheet.note(f"Note: {warning}")
    if plan.skipped:
        sheet.note(f"Skipped (--all-files copies them): {', '.join(plan.skipped)}")


def _effective(schedule: Schedule, spec: RopeSpec) -> str:
    """The effective length of a schedule for display. spec: of the model, whose windows count."""
    reached = effective_length(schedule, spec)
    return "all of it" if reached is None else f"{reached:,}"


def _slowest(inv_freq: Vector) -> str:
    """The longest wavelength of the pairs that rotate; "-" where none does."""
    rotating = inv_freq[inv_freq > 0]
    return f"{math.tau / rotating.min():,.0f} tokens" if len(rotating) else "-"


def _show_runtimes(plan: Plan, sheet: Sheet, explain: bool) -> None:
    """Shows a line for each named runtime and a line per status for the others; with `explain` a row per runtime."""
    verdicts = plan.result.verdicts
    if explain:
        rows = [(v.display_name, v.status, " ".join((v.grade, v.evidence.detail)), v.reason) for v in verdicts]
        sheet.table("Runtime support", ("runtime", "status", "evidence", "reason"), rows, optional=("evidence",))
        sheet.say(f"{statuses((v.status, '') for v in verdicts)}\n")
        return
    named = [row for name in plan.target.runtimes for row in find_any(name)]
    first = [v for v in verdicts if any(v.covers(row) for row in named)]
    others = [v for v in verdicts if v not in first]
    lines = [(str(v.status), v.display_name + (f": {v.reason}" if v.reason else "")) for v in first]
    assumed = isinstance(plan.result, CheckpointResult) and plan.result.family.assumed
    lines += grouped(others, plan.family if assumed else "")
    sheet.table("Runtime support", ("status", "runtimes"), lines)
    sheet.say(f"{statuses(lines)}\n")


def _folded(fold: Fold, attention_factor_in_config: bool) -> str:
    if attention_factor_in_config:
        return f"{counted(len(fold.tensors), 'tensor is', 'tensors are')} scaled, by a power of two."
    cost = f"; rounding costs a KL of about {fold.expected_kl:.0e}" if fold.expected_kl else ""
    where = counted(len(fold.tensors), "tensor")
    return f"The attention factor is in {where} ({fold.fold_into}), the config has none{cost}."


def _layers(spec: RopeSpec) -> str:
    rotates = spec.rotary_dim if spec.rotating_share == 1 else 2 * rotating(spec)
    return f"{rotates} of {spec.head_dim} dimensions rotate. Layers: {describe_layers(spec)}."


@dataclass
class Outcome:
    """The outcome of a plan.

    path: of the output, None where it was published from a temporary folder. check: by the installed transformers.
    proof: the validation. published: the URL of the commit, or empty. run: commands that run the output.
    """

    path: Path | None = None
    check: CheckRecord | None = None
    proof: Validation | None = None
    published: str = ""
    run: list[str] = field(default_factory=list)

    def to_dict(self) -> JsonObject:
        """The keys that `--json` prints in addition to those of the plan."""
        import msgspec

        check = None if self.check is None else msgspec.to_builtins(self.check)
        found: JsonObject = {"check": check, "run": self.run}
        if self.proof is not None:
            found["validation"] = self.proof.to_dict()
        if self.published:
            found["published"] = self.published
        return found


def show_outcome(plan: Plan, done: Outcome, sheet: Sheet) -> None:
    """Shows what became of a plan: the check, the place, how it is run, the validation, the publication.

    plan: that was executed. done: its outcome.
    """
    if done.check:
        loaded = "loads it and"
        if done.check.read_as:
            loaded = f"does not have its model_type; its {done.check.read_as}, given this config,"
        sheet.say(
            f"Checked: transformers {done.check.transformers} {loaded} computes the schedule "
            f"(within {done.check.max_ulp} ulp of float32, attention factor {done.check.attention_factor:.6f})."
        )
    if done.path:
        sheet.copyable(f"Changed {done.path} in place." if plan.target.in_place else f"Wrote {done.path}")
        if plan.source.kind == "config":
            sheet.say("It has no weights, as SOURCE has none: put its config.json in the place of the model's own.")
        for command in done.run:
            sheet.copyable(f"Run it with: {command}")
    if done.proof is not None:
        from .results import show_validation

        show_validation(done.proof, f"{done.path} against {plan.source.reference}, scaled at run time", sheet)
    if done.published:
        sheet.copyable(done.published)
