"""Readers of GGUF other than llama.cpp, as `readers/*.toml` states them.

`judge_reader` returns the verdict of one reader on a file.
"""

import math
from collections.abc import Collection, Sequence
from functools import cache
from typing import Literal, get_args

import msgspec

from .evidence import Evidence
from .runtime import RowFile, Status, VersionRange, canonical, choose, find, version_key
from .stored import data_errors, runtime_data, runtime_files
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
"""The RoPE features of a GGUF file; `FEATURE_WORDS` explains each."""

FEATURE_WORDS: dict[Feature, str] = {
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
ONLY_IF_STATED: frozenset[Feature] = frozenset(
    {"rope_freqs_shape", "stock_theta", "no_scaling_keys", "gemma3_not_8"}
)
"""Features that only count for readers with a statement on them.

Other features are unknown where nothing is stated.
"""

EVERYTHING = "*"


class ReaderStatement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The behaviour of a reader for some features of some architectures."""

    archs: tuple[str, ...]
    """Values of general.architecture, or "*" for all without a statement of their own."""

    features: tuple[Feature | Literal["*"], ...]
    """The features, or "*" for everything."""

    status: Literal["exact", "differs", "ignored", "refused", "unknown"]
    """As in a verdict."""

    reason: str = ""
    """Why, or a remark where it is "exact"."""

    source: str = ""
    """Where that is stated, by default in the source of the reader."""

    since: str = ""
    """The first version for which it holds, where the row covers more."""

    until: str = ""
    """The last version for which it holds, where the row covers more."""


UNTESTED_STATEMENT = ReaderStatement((), (), "unknown")


class Reader(VersionRange, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A range of versions of a program that reads GGUF.

    A feature on which nothing is stated is unknown.
    """

    window: str
    """A remark on how it takes its context window."""

    earlier: tuple[tuple[str, str], ...] = ()
    """First and last version of older ranges for which the same statements are judged."""

    remark: str = ""
    """A remark for the case that something is unknown."""

    runs_in: Literal["", "llama-cpp"] = ""
    """"llama-cpp" for a program that loads GGUF files with llama.cpp and so has its status."""

    statements: tuple[ReaderStatement, ...] = ()
    """Statements, of which the first that names an architecture and a feature counts."""

    def statement(self, feature: Feature, arch: str) -> ReaderStatement | None:
        """Return the statement on a feature of an architecture, for the last version.

        None if it is untested.
        """
        for name in (arch, EVERYTHING):
            for statement in self.statements:
                is_named = feature in statement.features
                is_any = EVERYTHING in statement.features and feature not in ONLY_IF_STATED
                matches = is_named or is_any
                if name in statement.archs and matches and self._holds(statement):
                    return statement
        return None

    def _holds(self, statement: ReaderStatement) -> bool:
        """Whether a statement is about the last version."""
        last = (*version_key(self.last), math.inf)  # 0.12 stands for the last 0.12.x
        since = version_key(statement.since)
        until = version_key(statement.until)
        return since <= last and (not until or last[: len(until)] <= until)


@cache
def gguf_readers() -> tuple[Reader, ...]:
    """Return all readers, the programs that load GGUF files (such as Ollama), by name and version.

    A reader stands for a range of versions of which the same is known.
    """
    listed: list[Reader] = []
    for place in runtime_files("readers", ".toml"):
        file = runtime_data(place, RowFile)
        with data_errors(place):
            listed += [msgspec.convert(row, Reader) for row in file.contents().values()]

    # older ranges of versions of which a file says the same as of a newer one
    older: list[Reader] = []
    for reader in listed:
        for first, last in reader.earlier:
            row = msgspec.structs.replace(reader, version=first, through=last, current=False)
            older.append(row)
    return tuple(sorted(listed + older, key=lambda row: (row.name, version_key(row.version))))


def reader_names() -> tuple[str, ...]:
    """Return the names of all readers, as `--runtime` takes them."""
    return tuple(dict.fromkeys(row.name for row in gguf_readers()))


def find_readers(runtime: str) -> tuple[Reader, ...]:
    """Return the readers for `name` (all current ranges, the newest last) or `name@version`.

    Empty for another name.

    Raises:
        RecipeError: For a version that no range covers.
    """
    name, _, version = canonical(runtime).partition("@")
    rows = [row for row in gguf_readers() if row.name == name]
    if not rows:
        return ()
    return choose(runtime, version, rows)


def find_any(runtime: str) -> tuple[VersionRange, ...]:
    """Return the readers or the rows of the table of runtimes for a name, as `find` has them."""
    return find_readers(runtime) or find(runtime, reader_names())


def judge_readers(
    features: Collection[Feature], arch: str, llamacpp: Verdict | None = None
) -> tuple[Verdict, ...]:
    """Return the verdicts of all readers on a file. Parameters are those of `judge_reader`."""
    return tuple(judge_reader(reader, features, arch, llamacpp) for reader in gguf_readers())


def judge_reader(
    reader: Reader, features: Collection[Feature], arch: str, llamacpp: Verdict | None = None
) -> Verdict:
    """Return whether a program that loads GGUF files computes the RoPE of a file.

    A statement of readers/*.toml says what the program does with a RoPE feature, e.g. "exact" or
    "ignored". If the file uses a feature that was not tested, the verdict is "unknown". Otherwise
    the worst statement on a feature of the file decides.

    Args:
        reader: The last version of a program, such as Ollama.
        features: The features of the file, such as {"theta", "yarn"} for rope.freq_base and
            rope.scaling.type yarn. `FEATURE_WORDS` lists all.
        arch: The general.architecture of the file.
        llamacpp: The verdict on llama.cpp for the file; None where it is not known.
    """
    code_was_read = Evidence("read")

    def make_verdict(
        status: Status, reason: str, source: str = reader.source, known: Evidence = code_was_read
    ) -> Verdict:
        """Return a verdict on this program."""
        return Verdict(
            runtime=reader.key,
            display_name=reader.display_name,
            status=status,
            reason=reason,
            source=source,
            through=reader.last,
            evidence=known,
        )

    # LM Studio loads GGUF files with llama.cpp, so the verdict on llama.cpp holds
    if reader.runs_in and llamacpp is not None:
        return make_verdict(llamacpp.status, _join(llamacpp.reason, reader.remark))

    # the statement on each feature that the file uses
    statements = {}
    for feature in FEATURE_WORDS:  # in this order
        if feature not in features:
            continue
        statement = reader.statement(feature, arch)
        if statement is not None:
            statements[feature] = statement
        elif feature not in ONLY_IF_STATED:  # features that matter to few programs
            statements[feature] = UNTESTED_STATEMENT

    # 1. a feature was not tested, or the file has no feature
    untested = [feature for feature in statements if statements[feature].status == "unknown"]
    if untested or not features:
        reason = _join(f"{_untested_part(reader, arch, untested)} is untested", reader.remark)
        return make_verdict("unknown", reason, known=Evidence())

    # 2. all features are exact: the reason joins the remarks of the statements, and a remark on the
    # context window
    order = get_args(Status)  # from the best status to the worst
    worst_feature = max(statements, key=lambda feature: order.index(statements[feature].status))
    worst = statements[worst_feature]
    if worst.status == "exact":
        remarks = [statement.reason for statement in statements.values()]
        remark_on_window = reader.window
        each_remark_once = dict.fromkeys((*remarks, remark_on_window))
        return make_verdict("exact", _join(*each_remark_once))

    # 3. A feature is not exact. The reason begins with its key, as "rope.scaling.type yarn: ...",
    # if the statement is not about all features.
    reason = worst.reason
    is_about_all_features = EVERYTHING in worst.features
    if not is_about_all_features:
        reason = f"{FEATURE_WORDS[worst_feature]}: {reason}"
    return make_verdict(worst.status, reason, source=worst.source or reader.source)


def _join(*reasons: str) -> str:
    """Reasons in one sentence, without empty ones."""
    return "; ".join(reason for reason in reasons if reason)


def _untested_part(reader: Reader, arch: str, unknown: Sequence[Feature]) -> str:
    """Return the part of a file that was not tested: features of an architecture, or all of it."""
    is_known = any(arch in statement.archs for statement in reader.statements)
    if not is_known or not unknown:
        return arch
    words = " and ".join(FEATURE_WORDS[feature] for feature in unknown)
    return f"{words} of {arch}"
