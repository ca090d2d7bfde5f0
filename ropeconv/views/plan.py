"""Plans, and the outputs that were made from them, as tables and sentences.

`show_plan` is the screen of a plan: `_show_summary` usually, `_show_details` with `--explain`.
`show_outcome` follows it once the output is written.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING

from ..bake.output import Output
from ..bake.plan import Plan
from ..convert.encoding import CheckpointResult
from ..convert.fold import Fold
from ..inspection.document import describe_layers
from ..inspection.support import count_others, support
from ..rope.bound.reach import effective_length
from ..rope.errors import counted
from ..rope.forms import Vector, count_zero
from ..rope.methods.method import Method
from ..rope.recipe import described_flags
from ..runtimes.askable import BEFORE_WRITING
from ..runtimes.gguf_readers import find_any
from ..runtimes.runtime import ALL, GOOD, canonical
from ..runtimes.verdict import Verdict, describe, frequencies
from .sheet import PLAN, Sheet, legend, sentence, statuses

if TYPE_CHECKING:
    from ..validate.validation import Validation


def show_plan(plan: Plan, sheet: Sheet, explain: bool = False) -> None:
    """Show a plan and its warnings."""
    if explain:
        _show_details(plan, sheet)
    else:
        _show_summary(plan, sheet)
    for warning in plan.warnings:
        sheet.note(f"Note: {sentence(warning)}")


def _show_summary(plan: Plan, sheet: Sheet) -> None:
    """Show the context, the runtimes that support it, and the cache."""
    rows, sentences = runtime_lines(plan)
    sheet.table(title(plan), ("", ""), rows)
    for line in sentences:
        sheet.say(line)
    # runtimes pad their caches and keep more than a window, so the two sizes would differ
    if plan.fit:
        sheet.say(plan.fit.detail)
    elif plan.kv_cache:
        sheet.say(plan.kv_cache.short(plan.context, plan.source_spec.context))


def runtime_lines(plan: Plan) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the table of runtimes that support a planned output, and the sentences below it.

    Returns:
        The rows of the table, such as ("supported", "vLLM 0.33, SGLang 0.5"), and sentences: on
        runtimes of --runtime that do not support the output, and on all other runtimes.
    """
    # the verdict on each runtime of --runtime, which may be written with a version: "vllm@0.33"
    named_verdicts = {}
    for name, verdict in _named_verdicts(plan).items():
        runtime, _, _version = name.partition("@")
        named_verdicts[runtime] = verdict

    # Some runtimes are loaded with the planned config before anything is written, if they are
    # installed on this machine (`BEFORE_WRITING`: vllm, mlx-lm, exllamav3). The row of such a
    # runtime says if it was not installed: its verdict is then from a table in ropeconv.
    not_installed_here = []
    for runtime, verdict in named_verdicts.items():
        is_loaded_if_installed = runtime in BEFORE_WRITING
        was_loaded_here = verdict.here
        if is_loaded_if_installed and not was_loaded_here:
            not_installed_here.append(runtime)

    verdicts = plan.result.verdicts
    rows = support(verdicts, named_verdicts, not_installed_here)
    sentences = [*named_problems(plan), count_others(verdicts, named_verdicts)]
    return rows, sentences


def named_problems(plan: Plan) -> list[str]:
    """Return sentences on the family, and on named runtimes that do not support the output."""
    sentences = []
    if isinstance(plan.result, CheckpointResult):
        family = plan.result.family
        if family.assumed:
            sentences.append(
                f"The model is treated as {plan.family}; this holds for runtimes that load it as"
                " such."
            )
        if family.derived:
            sentences.append(
                f"The family {plan.family} is derived from {family.derived}, which was run here."
            )

    # the runtimes that the user named
    for verdict in _named_verdicts(plan).values():
        is_supported = verdict.status in GOOD
        needs_attention = not is_supported or bool(verdict.options)
        if verdict.reason and needs_attention:
            sentences.append(f"{verdict.display_name}: {verdict.reason}.")
    return sentences


def title(plan: Plan) -> str:
    """Return a plan in a line: `Qwen3-8B: 40,960 -> 131,072 tokens with --yarn 4`."""
    before = plan.source_spec.context
    after = plan.context
    context = f"{before:,} -> {after:,}"
    if before == after:
        context = f"{after:,}"
    return f"{plan.source.reference}: {context} tokens with {described_recipe(plan)}"


