"""`ropeconv advise`: the methods that reach a length, with numbers and the command for each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..rope.lengths import parse_tokens
from .command import LENGTH, OUTPUT
from .options import FamilyOption, JsonOption, SourceArgument
from .output import Output

if TYPE_CHECKING:
    from ..bake.advice import Advice
    from ..evaluate.ranking import Ranking

EXAMPLES = """Examples:

ropeconv advise meta-llama/Llama-2-7b-hf --context 32k

ropeconv advise Qwen/Qwen3-8B --context 128k --explain

ropeconv advise model-Q4_K_M.gguf --context 128k --json

ropeconv advise Qwen/Qwen3-8B --context 128k --measured result.json
"""


def advise_command(
    source: SourceArgument,
    context: Annotated[
        str, typer.Option("--context", metavar="TOKENS", help="The context to declare.", rich_help_panel=LENGTH)
    ],
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Also a paragraph per method, with its command and its runtimes.", rich_help_panel=OUTPUT
        ),
    ] = False,
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured", metavar="FILE", help="Sort by this result of `ropeconv eval -o`.", rich_help_panel=OUTPUT
        ),
    ] = None,
    family: FamilyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Compare the methods that reach a length: numbers for each, the runtimes that read it, and its command."""
    from ..bake.advice import CRITERION, advise
    from ..inspection import inspect_source
    from ..inspection.layers import cannot_gain
    from ..sources import open_source

    opened, length = open_source(source, family), parse_tokens(context)
    found, passed = advise(opened, length)
    output, seen = Output(as_json), inspect_source(opened)
    cache, declared = seen.kv_cache, seen.spec.context
    useless = cannot_gain(seen.spec, length)
    ranking, criterion = None, CRITERION
    if measured is not None:
        from ..bake.inherited import mscale_of
        from ..evaluate.ranking import ranked
        from ..evaluate.result import read_result

        result = read_result(measured)
        ranking = ranked(found, result, seen, length, mscale_of(opened, seen))
        if Path(result.source).name != Path(source).name:
            output.note(f"Note: {measured} is an evaluation of {result.source}, and this is {source}.")
        found = ranking.found
        criterion = f"the loss at {ranking.column:,} tokens in {measured}, then methods without one: {CRITERION}"
    if as_json:
        output.data(
            {
                "source": source,
                "sorted_by": criterion,
                "advice": [one.to_dict() | ({"measured": ranking.to_dict(one)} if ranking else {}) for one in found],
                "passed_over": passed,
                "kv_cache": cache.to_dict(length, declared) if cache else None,
                "warnings": [useless] if useless else [],
            }
        )
        return
    output.note(seen.assumption)
    output.note(f"Note: {useless}" if useless else "")
    formats = tuple(found[0].writings) if found else ()
    extra = ("loss", "price", "holds to") if ranking else ()
    columns = ("method", *extra, "untuned", "effective", "outside", *formats, "fast pairs")
    shown = output.table(
        f"{source} at {length:,} tokens", columns, [_row(one, ranking) for one in found],
        optional=("fast pairs", *reversed(formats[1:]), "outside", *((*formats[:1], "untuned") if ranking else ())),
        right=("effective", "outside", *extra),
    )  # fmt: skip
    for name, description in _columns(found):
        if name in shown or not found:
            output.say(f"{name.capitalize()}: {description}")
    if cache:
        output.say(f"With every method: {cache.sentence(length, declared)}")
    output.say(f"Sorted by: {criterion}.")
    if ranking is None:
        output.say("None of these numbers is a measurement of this model: `ropeconv eval` makes one (--measured).")
    if found:
        output.say("\nTo bake the first:")
        output.copyable(found[0].command)
    if not explain:
        output.say("Every method with its command and its runtimes: --explain")
        return
    _show_paragraphs(found, passed, output)


def _show_paragraphs(found: list[Advice], passed: dict[str, str], output: Output) -> None:
    """Prints a paragraph per method, the best methods by each number, and the reasons of methods that do not fit."""
    from ..bake.advice import leaders

    output.say("")
    for one in found:
        output.say(f"{one.method.name}: {one.method.finetuning_note}.")
        output.copyable(f"    {one.command}")
        for name, writing in one.writings.items():
            if writing.exceptions:
                output.say(f"    {name} as {writing.encoding}: {writing.exceptions}")
    output.say("")
    for sentence in leaders(found):
        output.say(sentence)
    for reason, flags in _refusals(found).items():
        output.say(f"Not for {reason} ({'all of them' if len(flags) == len(found) else ', '.join(flags)}).")
    for name, reason in passed.items():
        output.say(f"Passed over, {name}: {reason}")


def _refusals(found: list[Advice]) -> dict[str, list[str]]:
    """The reasons why a format cannot hold methods, with the flags of these methods."""
    said: dict[str, list[str]] = {}
    for one in found:
        for name, writing in one.writings.items():
            if writing.reason:
                said.setdefault(f"{name}: {writing.reason}", []).append(one.method.flag())
    return said


def _row(one: Advice, ranking: Ranking | None) -> tuple[str, ...]:
    at = one.profile.reach
    windowed = not at.count and at.length < one.schedule.context  # no layer sees further
    effective = "any" if at.automatic or windowed else f"{at.searched - 1:,}+" if at.first_violation is None else ""
    return (
        one.method.command,
        *(ranking.cells(one) if ranking else ()),
        "yes" if one.works_untuned else "no",
        effective or f"{at.effective_length:,}",
        f"{one.profile.outside} of {2 * len(one.schedule.inv_freq)}",
        *(writing.summary for writing in one.writings.values()),
        f"/ {one.profile.fast_change:.3g}",
    )


def _columns(found: list[Advice]) -> list[tuple[str, str]]:
    """Pairs of a column of the table and its explanation."""
    if not found:
        return [("no method reaches it", "give a shorter --context")]
    one = found[0]
    return [
        ("loss", "nats per token, measured with this method."),
        ("price", "what it adds to the loss at the trained length, measured."),
        ("holds to", "the longest length to which its loss stays within three errors of its best."),
        ("untuned", "reported to work at this factor without fine-tuning."),
        ("effective", "tokens up to which sum cos(m theta_i) is never negative (`ropeconv bound`)."),
        ("outside", f"dimensions that turn further than in training, of those that complete no period in "
                    f"{one.schedule.original_context:,} tokens ({one.profile.critical_dimension} do)."),
        *((name, "in how many of the runtimes that load it this output is exact.") for name in list(one.writings)[:1]),
        ("fast pairs", "by how much frequencies that complete a period are divided at most."),
    ]  # fmt: skip
