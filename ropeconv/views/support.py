"""Runtime support in words: the runtimes that most people use by name, problems of others in a sentence."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby

from ..rope.errors import counted
from ..runtimes.groups import VERSIONS, VerdictLike
from .sheet import legend

POPULAR = (
    "llama-cpp-gguf", "transformers", "vllm", "sglang", "llama-cpp", "mlx-lm", "exllamav3", "ollama", "koboldcpp",
    "lm-studio",
)  # fmt: skip
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
STATUSES = {
    "exact": "computes this RoPE",
    "rounded": "computes it, with rounded weights",
    "approximate": "comes close",
    "differs": "computes another RoPE, silently",
    "ignored": "runs the unscaled RoPE, silently",
    "refused": "fails with an error",
    "unsupported": "does not run this family",
    "unknown": "not tested",
}
"""Statuses of verdicts; docs/runtimes.md explains them."""


def statuses(lines: Iterable[tuple[str, str]]) -> str:
    """A sentence on the statuses of a table of runtimes. lines: pairs of a status and its runtimes."""
    rows = list(lines)
    read = ["read"] if any("read: " in runtimes for _, runtimes in rows) else []
    meanings = STATUSES | {"read": "known from source code, the others from a run"}
    return legend(meanings, [*(status for status, _ in rows), *read])


def by_runtime(verdicts: Iterable[VerdictLike]) -> dict[str, list[VerdictLike]]:
    """The verdicts of each runtime, oldest version first."""
    ordered = sorted(verdicts, key=lambda verdict: verdict.runtime.partition("@")[0])
    return {name: list(rows) for name, rows in groupby(ordered, key=lambda verdict: verdict.runtime.partition("@")[0])}


def support(verdicts: Sequence[VerdictLike], named: Mapping[str, VerdictLike] = {}) -> list[tuple[str, str]]:
    """The rows of the short table: a word and the runtimes whose newest version it holds for, best first.

    Args:
        verdicts: Those of each runtime from its oldest version to the newest.
        named: The runtimes that the user named, which come first, with the verdict on the version that counts.

    Returns:
        Pairs such as `("supported", "vLLM 0.20 or newer, SGLang 0.5.23")`.
    """
    runtimes = by_runtime(verdicts)
    words: dict[str, list[str]] = {}
    for name in dict.fromkeys((*named, *POPULAR)):
        rows = runtimes.get(name, [])
        if name in named and named[name] not in rows[-1:]:
            words.setdefault(WORDS[named[name].status], []).append(named[name].display_name)
        elif rows:
            word, label = _newest(rows)
            words.setdefault(word, []).append(label)
    return [(word, ", ".join(words[word])) for word in dict.fromkeys(WORDS.values()) if word in words]


def others(verdicts: Sequence[VerdictLike], named: Collection[str] = ()) -> str:
    """Sentences on the other runtimes that are wrong or fail, and on where all of them are shown."""
    everyone = f"All {counted(len(by_runtime(verdicts)), 'runtime')}: --explain."
    problem = problems(verdicts, named)
    return f"{problem}. {everyone}" if problem else everyone


def problems(verdicts: Sequence[VerdictLike], named: Collection[str] = ()) -> str:
    """A clause on the runtimes beside those that are named or popular that are wrong or fail; empty without any."""
    shown = {*named, *POPULAR}
    words: dict[str, list[str]] = {}
    for name, rows in by_runtime(verdicts).items():
        word = WORDS[rows[-1].status]
        if name not in shown and word in PROBLEMS:
            words.setdefault(word, []).append(title_of(rows[-1]))
    text = "; ".join(f"{PROBLEMS[word]} {', '.join(words[word])}" for word in PROBLEMS if word in words)
    return text[:1].upper() + text[1:]


def _newest(rows: Sequence[VerdictLike]) -> tuple[str, str]:
    """The word for the newest version of a runtime, and its name with the oldest version from which it holds."""
    word, first = WORDS[rows[-1].status], rows[-1]
    for row in reversed(rows):
        if WORDS[row.status] not in (word, "untested"):
            break
        if WORDS[row.status] == word:
            first = row
    parts, oldest = (VERSIONS.fullmatch(row.display_name) for row in (rows[-1], first))
    if parts is None or oldest is None or word in ("untested", "unsupported") or parts["title"].startswith("llama.cpp"):
        return word, title_of(rows[-1])
    exactly = parts["first"] if parts["last"] is None else f"{parts['first']}-{parts['last']}"
    version = exactly if first is rows[-1] else f"{oldest['first']} or newer"
    return word, f"{title_of(rows[-1])} {version}"


def title_of(row: VerdictLike) -> str:
    """The name of a runtime without its versions."""
    parts = VERSIONS.fullmatch(row.display_name)
    title = parts["title"] if parts else row.display_name
    return title.replace(" via convert_hf_to_gguf.py", " (after conversion)").partition(" (commit ")[0]
