"""`ropeconv identify`: what a runtime computes, by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ropeconv.cli.command import OptionGroup, expand_options
from ropeconv.cli.options import ExplainOption, RecipeValues, TrustOption
from ropeconv.cli.screen import ProgressScreen
from ropeconv.cli.typer_classes import Command
from ropeconv.formats.files import expand_home
from ropeconv.options import Option, RunOptions, ValidateRequest, copied, options
from ropeconv.rope.lengths import parse_tokens
from ropeconv.verbs.recipes import build_recipe, chosen_methods

app = typer.Typer(add_completion=False)

SHOWN = 5
"""Candidates that are listed without --explain."""
EXAMPLES = """
ropeconv identify ./Llama-2-7b-hf-yarn16
ropeconv identify model-Q4_K_M-yarn4.gguf --against ./model
ropeconv identify --server http://localhost:8000 --against ./Llama-2-7b-hf --yarn 16
"""


LENGTH = "Tokens of the text (default: four times the trained context, 512 to 8192)."


def shared_options() -> list[Option]:
    """Return the options of `validate` that say what is asked, with which text."""
    shared = []
    for option in options(ValidateRequest):
        if option.name == "length":
            shared.append(replace(option, help=LENGTH))
        elif option.name in ("against", "server", "model", "text"):
            shared.append(option)
    return shared


@app.command("identify", cls=Command, epilog=EXAMPLES)
@expand_options
def identify_command(
    recipe: RecipeValues,
    running: RunOptions,
    asked: Annotated[dict[str, Any], OptionGroup(shared_options)],
    screen: ProgressScreen,
    output: Annotated[
        Path | None,
        typer.Argument(
            metavar="OUTPUT",
            help="A folder or GGUF file, of ropeconv or of others.",
            parser=expand_home,
        ),
    ] = None,
    trust_remote_code: TrustOption = False,
    explain: ExplainOption = False,
) -> None:
    """Say what a runtime computes: the method, or which known mistake in its place.

    The source is run as the method and as each known mistake, such as position interpolation
    without an attention factor, and the nearest to what the runtime answers is named.

    Exit codes: 0 the method, 3 a mistake, or what none of them explains.
    """
    from ropeconv.validate.comparison import Settings

    from .identifying import identify

    settings = copied(
        Settings,
        running,
        length=parse_tokens(asked["length"]) if asked["length"] else 0,
        text=asked["text"],
        trust_remote_code=trust_remote_code,
    )
    # without a method, that of the receipt is looked for
    expected = None
    if chosen_methods(recipe):
        expected = build_recipe(recipe)
    result = identify(
        output,
        against=asked["against"] or None,
        recipe=expected,
        server=asked["server"],
        model=asked["model"],
        settings=settings,
        reporter=screen,
    )

    if screen.as_json:
        screen.data(result.to_dict())
    elif screen.quiet:
        screen.say(result.sentence)
    else:
        (table,) = result.shown_tables()
        rows = table.rows if explain else table.rows[:SHOWN]
        title = f"{result.subject} in {result.runtime}, {result.tokens:,} tokens"
        screen.table(title, table.columns, rows, right=("KL", "KL 95 %"))
        screen.say(result.sentence)
    if not result.is_right:
        raise SystemExit(3)
