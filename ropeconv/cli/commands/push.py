"""`ropeconv push`: publishes an output on the Hub, or with `--dry-run` shows what it would send.

`apply --push --dry-run` shows the same with `show_preview`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...hub.options import PublishOptions, repository
from ...options import GENERAL, Option, from_command_line, options
from ..command import OptionGroup, expand_options
from ..screen import ProgressScreen, Screen, printable
from ..typer_classes import Command

if TYPE_CHECKING:
    from ...hub.upload_set import UploadSet


app = typer.Typer(add_completion=False)


def _publish_options() -> list[Option]:
    """Return the options of publishing, but for the repository, which is an argument."""
    return options(PublishOptions)


def _build_publish_options(values: dict[str, Any]) -> PublishOptions:
    """Return how to publish, without the repository, from the values of options.

    Raises UsageError for --private with --public.
    """
    if values["token"]:
        os.environ["HF_TOKEN"] = values["token"]  # for the source as well
    publication = from_command_line(PublishOptions, values)
    publication = replace(publication, message=printable(publication.message))
    if publication.base_model:
        publication = replace(publication, base_model=repository(publication.base_model))
    return publication


def show_preview(upload: UploadSet, options: PublishOptions, screen: Screen) -> dict[str, Any]:
    """Print what a publication would do, and return it as JSON-ready data."""
    from ...hub.preview import preview, show_publication

    planned = preview(upload, options)
    screen.note(planned.note)
    if not screen.as_json:
        show_publication(planned, screen)
    return planned.to_dict()


EXAMPLES = """
ropeconv push ./Llama-2-7b-hf-yarn16 me/Llama-2-7b-64k
ropeconv push tiny-Q8_0.gguf tiny-Q4_K_M.gguf me/tiny-yarn16-GGUF --private
"""


@app.command("push", cls=Command, epilog=EXAMPLES)
@expand_options
def push_command(
    baked: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER_OR_GGUF", help="A folder or GGUF files that `ropeconv apply` wrote."
        ),
    ],
    repo_id: Annotated[
        str, typer.Argument(metavar="OWNER/NAME", help="The repository; it is made if need be.")
    ],
    publication: Annotated[PublishOptions, OptionGroup(_publish_options, _build_publish_options)],
    screen: ProgressScreen,
    ignore_receipt: Annotated[
        bool,
        typer.Option(
            "--ignore-receipt",
            help="Do not compare the files with the hashes in the receipt.",
            rich_help_panel=GENERAL,
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print what would be published, with the card, and send nothing.",
            rich_help_panel=GENERAL,
        ),
    ] = False,
) -> None:
    """Publish an output on the Hub; files that the source repository has are copied there, not
    uploaded.

    The URL of the commit is printed last.
    """
    from ...verbs.publishing import send, upload_set

    publication = replace(publication, repo_id=repository(repo_id))
    upload = upload_set(baked, ignore_receipt)
    if dry_run:
        document = show_preview(upload, publication, screen)
        if screen.as_json:
            screen.data(document)
        return
    url = send(upload, publication, screen)
    if screen.as_json:
        screen.data({"published": url})
    else:
        screen.copyable(url)
