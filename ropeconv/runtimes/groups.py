"""Groups verdicts for display: one line per status, with the runtimes that have it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol, get_args

from ..rope.errors import RecipeError
from .runtime import LLAMA_CPP, Runtime, Status, choose, runtimes, version_key

UNREAD = ("unsupported", "unknown")
"""Statuses of runtimes that do not read the config."""
VERSIONS = re.compile(r"(?P<title>.+) (?P<first>[\d.]+)(?:-(?P<last>[\d.]+))?")


class VerdictLike(Protocol):
    """A `Verdict`, or the record of one in a receipt."""

    @property
    def runtime(self) -> str: ...
    @property
    def display_name(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def grade(self) -> str: ...


@dataclass(frozen=True)
class _Range:
    """Consecutive versions of a runtime. title: of the runtime, or the whole name where it has no version."""

    title: str
    first: str
    last: str
    read: bool

    @property
    def versions(self) -> str:
        return self.first if self.first == self.last else f"{self.first}-{self.last}"


def grouped(verdicts: Iterable[VerdictLike], read_as: str = "") -> list[tuple[str, str]]:
    """Pairs of a status, best first, and its runtimes: `("exact", "transformers 4.51-5.23, vLLM 0.33; read: TGI 3")`.

    verdicts: in the order of `runtimes()`. Consecutive versions become a range. Executed versions come first. read_as:
    the family that a model of an unknown model type is treated as, which goes before the runtimes: "as llama: ...".
    """
    ranges: dict[str, list[_Range]] = {}
    for _, of_runtime in groupby(verdicts, key=lambda verdict: verdict.runtime.partition("@")[0]):
        previous = ""
        for verdict in of_runtime:
            status_ranges = ranges.setdefault(verdict.status, [])
            new = _range(verdict)
            if status_ranges and previous == verdict.status and _continues(status_ranges[-1], new):
                new = _Range(new.title, status_ranges.pop().first, new.last, new.read)
            status_ranges.append(new)
            previous = verdict.status
    return [
        (status, f"as {read_as}: " * (bool(read_as) and status not in UNREAD) + _labels(ranges[status]))
        for status in dict.fromkeys((*get_args(Status), *ranges))
        if status in ranges
    ]


def _labels(ranges: list[_Range]) -> str:
    run, read = (_titled([span for span in ranges if span.read is read_only]) for read_only in (False, True))
    return "; ".join(filter(None, [run, f"read: {read}" if read else ""]))


def _titled(ranges: list[_Range]) -> str:
    """The ranges with the title of a runtime once: `transformers 4.51-5.8 and 5.12-5.23, vLLM 0.33`."""
    titles = (
        (title, " and ".join(span.versions for span in group))
        for title, group in groupby(ranges, key=lambda r: r.title)
    )
    return ", ".join(f"{title} {versions}".rstrip() for title, versions in titles)


def _range(verdict: VerdictLike) -> _Range:
    name = verdict.display_name or verdict.runtime.replace("@", " ")
    parts, read = VERSIONS.fullmatch(name), verdict.grade == "read"
    if parts is None:
        return _Range(name, "", "", read)
    return _Range(parts["title"], parts["first"], parts["last"] or parts["first"], read)


def _continues(left: _Range, right: _Range) -> bool:
    """Whether a range begins where another one ends, so that no version is between them."""
    if left.title != right.title or left.read != right.read or not left.last:
        return False
    (major, minor), (next_major, next_minor) = (version_key(value + ".0")[:2] for value in (left.last, right.first))
    return (next_major, next_minor) in ((major, minor), (major, minor + 1), (major + 1, 0))


ALL = "all"
ALIASES = {
    "llama.cpp": LLAMA_CPP, "gguf": LLAMA_CPP, "mlx": "mlx-lm", "lmstudio": "lm-studio", "exllama": "exllamav3",
}  # fmt: skip


def newest(name: str) -> Runtime:
    """The newest row of a runtime."""
    return [row for row in runtimes() if row.name == name][-1]


def canonical(wanted: str) -> str:
    """`name` or `name@version` in lower case, without aliases: llama.cpp and gguf are llama-cpp, mlx is mlx-lm."""
    name, at, version = wanted.strip().partition("@")
    return ALIASES.get(name.lower(), name.lower()) + at + version


def find(wanted: str, also: Iterable[str] = ()) -> tuple[Runtime, ...]:
    """The rows for `name` (all current ones, the newest last), for `name@version` only that version, or for "all".

    also: other names that the caller knows, for the message. Raises RecipeError for an unknown name, and for a version
    that no row covers.
    """
    name, _, version = canonical(wanted).partition("@")
    if name == ALL and not version:
        return tuple(row for row in runtimes() if row.current)
    rows = [row for row in runtimes() if row.name == name]
    if not rows:
        others = ", ".join(alias for alias, name in ALIASES.items() if name == LLAMA_CPP)
        known = dict.fromkeys(row.name for row in runtimes())
        names = ", ".join([*(f"{name} (or {others})" if name == LLAMA_CPP else name for name in known), *also])
        raise RecipeError(f"--runtime {wanted}: unknown runtime; supported: {names}")
    return choose(wanted, version, rows)
