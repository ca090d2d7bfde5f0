"""PublishOptions: the options of publishing on the Hub."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import UsageError
from ..options import option


@dataclass(frozen=True)
class PushOptions:
    """How an output is published. create_pr, revision, exist_ok: as in huggingface_hub."""

    private: bool = option(False, "Make the repository private.", "Hub")
    public: bool = option(False, "Make it public though its source is gated or private.", "Hub")
    create_pr: bool = option(False, "Open a pull request instead of committing.", "Hub")
    revision: str | None = option(None, "Commit to this branch.", "Hub")
    message: str = option("", "Message of the commit.", "Hub", flag="--commit-message")
    exist_ok: bool = option(False, "Commit to a repository that exists.", "Hub")
    overwrite_card: bool = option(False, "Replace a README.md that is not ropeconv's.", "Hub")
    base_model: str = option("", "The base model, for a source that is not on the Hub.", "Hub")

    def __post_init__(self) -> None:
        if self.private and self.public:
            raise UsageError("--private and --public contradict each other; give one")


@dataclass(frozen=True)
class PublishOptions(PushOptions):
    """How and where an output is published.

    through_here: whether files that the Hub cannot copy itself are fetched and uploaded. repo_id: owner/name. given:
    the flags of publishing that the command line has.
    """

    token: str | None = option(None, "Used instead of HF_TOKEN and the stored login.", "Hub")
    through_here: bool = True
    repo_id: str = ""
    given: tuple[str, ...] = ()


def repository(text: str) -> str:
    """A repository as a user names it, without `hf://`. Raises UsageError where it is not owner/name."""
    repo_id = text.removeprefix("hf://")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", repo_id):
        raise UsageError(f"{repo_id} is no repository; write owner/name")
    return repo_id
