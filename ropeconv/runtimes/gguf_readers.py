"""Readers of GGUF other than llama.cpp: what each does with what a file uses, as stated in
`readers/*.toml`.
"""

import math
from collections.abc import Collection
from functools import cache
from typing import Literal, get_args

import msgspec

from ..formats.package_data import package_data, package_files
from .evidence import Evidence
from .runtime import Status, VersionRange, canonical, choose, find, version_key
from .verdict import Verdict

Feature = Literal[
    "theta",
    "linear",
    "yarn",
    "yarn_attention_factor",
    "attention_factor_1",
    "attn_factor",
    "betas",
    "log_multiplier",
    "temperature_scale",
    "rope_freqs",
    "factors",
    "window_theta",
    "window_norms",
    "rope_freqs_shape",
    "stock_theta",
    "no_scaling_keys",
    "gemma3_not_8",
]
"""The RoPE features of a GGUF file; `WORDS` explains each."""

WORDS: dict[Feature, str] = {
    "theta": "rope.freq_base",
    "linear": "rope.scaling.type linear",
    "yarn": "rope.scaling.type yarn",
    "yarn_attention_factor": "yarn's own attention factor",
    "attention_factor_1": "yarn with the attention factor 1 by rope.scaling.attn_factor",
    "attn_factor": "rope.scaling.attn_factor",
    "betas": "rope.scaling.yarn_beta_fast and yarn_beta_slow",
    "log_multiplier": "rope.scaling.yarn_log_multiplier",
    "temperature_scale": "attention.temperature_scale, which scales queries by position",
    "rope_freqs": "rope_freqs.weight",
    "factors": "rope_factors_long.weight and rope_factors_short.weight",
    "window_theta": "rope.freq_base_swa",
    "window_norms": "norms that take the attention factor back in window layers",
    "rope_freqs_shape": (
        "rope_freqs.weight of heads that are not embedding_length / head_count wide"
    ),
    "stock_theta": "rope.freq_base 10000 or 500000 without linear or yarn",
    "no_scaling_keys": "a context_length of at least 131072 without rope.scaling.type and factor",
    "gemma3_not_8": "another factor than 8 in Gemma 3 of 4b, 12b or 27b",
}
MARKS: frozenset[Feature] = frozenset(
    {"rope_freqs_shape", "stock_theta", "no_scaling_keys", "gemma3_not_8"}
)
"""Features that only count for readers that state something on them; all others are unknown where
nothing is stated.
"""

ANY = "*"


class ReaderStatement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The behaviour of a reader for some features of some architectures."""

    archs: tuple[str, ...]
    """Values of general.architecture, or "*" for all without a statement of their own on the
    feature.
    """

    features: tuple[Feature | Literal["*"], ...]
    """Which of them, or "*" for everything."""

    status: Literal["exact", "differs", "ignored", "refused", "unknown"]
    """As in a verdict."""

    reason: str = ""
    """Why, or a remark where it is "exact"."""

    source: str = ""
    """Where that is stated, by default that of the reader."""

    since: str = ""
    """The first and last version for which it holds, where the row covers more."""

    until: str = ""
    """The first and last version for which it holds, where the row covers more."""


UNTESTED = ReaderStatement((), (), "unknown")


class Reader(VersionRange, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A range of versions of a program that reads GGUF. A feature on which nothing is stated is
    unknown.
    """

    window: str
    """A remark on how it takes its context window."""

    earlier: tuple[tuple[str, str], ...] = ()
    """Ranges of older versions for which the same statements are judged, each as its first and last
    version.
    """

    remark: str = ""
    """what to say beside that something is unknown."""

    runs_in: Literal["", "llama-cpp"] = ""
    """"llama-cpp" for a program that loads GGUF files with llama.cpp, so that its status is that of
    llama.cpp.
    """

    statements: tuple[ReaderStatement, ...] = ()
    """of those that name an architecture and a feature, the first counts."""

    def statement(self, feature: Feature, arch: str) -> ReaderStatement | None:
        """Return the statement on a feature of an architecture, for the last version; None if it is
        untested.
        """
        for name in (arch, ANY):
            for statement in self.statements:
                matches = feature in statement.features or (
                    ANY in statement.features and feature not in MARKS
                )
                if name in statement.archs and matches and self._holds(statement):
                    return statement
        return None

    def _holds(self, statement: ReaderStatement) -> bool:
        last = (*version_key(self.last), math.inf)  # 0.12 stands for the last 0.12.x
        since = version_key(statement.since)
        until = version_key(statement.until)
        return since <= last and (not until or last[: len(until)] <= until)


