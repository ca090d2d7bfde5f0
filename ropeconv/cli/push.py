"""`ropeconv push`: something that was baked, published on the Hub."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import RopeconvError, UsageError
from ..hub.settings import Publish
from .carry_out import carry_out
from .option_group import spread
from .options import QuietOption
from .output import Output

if TYPE_CHECKING:
    from ..bake import CheckpointPlan
    from ..engines.probe.client import Probe
    from ..hub.outgoing import Outgoing
    from ..validate.checks.frequencies import FrequencyCheck

PANEL = "On the Hub"
OPTIONS: dict[str, tuple[Any, str]] = {
    "private": (bool, "make the repository private"),
    "public": (bool, "make it public though its source is gated or private"),
    "create_pr": (bool, "open a pull request instead of committing"),
    "revision": (str, "commit to this branch"),
    "commit_message": (str, "of the commit"),
    "exist_ok": (bool, "commit to a repository that exists"),
    "overwrite_card": (bool, "replace a README.md that is not ropeconv's"),
    "token": (str, "instead of HF_TOKEN and the stored login"),
}


def _options() -> list[inspect.Parameter]:
    found = []
    for name, (kind, words) in OPTIONS.items():
        option = typer.Option(f"--{name.replace('_', '-')}", help=words, rich_help_panel=PANEL)
        default: Any = False if kind is bool else ""
        keyword = inspect.Parameter.KEYWORD_ONLY
        found.append(inspect.Parameter(name, keyword, default=default, annotation=Annotated[kind, option]))
    return found


def how_to_publish(given: dict[str, Any]) -> Publish:
    """`Publish` from what stood on the command line, for a repository that is named later."""
    if given["private"] and given["public"]:
        raise UsageError("--private and --public contradict each other; give one")
    if given["token"]:
        os.environ["HF_TOKEN"] = given["token"]  # for the source as well
    words = [word for word in sys.argv[1:] if not word.startswith("--token=")]
    words = [word for last, word in zip(["", *words], words, strict=False) if "--token" not in (word, last)]
    return Publish(
        private=True if given["private"] else False if given["public"] else None,
        create_pr=given["create_pr"],
        revision=given["revision"] or None,
        message=given["commit_message"],
        exist_ok=given["exist_ok"],
        overwrite_card=given["overwrite_card"],
        token=given["token"] or None,
        command="ropeconv " + shlex.join(words),
    )


with_publish = spread("how", _options, how_to_publish)


def named(how: Publish, repo_id: str) -> Publish:
    """The same for a repository. Raises UsageError when that is no owner/name."""
    repo_id = repo_id.removeprefix("hf://")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", repo_id):
        raise UsageError(f"{repo_id} is no repository; write owner/name")
    return replace(how, repo_id=repo_id)


@with_publish
def push_command(
    baked: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER_OR_GGUF...", help="A folder or GGUF files that `ropeconv apply` wrote."),
    ],
    repo_id: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The repository; it is made if need be.")],
    how: Publish,
    ignore_receipt: Annotated[
        bool, typer.Option("--ignore-receipt", help="Do not compare the files with the hashes in the receipt.")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Publish something baked in one commit: files that its source on the Hub has too are copied there, not uploaded.

    The URL of the commit is printed last.
    """
    from ..hub.outgoing import of_folder, of_gguf, together
    from ..receipts.read import read_receipt
    from ..validate.checks.before_forward import check_files

    output, how = Output(False, quiet), named(how, repo_id)
    folder = baked[0]
    if all(path.suffix == ".gguf" for path in baked):
        what = together([of_gguf(path) for path in baked])
    elif len(baked) > 1:
        raise UsageError("several things can be pushed at once only if all are GGUF files; push folders one by one")
    elif folder.is_dir():
        if not ignore_receipt:
            check_files(folder, read_receipt(folder))
        what = of_folder(folder)
    else:
        raise RopeconvError(f"{folder} is neither a folder nor a GGUF file; give what `ropeconv apply` wrote")
    output.say(send(what, how, output))


def staged(
    plan: CheckpointPlan, probe: Probe | None, how: Publish, output: Output, **options: Any
) -> tuple[FrequencyCheck | None, str]:
    """Bakes only what is more than a copy, in a temporary folder, and publishes it with the rest. Returns where."""
    from ..hub.outgoing import of_plan

    with tempfile.TemporaryDirectory(prefix="ropeconv-") as folder:
        plan = replace(plan, out=Path(folder) / plan.out.name)
        check, place = carry_out(plan, probe, output, staged=True, **options)
        return check, send(of_plan(plan, place), how, output)


def send(what: Outgoing, how: Publish, output: Output) -> str:
    """Publishes, and returns where."""
    from ..hub.publish import publish

    if output.quiet:
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()
    output.note(f"{len(what.adds)} files to upload, {len(what.copies)} to copy on the Hub from {what.source or '-'}.")
    return publish(what, how, output.note)
