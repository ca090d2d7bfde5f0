"""Runtime support in words: the runtimes that most people use by name, problems of others in a
sentence.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import get_args

from ..rope.errors import counted
from ..runtimes.runtime import Status, version_key
from ..runtimes.verdict import Verdict
from .receipts.receipt import RuntimeRecord

UNREAD = ("unsupported", "unknown")
"""Statuses of runtimes that do not read the config."""
VERSIONS = re.compile(r"(?P<title>.+) (?P<first>[\d.]+)(?:-(?P<last>[\d.]+))?")
VerdictLike = Verdict | RuntimeRecord
"""A verdict, or the record of one in a receipt."""


@dataclass(frozen=True)
class _Range:
    """Consecutive versions of a runtime. title: of the runtime, or the whole name where it has no
    version.
    """

    title: str
    first: str
    last: str
    read: bool

    @property
    def versions(self) -> str:
        return self.first if self.first == self.last else f"{self.first}-{self.last}"


def grouped(verdicts: Iterable[VerdictLike], read_as: str = "") -> list[tuple[str, str]]:
    """Pairs of a status, best first, and its runtimes:
    `("exact", "transformers 4.51-5.23, vLLM 0.33; read: TGI 3")`.

    verdicts: in the order of `runtimes()`. Consecutive versions become a range. Executed versions
    come first. read_as: the family that a model of an unknown model type is treated as, which goes
    before the runtimes: "as llama: ...".
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
        (
            status,
            f"as {read_as}: " * (bool(read_as) and status not in UNREAD) + _labels(ranges[status]),
        )
        for status in dict.fromkeys((*get_args(Status), *ranges))
        if status in ranges
    ]


def _labels(ranges: list[_Range]) -> str:
    run, read = (
        _titled([span for span in ranges if span.read is read_only]) for read_only in (False, True)
    )
    return "; ".join(filter(None, [run, f"read: {read}" if read else ""]))


def _titled(ranges: list[_Range]) -> str:
    """The ranges with the title of a runtime once:
    `transformers 4.51-5.8 and 5.12-5.23, vLLM 0.33`.
    """
    titles = (
        (title, " and ".join(span.versions for span in group))
        for title, group in groupby(ranges, key=lambda r: r.title)
    )
    return ", ".join(f"{title} {versions}".rstrip() for title, versions in titles)


def _range(verdict: VerdictLike) -> _Range:
    name = verdict.display_name or verdict.runtime.replace("@", " ")
    parts = VERSIONS.fullmatch(name)
    read = verdict.grade == "read"
    if parts is None:
        return _Range(name, "", "", read)
    return _Range(parts["title"], parts["first"], parts["last"] or parts["first"], read)


def _continues(left: _Range, right: _Range) -> bool:
    """Whether a range begins where another one ends, so that no version is between them."""
    if left.title != right.title or left.read != right.read or not left.last:
        return False
    (major, minor), (next_major, next_minor) = (
        version_key(value + ".0")[:2] for value in (left.last, right.first)
    )
    return (next_major, next_minor) in ((major, minor), (major, minor + 1), (major + 1, 0))


POPULAR = (
    "llama-cpp-gguf",
    "transformers",
    "vllm",
    "sglang",
    "llama-cpp",
    "mlx-lm",
    "exllamav3",
    "ollama",
    "koboldcpp",
    "lm-studio",
)
WORDS = {
    "exact": "supported",
    "rounded": "supported",
    "approximate": "approximate",
    "differs": "wrong",
    "ignored": "ignored",
    "refused": "fails",
    "unsupported": "unsupported",
    "unknown": "untested",
}
"""The word for each status of a verdict; `--json` and `--explain` have the statuses."""
PROBLEMS = {"wrong": "silently wrong in", "ignored": "silently ignored by", "fails": "fails in"}


