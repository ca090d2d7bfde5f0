"""`push`: publishes outputs on the Hub, from a folder, from GGUF files, or from a temporary place.

`upload_set` gathers the files of an output, and `send` publishes them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from ..bake.output import Output
from ..bake.plan import Plan
from ..engines.probe import Probe
from ..errors import UsageError
from ..formats.kind import is_gguf
from ..hub.options import PublishOptions, repository
from ..hub.publish import publish, staged
from ..hub.upload_set import UploadSet, from_folder, from_gguf, merge
from ..keywords import PushKeywords
from ..reporting import Reporter, SilentReporter
from ..rope.errors import RopeconvError
from ..validate.validation import Validation
from .arguments import (
    check_keywords,
    check_value,
    list_keywords,
    reference_of,
)
from .output import make_output
from .validation import ValidationChoice, disagreement_of, validate_written


@list_keywords(PushKeywords)
def push(outputs: object, repo_id: str, **keywords: Unpack[PushKeywords]) -> str:
    """Publish an output on the Hub.

    Files that the repository of the source has are copied on the Hub, and not uploaded.

    Args:
        outputs: The result of `apply`, the path of a folder or GGUF file, or a list of GGUF files.
        repo_id: The repository, as owner/name. It is created if it does not exist.
        keywords: The flags of `ropeconv push` with underscores, such as `private` and `token`.

    Returns:
        The URL of the commit or pull request.

    Raises:
        UsageError: For keywords that do not exist or do not go together.
        RopeconvError: `apply` did not write the output, or it cannot be published.
    """
    given = check_keywords("push", keywords, PushKeywords)
    reporter = given.pop("reporter", None) or SilentReporter()
    ignore_receipt = given.pop("ignore_receipt", False)  # publish files that were edited
    commit_message = given.pop("commit_message", "")

    if isinstance(outputs, list | tuple):
        output_list = list(outputs)
    else:
        output_list = [outputs]
    if not output_list:
        raise UsageError("push() got an empty list; pass the result of apply() or its path")
    paths = [Path(reference_of("push", output)) for output in output_list]

    # all other keywords have the names of fields of `PublishOptions`
    check_value("repo_id", repo_id, str)
    options = PublishOptions(repo_id=repository(repo_id), message=commit_message, **given)
    if options.token:
        # huggingface_hub reads the variable, so that the token is used for the source as well
        os.environ["HF_TOKEN"] = options.token
    return send(upload_set(paths, ignore_receipt), options, reporter)


def upload_set(outputs: Sequence[Path], ignore_receipt: bool = False) -> UploadSet:
    """Return the files that are uploaded to publish outputs, and those that the Hub copies.

    Args:
        outputs: A folder, or GGUF files of one model.
        ignore_receipt: Do not compare the files of a folder with the hashes in its receipt.

    Raises:
        UsageError: For several things that are not all GGUF files.
        RopeconvError: For something that `apply` did not write.
        BadSource: For files that were changed since.
    """
    for path in outputs:
        if not path.exists():
            raise RopeconvError(f"{path} does not exist; give what `ropeconv apply` wrote")

    if all(is_gguf(path) for path in outputs):
        if ignore_receipt:
            raise UsageError(
                "--ignore-receipt is for folders, whose receipt lists files; leave it out"
            )
        return merge([from_gguf(path) for path in outputs])

    if len(outputs) > 1:
        raise UsageError(
            "several things can be pushed at once only if all are GGUF files; push folders one by"
            " one"
        )
    (folder,) = outputs
    if not folder.is_dir():
        raise RopeconvError(
            f"{folder} is neither a folder nor a GGUF file; give what `ropeconv apply` wrote"
        )
    return from_folder(folder, ignore_receipt)


def send(upload: UploadSet, options: PublishOptions, reporter: Reporter) -> str:
    """Publish an upload set, and return the URL of the commit or pull request."""
    if reporter.quiet:
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()
    return publish(upload, options, reporter.note)


def publish_staged(
    plan: Plan,
    options: PublishOptions,
    reporter: Reporter,
    *,
    probe: Probe | None = None,
    checksum: bool = False,
    check: bool = True,
    validation: ValidationChoice | None = None,
) -> Output:
    """Write a plan into a temporary folder, and publish it from there.

    The folder holds only the files that the Hub cannot copy from the source. Before a validation it
    holds all weights, since these are run.

    Args:
        plan: The plan of a folder.
        options: The repository, and how it is published.
        reporter: Receives what happens.
        probe: A process with the installed transformers, in which the output is checked; None
            starts one where transformers is installed.
        checksum: Whether copied files are hashed too.
        check: Whether the output is checked.
        validation: Whether and where it is validated before it is published; None for not at all.

    Returns:
        The output, which is on the Hub only.

    Raises:
        Disagreement: The check found another method, or the validation does not confirm the
            output; nothing is published.
    """
    # `staged` calls `validate` between writing the output and gathering its files; the result, if
    # there is one, is put into this list
    results: list[Validation | None] = []

    def validate(written: Plan, path: Path) -> None:
        """Validate the output at a path, and keep the result."""
        assert validation is not None
        result = validate_written(written, path, validation, reporter)
        problem = disagreement_of(result, kept=None)
        if problem is not None:
            raise problem
        results.append(result)

    is_validated = validation is not None and validation.device != ""
    writing = reporter.progress("Writing", plan.bytes)
    temporary_output = staged(
        plan,
        probe=probe,
        checksum=checksum,
        writing=writing,
        check=check,
        validate=validate if is_validated else None,
    )
    with temporary_output as (done, upload):
        if done.reason:
            reporter.note(f"Not checked: {done.reason}.")
        if is_validated and not done.can_be_compared:
            why = done.source_problem or "the installed transformers does not compute its RoPE"
            reporter.note(f"Not validated: {why}.")
        url = send(upload, options, reporter)
    validated = results[0] if results else None
    noted = replace(done, reason="")  # the user has read why it was not checked
    return make_output(plan, noted, validated, published=url)
