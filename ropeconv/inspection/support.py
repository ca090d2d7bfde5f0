"""Runtime support in words, from the verdicts on all versions of all runtimes.

`support` gives the short table that people see first, with the runtimes that most people use.
`others` and `count_others` give the line below it, and `group_by_status` the long table of
`--explain`.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
    """Consecutive versions of a runtime."""

    title: str
    """The name of the runtime, or the whole name where it has no version."""

    first: str
    """The oldest version; empty where it has none."""

    last: str
    """The newest version; empty where it has none."""

    read: bool
    """Whether these versions were read and not executed."""

    @property
    def versions(self) -> str:
        """The versions in words, such as 4.51-5.23."""
        if self.first == self.last:
            return self.first
        return f"{self.first}-{self.last}"


def _runtime_of(verdict: VerdictLike) -> str:
    """The name of a runtime without its version."""
    return verdict.runtime.partition("@")[0]


def group_by_status(verdicts: Iterable[VerdictLike], read_as: str = "") -> list[tuple[str, str]]:
    """Return which runtimes have each status, such as "exact", in words; the best status first.

    Args:
        verdicts: In the order of `runtimes()`, in which the versions of a runtime are consecutive
            and rise.
        read_as: The family as which the model is treated, where its own type is not known. It is
            named before the runtimes: "as llama: transformers 4.51-5.23".

    Returns:
        Pairs such as `("exact", "transformers 4.51-5.23, vLLM 0.33; read: TGI 3")`: ranges of
        versions that were executed come before those that were read.
    """
    # consecutive versions of a runtime with one status become a range, such as 4.51-5.23: a version
    # extends the last range of its status if the version before it has that status too
    ranges_by_status: dict[str, list[_Range]] = {}
    for _, verdicts_of_runtime in groupby(verdicts, key=_runtime_of):
        previous_status = ""
        for verdict in verdicts_of_runtime:
            ranges = ranges_by_status.setdefault(verdict.status, [])
            new = _range(verdict)
            if verdict.status == previous_status and _continues(ranges[-1], new):
                ranges[-1] = replace(ranges[-1], last=new.last)
            else:
                ranges.append(new)
            previous_status = verdict.status

    # a record of another version of ropeconv may have a status that this one does not know
    best_first = dict.fromkeys((*get_args(Status), *ranges_by_status))
    rows = []
    for status in best_first:
        if status not in ranges_by_status:
            continue
        label = _describe_ranges(ranges_by_status[status])
        reads_config = status not in UNREAD
        if read_as and reads_config:
            label = f"as {read_as}: {label}"
        rows.append((status, label))
    return rows


def _describe_ranges(ranges: list[_Range]) -> str:
    """Ranges of versions in words, the executed versions first."""
    run = _list_titles([span for span in ranges if not span.read])
    read = _list_titles([span for span in ranges if span.read])
    parts = []
    if run:
        parts.append(run)
    if read:
        parts.append(f"read: {read}")
    return "; ".join(parts)


def _list_titles(ranges: list[_Range]) -> str:
    """Ranges with each title once: `transformers 4.51-5.8 and 5.12-5.23, vLLM 0.33`."""
    labels = []
    for title, group in groupby(ranges, key=lambda span: span.title):
        versions = " and ".join(span.versions for span in group)
        labels.append(f"{title} {versions}".rstrip())
    return ", ".join(labels)


def _range(verdict: VerdictLike) -> _Range:
    name = verdict.display_name or verdict.runtime.replace("@", " ")
    if isinstance(verdict, Verdict) and verdict.here:  # a receipt may be read elsewhere
        name += " (run here)"
    parts = VERSIONS.fullmatch(name)
    read = verdict.grade == "read"
    if parts is None:
        return _Range(title=name, first="", last="", read=read)
    return _Range(
        title=parts["title"], first=parts["first"], last=parts["last"] or parts["first"], read=read
    )


def _continues(left: _Range, right: _Range) -> bool:
    """Whether the range `right` begins where `left` ends, so that no version is between them."""
    same_kind = left.title == right.title and left.read == right.read
    has_versions = bool(left.last)
    if not same_kind or not has_versions:
        return False

    # `.0` is appended since a runtime may be named by its major version only, such as TGI 3
    major, minor = version_key(f"{left.last}.0")[:2]
    same_minor = (major, minor)
    next_minor = (major, minor + 1)
    next_major = (major + 1, 0)
    return version_key(f"{right.first}.0")[:2] in (same_minor, next_minor, next_major)


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
    runtimes: dict[str, list[VerdictLike]] = {}
    for verdict in sorted(verdicts, key=_runtime_of):
        runtimes.setdefault(_runtime_of(verdict), []).append(verdict)
    return runtimes


def support(
    verdicts: Sequence[VerdictLike],
    named: Mapping[str, VerdictLike] = {},
    not_run_here: Collection[str] = (),
) -> list[tuple[str, str]]:
    """Return the rows of the short table of support: a word such as "supported", and runtimes.

    A row has the runtimes whose newest version has this support. If the user has named a version,
    this version counts. The row with the best support is first.

    Args:
        verdicts: The verdicts on all runtimes, for each runtime from the oldest version to the
            newest.
        named: The runtimes that the user named, each with the verdict on the version to show.
            Without any, the popular runtimes are shown.
        not_run_here: The named runtimes that ropeconv would have run if they were installed here.

    Returns:
        Pairs such as `("supported", "vLLM 0.20-0.33, SGLang 0.5.23")`. Only versions that were
        tested are named.
    """
    verdicts_by_runtime = by_runtime(verdicts)
    labels_by_word: dict[str, list[str]] = {}  # {"supported": ["vLLM 0.20-0.33", ...]}
    for name in named or POPULAR:
        versions = verdicts_by_runtime.get(name, [])  # one verdict for each range of versions
        newest_verdict = versions[-1] if versions else None
        named_verdict = named.get(name)  # None for a runtime that the user has not named
        if named_verdict is not None and named_verdict != newest_verdict:
            # the user has named an older version
            word = WORDS[named_verdict.status]
            label = named_verdict.display_name
        elif versions:
            word, label = _support_of_newest(versions)
        else:
            continue
        if name in not_run_here:
            label += " (not run here)"
        labels_by_word.setdefault(word, []).append(label)

    rows = []
    for word in dict.fromkeys(WORDS.values()):  # best first, each once
        if word in labels_by_word:
            rows.append((word, ", ".join(labels_by_word[word])))
    return rows


def others(verdicts: Sequence[VerdictLike]) -> str:
    """Sentences on other runtimes that are wrong or fail, and on where all are shown."""
    everyone = f"All {counted(len(by_runtime(verdicts)), 'runtime')}: --explain."
    problem = problems(verdicts)
    if not problem:
        return everyone
    return f"{problem}. {everyone}"


def count_others(verdicts: Sequence[VerdictLike], named: Collection[str] = ()) -> str:
    """As `others`, with the number of runtimes that are wrong or fail in place of their names.

    Args:
        verdicts: Those of each runtime from its oldest version to the newest.
        named: The runtimes that the user asked for; others are then left out.
    """
    everyone = f"All {counted(len(by_runtime(verdicts)), 'runtime')}: --explain."
    affected = _titles_by_problem(verdicts)
    if named or not affected:
        return everyone
    counts = ", ".join(f"{word} {len(titles)}" for word, titles in affected.items())
    return f"Others: {counts}. {everyone}"


def problems(verdicts: Sequence[VerdictLike]) -> str:
    """A clause on the less popular runtimes that are wrong or fail; "" if there are none."""
    clauses = []
    for word, titles in _titles_by_problem(verdicts).items():
        clauses.append(f"{PROBLEMS[word]} {', '.join(titles)}")
    text = "; ".join(clauses)
    return text[:1].upper() + text[1:]


def _titles_by_problem(verdicts: Sequence[VerdictLike]) -> dict[str, list[str]]:
    """The runtimes beside the popular ones that are wrong or fail, by the word for their status."""
    affected: dict[str, list[str]] = {word: [] for word in PROBLEMS}
    for name, rows in by_runtime(verdicts).items():
        word = WORDS[rows[-1].status]
        if name not in POPULAR and word in PROBLEMS:
            affected[word].append(title_of(rows[-1]))
    return {word: titles for word, titles in affected.items() if titles}


def _support_of_newest(rows: Sequence[VerdictLike]) -> tuple[str, str]:
    """Return how the newest version of a runtime supports a model, and since which version.

    For instance `("supported", "vLLM 0.20-0.33")`, or `("untested", "vLLM")`.

    Args:
        rows: The verdicts on a runtime, one for each range of versions, the oldest first.
    """
    newest = rows[-1]
    word = WORDS[newest.status]  # the word for users: "refused" is shown as "fails"
    title = title_of(newest)

    # the two cases without versions: nothing was tested, or the runtime has no version numbers
    if word in ("untested", "unsupported"):
        return word, title
    if title.startswith("llama.cpp"):
        return word, title

    # the oldest versions with the same support, up to a range with other support; untested ranges
    # in between do not end the search
    oldest_with_word = newest
    for row in reversed(rows):
        if WORDS[row.status] == word:
            oldest_with_word = row
        elif WORDS[row.status] != "untested":
            break

    # a title such as "vLLM 0.20-0.33"
    newest_range = _range(newest)  # has `first`, `last`, and both in words as `versions`
    first_version = _range(oldest_with_word).first
    last_version = newest_range.last
    if not first_version or not last_version:
        return word, title
    if oldest_with_word is newest:
        return word, f"{title} {newest_range.versions}"
    return word, f"{title} {first_version}-{last_version}"


def title_of(row: VerdictLike) -> str:
    """The name of a runtime without its versions, unless it is the one that is installed here."""
    title = _range(row).title.replace(" via convert_hf_to_gguf.py", " (after conversion)")
    return title.partition(" (commit ")[0]