def described_recipe(plan: Plan) -> str:
    """Return the recipe of a plan for people: `--yarn 128k (factor 4)`."""
    return described_flags(plan.recipe, plan.source_spec.original_context, plan.source_spec.context)


OTHER_TITLES = {
    "longrope": "LongRoPE factor lists",
    "inv-freq": "custom frequencies",
    "as-is": "the unchanged RoPE",
}
"""The names of methods whose summary does not begin with one."""


def method_title(method: type[Method]) -> str:
    """Return the name of a method for a sentence, such as "YaRN" or "position interpolation"."""
    if method.name in OTHER_TITLES:
        return OTHER_TITLES[method.name]
    # a summary begins with the name: "YaRN as every runtime computes it (ramp over dimensions)"
    return re.split(r" as |[:(,]", method.summary)[0].strip()


def _named_verdicts(plan: Plan) -> dict[str, Verdict]:
    """Return the verdicts on the runtimes that the user named, by `name` or `name@version`."""
    verdicts = {}
    for name in plan.target.runtimes:
        if canonical(name) == ALL:
            continue
        newest = find_any(name)[-1]
        for verdict in plan.result.verdicts:
            is_asked = verdict.here and verdict.runtime.startswith(f"{canonical(name)}@")
            if is_asked or verdict.covers(newest):
                verdicts[canonical(name)] = verdict
    return verdicts


def _show_details(plan: Plan, sheet: Sheet) -> None:
    """Show every number, encoding, runtime and file of a plan."""
    # the RoPE before and after
    before = plan.source_spec
    rows = _property_rows(plan)
    properties = [name for name, _, _ in rows]
    sheet.table(f"{plan.source.reference} -> {plan.out}", ("", "before", "after"), rows)
    sheet.say(legend(PLAN, properties))
    for note in plan.notes:
        sheet.say(sentence(note))

    # how it is written; a fold multiplies the attention factor into weights, and config.json may
    # then have none
    rotates = f"{2 * before.rotating_pairs} of {before.head_dim} dimensions rotate"
    sheet.say(f"Encoding: {plan.result.encoding}. {rotates}. Layers: {describe_layers(before)}.")
    if isinstance(plan.result, CheckpointResult) and plan.result.fold:
        factor_in_config = plan.result.in_config.attention_factor
        config_has_factor = factor_in_config == plan.schedule.attention_factor
        sheet.say(_describe_fold(plan.result.fold, config_has_factor))
    if plan.kv_cache:
        sheet.say(plan.kv_cache.sentence(plan.context, before.context))
    if plan.fit:
        sheet.say(plan.fit.detail)

    # the other ways to write it, where it runs, and the files
    _show_encodings(plan, sheet)
    _show_runtimes(plan, sheet)
    files = [(file.name, file.action, f"{file.size:,}") for file in plan.files]
    sheet.table("Files", ("file", "", "bytes"), files, right=("bytes",))
    if plan.tensor_types:
        counts = Counter(plan.tensor_types.values()).most_common()
        types = ", ".join(f"{count:,} {name}" for name, count in counts)
        sheet.say(f"Types of its tensors: {types}; --json has each of them.")
    if plan.skipped:
        sheet.note(f"Skipped (--all-files copies them): {', '.join(plan.skipped)}")


def _property_rows(plan: Plan) -> list[tuple[str, str, str]]:
    """Return the properties of the RoPE that a plan changes: name, before and after.

    Such as ("context", "32,768", "131,072").
    """
    before = plan.source_spec
    after = plan.schedule
    old_inv_freq = before.form.inv_freq(before.rotary_dim)
    new_inv_freq = after.inv_freq
    old_wavelength = _slowest_wavelength(old_inv_freq)
    new_wavelength = _slowest_wavelength(new_inv_freq)
    rows = [
        ("frequencies", describe(before.form), frequencies(after)),
        ("slowest wavelength", old_wavelength, new_wavelength),
    ]

    # pairs of dimensions whose frequency is 0
    old_still = count_zero(old_inv_freq)
    new_still = count_zero(new_inv_freq)
    if old_still or new_still:
        pairs = before.rotary_dim // 2
        name = "pairs that do not rotate"
        rows.append((name, f"{old_still} of {pairs}", f"{new_still} of {pairs}"))

    old_factor = f"{before.attention_factor:.6g}"
    new_factor = f"{after.attention_factor:.6g}"
    rows.append(("attention factor", old_factor, new_factor))
    rows.append(("context", f"{before.context:,}", f"{after.context:,}"))
    old_reach = _describe_reach(effective_length(before.current(), before))
    new_reach = _describe_reach(effective_length(after, before))
    rows.append(("effective length", old_reach, new_reach))
    return rows


