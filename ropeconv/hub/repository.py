"""The repository that is published to: a new one, or one that an earlier run left, which is completed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BadSource
from ..formats.disk import sha256
from ..inspection.receipts.receipt import Receipt
from ..inspection.receipts.storage import parse_receipt
from ..models.source import RECEIPT
from ..rope.errors import RopeconvError
from .options import PublishOptions
from .upload_set import UploadSet

if TYPE_CHECKING:
    from huggingface_hub import HfApi


OWN_FILES = {".gitattributes"}
"""The files that the Hub puts into a new repository."""


def create(api: HfApi, what: UploadSet, how: PublishOptions, private: bool) -> bool:
    """Makes the repository, and returns whether it is new.

    api: the client. what: the files that it shall have. how: repository and options. private: its visibility.

    An existing repository is accepted with `exist_ok`, where it is empty, and where it holds what is published: a run
    that was killed leaves one of these. Raises RopeconvError for any other.
    """
    from huggingface_hub.errors import HfHubHTTPError

    if how.create_pr and api.repo_exists(how.repo_id):
        return False
    try:
        api.create_repo(how.repo_id, private=private, exist_ok=False)
    except HfHubHTTPError as problem:
        if problem.response.status_code != 409:
            raise
    else:
        return True
    if how.exist_ok:
        return False
    if not is_empty(api, how):
        if holds(api, what, how):
            return False
        raise RopeconvError(_occupied(how))
    if private and not api.model_info(how.repo_id).private:
        api.update_repo_settings(how.repo_id, private=True)
    return False


def blocking(api: HfApi, what: UploadSet, how: PublishOptions) -> str:
    """Why an existing repository is not committed to; empty where it is. api, what, how: as in `create`."""
    if how.create_pr or how.exist_ok or is_empty(api, how) or holds(api, what, how):
        return ""
    return _occupied(how)


def _occupied(how: PublishOptions) -> str:
    return f"{how.repo_id} exists; pass --create-pr for a pull request, or commit to it with `ropeconv push --exist-ok`"


def remove(api: HfApi, how: PublishOptions, note: Callable[[str], None]) -> None:
    """Removes a new repository after a failed publication, unless it has commits."""
    try:
        if is_empty(api, how):
            api.delete_repo(how.repo_id, missing_ok=True)
    except Exception:
        note(f"{how.repo_id} was made and could not be removed again; the same command completes it.")


def is_empty(api: HfApi, how: PublishOptions) -> bool:
    """Whether there is no commit, on the default branch and on that of the options."""
    return all(_names(api, how.repo_id, revision) <= OWN_FILES for revision in {None, how.revision})


def holds(api: HfApi, what: UploadSet, how: PublishOptions) -> bool:
    """Whether the repository holds what is published: the receipt of the same plan, or the same GGUF files."""
    names = _names(api, how.repo_id, how.revision)
    if not names >= {*what.adds, *what.copies}:
        return False
    if RECEIPT not in what.adds:
        listed = api.get_paths_info(how.repo_id, list(what.adds), revision=how.revision)
        hashes = {file.path: file.lfs.sha256 for file in listed if getattr(file, "lfs", None)}
        return all(hashes.get(name) == sha256(path) for name, path in what.adds.items())
    path = Path(api.hf_hub_download(how.repo_id, RECEIPT, revision=how.revision))
    try:
        return _plan_of(parse_receipt(path.read_text("utf-8"), RECEIPT)) == _plan_of(what.receipt)
    except (BadSource, UnicodeDecodeError):
        return False


def _plan_of(receipt: Receipt) -> tuple[object, ...]:
    files = tuple((file.name, file.action, file.size) for file in receipt.files)
    return receipt.source, receipt.recipe, receipt.encoding, receipt.schedule, files


def _names(api: HfApi, repo_id: str, revision: str | None) -> set[str]:
    from huggingface_hub.errors import RevisionNotFoundError

    try:
        return set(api.list_repo_files(repo_id, revision=revision))
    except RevisionNotFoundError:
        return set()
