"""`Repository`: the files of a publication, and the repository on the Hub that they go into."""

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
from .card import MARK, card, card_pictures
from .options import PublishOptions
from .upload_set import UploadSet

OWN_FILES = {".gitattributes"}
"""The files that the Hub puts into a new repository."""


class Repository:
    """A repository that is published to: a new one, or one that an earlier run left unfinished."""

    def __init__(self, upload: UploadSet, options: PublishOptions) -> None:
        """Name a repository; nothing is asked or made yet.

        Args:
            upload: The files that it shall have.
            options: Its name, and the options of publishing.
        """
        self.upload = upload
        self.options = options
        self.name = options.repo_id
        self.api = HfApi(token=options.token, library_name="ropeconv", library_version=__version__)

    @cached_property
    def base_and_problem(self) -> tuple[BaseModel, str]:
        """The base model, and a sentence on what could not be read of it, or "".

        Raises:
            RopeconvError: Its licence forbids publishing.
        """
        base, problem = base_model(self.api, self.upload, self.options)
        base.refuse_forbidden()
        return base, problem

    def create(self, private: bool) -> bool:
        """Make the repository, and return whether it is new.

        An existing repository is accepted in three cases: with the option `exist_ok`, where it is
        empty, and where it has all files of this publication. A run that was killed leaves one of
        the last two.

        Args:
            private: Whether a new or empty repository is private.

        Raises:
            RopeconvError: The repository exists and has other content.
        """
        # a pull request is made in any repository that exists
        if self.options.create_pr and self.api.repo_exists(self.name):
            return False
        try:
            self.api.create_repo(self.name, private=private, exist_ok=False)
            return True
        except HfHubHTTPError as problem:
            if problem.response.status_code != 409:  # the status of a repository that exists
                raise

        blocked = self.why_blocked()
        if blocked:
            raise RopeconvError(blocked)

        # With `exist_ok` the repository is the user's own, whose settings stay.
        if self.options.exist_ok:
            return False
        # An empty one was made by a run that was killed before its commit. That run may have made
        # it public, which a private publication corrects.
        if private and self.is_empty():
            info = self.api.model_info(self.name)
            if not info.private:
                self.api.update_repo_settings(self.name, private=True)
        return False

    def start_branch(self, name: str) -> None:
        """Make a branch for the commit that follows, where there is none of this name.

        It starts at the first commit of the repository, in which the Hub puts `.gitattributes`
        only. From the tip of `main`, it would offer the weights of `main` under its own name until
        the commit comes, and beside it the files of `main` that the commit does not replace.

        Args:
            name: The name of the branch.
        """
        if self.api.revision_exists(self.name, name):
            return
        first = self.api.list_repo_commits(self.name)[-1]  # the newest commit comes first
        self.api.create_branch(self.name, branch=name, revision=first.commit_id, exist_ok=True)

    def why_blocked(self) -> str:
        """Return why an existing repository must not be committed to; empty where it may be."""
        if self.options.create_pr or self.options.exist_ok:
            return ""
        if self.is_empty() or self.has_all_files():
            return ""
        return (
            f"{self.name} exists; choose another name, or run `ropeconv push OUTPUT {self.name}`"
            " with --create-pr or --exist-ok"
        )

    def remove(self, note: Callable[[str], None]) -> None:
        """Remove the repository, which is new, after a failed publication.

        It stays where it has commits.

        Args:
            note: Called with a sentence where it cannot be removed.
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
        """Return whether the default branch and that of the options have no commit."""
        branches = {None, self.options.revision}
        return all(self._names(branch) <= OWN_FILES for branch in branches)

    def has_all_files(self) -> bool:
        """Return whether the repository has all files of this publication.

        The names are compared, and then the receipt with its plan, or the hashes of GGUF files.
        """
        adds = self.upload.adds
        revision = self.options.revision
        names = self._names(revision)
        if not names >= {*adds, *self.upload.copies}:
            return False

        if RECEIPT in adds:
            path = Path(self.api.hf_hub_download(self.name, RECEIPT, revision=revision))
            try:
                receipt = parse_receipt(path.read_text("utf-8"), RECEIPT)
            except (BadSource, UnicodeDecodeError):
                return False
            return _plan_of(receipt) == _plan_of(self.upload.receipt)

        # a GGUF file has its receipt inside, so its whole content is compared, by the hash that the
        # Hub keeps for each large file
        hashes = {}
        for file in self.api.get_paths_info(self.name, list(adds), revision=revision):
            if getattr(file, "lfs", None):
                hashes[file.path] = file.lfs.sha256
        return all(hashes.get(name) == sha256(path) for name, path in adds.items())

    def reason_to_keep_card(self, exists: bool = True) -> str:
        """Return a sentence that says why a README.md of the user is kept.

        The sentence is empty where ropeconv writes the card: the user has not written one, or gives
        the option `overwrite_card`.

        Args:
            exists: Whether the repository exists, so that it may have a README.md.
        """
        if self.options.overwrite_card:
            return ""
        user_wrote_local_card = self.upload.own_card
        if user_wrote_local_card:
            return (
                "README.md is your own and is published unchanged; `ropeconv push --overwrite-card`"
                " replaces it."
            )

        # a card in the repository is replaced if ropeconv has written it, which its mark shows
        if not exists:
            return ""
        revision = self.options.revision
        has_card = self.api.file_exists(self.name, CARD, revision=revision)
        if not has_card:
            return ""
        path = Path(self.api.hf_hub_download(self.name, CARD, revision=revision))
        if MARK in path.read_text("utf-8", errors="replace"):
            return ""
        return (
            f"The README.md of {self.name} is not ropeconv's and stays; `ropeconv push"
            " --overwrite-card` replaces it."
        )

    def card_files(self, base: BaseModel, exists: bool = True) -> dict[str, bytes]:
        """Return the card and its pictures, by name.

        Args:
            base: The base model of the output.
            exists: Whether the repository exists, whose GGUF files the card lists too.
        """
        revision = self.options.revision
        ggufs = set(self.upload.gguf)
        if ggufs and exists:
            ggufs |= {name for name in self._names(revision) if name.endswith(".gguf")}

        pictures = card_pictures(self.upload.receipt)
        text = card(self.upload, self.name, base, sorted(ggufs), pictures, self.options)
        return {CARD: text.encode(), **pictures}

    def _names(self, revision: str | None) -> set[str]:
        """Return the files on a branch; empty where the branch does not exist."""
        try:
            return set(self.api.list_repo_files(self.name, revision=revision))
        except RevisionNotFoundError:
            return set()


def _plan_of(receipt: Receipt) -> tuple[object, ...]:
    """Return the part that two receipts of the same plan have in common."""
    files = tuple((file.name, file.action, file.size) for file in receipt.files)
    return receipt.source, receipt.recipe, receipt.encoding, receipt.schedule, files
