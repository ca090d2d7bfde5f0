"""The RoPE of two models side by side: which parts of it differ, and by how much.

`side_by_side` is the function to read first. It brings each model into a `Side`, and collects what
differs in a `RopeDifference`.
"""

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
from ropeconv.rope.schedule import QueryScaling, Schedule
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
KEYS_OF_INSPECTION = (
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
"""Keys of an inspection that a comparison shows for each model."""


@dataclass(frozen=True)
class Side:
    """One of the two models."""

    inspection: Inspection

    spec: RopeSpec
    """Its RoPE, with the factors that its receipt says are folded into weights."""

    folded: bool
    """Whether there are any."""

    window_attention_factor: float
    """The attention factor of sliding-window layers with their own frequencies."""

    layout: str
    """The layout of pairs in the original checkpoints of the family.

    A converter may have permuted the rows of queries and keys for another one.
    """

    def to_dict(self) -> JsonObject:
        """Return the inspection as JSON-ready data, without verdicts and problems."""
        inspected = self.inspection.to_dict()
        data = {key: inspected[key] for key in KEYS_OF_INSPECTION}
        scaling = self.spec.query_scaling
        data["attention_factor"] = self.spec.attention_factor
        data["window_attention_factor"] = self.window_attention_factor
        data["softmax_scale"] = self.spec.softmax_scale
        data["query_scaling"] = asdict(scaling) if scaling else None
        data["folded"] = self.folded
        return data


@dataclass(frozen=True)
class RuntimePair:
    """Both models in the newest version of a runtime."""

    runtime: str
    """The name and the version, as `name@version`."""

    display_name: str

    statuses: tuple[str | None, str | None]
    """The status of each model; None for a model in the other format."""

    reasons: tuple[str, str]
    """The reason of each status, or empty."""


@dataclass(frozen=True)
class RopeDifference(TableSummary):
    """The RoPE of two models, compared."""

    first: Side
    second: Side

    frequencies: FrequencyDifference | None
    """The vectors of layers that see the whole context; None if the numbers of pairs differ."""

    short_frequencies: FrequencyDifference | None
    """The vectors within the trained context; None if neither model has others there."""

    window_frequencies: FrequencyDifference | None
    """The vectors of sliding-window layers; None unless both models have them."""

    differs: tuple[str, ...]
    """The properties that differ, by their names in WORDS."""

    runtimes: tuple[RuntimePair, ...]
    """Both models in each runtime."""

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
        phrases = [self._phrase(name) for name in self.differs]
        if len(phrases) < 2:
            return "".join(phrases)
        return f"{', '.join(phrases[:-1])} and {phrases[-1]}"

    @property
    def sentence(self) -> str:
        """The conclusion, for display."""
        if self.differs:
            return f"They differ in {self.differences}."
        first = self.first.spec.context
        second = self.second.spec.context
        if first != second:
            return f"They compute the same RoPE, but declare {first:,} and {second:,} tokens."
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
        """Return the words for a property that differs, with numbers for frequencies.

        Args:
            name: The name of the property in WORDS.
        """
        words = WORDS[name]
        vectors = {
            "frequencies": self.frequencies,
            "short_frequencies": self.short_frequencies,
            "window_frequencies": self.window_frequencies,
        }
        vector = vectors.get(name)
        if vector is None or vector.same:
            return words
        numbers = f"{vector.differing} of {vector.pairs} pairs"
        if vector.largest_ratio is not None:
            numbers += f", by up to {vector.largest_ratio:.4g} times"
        return f"{words} ({numbers})"

    @property
    def remarks(self) -> list[str]:
        """Sentences on settings that only look different, and on factors in the weights.

        `ropeconv apply` can multiply the weights of queries and keys by the attention factor
        (`folded`), which the config then does not show.
        """
        first = self.first
        second = self.second
        remarks = []
        # `spec.layout` is the layout of the pairs in the file, `layout` that before a conversion
        if first.spec.layout != second.spec.layout and first.layout == second.layout:
            remarks.append(
                "Pairs are (i, i + r/2) in one and (2i, 2i + 1) in the other. The converter"
                " permuted the rows of queries and keys accordingly, so the rotation is the same."
            )
        has_same_frequencies = self.frequencies is not None and self.frequencies.same
        if has_same_frequencies and describe(first.spec.form) != describe(second.spec.form):
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
        data: JsonObject = {
            "same": self.same,
            "differs": list(self.differs),
            "sentence": self.sentence,
            "remarks": self.remarks,
            "first": self.first.to_dict(),
            "second": self.second.to_dict(),
        }
        for name in ("frequencies", "short_frequencies", "window_frequencies"):
            vector = getattr(self, name)
            data[name] = asdict(vector) if vector else None
        data["runtimes"] = [asdict(pair) for pair in self.runtimes]
        return data


def side_by_side(first: Inspection, second: Inspection) -> RopeDifference:
    """Compare the RoPE of two models.

    Args:
        first: A checkpoint, a config.json or a GGUF file, inspected.
        second: The other model, which may have another format.

    Returns:
        The properties that differ, and the status of both models in each runtime.
    """
    # the frequencies of layers that see the whole context
    left = _describe_side(first)
    right = _describe_side(second)
    left_schedule = left.spec.current()
    right_schedule = right.spec.current()
    whole = compare_frequencies(left_schedule.inv_freq, right_schedule.inv_freq)

    # LongRoPE has other frequencies within the trained context; None where neither model has them
    short = None
    if left_schedule.short_inv_freq is not None or right_schedule.short_inv_freq is not None:
        left_short = _short_frequencies(left_schedule)
        right_short = _short_frequencies(right_schedule)
        short = compare_frequencies(left_short, right_short)

    # layers with a sliding window that rotate otherwise, as in Gemma 3
    window = None
    left_window = left.spec.local_inv_freq
    right_window = right.spec.local_inv_freq
    if left_window is not None and right_window is not None:
        window = compare_frequencies(left_window, right_window)

    # the names of all properties that differ, in the order of WORDS
    differs = _settings_that_differ(left, right)
    vectors = {"frequencies": whole, "short_frequencies": short, "window_frequencies": window}
    for name, vector in vectors.items():
        if vector is not None and not vector.same:
            differs.add(name)
    in_order = tuple(name for name in WORDS if name in differs)
    return RopeDifference(
        first=left,
        second=right,
        frequencies=whole,
        short_frequencies=short,
        window_frequencies=window,
        differs=in_order,
        runtimes=_runtimes(first, second),
    )


def _settings_that_differ(first: Side, second: Side) -> set[str]:
    """Return the names of the properties that differ, such as {"layout"}, besides the frequencies.

    Args:
        first: The properties of a model.
        second: Those of the other one.
    """
    spec = first.spec
    other = second.spec
    differs = set()

    if spec.rotary_dim != other.rotary_dim:
        differs.add("rotary_dim")
    if spec.mla != other.mla:
        differs.add("mla")
    if first.layout != second.layout:
        differs.add("layout")
    if not _same_layers(spec, other):
        differs.add("layers")
    if _dynamic_form(spec) != _dynamic_form(other):
        differs.add("dynamic")

    # factors on the scores, which a config may have in decimals that round
    if not _close(spec.attention_factor, other.attention_factor):
        differs.add("attention_factor")
    have_window_rope = spec.local_form and other.local_form
    window_factors = (first.window_attention_factor, second.window_attention_factor)
    if have_window_rope and not _close(*window_factors):
        differs.add("window_attention_factor")
    if not _close(spec.softmax_scale, other.softmax_scale):
        differs.add("softmax_scale")
    if not _same_query_scaling(spec.query_scaling, other.query_scaling):
        differs.add("query_scaling")

    # the length at which a model of two lists changes from the short to the long one
    switch = _length_of_switch(spec)
    other_switch = _length_of_switch(other)
    if switch is not None and other_switch is not None and switch != other_switch:
        differs.add("switch")
    return differs


def _same_layers(first: RopeSpec, second: RopeSpec) -> bool:
    """Whether the same layers rotate; for another number of layers, whether the same kinds do."""
    if len(first.layers) == len(second.layers):
        return first.layers == second.layers
    return set(first.layers) == set(second.layers)


def _dynamic_form(spec: RopeSpec) -> DynamicNtk | None:
    """Return the scaling of a model that grows with the sequence; None for other forms."""
    return spec.form if isinstance(spec.form, DynamicNtk) else None


def _same_query_scaling(first: QueryScaling | None, second: QueryScaling | None) -> bool:
    if first is None or second is None:
        return first is second
    return (
        first.length == second.length
        and _close(first.beta, second.beta)
        and _close(first.gain, second.gain)
    )


def _close(left: float, right: float) -> bool:
    return abs(left - right) <= TOLERANCE * abs(right)


def _short_frequencies(schedule: Schedule) -> Vector:
    """Return the frequencies within the trained context."""
    if schedule.short_inv_freq is None:
        return schedule.inv_freq
    return schedule.short_inv_freq


def _length_of_switch(spec: RopeSpec) -> int | None:
    """Return the length at which LongRoPE changes its list of factors; None without two lists."""
    form = spec.form
    if isinstance(form, LongRope) and form.short_factor != form.long_factor:
        return form.original_context
    return None


def _describe_side(inspection: Inspection) -> Side:
    """Return the properties of a model by which it is compared with another model.

    Two files can differ and compute the same. A GGUF file has permuted rows. An output of ropeconv
    can have a part of the attention factor multiplied into its weights (folded), and only the rest
    in config.json. So each model is described as a checkpoint with the whole factor in config.json.

    Args:
        inspection: A checkpoint or a GGUF file, inspected.
    """
    source = inspection.source
    spec = inspection.spec

    layout = str(spec.layout)
    window_factor = 1.0
    if isinstance(source, GgufSource):
        # convert_hf_to_gguf.py permutes the rows of queries and keys for the layout that llama.cpp
        # computes (`permute`), so the layout of the file is not that of the checkpoint
        architecture = find_arch(inspection.name)  # such as llama.cpp's architecture "qwen3"
        family = by_name().get(architecture.family)
        if family:
            layout = family.layout
        # layers with a sliding window have a scaling of their own, with its attention factor
        if spec.local_form:
            window_factor = read_file(source.file).local_attention_factor

    spec_with_whole_factor = spec
    if isinstance(source, Source):
        spec_with_whole_factor = _add_folded_factors(spec, source)
    return Side(
        inspection=inspection,
        spec=spec_with_whole_factor,
        folded=spec_with_whole_factor != spec,
        window_attention_factor=window_factor,
        layout=layout,
    )


def _add_folded_factors(spec: RopeSpec, source: Source) -> RopeSpec:
    """Return the RoPE of a checkpoint with the factors that are in its weights.

    `ropeconv apply` can multiply (fold) a part of the attention factor into the weights of queries
    and keys. config.json then has the rest, and the receipt, a file that `apply` writes beside the
    weights, has what this and earlier runs have folded.

    Args:
        spec: The RoPE in config.json.
        source: The checkpoint.
    """
    try:
        text = source.text(RECEIPT)
        receipt = parse_receipt(text, RECEIPT) if text else None
    except BadSource:  # a receipt that cannot be read says nothing about the weights
        return spec
    if receipt is None or receipt.original is None or receipt.original.folder is None:
        return spec

    folded = receipt.original.folder.folded
    whole_spec = replace(
        spec,
        attention_factor=spec.attention_factor * folded.attention_factor,
        softmax_scale=spec.softmax_scale * folded.softmax_scale,
    )
    # The method log-n multiplies queries by a number that grows with log(position). config.json has
    # an approximation in steps, and the weights have a constant factor (gain).
    scaling = spec.query_scaling
    if scaling is not None and folded.gain != 1:
        whole_spec = replace(
            whole_spec, query_scaling=replace(scaling, gain=scaling.gain * folded.gain)
        )
    return whole_spec


def _runtimes(first: Inspection, second: Inspection) -> tuple[RuntimePair, ...]:
    """Return whether the newest version of each runtime computes the RoPE of both models.

    Each pair has the status of both, such as ("exact", "ignored"), with None for a model in a
    format that the runtime does not read. GGUF files have a status in llama.cpp, and checkpoints in
    all other runtimes.
    """
    # runtimes that read checkpoints; `runtimes()` has several ranges of versions of each
    pairs = []
    names = dict.fromkeys(version.name for version in runtimes())  # each once, in this order
    for name in names:
        version = newest(name)
        first_status, first_reason = _verdict_on(version, first)
        second_status, second_reason = _verdict_on(version, second)
        if first_status is None and second_status is None:  # both are GGUF files
            continue
        pair = RuntimePair(
            runtime=version.key,
            display_name=version.display_name,
            statuses=(first_status, second_status),
            reasons=(first_reason, second_reason),
        )
        pairs.append(pair)

    # llama.cpp, which is not among `runtimes()`: it has a table of its own, by architecture
    first_status = _status_in_llamacpp(first)
    second_status = _status_in_llamacpp(second)
    if first_status is not None or second_status is not None:
        table = arch_table()
        pair = RuntimePair(
            runtime=table.key,
            display_name=f"{table.display_name}, GGUF",
            statuses=(first_status, second_status),
            reasons=("", ""),
        )
        pairs.append(pair)
    return tuple(pairs)


def _verdict_on(row: Runtime, inspection: Inspection) -> tuple[str | None, str]:
    """Return the status of a model in a version of a runtime, and its reason.

    The status is None where the version has none for the model, as for a GGUF file in vLLM.
    """
    for verdict in reversed(inspection.verdicts):
        if verdict.covers(row):
            return verdict.status, verdict.reason
    return None, ""


def _status_in_llamacpp(inspection: Inspection) -> str | None:
    """Return the status of a GGUF file in llama.cpp, by whose rules it was inspected.

    None for a checkpoint, which llama.cpp does not read.
    """
    if any(problem.code == "refused-tensor" for problem in inspection.problems):
        return "refused"
    if isinstance(inspection.source, GgufSource):
        return "exact"
    return None
