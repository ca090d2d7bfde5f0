"""Shows inspections as tables and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ..bake.start import nothing_to_extend
from ..convert.gguf_encoding import judge_file
from ..inspection.document import Problem, describe_layers
from ..inspection.inspection import Inspection
from ..inspection.receipts.receipt import Receipt
from ..inspection.receipts.storage import commands, facts_of
from ..inspection.support import POPULAR, WORDS, grouped, others, support
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
    """Shows an inspection: the RoPE, the runtimes that support it, and a sentence per problem with
    its repair.

    repairs: what would help runtimes that do not support it. explain: with every number and every
    runtime.
    """
    if isinstance(inspection.source, GgufSource):
        inspection = replace(inspection, verdicts=judge_file(inspection.source.file))
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
    if inspection.draft:
        covers = factor_text(4 * inspection.spec.context)
        sheet.copyable(
            f"Next: {command_line('apply', 'TARGET', '--yarn', covers, '--draft', reference)}"
        )
    elif not (inspection.refuse or explain):
        trained = inspection.first_spec.original_context
        declared = inspection.spec.context
        longer = 4 * trained if 4 * trained > declared else 2 * declared
        unseen = nothing_to_extend(inspection, longer)
        if unseen:
            sheet.say(f"It cannot be extended: {unseen}.")
        else:
            sheet.copyable(
                f"Next: {command_line('advise', reference, '--context', format_tokens(longer))}"
            )


def _show_summary(inspection: Inspection, sheet: Sheet) -> None:
    spec = inspection.spec
    rotating_dims = 2 * spec.rotating_pairs
    factor = "" if spec.attention_factor == 1 else f", attention factor {spec.attention_factor:.6g}"
    assumed = " (assumed)" if spec.original_context_source == "declared" else ""
    cache = (
        f"; KV cache {inspection.kv_cache.sizes(spec.context).partition(', ')[0]}"
        if inspection.kv_cache
        else ""
    )
    rows = [
        *_draft(inspection),
        ("family", inspection.name),
        ("RoPE", f"{describe(spec.form)}{factor}"),
        (
            "rotates",
            f"{rotating_dims} of {spec.head_dim} dimensions; layers: {describe_layers(spec)}",
        ),
        ("context", f"{spec.context:,} tokens, trained: {spec.original_context:,}{assumed}{cache}"),
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
    family = ("family", f"{inspection.name} ({inspection.display_name})")
    rows = [*_draft(inspection), family, *_rows(inspection.spec), *_parts(inspection)]
    if inspection.encoder:
        rows.append(("encoder", _encoder(inspection)))
    if inspection.kv_cache:
        rows.append(("KV cache", inspection.kv_cache.sizes(inspection.spec.context)))
    rows += [("note", note) for note in (*inspection.spec.notes, inspection.custom_code) if note]
    sheet.table(inspection.source.reference, ("", ""), rows)
    if inspection.verdicts:
        lines = grouped(inspection.verdicts, inspection.name if inspection.assumption else "")
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
    pairs = "rotate_half" if spec.layout == "half" else "interleaved"
    yield "frequencies", describe(spec.form)
    yield (
        "rotary_dim",
        f"{spec.rotary_dim} of head_dim {spec.head_dim}, {pairs}{', MLA' if spec.mla else ''}",
    )
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
        yield (
            "query scaling",
            f"{_scaling(spec.nope_query_scaling, '(p + 1)')} on the layers that do not rotate",
        )
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
    lines = grouped(receipt.runtimes, receipt.source.family)
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
    rope = (
        f"{describe(trained.spec.form)}; {trained.spec.context:,} tokens"
        if trained
        else "unknown: no base here"
    )
    rows = [
        ("adapter", f"{adapter.kind}, not a whole model"),
        ("base", adapter.base or "not named"),
        ("modules", adapter.modules),
        ("RoPE of the base", rope),
    ]
    sheet.table(name, ("", ""), rows)
    sheet.copyable(f"Next: {command_line('compare', 'MODEL', name)}")


def show_compatibility(compatibility: Compatibility, sheet: Sheet) -> None:
    """Shows models beside the base of their merge, adapters, and a sentence per difference with its
    repair.
    """
    names = [("base", compatibility.base), *(("", model) for model in compatibility.models)]
    rows = [
        (mark, model.source.reference, describe(model.spec.form), f"{model.spec.context:,}")
        for mark, model in names
    ]
    for adapter, over in compatibility.adapters:
        trained = adapter.trained_on
        rope, context = (
            (describe(trained.spec.form), f"{trained.spec.context:,}")
            if trained
            else ("unknown", "")
        )
        rows.append(
            ("adapter", f"{adapter.source.reference} over {over.source.reference}", rope, context)
        )
    sheet.table(
        "", ("", "model", "RoPE", "context"), rows, optional=("context",), right=("context",)
    )
    for misfit in compatibility.misfits:
        if misfit.repair.startswith("ropeconv "):
            sheet.say(f"! {misfit.name} {misfit.message}")
            sheet.copyable(f"Fix: {misfit.repair}")
        else:
            sheet.say(f"! {misfit.name} {misfit.message}; {misfit.repair}")
    for note in compatibility.notes:
        sheet.say(note)
    sheet.say(compatibility.sentence)


def show_comparison(difference: RopeDifference, sheet: Sheet, explain: bool = False) -> None:
    """Shows how two models differ: the properties, the frequencies, and the runtimes.

    explain: with properties that are equal, and every runtime.
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
    """Shows a row per property of two models, without `explain` those that differ."""
    rows = [
        (title, a, b, *(["differs" if key in difference.differs else ""] if explain else []))
        for (key, title, a), (_, _, b) in zip(
            _cells(difference.first), _cells(difference.second), strict=True
        )
        if (a or b) and (explain or key in difference.differs)
    ]
    if rows:
        sheet.table("", ("", "A", "B", *([""] if explain else [])), rows)


