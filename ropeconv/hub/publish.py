"""Publishes in one commit: new files are uploaded, unchanged ones are copied by the Hub from the
source's commit.

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
from .options import PublishOptions
from .repository import Repository
from .upload_set import UploadSet, from_gguf, from_plan

Note = Callable[[str], None]
WAITS = (1.0, 3.0)  # seconds between attempts to commit
LOGIN = (
    "cannot be written with this login; log in with `hf auth login`, or set HF_TOKEN to a token"
    " that may write"
)
CHANGED = 412
"""The status of a commit after another one: that of another user, or ours if its answer was
lost.
"""
REFUSED = {
    401: LOGIN,
    403: LOGIN,
    CHANGED: "has changed while this was prepared; check the new commit and run again",
}


@contextmanager
def staged(
    plan: Plan,
    probe: Probe | None = None,
    checksum: bool = False,
    writing: AbstractContextManager[Advance] | None = None,
) -> Iterator[tuple[AppliedPlan, UploadSet]]:
    """The output of a plan in a temporary folder, and the upload set of it, while it is entered.

    probe: a running one; None starts one where transformers is installed. checksum: hash copied
    files too. writing: gives the function that is called with the bytes written since the last
    call, and ends before the output is yielded. Raises as `apply` does.
    """
    with scratch() as folder:
        plan = replace(plan, out=folder / plan.out.name)
        if not plan.is_folder:
            plan = replace(plan, target=replace(plan.target, out=plan.out))
        with writing or nullcontext(lambda done: None) as advance:
            done = apply(
                plan,
                staged=plan.is_folder,
                checksum=checksum,
                fsync=False,
                advance=advance,
                probe=probe,
                remember=False,
            )
        yield done, from_plan(plan, done.path) if plan.is_folder else from_gguf(done.path)


def publish(upload: UploadSet, options: PublishOptions, note: Note = lambda message: None) -> str:
    """Publishes files with a model card, and returns the URL of the commit or pull request.

    Raises RopeconvError where the repository has other content and there is no `exist_ok`, where it
    changes meanwhile, or the licence of the source forbids it; and what huggingface_hub raises. A
    repository that was made for it is removed again then. After a kill the same publication
    completes what is there.
    """
    repository = Repository(upload, options)
    try:
        with answers(options.repo_id):
            return _publish(repository, note)
    except HfHubHTTPError as problem:
        words = REFUSED.get(problem.response.status_code)
        if words is None:
            raise
        raise RopeconvError(f"{options.repo_id} {words}") from None
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
    options, api, (base, problem) = repository.options, repository.api, repository.base
    note(problem)
    note(base.licence and f"Note: {base.licence}.")
    _add_licences(repository)
    if base.closed and not (options.private or options.public):
        closed = f"{base.name} is gated or private, so {options.repo_id} is made private"
        note(f"{closed}; `ropeconv push --public` publishes openly.")
    is_new = repository.create(base.hides(options))
    try:
        if options.revision and not options.create_pr:
            api.create_branch(options.repo_id, branch=options.revision, exist_ok=True)
        head = api.model_info(options.repo_id, revision=options.revision).sha
        stays = repository.kept_card()
        note(stays)
        try:
            generated = {} if stays else repository.card_files(base)
            note(_transfers(repository.upload, generated))
            return _commit(repository, head, generated, note)
        except HfHubHTTPError as failure:
            if (
                failure.response.status_code != CHANGED
                or options.create_pr
                or not repository.holds()
            ):
                raise
            commit = api.model_info(options.repo_id, revision=options.revision).sha
            return f"{api.endpoint}/{options.repo_id}/commit/{commit}"
    except BaseException:
        if is_new:
            repository.remove(note)
        raise


def _transfers(upload: UploadSet, generated: Collection[str]) -> str:
    """Return how many files are sent, and how many the Hub copies. generated: names of the card and
    its pictures.
    """
    sent = counted(len({*upload.adds, *generated}), "file")
    copied = (
        f", {len(upload.copies)} to copy on the Hub from {upload.source}" if upload.copies else ""
    )
    return f"{sent} to upload{copied}."


def _add_licences(repository: Repository) -> None:
    """Adds the licence files of the base model that the upload set lacks."""
    upload = repository.upload
    api = repository.api
    base = repository.base[0]
    missing = base.missing_terms(upload)
    if base.name == upload.source:
        repository.upload = replace(upload, copies=upload.copies | {name: name for name in missing})
        return
    fetched = {
        name: Path(api.hf_hub_download(base.name, name, revision=base.commit or None))
        for name in missing
    }
    repository.upload = replace(upload, adds={**upload.adds, **fetched})


def _commit(
    repository: Repository, head: str | None, generated: dict[str, bytes], note: Note
) -> str:
    upload = repository.upload
    options = repository.options
    api = repository.api
    message = (
        options.message
        or f"Bake {upload.receipt.method} into {upload.source or 'the model'} with ropeconv"
    )

    def adds() -> list[CommitOperationAdd]:
        files = {name: str(path) for name, path in upload.adds.items()} | generated
        return [CommitOperationAdd(name, content) for name, content in files.items()]

    def send(operations: Sequence[CommitOperationAdd | CommitOperationCopy]) -> str:
        for wait in (*WAITS, None):
            try:
                done = api.create_commit(
                    options.repo_id,
                    operations,
                    commit_message=message,
                    parent_commit=head,
                    revision=options.revision,
                    create_pr=options.create_pr or None,
                )
                return str(done.pr_url or done.commit_url)
            except Exception as problem:
                response = getattr(problem, "response", None)
                temporary = (
                    unreachable(problem) if response is None else response.status_code >= 500
                )
                if (
                    wait is None or not temporary
                ):  # a commit that did arrive is found by `holds` at the next attempt
                    raise
            time.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    if not upload.copies:
        return send(adds())
    try:
        copies = [
            CommitOperationCopy(
                origin,
                name,
                src_revision=upload.commit,
                src_repo_id=upload.source,
                src_repo_type="model",
            )
            for name, origin in upload.copies.items()
        ]
        return send([*adds(), *copies])
    except Exception as problem:
        if not _no_copy(problem):
            raise
        first_line = (str(problem).strip().splitlines() or [type(problem).__name__])[0][:160]
        note(f"The Hub cannot copy these files ({first_line}); fetching and uploading them.")
    fetched = [
        CommitOperationAdd(name, api.hf_hub_download(upload.source, origin, revision=upload.commit))
        for name, origin in upload.copies.items()
    ]
    return send([*adds(), *fetched])


def _no_copy(problem: Exception) -> bool:
    """Whether the Hub cannot copy between these repositories: no Xet hash, another region, an old
    server or client.
    """
    if isinstance(problem, TypeError):  # huggingface_hub before 1.17
        return "src_repo_id" in str(problem)
    has_no_hash = isinstance(problem, ValueError) and "no xet hash" in str(problem)
    if has_no_hash or type(problem).__name__ == "FileDuplicationError":
        return True
    response = getattr(problem, "response", None)
    return response is not None and str(response.url).endswith("/lfs-files/duplicate")
