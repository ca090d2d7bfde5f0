"""VersionRange, a range of versions of one program that behave alike, and comparisons of versions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

import msgspec

from ..rope.errors import RecipeError


class VersionRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A range of versions of one program that behave alike.

    name: as `--runtime` takes it. version, through: the first and the last version; through is empty where they are the
    same. title: of the program, for people. source: its code. current: whether it is in common use, so that `name`
    alone includes it.
    """

    name: str
    version: str
    title: str
    source: str
    through: str = ""
    current: bool = True

    @property
    def key(self) -> str:
        """The range as `name@version`, as `--runtime` takes it; the name alone where it has no version."""
        return f"{self.name}@{self.version}" if self.version else self.name

    @property
    def last(self) -> str:
        """The last version of the range."""
        return self.through or self.version

    @property
    def display_name(self) -> str:
        """The title with the versions."""
        named = f"{self.title} {self.version}".strip()
        return named + (f"-{self.through}" if self.through not in ("", self.version) else "")

    def covers(self, version: str) -> bool:
        """Whether a version is in the range; more numbers than the range has do not count."""
        return within(version, self.version, self.last)


Range = TypeVar("Range", bound=VersionRange)


def choose(wanted: str, version: str, rows: Sequence[Range]) -> tuple[Range, ...]:
    """The ranges that a name stands for: all current ones, or that of `version`, cut to that version alone.

    wanted: what was written, for the message. version: empty for the current ranges. rows: all ranges of the program,
    the newest last. Raises RecipeError for a version that no range covers.
    """
    if not version:
        return tuple(row for row in rows if row.current)
    covering = [row for row in rows if row.covers(version)]
    if not covering:
        ranges = ", ".join(row.version + (f"-{row.through}" if row.through else "") for row in rows)
        raise RecipeError(f"--runtime {wanted}: nobody has looked at that version; known: {ranges}")
    return (msgspec.structs.replace(covering[-1], version=version, through=version),)


@lru_cache(maxsize=1024)
def version_key(version: str) -> tuple[int, ...]:
    """A dotted version as a tuple of numbers, for comparisons; parts that are not numbers are left out."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def within(version: str, first: str, last: str) -> bool:
    """Whether a version is from `first` to `last`; more numbers than these have do not count."""
    wanted, start, end = version_key(version), version_key(first), version_key(last)
    return start <= wanted[: len(start)] and wanted[: len(end)] <= end


def before(version: str) -> str:
    """The version before `major.minor`, for display: 5.1 for 5.2."""
    major, minor = version_key(version)[:2]
    return f"{major}.{minor - 1}" if minor else f"before {version}"