@cache
def gguf_readers() -> tuple[Reader, ...]:
    """All readers of the package, by name and version."""
    files = [package_data(entry, Reader) for entry in package_files("runtimes/readers", ".toml")]
    older = [
        msgspec.structs.replace(reader, version=first, through=last, current=False)
        for reader in files
        for first, last in reader.earlier
    ]
    rows = [*files, *older]
    return tuple(sorted(rows, key=lambda row: (row.name, version_key(row.version))))


def reader_names() -> tuple[str, ...]:
    """The names of all readers, as `--runtime` takes them."""
    return tuple(dict.fromkeys(row.name for row in gguf_readers()))


def find_readers(runtime: str) -> tuple[Reader, ...]:
    """The readers for `name` (all current ranges, the newest last) or `name@version`; empty for
    another name.

    Raises:
        RecipeError: For a version that no range covers.
    """
    name, _, version = canonical(runtime).partition("@")
    rows = [row for row in gguf_readers() if row.name == name]
    return choose(runtime, version, rows) if rows else ()


def find_any(runtime: str) -> tuple[VersionRange, ...]:
    """The readers or the rows of the table of runtimes for a name. Parameters and errors are those
    of `find`.
    """
    return find_readers(runtime) or find(runtime, reader_names())


def judge_readers(
    features: Collection[Feature], arch: str, llamacpp: Verdict | None = None
) -> tuple[Verdict, ...]:
    """The verdicts of all readers on a file. Parameters are those of `judge_reader`."""
    return tuple(judge_reader(reader, features, arch, llamacpp) for reader in gguf_readers())


def judge_reader(
    reader: Reader, features: Collection[Feature], arch: str, llamacpp: Verdict | None = None
) -> Verdict:
    """The verdict of a reader on a file: that of its worst feature, where unknown is the worst.

    Args:
        reader: Its last version counts.
        features: what the file uses.
        arch: Its general.architecture.
        llamacpp: The verdict of llama.cpp on the file, which is also that of a reader that goes
            through it; None where it is not known.
    """
    if reader.runs_in and llamacpp is not None:
        reason = "; ".join(filter(None, [llamacpp.reason, reader.remark]))
        return Verdict(
            reader.key,
            reader.display_name,
            llamacpp.status,
            reason,
            reader.source,
            reader.last,
            Evidence("read"),
        )
    used = [feature for feature in WORDS if feature in features]
    stated = {feature: reader.statement(feature, arch) or UNTESTED for feature in used}
    statements = {
        feature: known
        for feature, known in stated.items()
        if known is not UNTESTED or feature not in MARKS
    }
    unknown = [
        feature for feature, statement in statements.items() if statement.status == "unknown"
    ]
    if unknown or not used:
        known_arch = any(arch in statement.archs for statement in reader.statements)
        subject = (
            f"{' and '.join(WORDS[feature] for feature in unknown)} of {arch}"
            if known_arch and unknown
            else arch
        )
        reason = "; ".join(filter(None, [f"{subject} is untested", reader.remark]))
        return Verdict(
            reader.key, reader.display_name, "unknown", reason, reader.source, reader.last
        )
    order = get_args(Status)
    worst = max(statements, key=lambda feature: order.index(statements[feature].status))
    statement = statements[worst]
    if statement.status == "exact":
        remarks = [*(statement.reason for statement in statements.values()), reader.window]
        reason = "; ".join(dict.fromkeys(filter(None, remarks)))
        source = reader.source
    else:
        reason = statement.reason
        source = statement.source or reader.source
        if ANY not in statement.features:
            reason = f"{WORDS[worst]}: {reason}"
    return Verdict(
        reader.key,
        reader.display_name,
        statement.status,
        reason,
        source,
        reader.last,
        Evidence("read"),
    )
