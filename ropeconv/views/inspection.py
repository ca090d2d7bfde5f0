"""Shows inspections as tables and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..bake.start import nothing_to_extend
from ..inspection.document import Problem, describe_layers
from ..inspection.inspection import Inspection
from ..inspection.receipts.receipt import Receipt
from ..inspection.receipts.storage import commands, facts_of
from ..inspection.support import POPULAR, WORDS, group_by_status, others, support
from ..models.config import modality_note
from ..models.gguf import GgufSource
from ..models.source import Source
from ..rope.errors import command_line, counted
from ..rope.lengths import factor_text, format_tokens
from ..rope.schedule import QueryScaling
from ..rope.spec import RopeSpec
from ..runtimes.drafts import draft_sizes, header_sizes, mtp_note
from ..runtimes.verdict import describe
from .sheet import Sheet, statuses

if TYPE_CHECKING:
    from ..inspection.adapter import Adapter
    from ..inspection.compatibility import Compatibility
    from ..inspection.side_by_side import FrequencyDifference, RopeDifference, Side


def show_inspection(
    inspection: Inspection, sheet: Sheet, repairs: Iterable[Problem] = (), explain: bool = False
) -> None:
    """Show an inspection.

    It has the RoPE, the runtimes that support it, and a sentence per problem with its repair.

    Args:
        inspection: The inspection.
        sheet: The sheet that shows it.
        repairs: Problems with repairs that would help runtimes that do not support it.
        explain: Whether every number and every runtime is shown.
    """
    if explain:
        _show_details(inspection, sheet, tuple(repairs))
    else:
        _show_summary(inspection, sheet)
    reference = inspection.source.reference
    if inspection.refuse:
        sheet.say(f"ropeconv cannot extend {inspection.display_name}: {inspection.refuse}.")
    for problem in inspection.problems:
        sheet.say(f"! {problem.message}")
        if problem.repair:
            sheet.copyable(f"Fix: {command_line('apply', reference)} {problem.repair}")
    if not inspection.problems:
        sheet.say("No problems found.")
    _show_next(inspection, sheet, explain)


def _show_next(inspection: Inspection, sheet: Sheet, explain: bool) -> None:
    """Show the next command."""
    reference = inspection.source.reference
    if inspection.draft:
        covers = factor_text(4 * inspection.spec.context)
        command = command_line("apply", "TARGET", "--yarn", covers, "--draft", reference)
        sheet.copyable(f"Next: {command}")
        return
    if inspection.refuse or explain:
        return
    declared = inspection.spec.context
    longer = 4 * inspection.first_spec.original_context
    if longer <= declared:
        longer = 2 * declared
    unseen = nothing_to_extend(inspection, longer)
    if unseen:
        sheet.say(f"It cannot be extended: {unseen}.")
    else:
        command = command_line("advise", reference, "--context", format_tokens(longer))
        sheet.copyable(f"Next: {command}")


def _show_summary(inspection: Inspection, sheet: Sheet) -> None:
    """Show the RoPE, and the popular runtimes that support it."""
    spec = inspection.spec
    rope = describe(spec.form)
    if spec.attention_factor != 1:
        rope += f", attention factor {spec.attention_factor:.6g}"
    rotates = f"{2 * spec.rotating_pairs} of {spec.head_dim} dimensions"
    context = f"{spec.context:,} tokens, trained: {spec.original_context:,}"
    if spec.original_context_source == "declared":
        context += " (assumed)"
    if inspection.kv_cache:
        size, _, _ = inspection.kv_cache.sizes(spec.context).partition(", ")
        context += f"; KV cache {size}"

    rows = [
        *_draft(inspection),
        ("family", inspection.name),
        ("RoPE", rope),
        ("rotates", f"{rotates}; layers: {describe_layers(spec)}"),
        ("context", context),
        *_parts(inspection),
    ]
    if inspection.encoder:
        rows.append(("encoder", _encoder(inspection)))
    if inspection.custom_code:
        rows.append(("code", "config.json can make a runtime run code (--explain)"))
    sheet.table(inspection.source.reference, ("", ""), [*rows, *support(inspection.verdicts)])
    if inspection.verdicts:
        sheet.say(others(inspection.verdicts))


def _encoder(inspection: Inspection) -> str:
    """The row of an encoder: its results, and how its output is checked."""
    gives = "embeddings, and no next token" if inspection.kv_cache else "no KV cache"
    if isinstance(inspection.source, GgufSource):
        return gives
    return f"{gives}; `validate` compares hidden states"


def _draft(inspection: Inspection) -> list[tuple[str, str]]:
    """The row of a draft model."""
    if inspection.draft is None:
        return []
    says = f"{inspection.draft.says}, not a whole model"
    source = inspection.source
    sizes: dict[str, object] = {}
    if isinstance(source, Source):
        sizes = draft_sizes(source.config())
    elif isinstance(source, GgufSource):
        sizes = header_sizes(source.file)
    words = " and ".join(f"{name} {size}" for name, size in sizes.items() if size)
    return [("draft", f"{says}; for a model with {words}" if words else says)]


def _parts(inspection: Inspection) -> list[tuple[str, str]]:
    """The rows of layers that predict further tokens, and of the parts for images and sounds."""
    config = inspection.source.config() if isinstance(inspection.source, Source) else {}
    notes = {
        "MTP": mtp_note(config),
        "modalities": modality_note(config, inspection.spec.mrope_section),
    }
    return [(name, note) for name, note in notes.items() if note and not inspection.draft]


def _show_details(inspection: Inspection, sheet: Sheet, repairs: tuple[Problem, ...]) -> None:
    """Show every number of the RoPE, every runtime, and what would repair their support."""
    family = ("family", f"{inspection.name} ({inspection.display_name})")
    rows = [*_draft(inspection), family, *_rows(inspection.spec), *_parts(inspection)]
    if inspection.encoder:
        rows.append(("encoder", _encoder(inspection)))
    if inspection.kv_cache:
        rows.append(("KV cache", inspection.kv_cache.sizes(inspection.spec.context)))
    for note in (*inspection.spec.notes, inspection.custom_code):
        if note:
            rows.append(("note", note))
    sheet.table(inspection.source.reference, ("", ""), rows)
    if inspection.verdicts:
        read_as = inspection.name if inspection.assumption else ""
        lines = group_by_status(inspection.verdicts, read_as)
        sheet.table("Runtime support", ("status", "runtimes"), lines)
        sheet.say(f"{statuses(lines)}\n")

    fixes = [(problem.message, problem.repair or "") for problem in repairs]
    if fixes:
        sheet.table("Fixable runtimes", ("runtime", "ropeconv apply SOURCE"), fixes)
    if any("--replace" in repair for _, repair in fixes):
        sheet.say(
            "--replace gives the model a RoPE that it was not trained with; evaluate the result."
        )


def _rows(spec: RopeSpec) -> Iterator[tuple[str, str]]:
    """Yield the rows of a RoPE."""
    yield "frequencies", describe(spec.form)
    dims = f"{spec.rotary_dim} of head_dim {spec.head_dim}"
    pairs = "rotate_half" if spec.layout == "half" else "interleaved"
    yield "rotary_dim", f"{dims}, {pairs}, MLA" if spec.mla else f"{dims}, {pairs}"
    if spec.rotating_share < 1:
        still = spec.rotary_dim // 2 - spec.rotating_pairs
        yield "pairs that do not rotate", f"{still} of {spec.rotary_dim // 2}, by architecture"
    yield "attention_factor", f"{spec.attention_factor:.6g}"
    if spec.softmax_scale != 1:
        yield "softmax_scale", f"{spec.softmax_scale:.6g}"
    yield "context", f"{spec.context:,} declared"
    yield "original_context", f"{spec.original_context:,}, {original_context_source(spec)}"
    yield "layers", describe_layers(spec)
    if spec.query_scaling:
        yield "query scaling", _scaling(spec.query_scaling, "p")
    if spec.nope_query_scaling:
        scaling = _scaling(spec.nope_query_scaling, "(p + 1)")
        yield "query scaling", f"{scaling} on the layers that do not rotate"
    if spec.mrope_section:
        yield "mrope_section", ", ".join(str(count) for count in spec.mrope_section)


def original_context_source(spec: RopeSpec) -> str:
    """How the original context of a model is known, in words."""
    return {
        "config": "by original_max_position_embeddings",
        "header": "by the header",
        "receipt": "by the receipt",
        "family": f"see {spec.original_context_reference}",
        "factor": "the declared context divided by the factor",
        "declared": "assumed; the config declares no other length",
    }[spec.original_context_source]


def _scaling(scaling: QueryScaling, position: str) -> str:
    """A scaling of queries as a formula."""
    return f"1 + {scaling.beta:g} ln(1 + floor({position} / {scaling.length:,}))"


def show_receipt(receipt: Receipt, sheet: Sheet) -> None:
    """Shows a receipt, but for the validations in it."""
    source = receipt.first
    facts = {"Source": source.reference or source.name} | facts_of(receipt)
    if receipt.check:
        read_as = f", as {receipt.check.read_as}," if receipt.check.read_as else ""
        facts["Checked"] = (
            f"transformers {receipt.check.transformers}{read_as} computes it within"
            f" {receipt.check.max_ulp} ulp of float32"
        )
    sheet.table("How it was made", ("", ""), list(facts.items()))
    for command in commands(receipt):
        sheet.copyable(command)
    lines = group_by_status(receipt.runtimes, receipt.source.family)
    if lines:
        sheet.table("Runtime support", ("status", "runtimes"), lines)
        sheet.say(statuses(lines))
    show_evaluations(receipt, sheet)
    if not (receipt.validation or receipt.servers):
        sheet.say("Not validated yet; run `ropeconv validate OUTPUT`.")
    if not receipt.evaluations:
        sheet.say("Not evaluated yet; run `ropeconv eval OUTPUT --text FILE`.")


def show_evaluations(receipt: Receipt, sheet: Sheet) -> None:
    """Shows the evaluations in a receipt, a table each."""
    for record in receipt.evaluations:
        from .results import evaluation_table  # brings code that runs models

        table = evaluation_table(record)
        columns = ("", *(f"{length:,}" for length in table.lengths))
        rows = [(name, *(cell.replace("**", "") for cell in cells)) for name, cells in table.lines]
        sheet.table(f"Evaluated on {record.described_texts}", columns, rows, right=columns[1:])


def show_adapter(adapter: Adapter, sheet: Sheet) -> None:
    """Shows a PEFT adapter, and the RoPE that it was trained with."""
    trained = adapter.trained_on
    name = adapter.source.reference
    if trained:
        rope = f"{describe(trained.spec.form)}; {trained.spec.context:,} tokens"
    else:
        rope = "unknown: no base here"
    rows = [
        ("adapter", f"{adapter.kind}, not a whole model"),
        ("base", adapter.base or "not named"),
        ("modules", adapter.modules),
        ("RoPE of the base", rope),
    ]
    sheet.table(name, ("", ""), rows)
    sheet.copyable(f"Next: {command_line('compare', 'MODEL', name)}")


def show_compatibility(compatibility: Compatibility, sheet: Sheet) -> None:
    """Show models beside the base of their merge, and adapters.

    Below is a sentence per difference with its repair.
    """
    rows = [_model_row("base", compatibility.base)]
    for model in compatibility.models:
        rows.append(_model_row("", model))
    for adapter, over in compatibility.adapters:
        rope, context = "unknown", ""
        if adapter.trained_on:
            spec = adapter.trained_on.spec
            rope, context = describe(spec.form), f"{spec.context:,}"
        name = f"{adapter.source.reference} over {over.source.reference}"
        rows.append(("adapter", name, rope, context))
    columns = ("", "model", "RoPE", "context")
    sheet.table("", columns, rows, optional=("context",), right=("context",))

    for misfit in compatibility.misfits:
        if misfit.repair.startswith("ropeconv "):
            sheet.say(f"! {misfit.name} {misfit.message}")
            sheet.copyable(f"Fix: {misfit.repair}")
        else:
            sheet.say(f"! {misfit.name} {misfit.message}; {misfit.repair}")
    for note in compatibility.notes:
        sheet.say(note)
    sheet.say(compatibility.sentence)


def _model_row(mark: str, model: Inspection) -> tuple[str, str, str, str]:
    """The row of a model: what it is, its name, its RoPE and its context."""
    spec = model.spec
    return mark, model.source.reference, describe(spec.form), f"{spec.context:,}"


def show_comparison(difference: RopeDifference, sheet: Sheet, explain: bool = False) -> None:
    """Show how two models differ: the properties, the frequencies, and the runtimes.

    Args:
        difference: The difference.
        sheet: The sheet that shows it.
        explain: Whether properties that are equal, and every runtime are shown.
    """
    sides = (difference.first, difference.second)
    for name, side in zip("AB", sides, strict=True):
        sheet.copyable(f"{name}: {side.inspection.source.reference}")
    _show_properties(difference, sheet, explain)
    named = {
        "Frequencies": difference.frequencies,
        "Frequencies within the trained context": difference.short_frequencies,
        "Frequencies of window layers": difference.window_frequencies,
    }
    for title, vector in named.items():
        if vector is not None and explain:
            sheet.say(f"{title}: {_vector(vector)}")
    if difference.frequencies is None:
        pairs = [side.spec.rotary_dim // 2 for side in sides]
        sheet.say(
            f"Frequencies: not compared, A rotates {counted(pairs[0], 'pair')} and B {pairs[1]}."
        )
    _show_runtimes(difference, sheet, explain)
    for remark in difference.remarks:
        sheet.say(remark)
    sheet.say(difference.sentence)


def _show_properties(difference: RopeDifference, sheet: Sheet, explain: bool) -> None:
    """Show a row per property of two models, without `explain` those that differ."""
    first = _values(difference.first)
    second = _values(difference.second)
    rows = []
    for key, title in PROPERTIES.items():
        differs = key in difference.differs
        if not explain and not differs:
            continue
        if not first[key] and not second[key]:
            continue
        row = [title, first[key], second[key]]
        if explain:
            row.append("differs" if differs else "")
        rows.append(row)
    if rows:
        columns = ("", "A", "B", "") if explain else ("", "A", "B")
        sheet.table("", columns, rows)


def _show_runtimes(difference: RopeDifference, sheet: Sheet, explain: bool) -> None:
    """Show the support of two models by runtimes, without `explain` by popular ones that differ."""
    if not explain:
        _show_changed_runtimes(difference, sheet)
        return
    rows = []
    known = []
    for pair in difference.runtimes:
        a, b = pair.statuses
        rows.append((pair.display_name, a or "-", b or "-"))
        known += [(status, "") for status in (a, b) if status]
    sheet.table("Runtime support", ("newest version", "A", "B"), rows)
    sheet.say(f"{statuses(known)}\n")


def _show_changed_runtimes(difference: RopeDifference, sheet: Sheet) -> None:
    """Show the popular runtimes that support two models differently."""
    rows = []
    for pair in difference.runtimes:
        a, b = pair.statuses
        name, _, _ = pair.runtime.partition("@")
        if a != b and name in POPULAR:
            rows.append((pair.display_name, WORDS.get(a or "", "-"), WORDS.get(b or "", "-")))
    if rows:
        sheet.table("", ("runtime", "A", "B"), rows)


PROPERTIES = {
    "family": "family",
    "frequencies": "frequencies",
    "attention_factor": "attention factor",
    "softmax_scale": "softmax scale",
    "query_scaling": "query scaling",
    "context": "context",
    "original_context": "trained for",
    "layers": "layers",
    "window_frequencies": "window layers",
    "window_attention_factor": "their attention factor",
    "rotary_dim": "rotary_dim",
    "mla": "attention",
    "layout": "pairs",
}
"""The titles of the properties of a model, by their names."""


def _values(side: Side) -> dict[str, str]:
    """The properties of a model in words, by name; empty for nothing to say."""
    spec = side.spec
    values = dict.fromkeys(PROPERTIES, "")
    values["family"] = side.inspection.name
    values["frequencies"] = describe(spec.form)
    values["attention_factor"] = f"{spec.attention_factor:.6g}"
    if side.folded:
        values["attention_factor"] += " (partly in the weights)"
    if spec.softmax_scale != 1:
        values["softmax_scale"] = f"{spec.softmax_scale:.6g}"
    if spec.query_scaling:
        gain = f"{spec.query_scaling.gain:.6g}"
        beta = f"{spec.query_scaling.beta:.6g}"
        length = f"{spec.query_scaling.length:,}"
        values["query_scaling"] = f"{gain} (1 + {beta} ln(1 + floor(p / {length})))"
    values["context"] = f"{spec.context:,}"
    values["original_context"] = f"{spec.original_context:,}"
    values["layers"] = _layers(spec)
    if spec.local_form:
        values["window_frequencies"] = describe(spec.local_form)
    if side.window_attention_factor != 1:
        values["window_attention_factor"] = f"{side.window_attention_factor:.6g}"
    values["rotary_dim"] = f"{spec.rotary_dim} of head_dim {spec.head_dim}"
    if spec.mla:
        values["mla"] = "multi-head latent"
    values["layout"] = "rotate_half" if spec.layout == "half" else "interleaved"
    return values


def _layers(spec: RopeSpec) -> str:
    """How many layers rotate, in words."""
    verbs = {
        "global": ("rotates", "rotate"),
        "local": ("rotates in a window", "rotate in a window"),
        "none": ("does not rotate", "do not rotate"),
    }
    parts = []
    for kind, (one, many) in verbs.items():
        if kind in spec.layers:
            parts.append(counted(spec.layers.count(kind), one, many))
    return "; ".join(parts)


def _vector(difference: FrequencyDifference) -> str:
    """A sentence on two vectors of frequencies."""
    if difference.same:
        return f"all {difference.pairs} pairs agree (within {difference.max_ulp} ulp of float32)."
    largest = difference.largest_ratio
    count = difference.differing
    ratio = "one of them 0" if largest is None else f"the largest ratio is {largest:.6g}"
    values = f"A {difference.first:.6e}, B {difference.second:.6e}"
    differ = f"{count} of {difference.pairs} pairs {'differs' if count == 1 else 'differ'}"
    return f"{differ}; {ratio}, at pair {difference.largest_ratio_at} ({values})."
