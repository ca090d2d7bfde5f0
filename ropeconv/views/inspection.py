"""Shows inspections as tables and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..inspection import Inspection, Problem
from ..inspection.layers import describe_layers
from ..pretrained import CodeFile
from ..rope.log_n import QueryScaling
from ..rope.spec import RopeSpec
from ..rope.still_pairs import rotating
from ..runtimes.compare import describe
from ..runtimes.grouping import grouped
from .legends import statuses
from .sheet import Sheet


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
