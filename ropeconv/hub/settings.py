"""How to publish."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Publish:
    """How to publish. private: None takes the source's. command: what was typed, for the card."""

    private: bool | None = None
    create_pr: bool = False
    revision: str | None = None
    message: str = ""
    exist_ok: bool = False
    overwrite_card: bool = False
    token: str | None = None
    command: str = ""
    repo_id: str = ""
