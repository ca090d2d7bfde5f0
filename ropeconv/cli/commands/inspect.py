"""`ropeconv inspect`: the RoPE of a checkpoint, and the problems in its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ..command import needs
from ..options import ExplainOption, FamilyOption, JsonOption, SourceArgument
from ..output import Output

if TYPE_CHECKING:
    from ...models.gguf import GgufSource
    from ...models.source import Source

INSPECT_EXAMPLES = """Examples:

ropeconv inspect Qwen/Qwen3-8B

ropeconv inspect ./Llama-2-7b-hf/config.json --json

ropeconv inspect model-Q4_K_M.gguf

ropeconv inspect ./DeepSeek-V3-renamed --family deepseek_v3
"""


def inspect_command(
    source: SourceArgument, family: FamilyOption = "", explain: ExplainOption = False, as_json: JsonOption = False
) -> None:
    """Show the RoPE of a model, the runtimes that support it, and problems with their fixes."""
    from ...bake.warnings import repairs_of
    from ...inspection.inspection import inspect_source
    from ...models.open import open_source
    from ...views.inspection import show_inspection

    opened = open_source(source, family)
    inspection = inspect_source(opened)
    repairs, output = repairs_of(opened, inspection), Output(as_json)
    if as_json:
        output.data(inspection.document(repairs).to_dict())
    else:
        show_inspection(inspection, output, repairs, explain)


COMPARE_EXAMPLES = """Examples:

ropeconv compare Qwen/Qwen3-8B ./Qwen3-8B-yarn4

ropeconv compare ./Qwen3-8B-yarn4 model-Q4_K_M.gguf

ropeconv compare a/config.json b/config.json --exit-code
"""
MODEL = "A folder, a GGUF file, a config.json, or owner/name@revision (or owner/name/file.gguf) on the Hub."


@needs(
    family=(
        lambda given: not (given["first"].endswith(".gguf") and given["second"].endswith(".gguf")),
        "goes with checkpoints, and GGUF files name their architecture themselves; leave it out",
    )
)
def compare_command(
    first: Annotated[str, typer.Argument(metavar="A", help=MODEL)],
    second: Annotated[str, typer.Argument(metavar="B", help="The same, in any format.")],
    family: FamilyOption = "",
    explain: ExplainOption = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 3 where they differ.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how the RoPE of two models differs."""
    from ...inspection.inspection import inspect_source
    from ...inspection.side_by_side import side_by_side
    from ...views.inspection import show_comparison

    difference = side_by_side(*(inspect_source(_opened(reference, family)) for reference in (first, second)))
    output = Output(as_json)
    for side in (difference.first, difference.second):
        output.note(side.inspection.assumption)
    if as_json:
        output.data(difference.to_dict())
    else:
        show_comparison(difference, output, explain)
    if exit_code and not difference.same:
        raise typer.Exit(3)


def _opened(reference: str, family: str) -> Source | GgufSource:
    """The source of a reference, of a family that the user says it is of unless it is GGUF."""
    from ...models.open import open_source

    return open_source(reference, "" if reference.endswith(".gguf") else family)
