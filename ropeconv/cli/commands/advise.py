"""`ropeconv advise`: the methods that reach a length, with numbers and the command for each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...rope.lengths import parse_tokens
from ..command import LENGTH, OUTPUT
from ..options import ExplainOption, FamilyOption, JsonOption, SourceArgument
from ..output import Output

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
    explain: ExplainOption = False,
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured", metavar="FILE", help="Sort by this result of `ropeconv eval -o`.", rich_help_panel=OUTPUT
        ),
    ] = None,
    family: FamilyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Compare the methods that reach a context length, with the command for each."""
    from ...evaluate.ranking import advised
    from ...models.open import open_source
    from ...views.advice import show_advice, show_methods

    output = Output(as_json)
    advice = advised(open_source(source, family), parse_tokens(context), measured)
    if as_json:
        output.note(advice.note and f"Note: {advice.note}")
        output.data(advice.to_dict())
        return
    show_advice(advice, output)
    if explain:
        output.say("")
        show_methods(advice, output)
    else:
        output.say("More:    --explain")
