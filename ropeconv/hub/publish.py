"""Publishes in one commit: new files are uploaded, unchanged ones are copied by the Hub from the source's commit.

https://huggingface.co/docs/huggingface_hub/package_reference/hf_api (`create_commit`, `CommitOperationCopy`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..models.hub import answers
from ..models.source import CARD
from ..rope.errors import RopeconvError
from .card import MARK, BaseModel, base_model, card, drawn
from .options import PublishOptions
from .repository import create, holds, remove
from .upload_set import UploadSet

if TYPE_CHECKING:
    from huggingface_hub import HfApi

Note = Callable[[str], None]
WAITS = (1.0, 3.0)  # seconds between attempts to commit
LOGIN = "cannot be written with this login; log in with `hf auth login`, or set HF_TOKEN to a token that may write"
CHANGED = 412
"""The status of a commit after another one: that of another user, or ours if its answer was lost."""
REFUSED = {401: LOGIN, 403: LOGIN, CHANGED: "has changed while this was prepared; check the new commit and run again"}


def publish(what: UploadSet, how: PublishOptions, note: Note = lambda message: None) -> str:
    """Publishes files with a model card, and returns the URL of the commit or pull request.

    what: the files. how: repository and options. note: called with sentences for the user. Raises RopeconvError where
    the repository has other content and there is no `exist_ok`, where it changes meanwhile, or the licence of the
    source forbids it; and what huggingface_hub raises. A repository that was made for it is removed again then. After a
    kill the same publication completes what is there.
    """
    from huggingface_hub.errors import HfHubHTTPError

    api = client(how)
    try:
        with answers(how.repo_id):
            return _publish(api, what, how, note)
    except HfHubHTTPError as problem:
        words = REFUSED.get(problem.response.status_code)
        if words is None:
            raise
        raise RopeconvError(f"{how.repo_id} {words}") from None
    except Exception as problem:
        if not unreachable(problem):
            raise
        raise RopeconvError(
            "cannot reach the Hub; check your connection, HF_HUB_OFFLINE and HF_ENDPOINT, and try again"
        ) from problem


def unreachable(problem: Exception) -> bool:
    """Return whether a request did not reach the Hub, also because of HF_HUB_OFFLINE."""
    names = {kind.__name__ for kind in type(problem).__mro__}
    return bool(names & {"OfflineModeIsEnabled", "TransportError"})


def client(how: PublishOptions) -> HfApi:
    """The client of huggingface_hub. how: the options of publishing, with the token."""
    from huggingface_hub import HfApi

    from ..version import __version__

    return HfApi(token=how.token, library_name="ropeconv", library_version=__version__)


def visibility(base: BaseModel, how: PublishOptions) -> bool:
    """Whether a new repository is private: as is asked for in `how`, else as the base model is. base: of the output."""
    return how.private or (base.closed and not how.public)


def kept_card(api: HfApi, what: UploadSet, how: PublishOptions) -> str:
    """Why a README.md that ropeconv has not written stays; empty where the card is written.

    api: the client. what: the files. how: repository, which must exist unless the user's own card is published.
    """
    if how.overwrite_card:
        return ""
    if what.own_card:
        return "README.md is your own and is published unchanged; `ropeconv push --overwrite-card` replaces it."
    if api.file_exists(how.repo_id, CARD, revision=how.revision):
        with open(api.hf_hub_download(how.repo_id, CARD, revision=how.revision), encoding="utf-8") as file:
            if MARK not in file.read():
                stays = f"The README.md of {how.repo_id} is not ropeconv's and stays"
                return f"{stays}; `ropeconv push --overwrite-card` replaces it."
    return ""


def gguf_files(api: HfApi, what: UploadSet, how: PublishOptions) -> list[str]:
    """Names of the GGUF files that a repository then has, none for a checkpoint. api, what, how: as in `kept_card`."""
    if not what.gguf:
        return []
    listed = api.list_repo_files(how.repo_id, revision=how.revision)
    return sorted({*what.gguf, *(name for name in listed if name.endswith(".gguf"))})


def _publish(api: HfApi, what: UploadSet, how: PublishOptions, note: Note) -> str:
    from huggingface_hub.errors import HfHubHTTPError

    base, what = _source(api, what, how, note)
    private = visibility(base, how)
    if base.closed and not (how.private or how.public):
        closed = f"{base.name} is gated or private, so {how.repo_id} is made private"
        note(f"{closed}; `ropeconv push --public` publishes openly.")
    is_new = create(api, what, how, private)
    try:
        if how.revision and not how.create_pr:
            api.create_branch(how.repo_id, branch=how.revision, exist_ok=True)
        head = api.model_info(how.repo_id, revision=how.revision).sha
        written = _card(api, what, how, base, note)
        try:
            return _commit(api, what, how, head, written, note)
        except HfHubHTTPError as problem:
            if problem.response.status_code != CHANGED or how.create_pr or not holds(api, what, how):
                raise
            return f"{api.endpoint}/{how.repo_id}/commit/{api.model_info(how.repo_id, revision=how.revision).sha}"
    except BaseException:
        if is_new:
            remove(api, how, note)
        raise


def _source(api: HfApi, what: UploadSet, how: PublishOptions, note: Note) -> tuple[BaseModel, UploadSet]:
    """The base model, and the upload set with its licence files. Raises RopeconvError where its terms forbid it."""
    base, problem = base_model(api, what, how)
    note(problem)
    base.refuse_forbidden()
    note(base.licence and f"Note: {base.licence}.")
    missing = base.missing_terms(what)
    if base.name == what.source:
        return base, replace(what, copies=what.copies | {name: name for name in missing})
    fetched = {name: Path(api.hf_hub_download(base.name, name, revision=base.commit or None)) for name in missing}
    return base, replace(what, adds={**what.adds, **fetched})


def _card(api: HfApi, what: UploadSet, how: PublishOptions, base: BaseModel, note: Note) -> dict[str, bytes]:
    """The files of the card, by name; empty where a card that ropeconv has not written stays."""
    stays = kept_card(api, what, how)
    if stays:
        note(stays)
        return {}
    pictures = drawn(what.receipt)
    text = card(what, how.repo_id, base, gguf_files(api, what, how), pictures, how.revision)
    return {CARD: text.encode(), **pictures}


def _commit(
    api: HfApi, what: UploadSet, how: PublishOptions, head: str | None, written: dict[str, bytes], note: Note
) -> str:
    from huggingface_hub import CommitOperationAdd, CommitOperationCopy

    message = how.message or f"Bake {what.receipt.method} into {what.source or 'the model'} with ropeconv"

    def adds() -> list[CommitOperationAdd]:
        files = {name: str(path) for name, path in what.adds.items()} | written
        return [CommitOperationAdd(name, content) for name, content in files.items()]

    def send(operations: Sequence[CommitOperationAdd | CommitOperationCopy]) -> str:
        for wait in (*WAITS, None):
            try:
                done = api.create_commit(
                    how.repo_id, operations, commit_message=message, parent_commit=head, revision=how.revision,
                    create_pr=how.create_pr or None,
                )  # fmt: skip
                return str(done.pr_url or done.commit_url)
            except Exception as problem:
                if wait is None or not _passes(problem):
                    raise
            time.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    if not what.copies:
        return send(adds())
    try:
        copies = [
            CommitOperationCopy(origin, name, src_revision=what.commit, src_repo_id=what.source, src_repo_type="model")
            for name, origin in what.copies.items()
        ]
        return send([*adds(), *copies])
    except Exception as problem:
        if not _no_copy(problem):
            raise
        note(f"The Hub cannot copy these files ({_first_line(problem)}); fetching and uploading them.")
    fetched = [
        CommitOperationAdd(name, api.hf_hub_download(what.source, origin, revision=what.commit))
        for name, origin in what.copies.items()
    ]
    return send([*adds(), *fetched])


def _passes(problem: Exception) -> bool:
    """Whether a failure may be temporary; a commit that did arrive is found by `holds` at the next attempt."""
    response = getattr(problem, "response", None)
    if response is not None:
        return bool(response.status_code >= 500)
    return unreachable(problem)


def _no_copy(problem: Exception) -> bool:
    """Whether the Hub cannot copy between these repositories: no Xet hash, another region, an old server or client."""
    if isinstance(problem, TypeError):  # huggingface_hub before 1.17
        return "src_repo_id" in str(problem)
    if isinstance(problem, ValueError) and "no xet hash" in str(problem):
        return True
    if type(problem).__name__ == "FileDuplicationError":
        return True
    response = getattr(problem, "response", None)
    return response is not None and str(response.url).endswith("/lfs-files/duplicate")


def _first_line(problem: Exception) -> str:
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0][:160]
