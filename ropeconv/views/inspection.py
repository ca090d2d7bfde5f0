"""Inspections, receipts and adapters as tables and sentences.

`show_inspection` is the screen of `ropeconv inspect`, of which `_show_summary` is the usual one and
`_show_details` that with `--explain`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..bake.evidence import trained_scaling
from ..bake.start import nothing_to_extend
from ..inspection.document import Problem, describe_layers
from ..inspection.inspection import ConfigInspection, Inspection
from ..inspection.receipts.receipt import Receipt
from ..inspection.receipts.storage import commands, facts_of
from ..inspection.support import count_others, group_by_status, others, support
from ..models.config import modality_note
from ..models.gguf import GgufSource
from ..models.schema import Config
from ..models.source import Source
from ..options import MachineOptions
from ..rope.errors import command_line
from ..rope.lengths import factor_text, format_tokens
from ..rope.schedule import QueryScaling
from ..rope.spec import RopeSpec
from ..runtimes.drafts import draft_sizes, header_sizes, mtp_note
from ..runtimes.verdict import describe
from .memory import inspection_fit, memory_rows, show_fits
from .sheet import Sheet, statuses

if TYPE_CHECKING:
    from ..inspection.adapter import Adapter

TWO_LINES = 150
"""Characters that fit two lines of 80 columns, whose words are not broken."""


def show_inspection(
    inspection: Inspection,
    sheet: Sheet,
    repairs: Iterable[Problem] = (),
    explain: bool = False,
    machine: MachineOptions | None = None,
) -> None:
    """Show the screen of `ropeconv inspect`: the RoPE of a model, runtimes, and problems.

    Args:
        inspection: The inspected model.
        sheet: The screen.
        repairs: Runtimes that would support the model with other settings, each with these
            settings. They are shown only with `explain`.
        explain: Whether every number and every runtime is shown (--explain).
        machine: The memory of the machine that runs the model; None for this machine.
    """
    machine = machine or MachineOptions()
    if explain:
        _show_details(inspection, sheet, tuple(repairs))
        show_fits(inspection.fits(machine), sheet)
    else:
        _show_summary(inspection, sheet, machine)

    # "12 other runtimes support it. No problems found."
    line_below_table = _describe_rest(inspection, explain)
    if line_below_table:
        sheet.say(line_below_table)

    # a model that cannot be extended: `refuse` is the reason as a clause, `refusal` as a sentence
    if inspection.refuse:
        sheet.say(inspection.refusal)

    # problems of the model, and the command that repairs each
    for problem in inspection.problems:
        sheet.say(f"! {problem.message}")
        if problem.repair:
            source = _source_for_apply(inspection)
            family_option = inspection.source.family_words  # --family, if the user passed it
            command = command_line("apply", source, *family_option)
            sheet.copyable(f"Fix: {command} {problem.repair}")
    _show_next(inspection, sheet, explain)


def _describe_rest(inspection: Inspection, explain: bool) -> str:
    """The line below the table: the runtimes that it leaves out, and whether there are problems.

    They are counted where their names would take more than two lines: a screen of 80 columns
    has 15 lines.
    """
    ending = "" if inspection.problems else "No problems found."
    if explain or not inspection.verdicts:  # --explain has a row for every runtime
        return ending
    line = f"{others(inspection.verdicts)} {ending}".strip()
    if len(line) > TWO_LINES:
        line = f"{count_others(inspection.verdicts)} {ending}".strip()
    return line


def _show_next(inspection: Inspection, sheet: Sheet, explain: bool) -> None:
    """Show a command that extends the context of a model: `Next: ropeconv advise MODEL ...`.

    Args:
        inspection: The inspected model.
        sheet: The screen.
        explain: Whether the screen is the long one (--explain), which has this command only for a
            draft model.
    """
    reference = inspection.source.reference
    declared_context = inspection.spec.context

    # A draft model for speculative decoding is extended together with its target.
    if inspection.draft:
        longer_context = factor_text(4 * declared_context)
        command = command_line("apply", "TARGET", "--yarn", longer_context, "--draft", reference)
        sheet.copyable(f"Next: {command}")
        return
    if explain:
        return

    # A model that can be extended only as a GGUF file, or not at all.
    if inspection.refuse:
        if inspection.gguf_only:
            _show_next_as_gguf(inspection, sheet)
        return

    # A config with a scaling for 128k tokens that declares 32k: the command that corrects the
    # declared length is on the screen already, as the repair of a problem.
    declares_too_little = inspection.spec.covered_context > declared_context
    if trained_scaling(inspection) and declares_too_little:
        return

    # A config with two values for a setting: people must correct it by hand first.
    if any(problem.code == "contradiction" for problem in inspection.problems):
        return

    # All other models: four times the trained context, or twice the declared one if it is longer.
    longer_context_tokens = 4 * inspection.first_spec.original_context
    if longer_context_tokens <= declared_context:
        longer_context_tokens = 2 * declared_context

    # Models whose layers all have a sliding window or no RoPE have nothing to extend.
    why_not = nothing_to_extend(inspection, longer_context_tokens)
    if why_not:
        sheet.say(f"It cannot be extended: {why_not}.")
        return
    source = _source_for_apply(inspection)
    family_option = inspection.source.family_words  # --family, if the user passed it
    words = ["--context", format_tokens(longer_context_tokens), *family_option]
    sheet.copyable(f"Next: {command_line('advise', source, *words)}")


def _show_next_as_gguf(inspection: Inspection, sheet: Sheet) -> None:
    """Show the command for an unscaled model that is extended only as GGUF."""
    if inspection.problems or inspection.extended:
        return
    longer_context = format_tokens(4 * inspection.first_spec.original_context)
    words = ["--yarn", longer_context, "--to", "gguf", "--converter", "LLAMA_CPP"]
    command = command_line("apply", inspection.source.reference, *words)
    sheet.copyable(f"Next: {command}")


def _source_for_apply(inspection: Inspection) -> str:
    """Return the source for a command: for a folder without weights, its config.json."""
    reference = inspection.source.reference
    if any(problem.code == "weights" for problem in inspection.problems):
        return os.path.join(reference, "config.json")
    return reference


def _show_summary(inspection: Inspection, sheet: Sheet, machine: MachineOptions) -> None:
    """Show the RoPE, whether the model fits, and the popular runtimes that support it."""
    # the RoPE in words
    spec = inspection.spec
    rope = describe(spec.form)
    if spec.attention_factor != 1:
        rope += f", attention factor {spec.attention_factor:.6g}"
    rotates = f"{2 * spec.rotating_pairs} of {spec.head_dim} dimensions"

    # the context, with the size of its cache unless the row "memory" has it
    context = f"{spec.context:,} tokens, trained: {_describe_trained(inspection)}"
    fit = inspection_fit(inspection, machine)
    if inspection.kv_cache and fit is None:
        all_sizes = inspection.kv_cache.sizes(spec.context)
        # "512.0 MiB in bfloat16, 256.0 MiB in fp8": the first size is that of the usual dtype
        usual_size = all_sizes.split(", ")[0]
        context += f"; KV cache {usual_size}"

    # a row for each fact
    rows = _draft_rows(inspection)
    rows.append(("family", _describe_family(inspection)))
    rows.append(("RoPE", rope))
    rows.append(("rotates", f"{rotates}; layers: {describe_layers(spec)}"))
    rows.append(("context", context))
    rows += memory_rows(fit)
    rows += _part_rows(inspection)
    if inspection.encoder:
        rows.append(("encoder", _describe_encoder(inspection)))
    if inspection.custom_code:
        rows.append(("code", "config.json can make a runtime run code (--explain)"))
    rows += support(inspection.verdicts)
    sheet.table(inspection.source.reference, ("", ""), rows)


def _describe_trained(inspection: Inspection) -> str:
    """Return the trained context, as `advise` and plans count it."""
    original = inspection.spec.original_context
    if trained_scaling(inspection):  # such as Llama 3.1: it was trained for what it declares
        return f"{inspection.first_spec.context:,} ({original:,} before its scaling)"
    if inspection.spec.original_context_source == "declared":
        return f"{original:,} (assumed)"
    return f"{original:,}"


def _describe_family(inspection: Inspection) -> str:
    """Return the name of a family, and the class from which it was derived."""
    if not isinstance(inspection, ConfigInspection) or not inspection.model_family.derived:
        return inspection.name
    return f"{inspection.name}, derived from {inspection.model_family.derived} (run here)"


def _describe_encoder(inspection: Inspection) -> str:
    """Return what an encoder computes, and how its output is checked."""
    gives = "embeddings, and no next token" if inspection.kv_cache else "no KV cache"
    if isinstance(inspection.source, GgufSource):
        return gives
    return f"{gives}; `validate` compares hidden states, or logits where the class gives them"


def _draft_rows(inspection: Inspection) -> list[tuple[str, str]]:
    """Return the row of a draft model, with the sizes that its target must have.

    Such as [("draft", "an EAGLE head, not a whole model; for a model with hidden_size 4096")]; no
    row for a whole model.
    """
    if inspection.draft is None:
        return []
    source = inspection.source
    sizes: dict[str, object] = {}
    if isinstance(source, Source):
        sizes = draft_sizes(source.config())
    elif isinstance(source, GgufSource):
        sizes = header_sizes(source.file)

    words = f"{inspection.draft.says}, not a whole model"
    known = [f"{name} {size}" for name, size in sizes.items() if size]
    if known:
        words += f"; for a model with {' and '.join(known)}"
    return [("draft", words)]


def _part_rows(inspection: Inspection) -> list[tuple[str, str]]:
    """Return the rows of layers that predict further tokens, and of parts for images and sounds."""
    if inspection.draft:
        return []
    config: Config = {}
    if isinstance(inspection.source, Source):
        config = inspection.source.config()

    rows = []
    further_tokens = mtp_note(config)
    if further_tokens:
        rows.append(("MTP", further_tokens))
    modalities = modality_note(config, inspection.spec.mrope_section)
    if modalities:
        rows.append(("modalities", modalities))
    return rows


def _show_details(inspection: Inspection, sheet: Sheet, repairs: tuple[Problem, ...]) -> None:
    """Show every number of the RoPE, and what every runtime does with it (--explain).

    Args:
        inspection: The inspected model.
        sheet: The screen.
        repairs: Runtimes that do not support the model now. `message` names the runtime, and
            `repair` has the options of `ropeconv apply` with which it would support the model.
    """
    rows = _draft_rows(inspection)
    rows.append(("family", f"{inspection.name} ({inspection.display_name})"))
    rows += _spec_rows(inspection.spec)
    rows += _part_rows(inspection)
    if inspection.encoder:
        rows.append(("encoder", _describe_encoder(inspection)))
    if inspection.kv_cache:
        rows.append(("KV cache", inspection.kv_cache.sizes(inspection.spec.context)))
    for note in (*inspection.spec.notes, inspection.custom_code):
        if note:
            rows.append(("note", note))
    sheet.table(inspection.source.reference, ("", ""), rows)

    # A row for each status: ("exact", "transformers 4.51-5.23, vLLM 0.33"). With --family, runtimes
    # are judged as if the model were of that family, and the rows name it.
    if inspection.verdicts:
        assumed_family = ""  # empty without --family
        if isinstance(inspection, ConfigInspection) and inspection.model_family.assumed:
            assumed_family = inspection.name
        support_rows = group_by_status(inspection.verdicts, assumed_family)
        sheet.table("Runtime support", ("status", "runtimes"), support_rows)
        sheet.say(f"{statuses(support_rows)}\n")

    # a row for each runtime that other settings would help: (runtime, options)
    fixes = [(problem.message, problem.repair or "") for problem in repairs]
    if fixes:
        sheet.table("Fixable runtimes", ("runtime", "ropeconv apply SOURCE"), fixes)
    needs_other_rope = any("--replace" in option_text for _runtime, option_text in fixes)
    if needs_other_rope:
        sheet.say(
            "--replace gives the model a RoPE that it was not trained with; evaluate the result."
        )


def _spec_rows(spec: RopeSpec) -> Iterator[tuple[str, str]]:
    """Yield the numbers of a RoPE as rows of a table, (name, value)."""
    yield "frequencies", describe(spec.form)

    pairing = "rotate_half" if spec.layout == "half" else "interleaved"
    rotates = f"{spec.rotary_dim} of head_dim {spec.head_dim}, {pairing}"
    if spec.mla:  # multi-head latent attention (DeepSeek-V3)
        rotates += ", MLA"
    yield "rotary_dim", rotates

    # Gemma 4: a part of the rotary dimensions has the frequency 0
    if spec.rotating_share < 1:
        pairs = spec.rotary_dim // 2
        not_rotating = pairs - spec.rotating_pairs
        yield "pairs that do not rotate", f"{not_rotating} of {pairs}, by architecture"

    yield "attention_factor", f"{spec.attention_factor:.6g}"
    if spec.softmax_scale != 1:
        yield "softmax_scale", f"{spec.softmax_scale:.6g}"
    yield "context", f"{spec.context:,} declared"
    yield "original_context", f"{spec.original_context:,}, {original_context_source(spec)}"
    yield "layers", describe_layers(spec)

    # Ministral 3: queries of all layers are multiplied by a number that grows with the position p
    if spec.query_scaling:
        yield "query scaling", _formula(spec.query_scaling, "p")

    # Llama 4: only queries of the layers without RoPE (NoPE), with positions that are counted from
    # 1 (modeling_llama4.py)
    if spec.nope_query_scaling:
        scaling = _formula(spec.nope_query_scaling, "(p + 1)")
        yield "query scaling", f"{scaling} on the layers that do not rotate"

    # Qwen2-VL: how many pairs rotate with the time, the height and the width of an image position
    if spec.mrope_section:
        yield "mrope_section", ", ".join(str(count) for count in spec.mrope_section)


def original_context_source(spec: RopeSpec) -> str:
    """Return how the original context of a model is known, in words."""
    if spec.original_context_source == "family":
        return f"see {spec.original_context_reference}"
    return CONTEXT_SOURCES[spec.original_context_source]


CONTEXT_SOURCES = {
    "config": "by original_max_position_embeddings",
    "header": "by the header",
    "receipt": "by the receipt",
    "factor": "the declared context divided by the factor",
    "declared": "assumed; the config declares no other length",
}
"""The words for the values of `RopeSpec.original_context_source`."""


def _formula(scaling: QueryScaling, position: str) -> str:
    """Return the scaling of a query at a position as a formula."""
    return f"1 + {scaling.beta:g} ln(1 + floor({position} / {scaling.length:,}))"


def show_receipt(receipt: Receipt, sheet: Sheet) -> None:
    """Show a receipt, the record of how an output was made, but for the validations in it."""
    source = receipt.first
    facts = {"Source": source.reference or source.name} | facts_of(receipt)
    check = receipt.check
    if check:
        runtime = f"transformers {check.transformers}"
        if check.read_as:
            runtime += f", as {check.read_as},"
        checked = f"{runtime} computes it within {check.max_ulp} ulp of float32"
        if check.layers is not None:
            checked += check.layers.sentence
        facts["Checked"] = checked
    sheet.table("How it was made", ("", ""), list(facts.items()))
    for command in commands(receipt):
        sheet.copyable(command)

    # where it runs, and what was measured
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
    """Show the evaluations in a receipt, a table each."""
    if not receipt.evaluations:
        return
    from .results import evaluation_table  # imports code that runs models

    for record in receipt.evaluations:
        table = evaluation_table(record)
        lengths = [f"{length:,}" for length in table.lengths]
        rows = []
        for title, cells in table.lines:
            without_bold = [cell.replace("**", "") for cell in cells]
            rows.append([title, *without_bold])
        title = f"Evaluated on {record.described_texts}"
        sheet.table(title, ["", *lengths], rows, right=lengths)


def show_adapter(adapter: Adapter, sheet: Sheet) -> None:
    """Show a PEFT adapter, and the RoPE that it was trained with."""
    trained = adapter.trained_on
    name = adapter.source.reference
    if trained:
        rope = f"{describe(trained.spec.form)}; {trained.spec.context:,} tokens"
    else:  # its base model is not on this machine
        rope = "unknown: no base here"
    rows = [
        ("adapter", f"{adapter.kind}, not a whole model"),
        ("base", adapter.base or "not named"),
        ("modules", adapter.modules),
        ("RoPE of the base", rope),
    ]
    sheet.table(name, ("", ""), rows)
    sheet.copyable(f"Next: {command_line('compare', 'MODEL', name)}")
