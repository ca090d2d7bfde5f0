"""Repository: what is published, and the repository on the Hub that it goes into."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, RevisionNotFoundError

from ..errors import BadSource
from ..formats.disk import sha256
from ..inspection.receipts.receipt import Receipt
from ..inspection.receipts.storage import parse_receipt
from ..models.source import CARD, RECEIPT
from ..rope.errors import RopeconvError
from ..version import __version__
from .base_model import BaseModel, base_model
from .card import MARK, card, drawn
from .options import PublishOptions
from .upload_set import UploadSet

OWN_FILES = {".gitattributes"}
"""The files that the Hub puts into a new repository."""


class Repository:
    """A repository that is published to: a new one, or one that an earlier run left, which is
    completed.

    upload: the files that it shall have. options: its name, and the options of publishing.
    """

    def __init__(self, upload: UploadSet, options: PublishOptions) -> None:
        self.upload = upload
        self.options = options
        self.name = options.repo_id
        self.api = HfApi(token=options.token, library_name="ropeconv", library_version=__version__)

    @cached_property
    def base(self) -> tuple[BaseModel, str]:
        """The base model, and what could not be seen of it. Raises RopeconvError where its terms
        forbid publishing.
        """
        base, problem = base_model(self.api, self.upload, self.options)
        base.refuse_forbidden()
        return base, problem

    def create(self, private: bool) -> bool:
        """Makes the repository, and returns whether it is new.

        An existing repository is accepted with `exist_ok`, where it is empty, and where it holds
        what is published: a run that was killed leaves one of these. Raises RopeconvError for any
        other.
        """
        if self.options.create_pr and self.api.repo_exists(self.name):
            return False
        try:
            self.api.create_repo(self.name, private=private, exist_ok=False)
        except HfHubHTTPError as problem:
            if problem.response.status_code != 409:
                raise
        else:
            return True
        if blocked := self.blocked():
            raise RopeconvError(blocked)
        if (
            not self.options.exist_ok
            and self.is_empty()
            and private
            and not self.api.model_info(self.name).private
        ):
            self.api.update_repo_settings(self.name, private=True)
        return False

    def blocked(self) -> str:
        """Why the repository, which exists, is not committed to; empty where it is."""
        if self.options.create_pr or self.options.exist_ok or self.is_empty() or self.holds():
            return ""
        return (
            f"{self.name} exists; choose another name, or run `ropeconv push OUTPUT {self.name}`"
            " with --create-pr or --exist-ok"
        )

    def remove(self, note: Callable[[str], None]) -> None:
        """Removes the repository, which is new, after a failed publication, unless it has
        commits.
        """
        try:
            if self.is_empty():
                self.api.delete_repo(self.name, missing_ok=True)
        except Exception:
            note(
                f"{self.name} was made and could not be removed again; the same command"
                " completes it."
            )

    def is_empty(self) -> bool:
        """Whether there is no commit, on the default branch and on that of the options."""
        return all(self._names(revision) <= OWN_FILES for revision in {None, self.options.revision})

    def holds(self) -> bool:
        """Whether the repository holds what is published: the receipt of the same plan, or the same
        GGUF files.
        """
        adds = self.upload.adds
        revision = self.options.revision
        if not self._names(revision) >= {*adds, *self.upload.copies}:
            return False
        if RECEIPT not in adds:
            listed = self.api.get_paths_info(self.name, list(adds), revision=revision)
            hashes = {file.path: file.lfs.sha256 for file in listed if getattr(file, "lfs", None)}
            return all(hashes.get(name) == sha256(path) for name, path in adds.items())
        path = Path(self.api.hf_hub_download(self.name, RECEIPT, revision=revision))
        try:
            return _plan_of(parse_receipt(path.read_text("utf-8"), RECEIPT)) == _plan_of(
                self.upload.receipt
            )
        except (BadSource, UnicodeDecodeError):
            return False

    def kept_card(self, exists: bool = True) -> str:
        """Why a README.md that ropeconv has not written stays; empty where the card is written."""
        if self.options.overwrite_card:
            return ""
        if self.upload.own_card:
            return (
                "README.md is your own and is published unchanged; `ropeconv push --overwrite-card`"
                " replaces it."
            )
        if exists and self.api.file_exists(self.name, CARD, revision=self.options.revision):
            path = Path(self.api.hf_hub_download(self.name, CARD, revision=self.options.revision))
            if MARK not in path.read_text("utf-8", errors="replace"):
                stays = f"The README.md of {self.name} is not ropeconv's and stays"
                return f"{stays}; `ropeconv push --overwrite-card` replaces it."
        return ""

    def card_files(self, base: BaseModel, exists: bool = True) -> dict[str, bytes]:
        """The card and its pictures, by name. base: of the output. exists: whether the repository
        can be asked.
        """
        ggufs = set(self.upload.gguf)
        pictures = drawn(self.upload.receipt)
        if ggufs and exists:
            ggufs |= {name for name in self._names(self.options.revision) if name.endswith(".gguf")}
        text = card(self.upload, self.name, base, sorted(ggufs), pictures, self.options)
        return {CARD: text.encode(), **pictures}

    def _names(self, revision: str | None) -> set[str]:
        try:
            return set(self.api.list_repo_files(self.name, revision=revision))
        except RevisionNotFoundError:
            return set()


def _plan_of(receipt: Receipt) -> tuple[object, ...]:
    files = tuple((file.name, file.action, file.size) for file in receipt.files)
    return receipt.source, receipt.recipe, receipt.encoding, receipt.schedule, files
