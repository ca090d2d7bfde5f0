"""Terms of licences for those who publish a derivative, from data/terms.toml; this is no legal advice."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def _terms() -> list[dict[str, Any]]:
    text = (files("ropeconv.hub") / "data" / "terms.toml").read_text("utf-8")
    found: list[dict[str, Any]] = tomllib.loads(text)["terms"]
    return found


def terms_of(license: str) -> tuple[str, bool]:
    """A sentence about the terms of a licence, empty for unknown ones, and whether it forbids derivatives.

    license: its name in the metadata of a model card.
    """
    for entry in _terms():
        if license and fnmatch(license.lower(), entry["license"]):
            return f"the licence {license} {entry['says']}", bool(entry.get("forbids"))
    return "", False
