"""How to publish."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PublishOptions:
    """How to publish.

    private: None takes the source's. create_pr, revision, exist_ok, token: as in huggingface_hub. message: of the
    commit. overwrite_card: replace a README.md that is not ropeconv's. command: what was typed, for the card. repo_id:
    the repository. given: flags that stood on the command line.
    """

    private: bool | None = None
    create_pr: bool = False
    revision: str | None = None
    message: str = ""
    exist_ok: bool = False
    overwrite_card: bool = False
    token: str | None = None
    command: str = ""
    repo_id: str = ""
    given: tuple[str, ...] = ()
