"""`ropeconv compare`: the RoPE of two checkpoints side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .command import needs
from .options import FamilyOption, JsonOption
from .output import Output

if TYPE_CHECKING:
    from ..sources import GgufSource, Source

EXAMPLES = """Examples:

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
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 3 where they differ.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the RoPE of two checkpoints side by side: what differs and by how much, and each in every runtime."""
    from ..inspection import inspect_source
    from ..inspection.side_by_side import side_by_side
    from ..views.comparison import show_comparison

    found = side_by_side(*(inspect_source(_opened(reference, family)) for reference in (first, second)))
    output = Output(as_json)
    for side in (found.first, found.second):
        output.note(side.seen.assumption)
    if as_json:
        output.data(found.to_dict())
    else:
        show_comparison(found, output)
    if exit_code and not found.same:
        raise typer.Exit(3)


def _opened(reference: str, family: str) -> Source | GgufSource:
    """The source of a reference, of a family that the user says it is of unless it is GGUF."""
    from ..sources import open_source

    return open_source(reference, "" if reference.endswith(".gguf") else family)
