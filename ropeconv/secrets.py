"""Tokens and keys of the user: which variables hold them, and an environment without them."""

from __future__ import annotations

import os

SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "OPENAI_API_KEY")
SHORTEST = 8
"""Characters of the shortest value that is looked for; a shorter one would be found in ordinary words."""


def without_secrets() -> dict[str, str]:
    """The environment for a process that needs none of them."""
    return {name: value for name, value in os.environ.items() if name not in SECRETS}


def redacted(text: str) -> str:
    """The text without the values of these variables, which a server may have put into its answer."""
    for name in SECRETS:
        value = os.environ.get(name, "")
        if len(value) >= SHORTEST:
            text = text.replace(value, "***")
    return text
