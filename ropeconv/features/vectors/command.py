"""`ropeconv vectors`: conformance vectors for an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ropeconv.cli.command import OptionGroup, expand_options
from ropeconv.cli.options import ExplainOption, RecipeValues
from ropeconv.cli.screen import ProgressScreen
from ropeconv.cli.typer_classes import Command
from ropeconv.formats.files import expand_home
from ropeconv.options import OUTPUT, Option, TargetOptions, Writes, options
from ropeconv.verbs.recipes import build_recipe

app = typer.Typer(add_completion=False)

SHOWN = 5
"""Mistakes that are listed without --explain."""
EXAMPLES = """
ropeconv vectors llama --yarn 8 -o packet
ropeconv vectors ./Qwen3-8B --mixed 4 -o packet
python packet/check_rope.py --url http://localhost:8000
"""


def shared_options() -> list[Option]:
    """Return the options of an output that say how the method is written."""
    return [option for option in options(TargetOptions) if option.name in ("runtimes", "encoding")]


@app.command("vectors", cls=Command, epilog=EXAMPLES)
@expand_options
def vectors_command(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|FAMILY", help="An architecture such as llama, or a model with its RoPE."
        ),
    ],
    recipe: RecipeValues,
    asked: Annotated[dict[str, Any], OptionGroup(shared_options)],
    screen: ProgressScreen,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="The folder of the packet.",
            rich_help_panel=OUTPUT,
            metavar="FOLDER",
            parser=expand_home,
        ),
        Writes(),
    ],
    explain: ExplainOption = False,
) -> None:
    """Write a tiny model with a method, its expected logits, and a test for any engine.

    The packet has random weights, below 5 MB, and the answers of each known mistake. Its test file
    needs numpy only: it asks a server, a function of Python or a file of logits, and prints pass or
    the name of the mistake.
    """
    from .vectors import vectors

    packet = vectors(
        subject,
        build_recipe(recipe),
        out,
        runtime=asked["runtime"] or (),
        encoding=asked["encoding"],
        reporter=screen,
    )
    if screen.as_json:
        screen.data(packet.to_dict())
        return
    if screen.quiet:
        screen.say(packet.path)
        return
    # the first row is the method, the others are known mistakes
    (table,) = packet.shown_tables()
    rows = table.rows if explain else table.rows[: 1 + SHOWN]
    screen.table(f"{packet.title}: the method and known mistakes", table.columns, rows)
    for note in packet.notes:
        screen.note(f"Note: {note}")
    if packet.no_gguf:
        screen.note(f"Note: there is no GGUF file: {packet.no_gguf}.")
    screen.say(packet.sentence)
    screen.say(f"Next: python {packet.path}/check_rope.py --help")
