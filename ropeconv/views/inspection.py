"""Shows inspections as tables and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..inspection.document import describe_layers
from ..inspection.inspection import Inspection
from ..inspection.problems import Problem
from ..inspection.receipts.receipt import Receipt
from ..inspection.receipts.writer import commands, facts_of
from ..inspection.side_by_side import FrequencyDifference, RopeDifference, Side
from ..pretrained import CodeFile
from ..rope.errors import counted
from ..rope.on_top import rotating
from ..rope.schedule import QueryScaling
from ..rope.spec import RopeSpec
from ..runtimes.grouping import grouped
from ..runtimes.verdict import describe
from .results import evaluation_table
from .sheet import Sheet, statuses


def show_inspection(seen: Inspection, sheet: Sheet, repairs: Iterable[Problem] = ()) -> None:
    """Shows an inspection: a table of the RoPE, the runtimes, and a sentence per problem with its repair.

    repairs: what would help runtimes that do not read it right.
    """
    repairs = tuple(repairs)
    rows = [("family", f"{seen.name} ({seen.display_name})"), *_rows(seen.spec)]
    if seen.encoder:
        rows.append(("encoder", "reads in both directions, without a key-value cache; `validate` takes hidden states"))
    if seen.kv_cache:
        rows.append(("KV cache", seen.kv_cache.sizes(seen.spec.context)))
    rows += [("code", line) for line in _code_lines(seen.code_files)]
    rows += [("note", note) for note in (*seen.spec.notes, "" if seen.code_files else seen.custom_code) if note]
    sheet.table(seen.source.reference, ("", ""), rows)
    if seen.refuse:
        sheet.say(f"Nothing can be baked for {seen.display_name}: {seen.refuse}.")
    if seen.verdicts:
        lines = grouped(seen.verdicts, seen.name if seen.assumption else "")
        sheet.table("Who reads it right as it is", ("status", "runtimes"), lines)
        sheet.say(f"{statuses(lines)}\n")
    for problem in seen.problems:
        repair = f" -> ropeconv apply {seen.source.reference} {problem.repair}" if problem.repair else ""
        sheet.say(f"! {problem.message}{repair}")
    if not seen.problems:
        sheet.say("No problems seen.")
    if repairs:
        sheet.say("")
        rows = [(one.message, one.repair) for one in repairs]
        sheet.table("Runtimes that another config would suit", ("runtime", "ropeconv apply SOURCE"), rows)
    if any("--replace" in one.repair for one in repairs):
        sheet.say("--replace computes another RoPE of the same length, which the model was not made for: evaluate it.")


def _code_lines(files: Iterable[CodeFile]) -> Iterator[str]:
    """Yields a line for each reason why files can run code, with the first of them."""
    reasons: dict[str, list[str]] = {}
    for file in files:
        reasons.setdefault(file.reason, []).append(file.name)
    for reason, names in reasons.items():
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        yield f"{names[0]}{more} {reason}"


def _rows(spec: RopeSpec) -> Iterator[tuple[str, str]]:
    pairs = "rotate_half" if spec.layout == "half" else "interleaved"
    yield "frequencies", describe(spec.form)
    yield "rotary_dim", f"{spec.rotary_dim} of head_dim {spec.head_dim}, {pairs}{', MLA' if spec.mla else ''}"
    if spec.rotating_share < 1:
        still = spec.rotary_dim // 2 - rotating(spec)
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
        yield "query scaling", f"{_scaling(spec.nope_query_scaling, '(p + 1)')} on the layers that do not rotate"
    if spec.mrope_section:
        yield "mrope_section", ", ".join(str(count) for count in spec.mrope_section)


def original_context_source(spec: RopeSpec) -> str:
    """How the original context of a model is known, in words."""
    return {
        "config": "stated by original_max_position_embeddings",
        "header": "stated by the header",
        "receipt": "stated by the receipt of ropeconv",
        "family": f"see {spec.original_context_reference}",
        "factor": "the declared context divided by the factor",
        "declared": "as declared, since nothing states another",
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
            f"transformers {receipt.check.transformers}{read_as} computes it within {receipt.check.max_ulp} ulp of "
            "float32"
        )
    sheet.table("How it was made", ("", ""), list(facts.items()))
    for command in commands(receipt):
        sheet.copyable(command)
    lines = grouped(receipt.runtimes, receipt.source.family)
    if lines:
        sheet.table("Who reads it right", ("status", "runtimes"), lines)
        sheet.say(statuses(lines))
    show_evaluations(receipt, sheet)
    if not (receipt.validation or receipt.servers):
        sheet.say("It was not validated: `ropeconv validate` does it.")
    if not receipt.evaluations:
        sheet.say("It was not evaluated: `ropeconv eval` does it.")


def show_evaluations(receipt: Receipt, sheet: Sheet) -> None:
    """Shows the evaluations in a receipt, a table each."""
    for record in receipt.evaluations:
        found = evaluation_table(record)
        columns = ("", *(f"{length:,}" for length in found.lengths))
        rows = [(name, *(cell.replace("**", "") for cell in cells)) for name, cells in found.lines]
        sheet.table(f"Evaluated on {record.described_texts}", columns, rows, right=columns[1:])


def show_comparison(found: RopeDifference, sheet: Sheet) -> None:
    """Shows a comparison: a row per property, the frequencies, and every runtime."""
    sides = (found.first, found.second)
    for name, side in zip("AB", sides, strict=True):
        sheet.copyable(f"{name}: {side.seen.source.reference}")
    sheet.say("")
    cells = [_cells(side) for side in sides]
    rows = [
        (name, a, b, "differs" if key in found.differs else "")
        for (key, name), a, b in zip(ROWS.items(), *cells, strict=True)
        if a or b
    ]
    sheet.table("", ("", "A", "B", ""), rows)
    named = {
        "Frequencies": found.frequencies,
        "Frequencies within the trained context": found.short_frequencies,
        "Frequencies of window layers": found.window_frequencies,
    }
    for title, vector in named.items():
        if vector is not None:
            sheet.say(f"{title}: {_vector(vector)}")
    if found.frequencies is None:
        pairs = [side.spec.rotary_dim // 2 for side in sides]
        sheet.say(f"Frequencies: not compared, A rotates {counted(pairs[0], 'pair')} and B {pairs[1]}.")
    sheet.say("")
    table = [(pair.display_name, *(status or "-" for status in pair.statuses)) for pair in found.runtimes]
    sheet.table("Runtime support", ("newest version", "A", "B"), table)
    sheet.say(f"{statuses((status, '') for pair in found.runtimes for status in pair.statuses if status)}\n")
    for remark in found.remarks:
        sheet.say(remark)
    sheet.say(found.sentence)


ROWS = {
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
"""Titles of the rows, by the name of what they show."""


def _cells(side: Side) -> tuple[str, ...]:
    """The cells of a model, in the order of ROWS; empty where there is nothing to say."""
    spec, scaling = side.spec, side.spec.query_scaling
    kinds = {
        "global": ("rotates", "rotate"),
        "local": ("rotates in a window", "rotate in a window"),
        "none": ("does not rotate", "do not rotate"),
    }
    layers = [counted(spec.layers.count(kind), *words) for kind, words in kinds.items() if kind in spec.layers]
    return (
        side.seen.name,
        describe(spec.form),
        f"{spec.attention_factor:.6g}{' (partly in the weights)' if side.folded else ''}",
        f"{spec.softmax_scale:.6g}" if spec.softmax_scale != 1 else "",
        f"{scaling.gain:.6g} (1 + {scaling.beta:.6g} ln(1 + floor(p / {scaling.length:,})))" if scaling else "",
        f"{spec.context:,}",
        f"{spec.original_context:,}",
        "; ".join(layers),
        describe(spec.local_form) if spec.local_form else "",
        f"{side.window_attention_factor:.6g}" if side.window_attention_factor != 1 else "",
        f"{spec.rotary_dim} of head_dim {spec.head_dim}",
        "multi-head latent" if spec.mla else "",
        "rotate_half" if spec.layout == "half" else "interleaved",
    )


def _vector(found: FrequencyDifference) -> str:
    """A sentence on two vectors of frequencies."""
    if found.same:
        return f"all {found.pairs} pairs agree (within {found.max_ulp} ulp of float32)."
    ratio = "one of them 0" if found.largest_ratio is None else f"the largest ratio is {found.largest_ratio:.6g}"
    values = f"A {found.first:.6e}, B {found.second:.6e}"
    differ = f"{found.differing} of {found.pairs} pairs {'differs' if found.differing == 1 else 'differ'}"
    return f"{differ}; {ratio}, at pair {found.largest_ratio_at} ({values})."