def _describe_reach(length: int | None) -> str:
    """Return an effective length for display."""
    if length is None:
        return "all of it"
    return f"{length:,}"


def _show_encodings(plan: Plan, sheet: Sheet) -> None:
    """Show the encodings that were considered, and why."""
    rows = []
    for candidate in plan.result.considered:
        mark = "selected" if candidate.selected else ""
        rows.append((candidate.encoding, mark, candidate.reason))
    sheet.table("Encodings", ("encoding", "", "reason"), rows)


def _show_runtimes(plan: Plan, sheet: Sheet) -> None:
    """Show the verdict on every runtime."""
    rows = []
    for verdict in plan.result.verdicts:
        evidence = f"{verdict.grade} {verdict.evidence.detail}"
        rows.append((verdict.display_name, verdict.status, evidence, verdict.reason))
    columns = ("runtime", "status", "evidence", "reason")
    sheet.table("Runtime support", columns, rows, optional=("evidence",))
    meanings = statuses([(verdict.status, "") for verdict in plan.result.verdicts])
    sheet.say(f"{meanings}\n")


def _slowest_wavelength(inv_freq: Vector) -> str:
    """Return the longest wavelength of the pairs that rotate; "-" if none does."""
    rotating = inv_freq[inv_freq > 0]
    if not len(rotating):
        return "-"
    wavelength = math.tau / rotating.min()
    return f"{wavelength:,.0f} tokens"


def _describe_fold(fold: Fold, attention_factor_in_config: bool) -> str:
    """Return a sentence on the weights that have the factors of a schedule."""
    count = len(fold.tensors)
    if attention_factor_in_config:
        return f"{counted(count, 'tensor is', 'tensors are')} scaled, by a power of two."
    where = counted(count, "tensor")
    words = f"The attention factor is in {where} ({fold.fold_into}), the config has none"
    if fold.expected_kl:
        words += f"; rounding costs a KL of about {fold.expected_kl:.0e}"
    return f"{words}."


def _show_validated(validation: Validation, compared: str, sheet: Sheet) -> None:
    """Show the result of a validation: its sentence, and all numbers where it disagrees."""
    if validation.agrees:
        sheet.say(f"Validated on {validation.device}: {validation.sentence}")
        return
    from .results import show_validation

    show_validation(validation, f"{compared}, scaled at run time", sheet)


def show_outcome(output: Output, sheet: Sheet) -> None:
    """Show what became of a plan: the check, the place, the validation, and the next commands."""
    plan = output.plan
    assert isinstance(plan, Plan)

    # the check of the files, and where they are
    if output.check:
        sheet.say(f"Checked: {output.check.sentence}")
    if output.path:
        if plan.target.in_place and not output.was_complete:
            sheet.copyable(f"Changed {output.path} in place.")
        else:
            sheet.copyable(output.place)
        if plan.source.kind == "config":
            sheet.say("Only config.json was written. Copy it over the one in your model folder.")

    # whether the output computes the method, and where it was published
    if output.validation is not None:
        _show_validated(output.validation, f"{output.path} against {plan.source.reference}", sheet)
    if output.published:
        sheet.copyable(output.published)

    # a GGUF file that needs training, for which there is no command to start it
    needs_training = not plan.fine_tuning.may_work_untuned and not output.steps.train
    is_gguf_file = not plan.is_folder and output.path is not None
    if needs_training and is_gguf_file:
        sheet.say(
            "A GGUF file cannot be trained: fine-tune the checkpoint that it is from, and convert"
            " that."
        )

    # the next commands, and sentences in place of some of them
    for line in output.steps.answers():
        if "ropeconv " in line:  # a command, which is not wrapped
            sheet.copyable(line)
        else:
            sheet.say(line)
    for line in output.steps.lines():
        sheet.copyable(line)
