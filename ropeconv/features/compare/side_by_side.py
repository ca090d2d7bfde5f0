"""The RoPE of two models side by side: which parts of it differ, and by how much."""

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

from ropeconv.errors import BadSource
from ropeconv.formats.jsontext import JsonObject
from ropeconv.inspection.frequencies import FrequencyDifference, compare_frequencies
from ropeconv.inspection.inspection import Inspection
from ropeconv.inspection.receipts.storage import parse_receipt
from ropeconv.inspection.support import WORDS as SUPPORT_WORDS
from ropeconv.models.gguf import GgufSource
from ropeconv.models.registry import by_name
from ropeconv.models.source import RECEIPT, Source
from ropeconv.rope.forms import DynamicNtk, LongRope, Vector
from ropeconv.rope.schedule import Schedule
from ropeconv.rope.spec import RopeSpec
from ropeconv.rope.summary import SummaryTable, TableSummary
from ropeconv.runtimes.llamacpp.archs import arch_table, find_arch
from ropeconv.runtimes.llamacpp.read_header import read_file
from ropeconv.runtimes.runtime import Runtime, newest, runtimes
from ropeconv.runtimes.verdict import TOLERANCE, describe

WORDS = {
    "rotary_dim": "the number of rotated dimensions",
    "mla": "multi-head latent attention",
    "layout": "which dimensions form a pair",
    "layers": "which layers rotate",
    "frequencies": "the frequencies",
    "short_frequencies": "the frequencies within the trained context",
    "switch": "the length at which the lists of factors change",
    "dynamic": "scaling that grows with the sequence",
    "window_frequencies": "the frequencies of sliding-window layers",
    "attention_factor": "the attention factor",
    "window_attention_factor": "the attention factor of sliding-window layers",
    "softmax_scale": "the softmax scale",
    "query_scaling": "the scaling of queries by position",
}
"""Properties that change logits, in the order of sentences."""


@dataclass(frozen=True)
class Side:
    """One of the two models.

    spec: its RoPE, with the factors that its receipt says are folded into weights. folded: whether
    there are any. window_attention_factor: of sliding-window layers with their own frequencies.
    layout: of the pairs in the original checkpoints of the family; a converter may have permuted
    the rows of queries and keys for another one.
    """

    inspection: Inspection
    spec: RopeSpec
    folded: bool
    window_attention_factor: float
    layout: str

    def to_dict(self) -> JsonObject:
        """Return the inspection as JSON-ready data, without verdicts and problems."""
        data = self.inspection.to_dict()
        keys = (
            "source",
            "family",
            "head_dim",
            "rotary_dim",
            "layout",
            "mla",
            "rope_type",
            "rope",
            "rope_theta",
            "original_context",
            "context",
            "layers",
            "local_theta",
        )
        scaling = self.spec.query_scaling
        return {
            **{key: data[key] for key in keys},
            "attention_factor": self.spec.attention_factor,
            "window_attention_factor": self.window_attention_factor,
            "softmax_scale": self.spec.softmax_scale,
            "query_scaling": asdict(scaling) if scaling else None,
            "folded": self.folded,
        }


@dataclass(frozen=True)
class RuntimePair:
    """The status of both models in the newest version of a runtime; None for a model in the other
    format.

    runtime: `name@version`. reasons: of both, or empty.
    """

    runtime: str
    display_name: str
    statuses: tuple[str | None, str | None]
    reasons: tuple[str, str]


