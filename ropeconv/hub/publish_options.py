"""PublishOptions: the options of publishing on the Hub."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PublishOptions:
    """Options of publishing on the Hub.

    private: None takes that of the source. create_pr, revision, exist_ok, token: as in huggingface_hub. message: of the
    commit, empty for a default one. overwrite_card: replace a README.md that ropeconv has not written. base_model:
    owner/name of the base model, empty for the one that the receipt or the files name. repo_id: owner/name. given: the
    flags of publishing that the command line has.
    """

    private: bool | None = None
    create_pr: bool = False
    revision: str | None = None
    message: str = ""
    exist_ok: bool = False
    overwrite_card: bool = False
    token: str | None = None
    base_model: str = ""
    repo_id: str = ""
    given: tuple[str, ...] = ()