def _show_runtimes(difference: RopeDifference, sheet: Sheet, explain: bool) -> None:
    """Shows the support of two models by each runtime, without `explain` by popular ones for which
    it differs.
    """
    if explain:
        table = [
            (pair.display_name, *(status or "-" for status in pair.statuses))
            for pair in difference.runtimes
        ]
        sheet.table("Runtime support", ("newest version", "A", "B"), table)
        stated = [
            (status, "") for pair in difference.runtimes for status in pair.statuses if status
        ]
        sheet.say(f"{statuses(stated)}\n")
    else:
        changed = [
            (pair.display_name, *(WORDS.get(status or "", "-") for status in pair.statuses))
            for pair in difference.runtimes
            if pair.statuses[0] != pair.statuses[1] and pair.runtime.partition("@")[0] in POPULAR
        ]
        if changed:
            sheet.table("", ("runtime", "A", "B"), changed)


def _cells(side: Side) -> list[tuple[str, str, str]]:
    """The properties of a model: the name of each, its title, and its value in words, empty for
    nothing to say.
    """
    spec, scaling = side.spec, side.spec.query_scaling
    kinds = {
        "global": ("rotates", "rotate"),
        "local": ("rotates in a window", "rotate in a window"),
        "none": ("does not rotate", "do not rotate"),
    }
    layers = [
        counted(spec.layers.count(kind), *words)
        for kind, words in kinds.items()
        if kind in spec.layers
    ]
    query_scaling = ""
    if scaling:
        query_scaling = (
            f"{scaling.gain:.6g} (1 + {scaling.beta:.6g} ln(1 + floor(p / {scaling.length:,})))"
        )
    factor = spec.attention_factor
    window_factor = side.window_attention_factor
    return [
        ("family", "family", side.inspection.name),
        ("frequencies", "frequencies", describe(spec.form)),
        (
            "attention_factor",
            "attention factor",
            f"{factor:.6g}{' (partly in the weights)' if side.folded else ''}",
        ),
        (
            "softmax_scale",
            "softmax scale",
            f"{spec.softmax_scale:.6g}" if spec.softmax_scale != 1 else "",
        ),
        ("query_scaling", "query scaling", query_scaling),
        ("context", "context", f"{spec.context:,}"),
        ("original_context", "trained for", f"{spec.original_context:,}"),
        ("layers", "layers", "; ".join(layers)),
        (
            "window_frequencies",
            "window layers",
            describe(spec.local_form) if spec.local_form else "",
        ),
        (
            "window_attention_factor",
            "their attention factor",
            f"{window_factor:.6g}" if window_factor != 1 else "",
        ),
        ("rotary_dim", "rotary_dim", f"{spec.rotary_dim} of head_dim {spec.head_dim}"),
        ("mla", "attention", "multi-head latent" if spec.mla else ""),
        ("layout", "pairs", "rotate_half" if spec.layout == "half" else "interleaved"),
    ]


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
