"""Publish in one commit: new files are uploaded, and the Hub copies unchanged ones from the source.

https://huggingface.co/docs/huggingface_hub/package_reference/hf_api (`create_commit`,
`CommitOperationCopy`).
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationCopy
from huggingface_hub.errors import HfHubHTTPError

from ..bake.apply import AppliedPlan, apply
from ..bake.plan import Plan
from ..engines.probe import Probe
from ..formats.disk import Advance
from ..formats.files import scratch
from ..models.hub import answers
from ..rope.errors import RopeconvError, counted
from .base_model import BaseModel
from .options import PublishOptions
from .repository import Repository
from .upload_set import UploadSet, from_gguf, from_plan

Note = Callable[[str], None]
WAITS = (1.0, 3.0)
"""Seconds between attempts to commit."""
LOGIN = (
    "cannot be written with this login; log in with `hf auth login`, or set HF_TOKEN to a token"
    " that may write"
)
CHANGED_STATUS = 412
"""The status of a commit after another one: of another user, or ours where its answer was lost."""
REASON_BY_STATUS = {
    401: LOGIN,
    403: LOGIN,
    CHANGED_STATUS: "has changed while this was prepared; check the new commit and run again",
}


@contextmanager
def staged(
    plan: Plan,
    probe: Probe | None = None,
    checksum: bool = False,
    writing: AbstractContextManager[Advance] | None = None,
    check: bool = True,
    validate: Callable[[Plan, Path], None] | None = None,
) -> Iterator[tuple[AppliedPlan, UploadSet]]:
    """Write a plan into a temporary folder, and yield the output and its files to publish.

    The Hub copies unchanged weights from the repository of the source, so a folder is written
    without them.

    Args:
        plan: The plan; the output is written into the temporary folder and not to `plan.out`.
        probe: A running process with transformers for the checks. None starts a process if
            transformers is installed.
        checksum: Whether copied files are hashed too.
        writing: A context manager that shows a progress bar while the output is written. It yields
            a function, which is called with the bytes written since the last call.
        check: Whether the output is checked.
        validate: Called with the plan and the path of the output, to add the result of a
            validation to the receipt. The output is then written with all its weights. It is not
            called where the installed transformers does not run the output or its source.

    Raises:
        RopeconvError: As `apply` and `validate` do.
    """
    if writing is None:
        writing = nullcontext(lambda done: None)  # no progress is shown
    with scratch() as folder:
        plan = _place_in(folder, plan)

        # only a validation, which runs the model, needs the unchanged weights here
        leaves_out_copies = plan.is_folder and validate is None
        with writing as advance:
            applied = apply(
                plan,
                staged=leaves_out_copies,
                checksum=checksum,
                fsync=False,
                check=check,
                advance=advance,
                probe=probe,
                remember=False,  # this folder is removed, so its path is not noted for later runs
            )

        if validate is not None and applied.can_be_compared:
            validate(plan, applied.path)

        # the files to publish
        if plan.is_folder:
            upload = from_plan(plan, applied.path)
        else:
            upload = from_gguf(applied.path)
        yield applied, upload


def _place_in(folder: Path, plan: Plan) -> Plan:
    """Return a plan whose output is written into a folder, under the name that it has.

    The name stays, since the repository has files named after it.
    """
    out = folder / plan.out.name
    if plan.is_folder:
        return replace(plan, out=out)
    return replace(plan, out=out, target=replace(plan.target, out=out))  # GGUF has it there too


def publish(upload: UploadSet, options: PublishOptions, note: Note = lambda message: None) -> str:
    """Publish files with a model card.

    After a kill, the same publication completes what is there. A repository that was made for a
    publication that fails is removed again.

    Args:
        upload: The files.
        options: The repository, and how they are published.
        note: Called with sentences for the user.

    Returns:
        The URL of the commit or pull request.

    Raises:
        RopeconvError: The repository has other content and there is no `exist_ok`, it changes
            meanwhile, the licence of the source forbids it, or the Hub cannot be reached. Errors
            of huggingface_hub are raised too.
    """
    repository = Repository(upload, options)
    try:
        with answers(options.repo_id):
            return _publish(repository, note)
    except HfHubHTTPError as problem:
        # such as 403, of a token without permission to write
        reason = REASON_BY_STATUS.get(problem.response.status_code)
        if reason is None:
            raise
        raise RopeconvError(f"{options.repo_id} {reason}") from None
    except Exception as problem:
        if not unreachable(problem):
            raise
        raise RopeconvError(
            "cannot reach the Hub; check your connection, HF_HUB_OFFLINE and HF_ENDPOINT, and try"
            " again"
        ) from problem


def unreachable(problem: Exception) -> bool:
    """Return whether a request did not reach the Hub, also because of HF_HUB_OFFLINE."""
    names = {kind.__name__ for kind in type(problem).__mro__}
    return bool(names & {"OfflineModeIsEnabled", "TransportError"})


def _publish(repository: Repository, note: Note) -> str:
    """Make the repository, commit to it, and return the URL of the commit.

    Args:
        repository: The repository, with the files to publish.
        note: Called with sentences for the user; an empty one is not shown.
    """
    base, unread_part = repository.base_and_problem
    options = repository.options
    note(unread_part)  # a sentence on what could not be read of the base model, or ""
    if base.licence:
        note(f"Note: {base.licence}.")
    _add_licences(repository)

    # weights that others get only after they accept terms are not made public by default
    user_decided = options.private or options.public
    if base.closed and not user_decided:
        note(
            f"{base.closed} is gated or private, so {options.repo_id} is made private; `ropeconv"
            " push --public` publishes openly."
        )

    is_private = base.hides(options)
    is_new = repository.create(is_private)
    try:
        return _publish_into(repository, base, note)
    except BaseException:
        if is_new:
            repository.remove(note)
        raise


def _publish_into(repository: Repository, base: BaseModel, note: Note) -> str:
    """Commit to a repository that exists, and return the URL of the commit.

    Args:
        repository: The repository, with the files to publish.
        base: The base model, for the card.
        note: Called with sentences for the user.
    """
    api = repository.api
    options = repository.options
    if options.revision and not options.create_pr:
        repository.start_branch(options.revision)

    # The commit that ours will follow. The Hub refuses ours with the status 412 if the repository
    # gets another commit in between, so that the checks below hold until ours is made.
    newest_commit = api.model_info(options.repo_id, revision=options.revision).sha

    # another process may have committed since the repository was made or found empty
    blocked = repository.why_blocked()
    if blocked:
        raise RopeconvError(blocked)

    # a README.md that the user has written is not replaced
    reason_to_keep_card = repository.reason_to_keep_card()  # empty if ropeconv writes the card
    note(reason_to_keep_card)  # an empty text is not shown
    try:
        generated = {}
        if not reason_to_keep_card:
            generated = repository.card_files(base)
        note(_transfers(repository.upload, generated))
        return _commit(repository, newest_commit, generated, note)
    except HfHubHTTPError as failure:
        # The other commit may be our own: our first attempt arrived, its answer was lost, and the
        # second attempt was refused. A pull request adds no commit to the branch.
        has_other_commit = failure.response.status_code == CHANGED_STATUS
        may_be_ours = has_other_commit and not options.create_pr
        if may_be_ours and repository.has_all_files():
            our_commit = api.model_info(options.repo_id, revision=options.revision).sha
            return f"{api.endpoint}/{options.repo_id}/commit/{our_commit}"
        raise


def _transfers(upload: UploadSet, generated: Collection[str]) -> str:
    """Return a sentence on how many files are sent, and how many the Hub copies."""
    sent = counted(len({*upload.adds, *generated}), "file")
    if not upload.copies:
        return f"{sent} to upload."
    return f"{sent} to upload, {len(upload.copies)} to copy on the Hub from {upload.source}."


def _add_licences(repository: Repository) -> None:
    """Add the licence files of the base model to the files to publish.

    Most licences require their text with each copy of the model.
    """
    upload = repository.upload
    base_model, _ = repository.base_and_problem
    licence_files = base_model.missing_licence_files(upload)

    # the source is the base model: the Hub copies the licence files with its other files
    if base_model.name == upload.source:
        copies = dict(upload.copies)  # {name in the new repository: name in the source}
        for name in licence_files:
            copies[name] = name
        repository.upload = replace(upload, copies=copies)
        return

    # another base model: download the licence files, to upload them
    adds = dict(upload.adds)  # {name in the new repository: local file}
    for name in licence_files:
        commit = base_model.commit or None  # None for the newest
        path = repository.api.hf_hub_download(base_model.name, name, revision=commit)
        adds[name] = Path(path)
    repository.upload = replace(upload, adds=adds)


def _commit(
    repository: Repository, head: str | None, generated: dict[str, bytes], note: Note
) -> str:
    """Commit all files, and return the URL of the commit.

    Args:
        repository: The repository, with the files to publish.
        head: The commit after which this one comes; None for an empty repository.
        generated: The card and its pictures, by name.
        note: Called with sentences for the user.
    """
    upload = repository.upload
    if not upload.copies:
        return _send(repository, head, _additions(upload, generated))

    # The Hub copies large files from the source, but not those that are outside its Xet storage.
    # Then they are downloaded and uploaded again.
    try:
        operations = [*_additions(upload, generated), *_copies(upload)]
        return _send(repository, head, operations)
    except Exception as problem:
        if not _cannot_copy(problem):
            raise
        note(
            f"The Hub cannot copy these files ({_first_line(problem)}); fetching and uploading"
            " them."
        )

    operations = [*_additions(upload, generated), *_fetched_copies(repository)]
    return _send(repository, head, operations)


def _first_line(problem: Exception) -> str:
    """Return the first line of an error, cut; its class where it says nothing."""
    lines = str(problem).strip().splitlines()
    if not lines:
        return type(problem).__name__
    return lines[0][:160]


def _additions(upload: UploadSet, generated: dict[str, bytes]) -> list[CommitOperationAdd]:
    """Return the uploads of local and generated files, anew for each commit, which changes them."""
    files = {name: str(path) for name, path in upload.adds.items()} | generated
    return [CommitOperationAdd(name, content) for name, content in files.items()]


def _copies(upload: UploadSet) -> list[CommitOperationCopy]:
    """Return the copies that the Hub itself makes from the source."""
    copies = []
    for name, origin in upload.copies.items():
        copy = CommitOperationCopy(
            origin,
            name,
            src_revision=upload.commit,
            src_repo_id=upload.source,
            src_repo_type="model",
        )
        copies.append(copy)
    return copies


def _fetched_copies(repository: Repository) -> list[CommitOperationAdd]:
    """Return the uploads of the same files, fetched from the source."""
    upload = repository.upload
    additions = []
    for name, origin in upload.copies.items():
        path = repository.api.hf_hub_download(upload.source, origin, revision=upload.commit)
        additions.append(CommitOperationAdd(name, path))
    return additions


def _send(
    repository: Repository,
    head: str | None,
    operations: Sequence[CommitOperationAdd | CommitOperationCopy],
) -> str:
    """Create a commit, again after temporary failures, and return the URL.

    Args:
        repository: The repository.
        head: The commit after which this one comes; None for an empty repository.
        operations: The files to add and to copy.
    """
    upload = repository.upload
    options = repository.options
    source = upload.source or "the model"
    message = options.message
    if not message:
        message = f"Bake {upload.receipt.method} into {source} with ropeconv"

    # the seconds to wait after each attempt; None for the last one
    for wait in (*WAITS, None):
        try:
            commit = repository.api.create_commit(
                options.repo_id,
                operations,
                commit_message=message,
                parent_commit=head,  # so that another attempt cannot commit twice
                revision=options.revision,
                create_pr=options.create_pr or None,
            )
            return str(commit.pr_url or commit.commit_url)
        except Exception as problem:
            # if the commit did arrive, the next attempt gets 412, which `_publish_into` handles
            if wait is None or not _is_temporary(problem):
                raise
        time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


def _is_temporary(problem: Exception) -> bool:
    """Whether the Hub did not answer, or with an error of its own."""
    response = getattr(problem, "response", None)
    if response is None:
        return unreachable(problem)
    return bool(response.status_code >= 500)


def _cannot_copy(problem: Exception) -> bool:
    """Whether the Hub cannot copy between these repositories."""
    if isinstance(problem, TypeError):  # huggingface_hub before 1.17
        return "src_repo_id" in str(problem)
    if isinstance(problem, ValueError) and "no xet hash" in str(problem):
        return True
    if type(problem).__name__ == "FileDuplicationError":  # a file could not be duplicated
        return True
    response = getattr(problem, "response", None)
    return response is not None and str(response.url).endswith("/lfs-files/duplicate")