@dataclass(frozen=True)
class RopeDifference(TableSummary):
    """The RoPE of two models, compared.

    frequencies: of layers that see the whole context, None if the numbers of pairs differ.
    short_frequencies: within the trained context, None if neither model has others there.
    window_frequencies: of sliding-window layers, None unless both models have them. differs: names
    from WORDS. runtimes: both models in each runtime.
    """

    first: Side
    second: Side
    frequencies: FrequencyDifference | None
    short_frequencies: FrequencyDifference | None
    window_frequencies: FrequencyDifference | None
    differs: tuple[str, ...]
    runtimes: tuple[RuntimePair, ...]

    record_keys: ClassVar[tuple[str, ...]] = (
        "runtime",
        "display_name",
        "first",
        "second",
        "first_reason",
        "second_reason",
    )

    @property
    def same(self) -> bool:
        """Whether both compute the same RoPE, to within 1e-6."""
        return not self.differs

    @property
    def differences(self) -> str:
        """The differences in words; empty where there are none."""
        *others, last = [self._phrase(name) for name in self.differs] or [""]
        return f"{', '.join(others)}{' and ' if others else ''}{last}"

    @property
    def sentence(self) -> str:
        """The conclusion, for display."""
        if self.differs:
            return f"They differ in {self.differences}."
        first, second = self.first.spec, self.second.spec
        if first.context != second.context:
            return (
                f"They compute the same RoPE, but declare {first.context:,} and {second.context:,}"
                " tokens."
            )
        return "They compute the same RoPE."

    def summary(self) -> dict[str, str]:
        """Return what is shown, by name."""
        return {
            "sentence": self.sentence,
            "first": self.first.inspection.source.reference,
            "second": self.second.inspection.source.reference,
            "same": "yes" if self.same else "no",
            "differs": ", ".join(self.differs),
            "remarks": "\n".join(self.remarks),
        }

    def shown_tables(self) -> list[SummaryTable]:
        """Return the support of both models by the newest version of each runtime."""
        rows = []
        for pair in self.runtimes:
            words = [SUPPORT_WORDS.get(status or "", "-") for status in pair.statuses]
            rows.append((pair.display_name, *words))
        return [SummaryTable("runtimes", ("newest version", "first", "second"), rows)]

    def records(self) -> list[JsonObject]:
        """Return a row for each runtime, with the status of both models and its reason."""
        rows = []
        for pair in self.runtimes:
            first, second = pair.statuses
            first_reason, second_reason = pair.reasons
            rows.append(
                {
                    "runtime": pair.runtime,
                    "display_name": pair.display_name,
                    "first": first,
                    "second": second,
                    "first_reason": first_reason,
                    "second_reason": second_reason,
                }
            )
        return rows

    def _phrase(self, name: str) -> str:
        vector = getattr(self, name, None)
        if not isinstance(vector, FrequencyDifference) or vector.same:
            return WORDS[name]
        by = "" if vector.largest_ratio is None else f", by up to {vector.largest_ratio:.4g} times"
        return f"{WORDS[name]} ({vector.differing} of {vector.pairs} pairs{by})"

    @property
    def remarks(self) -> list[str]:
        """Sentences on equal things that look different, and on factors that are not in the
        settings.
        """
        first = self.first
        second = self.second
        remarks = []
        if first.spec.layout != second.spec.layout and first.layout == second.layout:
            remarks.append(
                "Pairs are (i, i + r/2) in one and (2i, 2i + 1) in the other. The converter"
                " permuted the rows of queries and keys accordingly, so the rotation is the same."
            )
        if (
            self.frequencies
            and self.frequencies.same
            and describe(first.spec.form) != describe(second.spec.form)
        ):
            remarks.append("The frequencies are the same, written in two ways.")
        for name, side in (("A", first), ("B", second)):
            if side.folded:
                remarks.append(
                    f"By its receipt, {name} has a part of its attention factor or query scale in"
                    " the weights."
                )
        return remarks

    def to_dict(self) -> JsonObject:
        """Return the comparison as JSON-ready data; keys stay within a schema."""
        vectors = ("frequencies", "short_frequencies", "window_frequencies")
        return {
            "same": self.same,
            "differs": list(self.differs),
            "sentence": self.sentence,
            "remarks": self.remarks,
            "first": self.first.to_dict(),
            "second": self.second.to_dict(),
            **{
                name: asdict(vector) if (vector := getattr(self, name)) else None
                for name in vectors
            },
            "runtimes": [asdict(pair) for pair in self.runtimes],
        }


def side_by_side(first: Inspection, second: Inspection) -> RopeDifference:
    """Compare the RoPE of two models, each of which may be a checkpoint, a config.json or a GGUF
    file.
    """
    left = _side(first)
    right = _side(second)
    a = left.spec.current()
    b = right.spec.current()
    whole = compare_frequencies(a.inv_freq, b.inv_freq)
    has_short = a.short_inv_freq is not None or b.short_inv_freq is not None
    short = compare_frequencies(_short(a), _short(b)) if has_short else None
    window = None
    if left.spec.local_form and right.spec.local_form:
        vectors = (
            vector for side in (left, right) if (vector := side.spec.local_inv_freq) is not None
        )
        window = compare_frequencies(*vectors)
    differs = _differs(
        left,
        right,
        {"frequencies": whole, "short_frequencies": short, "window_frequencies": window},
    )
    return RopeDifference(left, right, whole, short, window, differs, _runtimes(first, second))


