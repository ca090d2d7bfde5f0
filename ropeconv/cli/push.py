"""`ropeconv push`: publishes outputs on the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import RopeconvError, UsageError
from ..hub.publish_options import PublishOptions
from .options import JsonOption, QuietOption
from .output import Output
from .publishing import named, send, show_preview, with_publish

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
    from ..hub.upload_set import from_folder, from_gguf, merged
    from ..receipts import read_receipt
    from ..receipts.files import check_files

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
