"""PublishOptions: the options of publishing on the Hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class PublishOptions:
    """Options of publishing on the Hub.

    private: None takes that of the source. create_pr, revision, exist_ok, token: as in huggingface_hub. message: of the
    commit, empty for a default one. overwrite_card: replace a README.md that ropeconv has not written. base_model:
    owner/name of the base model, empty for the one that the receipt or the files name. through_here: whether files that
    the Hub cannot copy itself are fetched and uploaded. repo_id: owner/name. given: the flags of publishing that the
    command line has.
    """

    private: bool | None = None
    create_pr: bool = False
    revision: str | None = None
    message: str = ""
    exist_ok: bool = False
    overwrite_card: bool = False
    token: str | None = None
    base_model: str = ""
    through_here: bool = True
    repo_id: str = ""
    given: tuple[str, ...] = ()


def repository(text: str) -> str:
    """A repository as a user names it, without `hf://`. Raises UsageError where it is not owner/name."""
    repo_id = text.removeprefix("hf://")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", repo_id):
        raise UsageError(f"{repo_id} is no repository; write owner/name")
    return repo_id
