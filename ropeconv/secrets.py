"""Tokens and keys of the user: which variables hold them, and an environment without them."""

from __future__ import annotations

import os
from pathlib import Path

SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "OPENAI_API_KEY")
SHORTEST = 8
"""Characters of the shortest value that is looked for; a shorter one would be found in ordinary words."""


def without_secrets() -> dict[str, str]:
    """The environment for a process that needs none of them."""
    return {name: value for name, value in os.environ.items() if name not in SECRETS}


def redacted(text: str) -> str:
    """The text without the values of these variables and the stored token, which an answer may hold."""
    for value in (*(os.environ.get(name, "") for name in SECRETS), stored_token()):
        if len(value) >= SHORTEST:
            text = text.replace(value, "***")
    return text


def stored_token() -> str:
    """The token that `hf auth login` stored, or empty.

    https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
    """
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", f"{cache}/huggingface")
    path = os.environ.get("HF_TOKEN_PATH", f"{home}/token")
    try:
        return Path(os.path.expandvars(path)).expanduser().read_text("utf-8").strip()
    except (OSError, ValueError, RuntimeError):  # not there; no text; no home
        return ""
