"""`ropeconv push`: publishes outputs on the Hub."""

from __future__ import annotations

import inspect
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import UsageError
from ...hub.options import PublishOptions, repository
from ...rope.errors import RopeconvError, counted
from ...views.sheet import sentence
from ..command import HUB, option_group
from ..options import JsonOption, QuietOption
from ..output import Output, printable

if TYPE_CHECKING:
    from ...bake.checkpoint import CheckpointPlan
    from ...bake.plan import Plan
    from ...engines.probe import Probe
    from ...hub.upload_set import UploadSet
    from ...inspection.receipts.receipt import CheckRecord

OPTIONS: dict[str, tuple[Any, str]] = {
    "private": (bool, "make the repository private"),
    "public": (bool, "make it public though its source is gated or private"),
    "create_pr": (bool, "open a pull request instead of committing"),
    "revision": (str, "commit to this branch"),
    "commit_message": (str, "message of the commit"),
    "exist_ok": (bool, "commit to a repository that exists"),
    "overwrite_card": (bool, "replace a README.md that is not ropeconv's"),
    "base_model": (str, "the base model, for a source that is not on the Hub"),
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
    return PublishOptions(
        private=True if given["private"] else False if given["public"] else None,
        create_pr=given["create_pr"],
        revision=given["revision"] or None,
        message=printable(given["commit_message"]),
        exist_ok=given["exist_ok"],
        overwrite_card=given["overwrite_card"],
        token=given["token"] or None,
        base_model=repository(given["base_model"]) if given["base_model"] else "",
        given=tuple(f"--{name.replace('_', '-')}" for name in OPTIONS if given[name]),
    )


with_publish = option_group("how", _options, how_to_publish)


def refuse_without_push(how: PublishOptions, repo_id: str) -> None:
    """Raises UsageError for options of publishing where nothing is published."""
    if how.given and not repo_id:
        raise UsageError(f"{how.given[0]} goes with --push OWNER/NAME; add it, or leave {how.given[0]} out")


def named(how: PublishOptions, repo_id: str) -> PublishOptions:
    """PublishOptions with a repository. Raises UsageError where `repo_id` is not owner/name."""
    return replace(how, repo_id=repository(repo_id))


def written_before(plan: Plan, output: Output) -> bool:
    """Whether the output of a plan is there, from a run that was stopped before it had made or published all of them.

    plan: what is to be written. output: for progress and notes. Raises BadSource where files of a folder have been
    changed since, Disagreement where they are not what the source gives now.
    """
    from ...bake.verify.findings import Options
    from ...bake.verify.output import earlier_output
    from ...errors import Disagreement
    from ..execution import compare_files

    found = earlier_output(plan)
    if found is None:
        return False
    try:
        compare_files(found, Options(), output)
    except Disagreement as problem:
        raise Disagreement(f"{problem}, with --force to replace it") from None
    return True


def publish_staged(
    plan: CheckpointPlan, probe: Probe | None, how: PublishOptions, output: Output, checksum: bool
) -> tuple[CheckRecord | None, str]:
    """Publishes a plan from a temporary folder, which holds only files that are not copied unchanged.

    plan: what to write. probe: a running one, None without transformers. how: repository and options. output: for
    progress and notes. checksum: hash copied files too. Returns the check of the output, and the URL of the commit.
    """
    from ...hub.preview import staged

    with staged(plan, probe, checksum, output.progress("Writing", plan.bytes)) as (done, what):
        output.note(done.reason and f"Not checked: {done.reason}.")
        return done.check, send(what, how, output)


def show_preview(what: UploadSet, how: PublishOptions, output: Output) -> dict[str, Any]:
    """Prints what a publication would do, and returns it as JSON-ready data.

    what: the files. how: repository and options. output: prints nothing but notes with `as_json`.
    """
    from ...hub.preview import preview, show_publication

    found = preview(what, how)
    output.note(found.note)
    if not output.as_json:
        show_publication(found, output)
    return found.to_dict()


def send(what: UploadSet, how: PublishOptions, output: Output) -> str:
    """Publishes an upload set, and returns the URL of the commit or pull request."""
    from ...hub.publish import publish

    if output.quiet:
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()
    copied = f", {len(what.copies)} to copy on the Hub from {what.source}" if what.copies else ""
    output.note(f"{counted(len(what.adds), 'file')} to upload{copied}.")
    return publish(what, how, output.note)


EXAMPLES = """Examples:

ropeconv push ./Llama-2-7b-hf-yarn16 me/Llama-2-7b-64k

ropeconv push tiny-Q8_0.gguf tiny-Q4_K_M.gguf me/tiny-yarn16-GGUF --private
"""


@with_publish
def push_command(
    baked: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER_OR_GGUF...", help="A folder or GGUF files that `ropeconv apply` wrote."),
    ],
    repo_id: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The repository; it is made if need be.")],
    how: PublishOptions,
    ignore_receipt: Annotated[
        bool, typer.Option("--ignore-receipt", help="Do not compare the files with the hashes in the receipt.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be published, with the card, and send nothing.")
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Publish an output in one commit: files that its source on the Hub has too are copied there, not uploaded.

    The URL of the commit is printed last.
    """
    from ...hub.upload_set import from_folder, from_gguf, merged
    from ...inspection.receipts.reader import check_files, read_receipt

    output, how = Output(as_json, quiet), named(how, repo_id)
    folder = baked[0]
    if all(path.suffix == ".gguf" for path in baked):
        if ignore_receipt:
            raise UsageError("--ignore-receipt is for folders, whose receipt lists files; leave it out")
        what = merged([from_gguf(path) for path in baked])
    elif len(baked) > 1:
        raise UsageError("several things can be pushed at once only if all are GGUF files; push folders one by one")
    elif folder.is_dir():
        if not ignore_receipt:
            check_files(folder, read_receipt(folder))
        what = from_folder(folder)
    else:
        raise RopeconvError(f"{folder} is neither a folder nor a GGUF file; give what `ropeconv apply` wrote")
    if dry_run:
        found = show_preview(what, how, output)
        if as_json:
            output.data(found)
        return
    url = send(what, how, output)
    if as_json:
        output.data({"published": url})
    else:
        output.copyable(url)
