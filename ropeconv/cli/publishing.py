"""The options of publishing on the Hub, and the functions with which `apply` and `push` publish."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError
from ..hub.publish_options import PublishOptions
from .command import HUB
from .option_group import option_group
from .options import sentence
from .output import Output
from .printable import printable

if TYPE_CHECKING:
    from ..bake import CheckpointPlan, Plan
    from ..engines.probe import Probe
    from ..hub.upload_set import UploadSet
    from ..receipts.receipt import CheckRecord

OPTIONS: dict[str, tuple[Any, str]] = {
    "private": (bool, "make the repository private"),
    "public": (bool, "make it public though its source is gated or private"),
    "create_pr": (bool, "open a pull request instead of committing"),
    "revision": (str, "commit to this branch"),
    "commit_message": (str, "message of the commit"),
    "exist_ok": (bool, "commit to a repository that exists"),
    "overwrite_card": (bool, "replace a README.md that is not ropeconv's"),
    "token": (str, "used instead of HF_TOKEN and the stored login"),
}


def _options() -> list[inspect.Parameter]:
    found = []
    for name, (kind, words) in OPTIONS.items():
        option = typer.Option(
            f"--{name.replace('_', '-')}", help=sentence(words), rich_help_panel=HUB, show_default=False
        )
        default: Any = False if kind is bool else ""
        keyword = inspect.Parameter.KEYWORD_ONLY
        found.append(inspect.Parameter(name, keyword, default=default, annotation=Annotated[kind, option]))
    return found


def how_to_publish(given: dict[str, Any]) -> PublishOptions:
    """PublishOptions from the command line, without the repository. given: values of options by name.

    Raises UsageError for --private with --public.
    """
    if given["private"] and given["public"]:
        raise UsageError("--private and --public contradict each other; give one")
    if given["token"]:
        os.environ["HF_TOKEN"] = given["token"]  # for the source as well
    words = [word for word in sys.argv[1:] if not word.startswith("--token=")]
    words = [word for last, word in zip(["", *words], words, strict=False) if "--token" not in (word, last)]
    return PublishOptions(
        private=True if given["private"] else False if given["public"] else None,
        create_pr=given["create_pr"],
        revision=given["revision"] or None,
        message=printable(given["commit_message"]),
        exist_ok=given["exist_ok"],
        overwrite_card=given["overwrite_card"],
        token=given["token"] or None,
        command=printable("ropeconv " + shlex.join(words)),
        given=tuple(f"--{name.replace('_', '-')}" for name in OPTIONS if given[name]),
    )


with_publish = option_group("how", _options, how_to_publish)


def refuse_without_push(how: PublishOptions, repo_id: str) -> None:
    """Raises UsageError for options of publishing where nothing is published."""
    if how.given and not repo_id:
        raise UsageError(f"{how.given[0]} goes with --push OWNER/NAME; add it, or leave {how.given[0]} out")


def named(how: PublishOptions, repo_id: str) -> PublishOptions:
    """PublishOptions with a repository. Raises UsageError where `repo_id` is not owner/name."""
    repo_id = repo_id.removeprefix("hf://")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", repo_id):
        raise UsageError(f"{repo_id} is no repository; write owner/name")
    return replace(how, repo_id=repo_id)


def written_before(plan: Plan) -> bool:
    """Whether the output of a plan is there, from a run that was stopped before it had published it.

    Raises BadSource where files of a folder have been changed since.
    """
    import msgspec

    from ..errors import BadSource
    from ..receipts import Receipt, read_receipt
    from ..receipts.files import check_files

    def made_from(receipt: Receipt) -> bytes:
        return msgspec.json.encode([receipt.source, receipt.recipe, receipt.target, receipt.schedule, receipt.encoding])

    if plan.is_folder and plan.target.out is None:  # it is published from a temporary folder
        return False
    try:
        found = read_receipt(plan.out) if plan.out.exists() else None
    except BadSource:
        return False
    if found is None or made_from(found) != made_from(plan.receipt()):
        return False
    check_files(plan.out, found)
    return True


def publish_staged(
    plan: CheckpointPlan, probe: Probe | None, how: PublishOptions, output: Output, checksum: bool
) -> tuple[CheckRecord | None, str]:
    """Publishes a plan from a temporary folder, which holds only files that are not copied unchanged.

    plan: what to write. probe: a running one, None without transformers. how: repository and options. output: for
    progress and notes. checksum: hash copied files too. Returns the check of the output, and the URL of the commit.
    """
    from ..bake import apply
    from ..formats.scratch import scratch
    from ..hub.upload_set import from_plan

    with scratch() as folder:
        plan = replace(plan, out=folder / plan.out.name)
        with output.progress("Writing", plan.bytes) as advance:
            done = apply(plan, staged=True, checksum=checksum, fsync=False, advance=advance, probe=probe)
        output.note(done.reason and f"Not checked: {done.reason}.")
        return done.check, send(from_plan(plan, done.path), how, output)


def send(what: UploadSet, how: PublishOptions, output: Output) -> str:
    """Publishes an upload set, and returns the URL of the commit or pull request."""
    from ..hub.publish import publish

    if output.quiet:
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()
    output.note(f"{len(what.adds)} files to upload, {len(what.copies)} to copy on the Hub from {what.source or '-'}.")
    return publish(what, how, output.note)