def _differs(
    first: Side, second: Side, vectors: dict[str, FrequencyDifference | None]
) -> tuple[str, ...]:
    a, b = first.spec, second.spec
    left, right = a.query_scaling, b.query_scaling
    dynamic = [spec.form if isinstance(spec.form, DynamicNtk) else None for spec in (a, b)]
    differs = {
        "rotary_dim": a.rotary_dim != b.rotary_dim,
        "mla": a.mla != b.mla,
        "layout": first.layout != second.layout,
        "layers": (
            a.layers != b.layers if len(a.layers) == len(b.layers) else {*a.layers} != {*b.layers}
        ),
        **{name: vector is not None and not vector.same for name, vector in vectors.items()},
        "dynamic": dynamic[0] != dynamic[1],
        "attention_factor": not _close(a.attention_factor, b.attention_factor),
        "window_attention_factor": (
            bool(a.local_form and b.local_form)
            and not _close(first.window_attention_factor, second.window_attention_factor)
        ),
        "softmax_scale": not _close(a.softmax_scale, b.softmax_scale),
        "query_scaling": not (
            left is right
            if left is None or right is None
            else left.length == right.length
            and _close(left.beta, right.beta)
            and _close(left.gain, right.gain)
        ),
    }
    switches = (_switch(a), _switch(b))
    differs["switch"] = None not in switches and switches[0] != switches[1]
    return tuple(name for name in WORDS if differs[name])


def _close(left: float, right: float) -> bool:
    return abs(left - right) <= TOLERANCE * abs(right)


def _short(schedule: Schedule) -> Vector:
    return schedule.inv_freq if schedule.short_inv_freq is None else schedule.short_inv_freq


def _switch(spec: RopeSpec) -> int | None:
    """The length in tokens from which a long list of factors counts; None without two lists."""
    form = spec.form
    if isinstance(form, LongRope) and form.short_factor != form.long_factor:
        return form.original_context
    return None


def _side(inspection: Inspection) -> Side:
    source = inspection.source
    spec = inspection.spec
    window = 1.0
    layout = str(inspection.spec.layout)
    if isinstance(source, GgufSource):
        family = by_name().get(find_arch(inspection.name).family)
        layout = family.layout if family else layout
        window = read_file(source.file).local_attention_factor if spec.local_form else 1.0
    receipt, folded = None, spec
    with suppress(BadSource):  # a receipt that cannot be read
        text = source.text(RECEIPT) if isinstance(source, Source) else None
        receipt = parse_receipt(text, RECEIPT) if text else None
    if receipt is not None and receipt.fold is not None:
        if receipt.in_config is not None and _close(
            receipt.in_config.attention_factor, spec.attention_factor
        ):
            folded = replace(folded, attention_factor=receipt.schedule.attention_factor)
        steps = receipt.log_n_approximation
        if steps is not None and spec.query_scaling is not None:
            folded = replace(folded, query_scaling=replace(spec.query_scaling, gain=steps.gain))
    return Side(inspection, folded, folded != spec, window, layout)


def _runtimes(first: Inspection, second: Inspection) -> tuple[RuntimePair, ...]:
    """Both models in the newest version of each runtime, and GGUF files in llama.cpp."""
    pairs = []
    for name in dict.fromkeys(row.name for row in runtimes()):
        row = newest(name)
        left_status, left_reason = _verdict_on(row, first)
        right_status, right_reason = _verdict_on(row, second)
        if left_status is None and right_status is None:
            continue
        statuses = (left_status, right_status)
        reasons = (left_reason, right_reason)
        pairs.append(RuntimePair(row.key, row.display_name, statuses, reasons))

    left = _status_in_llamacpp(first)
    right = _status_in_llamacpp(second)
    if left or right:
        table = arch_table()
        pairs.append(RuntimePair(table.key, f"{table.display_name}, GGUF", (left, right), ("", "")))
    return tuple(pairs)


def _verdict_on(row: Runtime, inspection: Inspection) -> tuple[str | None, str]:
    """The status and the reason of a model in a version of a runtime; None where it has none."""
    for verdict in reversed(inspection.verdicts):
        if verdict.covers(row):
            return verdict.status, verdict.reason
    return None, ""


def _status_in_llamacpp(inspection: Inspection) -> str | None:
    """The status of a GGUF file, whose inspection is by llama.cpp's rules; None for others."""
    if any(problem.code == "refused-tensor" for problem in inspection.problems):
        return "refused"
    if isinstance(inspection.source, GgufSource):
        return "exact"
    return None
