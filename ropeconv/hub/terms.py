"""Terms of licences for those who publish a derivative, from data/terms.toml; this is no legal advice."""

from __future__ import annotations

from fnmatch import fnmatch
from functools import cache
from importlib.resources import files

import msgspec

from ..formats.typed import package_data


class Term(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Conditions of a licence. license: a pattern of its names. says: what follows its name. forbids: derivatives."""

    license: str
    says: str
    forbids: bool = False


class TermTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The schema of terms.toml."""

    terms: tuple[Term, ...]


@cache
def _terms() -> tuple[Term, ...]:
    return package_data(files("ropeconv.hub") / "data" / "terms.toml", TermTable).terms


def terms_of(license: str) -> tuple[str, bool]:
    """A sentence about the terms of a licence, empty for unknown ones, and whether it forbids derivatives.

    license: its name in the metadata of a model card.
    """
    for entry in _terms():
        if license and fnmatch(license.lower(), entry.license):
            return f"the licence {license} {entry.says}", entry.forbids
    return "", False
