"""`ropeconv update-data`: later data about runtimes than ropeconv shipped with."""

from typing import Annotated

import typer

from ropeconv.cli.command import expand_options
from ropeconv.cli.screen import Screen
from ropeconv.cli.typer_classes import Command
from ropeconv.errors import UsageError
from ropeconv.options import GENERAL
from ropeconv.rope.errors import counted

from .update import DataUpdate, reset_data, update_data

app = typer.Typer(add_completion=False)

EXAMPLES = """
ropeconv update-data --check
ropeconv update-data
ropeconv update-data --from ./runtime-data.manifest.json
ropeconv update-data --reset
"""


@app.command("update-data", cls=Command, epilog=EXAMPLES)
@expand_options
def update_data_command(
    screen: Screen,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Show what would change, and store nothing.", rich_help_panel=GENERAL
        ),
    ] = False,
    place: Annotated[
        str,
        typer.Option(
            "--from",
            help="The manifest of a release, as an https URL or a file (default: ROPECONV_DATA_URL,"
            " else the project's).",
            rich_help_panel=GENERAL,
            metavar="PLACE",
            show_default=False,
        ),
    ] = "",
    sha256: Annotated[
        str,
        typer.Option(
            "--sha256",
            help="The SHA-256 that the manifest must have.",
            rich_help_panel=GENERAL,
            metavar="HEX",
            show_default=False,
        ),
    ] = "",
    reset: Annotated[
        bool,
        typer.Option(
            "--reset",
            help="Remove the fetched data, and use that of the package.",
            rich_help_panel=GENERAL,
        ),
    ] = False,
) -> None:
    """Fetch later data about runtimes, without a new ropeconv.

    The data says which releases of vLLM, transformers, llama.cpp and others support which methods.
    It is stored for the user, and used where it is later than that of the package; `ropeconv
    --version` names the one that is used. All files are compared with the SHA-256 in the manifest,
    and read as ropeconv reads them, before they are stored.
    """
    if reset:
        if check or place or sha256:
            raise UsageError("--reset does not go with other options; leave them out")
        version, was_there = reset_data()
        if screen.as_json:
            screen.data({"version": version, "removed": was_there})
        elif was_there:
            screen.say(f"Removed the fetched data; ropeconv uses {version}, which it shipped with.")
        else:
            screen.say(f"Nothing was fetched; ropeconv uses {version}, which it shipped with.")
        return

    update = update_data(place, sha256, check)
    if screen.as_json:
        screen.data(update.to_dict())
    elif screen.quiet:
        screen.say(update.available if update.is_newer else update.before)
    else:
        _show(update, check, screen)


def _show(update: DataUpdate, check: bool, screen: Screen) -> None:
    """Show which files of the runtime data a release changes, or that it is not newer.

    Args:
        update: The release, compared with the data that is used.
        check: Whether nothing was stored.
        screen: Where it is shown.
    """
    # the release is the one that is used, or an earlier one
    if not update.is_newer:
        used = f"ropeconv uses the runtime data {update.before}"
        if update.available == update.before:
            screen.say(f"{used}, the latest; nothing to do.")
        else:
            screen.say(f"{used}, and {update.source} has {update.available}; nothing to do.")
        return

    rows = list(update.changes.items())  # such as ("data/vllm.toml", "changed")
    screen.table(f"{update.before} -> {update.available}", ("file", "change"), rows)
    files = counted(len(rows), "file")
    if check:
        screen.say(f"{files} would change; `ropeconv update-data` fetches them.")
    else:
        screen.say(
            f"Stored {update.stored}; {files} changed. `ropeconv update-data --reset` undoes it."
        )