def by_runtime(verdicts: Iterable[VerdictLike]) -> dict[str, list[VerdictLike]]:
    """The verdicts of each runtime, oldest version first."""
    ordered = sorted(verdicts, key=lambda verdict: verdict.runtime.partition("@")[0])
    return {
        name: list(rows)
        for name, rows in groupby(ordered, key=lambda verdict: verdict.runtime.partition("@")[0])
    }


def support(
    verdicts: Sequence[VerdictLike], named: Mapping[str, VerdictLike] = {}
) -> list[tuple[str, str]]:
    """The rows of the short table: a word and the runtimes whose newest version it holds for, best
    first.

    Args:
        verdicts: Those of each runtime from its oldest version to the newest.
        named: The runtimes that the user named, with the verdict on the version that counts;
            without any, the popular ones are shown.

    Returns:
        Pairs such as `("supported", "vLLM 0.20 or newer, SGLang 0.5.23")`.
    """
    runtimes = by_runtime(verdicts)
    words: dict[str, list[str]] = {}
    for name in named or POPULAR:
        rows = runtimes.get(name, [])
        if name in named and named[name] not in rows[-1:]:
            words.setdefault(WORDS[named[name].status], []).append(named[name].display_name)
        elif rows:
            word, label = _newest(rows)
            words.setdefault(word, []).append(label)
    return [
        (word, ", ".join(words[word])) for word in dict.fromkeys(WORDS.values()) if word in words
    ]


def others(verdicts: Sequence[VerdictLike]) -> str:
    """Sentences on other runtimes that are wrong or fail, and on where all are shown."""
    everyone = f"All {counted(len(by_runtime(verdicts)), 'runtime')}: --explain."
    problem = problems(verdicts)
    return f"{problem}. {everyone}" if problem else everyone


def count_others(verdicts: Sequence[VerdictLike], named: Collection[str] = ()) -> str:
    """As `others`, for people who asked for none of these runtimes: how many are wrong or fail,
    without names.
    """
    everyone = f"All {counted(len(by_runtime(verdicts)), 'runtime')}: --explain."
    affected = _affected(verdicts)
    if named or not affected:
        return everyone
    counts = ", ".join(f"{word} {len(titles)}" for word, titles in affected.items())
    return f"Others: {counts}. {everyone}"


def problems(verdicts: Sequence[VerdictLike]) -> str:
    """A clause on the runtimes beside the popular ones that are wrong or fail; empty without
    any.
    """
    text = "; ".join(
        f"{PROBLEMS[word]} {', '.join(titles)}" for word, titles in _affected(verdicts).items()
    )
    return text[:1].upper() + text[1:]


def _affected(verdicts: Sequence[VerdictLike]) -> dict[str, list[str]]:
    """The runtimes beside the popular ones that are wrong or fail, by the word for their status."""
    affected: dict[str, list[str]] = {word: [] for word in PROBLEMS}
    for name, rows in by_runtime(verdicts).items():
        word = WORDS[rows[-1].status]
        if name not in POPULAR and word in PROBLEMS:
            affected[word].append(title_of(rows[-1]))
    return {word: titles for word, titles in affected.items() if titles}


def _newest(rows: Sequence[VerdictLike]) -> tuple[str, str]:
    """The word for the newest version of a runtime, and its name with the oldest version from which
    it holds.
    """
    word = WORDS[rows[-1].status]
    first = rows[-1]
    for row in reversed(rows):
        if WORDS[row.status] not in (word, "untested"):
            break
        if WORDS[row.status] == word:
            first = row
    title = title_of(rows[-1])
    newest = _range(rows[-1])
    oldest = _range(first)
    if (
        not (newest.last and oldest.last)
        or word in ("untested", "unsupported")
        or title.startswith("llama.cpp")
    ):
        return word, title
    return word, f"{title} {newest.versions if first is rows[-1] else f'{oldest.first} or newer'}"


def title_of(row: VerdictLike) -> str:
    """The name of a runtime without its versions."""
    title = _range(row).title.replace(" via convert_hf_to_gguf.py", " (after conversion)")
    return title.partition(" (commit ")[0]
