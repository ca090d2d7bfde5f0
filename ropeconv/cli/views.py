"""How plans and inspections look on a terminal."""

from __future__ import annotations

import math

from ..bake import Plan
from ..encode import ConfigChoice
from ..encode.fold.placement import Fold
from ..inspection import Inspection
from ..rope.spec import RopeSpec
from ..runtimes.verdict import describe, frequencies
from ..validate.rule.result import Validation
from .output import Output


def show_plan(plan: Plan, output: Output, explain: bool = False) -> None:
    """Before and after, a verdict per runtime, the files."""
    before, schedule = plan.before, plan.schedule
    form = frequencies(schedule)
    rows = [
        ("frequencies", describe(before.form), form),
        ("slowest wavelength", *(f"{math.tau / vector[-1]:,.0f} tokens" for vector in _vectors(plan))),
        ("attention factor", f"{before.attention_factor:.6g}", f"{schedule.attention_factor:.6g}"),
        ("context", f"{before.context:,}", f"{schedule.context:,}"),
    ]
    output.table(f"{plan.source.reference} -> {plan.out}", ("", "before", "after"), rows)
    layers = _layers(before)
    output.say(f"Written as: {plan.choice.encoding}. {layers}")
    if isinstance(plan.choice, ConfigChoice) and plan.choice.fold:
        output.say(_folded(plan.choice.fold, plan.choice.in_config.attention_factor == schedule.attention_factor))
    output.say("")
    if explain:
        reasons = [(entry.encoding, "taken" if entry.taken else "", entry.because) for entry in plan.choice.considered]
        output.table("Encodings", ("encoding", "", "because"), reasons)
    verdicts = [(v.title, v.word, v.because) for v in plan.choice.verdicts]
    output.table("What each runtime makes of it", ("runtime", "", "because"), verdicts)
    output.table("Files", ("file", "", "bytes"), [(s.name, s.action, f"{s.size:,}") for s in plan.steps])
    for warning in plan.warnings:
        output.note(f"Note: {warning}")
    if plan.left_behind:
        output.note(f"Left behind (--all-files carries them): {', '.join(plan.left_behind)}")


def _folded(fold: Fold, amplitude_in_config: bool) -> str:
    tensors = len({scaling.tensor for scaling in fold.scalings})
    if amplitude_in_config:
        return f"{tensors} tensors are scaled, by a power of two."
    cost = f"; rounding costs a KL of about {fold.expected_kl:.0e}" if fold.expected_kl else ""
    return f"The amplitude is in {tensors} tensors ({fold.side}), the config has none{cost}."


def _vectors(plan: Plan) -> tuple[list[float], list[float]]:
    return list(plan.before.form.inv_freq(plan.before.rotary_dim)), list(plan.schedule.inv_freq)


def _layers(spec: RopeSpec) -> str:
    parts = [f"{spec.rotary_dim} of {spec.head_dim} dimensions rotate"]
    if spec.count("local"):
        parts.append(f"{spec.count('local')} window layers stay as they are")
    if spec.count("none"):
        parts.append(f"{spec.count('none')} layers do not rotate")
    return ", ".join(parts) + "."


def show_validation(result: Validation, title: str, output: Output) -> None:
    """A row per bucket, and the verdict."""
    columns = (
        "positions", "KL mean", "KL 95 %", "KL max", "allowed", "max |dlogit|", "top-1", "top-5", "unscaled source", "",
    )  # fmt: skip
    whole = title if result.unchecked else f"Every position up to {result.length:,}, {result.chunk} at a time"
    for run, words in (("spread", title), ("whole", whole)):
        rows = [
            (
                bucket.name, f"{bucket.kl_mean:.1e}", f"{bucket.kl_95:.1e}", f"{bucket.kl_max:.1e}",
                f"{bucket.tolerance:.1e}", f"{bucket.max_dlogit:.1e}", f"{bucket.top1:.1%}", f"{bucket.top5:.1%}",
                f"KL {bucket.control_kl:.1e}", "agrees" if bucket.agrees else "disagrees",
            )
            for bucket in result.buckets
            if bucket.run == run
        ]  # fmt: skip
        if rows:
            output.table(words, columns, rows)
    output.say(result.sentence)
    if result.unchecked:
        output.say(f"Not seen this way: {'; '.join(result.unchecked)}.")
    if result.precision_kl:
        output.say(f"In {result.dtype} the reference itself is a KL of {result.precision_kl:.1e} away from float32.")


def show_inspection(seen: Inspection, output: Output) -> None:
    """One table of facts and a list of problems."""
    spec = seen.spec
    rows = [
        ("family", f"{seen.name} ({seen.title})"),
        ("frequencies", describe(spec.form)),
        (
            "rotary_dim",
            f"{spec.rotary_dim} of head_dim {spec.head_dim}, {spec.layout} pairs{', MLA' if spec.mla else ''}",
        ),
        ("attention_factor", f"{spec.attention_factor:.6g}"),
        ("context", f"{spec.context:,}, trained for {spec.original_context:,}"),
        ("layers", _kinds(spec)),
    ]
    if spec.softmax_scale != 1:
        rows.append(("softmax_scale", f"{spec.softmax_scale:.6g}"))
    rows += [("note", note) for note in spec.notes]
    output.table(seen.source.reference, ("", ""), rows)
    if seen.refuse:
        output.say(f"Nothing can be baked for {seen.title}: {seen.refuse}.")
    for problem in seen.problems:
        output.say(f"! {problem.message}")
    if not seen.problems:
        output.say("No problems seen.")


def _kinds(spec: RopeSpec) -> str:
    local = f", theta {spec.local_form.theta:g}" if spec.local_form else ""
    words = {"global": "rotate", "local": f"rotate in a window{local}", "none": "do not rotate"}
    return "; ".join(f"{spec.count(kind)} {word}" for kind, word in words.items() if spec.count(kind))  # type: ignore[arg-type]
