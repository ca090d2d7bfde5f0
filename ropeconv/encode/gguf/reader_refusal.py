"""The error where a named reader of GGUF does not compute what an encoding writes."""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import UnsupportedBake
from ...runtimes.gguf_readers import Reader
from ...runtimes.rules import GOOD
from ...runtimes.verdict import Verdict
from .gguf_result import GgufResult


def nothing_suits(
    found: tuple[GgufResult, ...], refusals: Mapping[str, UnsupportedBake], readers: tuple[Reader, ...]
) -> UnsupportedBake:
    """The error, with what every encoding would give in every reader, and the way out.

    found: the results that llama.cpp reads exactly, the wanted one first. refusals: errors of the other encodings, by
    name. readers: the named ones.
    """
    reasons = []
    for result in found:
        verdicts = [result.judged_by(reader) for reader in readers]
        wrong = [_words(verdict, len(readers) > 1) for verdict in verdicts if verdict.status not in GOOD]
        reasons.append(f"with {result.encoding}: {' and '.join(wrong) or 'exact'}")
    reasons += [f"with {name}: {refusal.reason}" for name, refusal in refusals.items()]
    names = " and ".join(reader.display_name for reader in readers)
    return UnsupportedBake("this schedule", names, "; ".join(reasons), _way_out(found, readers))


def _words(verdict: Verdict, named: bool) -> str:
    words = verdict.reason if verdict.status == "unknown" else f"{verdict.status}, {verdict.reason}"
    return f"{verdict.display_name} {words}" if named else words


def _way_out(found: tuple[GgufResult, ...], readers: tuple[Reader, ...]) -> str:
    fitting = next((result for result in found if result.suits(readers)), None)
    if fitting is not None:
        carrier = f" --carrier {fitting.arch}" if fitting.encoding == "carrier" else ""
        return f"take{carrier or f' --encoding {fitting.encoding}'}"
    unknown = [reader for reader in readers if found[0].judged_by(reader).status == "unknown"]
    if unknown:
        repair = "measure what it computes with `ropeconv validate FILE --server URL`"
        return f"leave --runtime {unknown[0].name} out, and {repair}"
    wrong = next(reader for reader in readers if found[0].judged_by(reader).status not in GOOD)
    return f"leave --runtime {wrong.name} out, or choose another method"
