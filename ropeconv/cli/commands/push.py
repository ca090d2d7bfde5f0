"""`ropeconv push` and `train-config`: what follows an output, on the Hub and in a trainer."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...formats.files import expand_home
from ...hub.options import PublishOptions, repository
from ...options import GENERAL, LENGTH, OUTPUT, RUNNING, from_command_line, options
from ..command import OptionGroup, TrainerName, expand_options, trainer_names
from ..options import FamilyOption, check_place
from ..screen import ProgressScreen, Screen, printable
from ..typer_classes import Command

if TYPE_CHECKING:
    from ...hub.upload_set import UploadSet


app = typer.Typer(add_completion=False)


def how_to_publish(values: dict[str, Any]) -> PublishOptions:
    """Return how to publish, without the repository, from the values of options.

    Raises UsageError for --private with --public.
    """
    if values["token"]:
        os.environ["HF_TOKEN"] = values["token"]  # for the source as well
    options = from_command_line(PublishOptions, values)
    return replace(
        options,
        message=printable(options.message),
        base_model=options.base_model and repository(options.base_model),
    )


def show_preview(upload: UploadSet, options: PublishOptions, screen: Screen) -> dict[str, Any]:
    """Prints what a publication would do, and returns it as JSON-ready data."""
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
    publication: Annotated[
        PublishOptions, OptionGroup(lambda: options(PublishOptions), how_to_publish)
    ],
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


TRAIN_EXAMPLES = """
ropeconv train-config ./Qwen3-8B-yarn4 --for axolotl > axolotl.yml
ropeconv train-config ./Qwen3-8B-yarn4 --for llama-factory --model me/Qwen3-8B-128k
"""


@app.command("train-config", cls=Command, epilog=TRAIN_EXAMPLES)
@expand_options
def train_config_command(
    baked: Annotated[
        str,
        typer.Argument(
            metavar="OUTPUT", help="A folder that `ropeconv apply` wrote, or its name on the Hub."
        ),
    ],
    trainer: Annotated[
        TrainerName,
        typer.Option(
            "--for", help="The trainer.", rich_help_panel=RUNNING, metavar="|".join(trainer_names())
        ),
    ],
    screen: ProgressScreen,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help="The path or Hub id that the trainer loads, if that is not OUTPUT.",
            rich_help_panel=RUNNING,
            metavar="PATH_OR_ID",
        ),
    ] = "",
    context: Annotated[
        str,
        typer.Option(
            "--context",
            help="Train on sequences of this length (default: the whole context).",
            rich_help_panel=LENGTH,
            metavar="TOKENS",
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Write the config there instead of printing it.",
            rich_help_panel=OUTPUT,
            metavar="FILE",
            parser=expand_home,
        ),
    ] = None,
    family: FamilyOption = "",
) -> None:
    """Print a training config for Axolotl, LLaMA-Factory, Megatron-LM, NeMo, TRL or Unsloth.

    It trains at the whole context, and does not scale RoPE a second time.
    """
    from ...formats.drafts import write_file
    from ...hub.training import baked_output, make_snippet, trainers
    from ...models.open import open_source
    from ...rope.lengths import parse_tokens
    from ...views.sheet import sentence

    check_place(out)
    facts = baked_output(open_source(baked, family), model)
    if context:
        facts = facts.with_context(parse_tokens(context))
    snippet = make_snippet(trainers()[trainer], facts)
    for note in snippet.notes:
        screen.note(f"Note: {sentence(note)}")
    if out is not None:
        write_file(out, snippet.text.rstrip("\n") + "\n")
    if screen.as_json:
        screen.data(snippet.to_dict())
    elif out is None:
        screen.copyable(snippet.text.rstrip("\n"))
    else:
        screen.copyable(str(out) if screen.quiet else f"Wrote {out}")
