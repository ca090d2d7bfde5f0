"""`ropeconv advise`: every method that reaches a length, with evidence and the command to type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ..rope.lengths import parse_tokens
from .options import JsonOption, SourceArgument
from .output import Output

if TYPE_CHECKING:
    from ..bake.advice import Advice

EXAMPLES = """Examples:

ropeconv advise meta-llama/Llama-2-7b-hf --context 32k

ropeconv advise model-Q4_K_M.gguf --context 128k --json
"""


def advise_command(
    source: SourceArgument,
    context: Annotated[str, typer.Option("--context", metavar="TOKENS", help="The length to reach.")],
    as_json: JsonOption = False,
) -> None:
    """Compare the methods that reach a length: what each costs, what holds it, and how to bake it."""
    from ..bake.advice import CRITERION, advise, leaders
    from ..sources import open_source

    found, passed = advise(open_source(source), parse_tokens(context))
    output = Output(as_json)
    if as_json:
        rows = [one.to_dict() for one in found]
        output.data({"source": source, "sorted_by": CRITERION, "advice": rows, "passed_over": passed})
        return
    columns = (
        "method", "without tuning", "outside trained angles", "effective length", "negative", "fast pairs", "largest",
        *(found[0].writings if found else ()),
    )  # fmt: skip
    output.table(f"{source} at {parse_tokens(context):,} tokens", columns, [_row(one) for one in found])
    for sentence in _explained(found):
        output.say(sentence)
    output.say(f"Sorted by: {CRITERION}.")
    for sentence in leaders(found):
        output.say(sentence)
    output.say("None of these numbers is a measurement of the model: `ropeconv validate` and your own task are.\n")
    for one in found:
        output.say(f"{one.method.name}: {one.method.tuning}.")
        output.say(f"    {one.command}")
        for name, writing in one.writings.items():
            if writing.exceptions:
                output.say(f"    {name} as {writing.encoding}: {writing.exceptions}")
    for because, flags in _refusals(found).items():
        output.say(f"Not for {because} ({'all of them' if len(flags) == len(found) else ', '.join(flags)}).")
    for name, because in passed.items():
        output.say(f"Passed over, {name}: {because}")


def _refusals(found: list[Advice]) -> dict[str, list[str]]:
    """Why outputs cannot hold methods, and which."""
    said: dict[str, list[str]] = {}
    for one in found:
        for name, writing in one.writings.items():
            if writing.because:
                said.setdefault(f"{name}: {writing.because}", []).append(one.method.flag())
    return said


def _row(one: Advice) -> tuple[str, ...]:
    at = one.profile.reach
    effective = "any" if at.automatic else f"{at.searched - 1:,}+" if at.first_violation is None else ""
    return (
        one.method.command,
        "yes" if one.untuned else "no",
        f"{one.profile.outside} of {2 * len(one.schedule.inv_freq)}",
        effective or f"{at.effective_length:,}",
        f"{at.count:,}",
        f"/ {one.profile.fast_change:.3g}",
        f"/ {one.profile.largest_change:.3g}",
        *(writing.words for writing in one.writings.values()),
    )


def _explained(found: list[Advice]) -> list[str]:
    if not found:
        return ["No method reaches it."]
    one = found[0]
    return [
        f"Outside trained angles: dimensions that complete no period in {one.schedule.original_context:,} tokens "
        f"({one.profile.critical_dimension} do) and turn further than they did there. Effective length: up to which "
        "sum cos(m theta_i) is never negative; negative: at how many distances it is. Fast pairs, largest: by how much "
        "frequencies are divided at most, among those that complete a period, and among all."
    ]
