"""What a licence asks of those who publish a derivative. Data, and no advice."""

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
    """A sentence about a licence, empty where nothing is known of it, and whether it forbids derivatives."""
    for entry in _terms():
        if license and fnmatch(license.lower(), entry["license"]):
            return f"the licence {license} {entry['says']}", bool(entry.get("forbids"))
    return "", False
