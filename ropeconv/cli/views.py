"""Prints plans, inspections and validations as tables and sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..bake import Plan
from ..encode import CheckpointResult
from ..encode.fold.placement import Fold
from ..inspection import Inspection, Problem
from ..rope.spec import RopeSpec
from ..runtimes.compare import describe, frequencies
from ..runtimes.gguf_readers import find_any
from ..runtimes.grouping import grouped
from ..validate.rule.validation import BucketResult, Validation
from .options import sentence
from .output import Output


def show_plan(plan: Plan, output: Output, explain: bool = False) -> None:
    """Prints a plan: RoPE before and after, the verdicts, the files, and warnings.

    explain: every runtime with its reason, and why each encoding was selected or not.
    """
    before, schedule = plan.before, plan.schedule
    wavelengths = (math.tau / vector[-1] for vector in (before.form.inv_freq(before.rotary_dim), schedule.inv_freq))
    rows = [
        ("frequencies", describe(before.form), frequencies(schedule)),
        ("slowest wavelength", *(f"{wavelength:,.0f} tokens" for wavelength in wavelengths)),
        ("attention factor", f"{before.attention_factor:.6g}", f"{schedule.attention_factor:.6g}"),
        ("context", f"{before.context:,}", f"{schedule.context:,}"),
    ]
    output.table(f"{plan.source.reference} -> {plan.out}", ("", "before", "after"), rows)
    for note in plan.notes:
        output.say(sentence(note))
    output.say(f"Encoding: {plan.result.encoding}. {_layers(before)}")
    if isinstance(plan.result, CheckpointResult) and plan.result.fold:
        output.say(_folded(plan.result.fold, plan.result.in_config.attention_factor == schedule.attention_factor))
    output.say("")
    if explain:
        reasons = [(one.encoding, "selected" if one.selected else "", one.reason) for one in plan.result.considered]
        output.table("Encodings", ("encoding", "", "reason"), reasons)
    _show_runtimes(plan, output, explain)
    output.table(
        "Files", ("file", "", "bytes"), [(f.name, f.action, f"{f.size:,}") for f in plan.files], right=("bytes",)
    )
    for warning in plan.warnings:
        output.note(f"Note: {warning}")
    if plan.skipped:
        output.note(f"Skipped (--all-files copies them): {', '.join(plan.skipped)}")


def _show_runtimes(plan: Plan, output: Output, explain: bool) -> None:
    """Prints a line for each named runtime and a line per status for the others; with `explain` a row per runtime."""
    verdicts = plan.result.verdicts
    if explain:
        rows = [(v.display_name, v.status, " ".join((v.grade, v.evidence.detail)), v.reason) for v in verdicts]
        output.table("Runtime support", ("runtime", "status", "evidence", "reason"), rows, optional=("evidence",))
        return
    named = [row for name in plan.target.runtimes for row in find_any(name)]
    first = [v for v in verdicts if any(v.covers(row) for row in named)]
    others = [v for v in verdicts if v not in first]
    lines = [(str(v.status), v.display_name + (f": {v.reason}" if v.reason else "")) for v in first]
    output.table("Runtime support", ("status", "runtimes"), [*lines, *grouped(others)])


def _folded(fold: Fold, attention_factor_in_config: bool) -> str:
    if attention_factor_in_config:
        return f"{len(fold.tensors)} tensors are scaled, by a power of two."
    cost = f"; rounding costs a KL of about {fold.expected_kl:.0e}" if fold.expected_kl else ""
    return f"The attention factor is in {len(fold.tensors)} tensors ({fold.fold_into}), the config has none{cost}."


def _layers(spec: RopeSpec) -> str:
    parts = [f"{spec.rotary_dim} of {spec.head_dim} dimensions rotate"]
    if spec.count("local"):
        parts.append(f"{spec.count('local')} window layers stay as they are")
    if spec.count("none"):
        parts.append(f"{spec.count('none')} layers do not rotate")
    return ", ".join(parts) + "."


COLUMNS = (
    "positions", "KL mean", "KL 95 %", "KL max", "allowed", "max |dlogit|", "top-1", "top-5", "unscaled source", "",
)  # fmt: skip
OPTIONAL = ("KL max", "max |dlogit|", "top-5", "KL mean", "top-1")


def show_validation(result: Validation, title: str, output: Output) -> None:
    """Prints a validation: a row per bucket of positions with whether it agrees, and the sentence on the result.

    title: of the first table.
    """
    whole = title if result.unchecked else f"Every position up to {result.length:,}, {result.chunk} at a time"
    for run, words in (("spread", title), ("whole", whole)):
        rows = [_bucket(bucket) for bucket in result.buckets if bucket.run == run]
        if rows:
            output.table(words, COLUMNS, rows, optional=OPTIONAL)
    output.say(result.sentence)
    if result.unchecked:
        output.say(f"Not seen this way: {'; '.join(result.unchecked)}.")
    if result.precision_kl:
        output.say(f"In {result.dtype} the reference itself is a KL of {result.precision_kl:.1e} away from float32.")


def _bucket(bucket: BucketResult) -> tuple[str, ...]:
    return (
        bucket.name, f"{bucket.kl_mean:.1e}", f"{bucket.kl_95:.1e}", f"{bucket.kl_max:.1e}", f"{bucket.tolerance:.1e}",
        f"{bucket.max_dlogit:.1e}", f"{bucket.top1:.1%}", f"{bucket.top5:.1%}", f"KL {bucket.control_kl:.1e}",
        "agrees" if bucket.agrees else "disagrees",
    )  # fmt: skip


def show_inspection(seen: Inspection, output: Output, repairs: Iterable[Problem] = ()) -> None:
    """Prints an inspection: a table of the RoPE, the runtimes, and a sentence per problem with its repair.

    repairs: what would help runtimes that do not read it right.
    """
    repairs = tuple(repairs)
    spec = seen.spec
    pairs = "rotate_half" if spec.layout == "half" else "interleaved"
    rows = [
        ("family", f"{seen.name} ({seen.display_name})"),
        ("frequencies", describe(spec.form)),
        ("rotary_dim", f"{spec.rotary_dim} of head_dim {spec.head_dim}, {pairs}{', MLA' if spec.mla else ''}"),
        ("attention_factor", f"{spec.attention_factor:.6g}"),
        ("context", f"{spec.context:,}, trained for {spec.original_context:,}"),
        ("layers", _kinds(spec)),
    ]
    if spec.softmax_scale != 1:
        rows.append(("softmax_scale", f"{spec.softmax_scale:.6g}"))
    rows += [("note", note) for note in spec.notes]
    output.table(seen.source.reference, ("", ""), rows)
    if seen.refuse:
        output.say(f"Nothing can be baked for {seen.display_name}: {seen.refuse}.")
    if seen.verdicts:
        output.table("Who reads it right as it is", ("status", "runtimes"), grouped(seen.verdicts))
    for problem in (*seen.problems, *repairs):
        repair = f" -> ropeconv apply {seen.source.reference} {problem.repair}" if problem.repair else ""
        output.say(f"! {problem.message}{repair}")
    if not seen.problems and not repairs:
        output.say("No problems seen.")


def _kinds(spec: RopeSpec) -> str:
    local = f", theta {spec.local_form.theta:.12g}" if spec.local_form else ""
    words = {"global": "rotate", "local": f"rotate in a window{local}", "none": "do not rotate"}
    return "; ".join(f"{spec.count(kind)} {word}" for kind, word in words.items() if spec.count(kind))  # type: ignore[arg-type]
