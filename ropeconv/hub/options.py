"""`PublishOptions`: the options of publishing on the Hub, and where an output is published."""

import re
from dataclasses import dataclass

from ..errors import UsageError
from ..options import option

EXPERT = "Expert options"


@dataclass(frozen=True)
class PushOptions:
    """How an output is published; `create_pr`, `revision` and `exist_ok` as in huggingface_hub."""

    private: bool = option(False, "Make the repository private.", "Hub", writes=True)
    public: bool = option(
        False,
        "Publish openly even though the source is gated or private.",
        EXPERT,
        writes=True,
    )
    create_pr: bool = option(
        False, "Open a pull request instead of committing.", "Hub", writes=True
    )
    revision: str | None = option(None, "Commit to this branch.", EXPERT, writes=True)
    message: str = option("", "The commit message.", EXPERT, flag="--commit-message")
    exist_ok: bool = option(False, "Commit to an existing repository.", EXPERT, writes=True)
    overwrite_card: bool = option(
        False, "Replace a README.md that ropeconv did not write.", EXPERT, writes=True
    )
    base_model: str = option(
        "", "The base model for the card, if the source is not on the Hub.", EXPERT
    )

    def __post_init__(self) -> None:
        if self.private and self.public:
            raise UsageError("--private and --public contradict each other; give one")


@dataclass(frozen=True)
class Branch:
    """A branch of a repository, as the card of its main branch lists it."""

    name: str

    tokens: int
    """The context of its model."""

    command: str
    """Serves it with that context; empty where no runtime with a command supports it."""


@dataclass(frozen=True)
class PublishOptions(PushOptions):
    """How and where an output is published."""

    token: str | None = option(
        None, "Use this token instead of HF_TOKEN and the stored login.", EXPERT
    )

    repo_id: str = ""
    """The repository, as owner/name."""

    branches: tuple[Branch, ...] = ()
    """The other profiles, for the card of the first one."""


def repository(text: str) -> str:
    """Return the name of a repository without the `hf://` that a user may write.

    Raises:
        UsageError: It is not owner/name.
    """
    repo_id = text.removeprefix("hf://")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", repo_id):
        raise UsageError(f"{repo_id} is not a repository; write owner/name")
    return repo_id
