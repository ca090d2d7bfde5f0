"""Compare what a runtime answered with the schedule that it has to compute.

`judge_answer` is the function to read first. It shares no code with the table of runtimes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from ...formats.jsontext import JsonObject
from ...models.config import text_part
from ...models.family import Family
from ...rope.forms import Vector
from ...rope.schedule import Schedule
from ...rope.spec import RopeSpec
from ...runtimes.runtime import Status

FREQUENCY_TOLERANCE = 4e-6
"""The largest relative deviation of a frequency: angles are evaluated in float32."""
FACTOR_TOLERANCE = 2e-6
"""The largest relative deviation of a factor."""
FAMILIES_PERMUTED_BY_VLLM = ("llama4",)
"""Families whose weights vLLM reorders while it loads them.

vllm/model_executor/models/llama4.py, permute_qk_weight_for_rotary.
"""


class ProbedRope(msgspec.Struct, frozen=True):
    """One set of frequencies that layers of a runtime rotate with."""

    inv_freq: tuple[float, ...]
    """Radians per token in a sequence as long as the context."""

    attention_factor: float
    """The factor on cos and sin there."""

    short_inv_freq: tuple[float, ...] = ()
    """Radians per token within the trained length; empty where they are the same."""

    short_attention_factor: float | None = None
    """The factor on cos and sin there; None where it is the same."""

    pairs: str = ""
    """The dimensions that turn together: "half", "interleaved", or empty where that is not seen."""

    @property
    def switches(self) -> bool:
        """Whether it depends on the length of the sequence."""
        return bool(self.short_inv_freq) or self.short_attention_factor is not None


class RuntimeAnswer(msgspec.Struct, frozen=True, rename={"model_class": "class"}):
    """The answer of a runtime about a config. `probe_protocol` explains the fields."""

    version: str = ""
    ropes: tuple[ProbedRope, ...] = ()
    layers: tuple[int | None, ...] = ()
    model_class: str = ""
    scaling: float | None = None
    query_scale: float | None = None
    mixed: bool = False
    interleaved: bool | None = None
    window: int | None = None
    backend: str = ""
    error: str = ""
    stage: str = ""
    absent: str = ""
    unseen: str = ""

    @property
    def says_nothing(self) -> bool:
        """Whether it says nothing about the runtime, and may be another one tomorrow."""
        return bool(self.unseen)


def parse_runtime_answer(text: str | bytes) -> RuntimeAnswer | None:
    """Return the answer of a program that asks a runtime; None for any other text.

    Args:
        text: A line of JSON that the program has written. One with NaN is not JSON.
    """
    try:
        answer = msgspec.json.decode(text, type=RuntimeAnswer)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None

    # An answer has the RoPE of each layer, or says why not: the runtime has failed (`error`), does
    # not have the model (`absent`), or cannot be asked on this machine (`unseen`).
    says_why_not = answer.error or answer.absent or answer.unseen
    if not answer.layers and not says_why_not:
        return None
    # each layer that rotates has the index of its frequencies in `ropes`
    for index in answer.layers:
        if index is not None and index not in range(len(answer.ropes)):
            return None
    return answer


@dataclass(frozen=True)
class Expected:
    """The schedule that a runtime has to compute from a config."""

    config: JsonObject
    """The whole config.json."""

    family: Family
    schedule: Schedule
    before: RopeSpec
    """The RoPE of the source, for layers that a method does not change."""


@dataclass(frozen=True)
class Outcome:
    """The answer of a runtime about a config, compared with a schedule."""

    status: Status
    detail: str = ""
    """The first difference from the schedule, or the message; empty where it is exact."""

    deviation: float | None = None
    """The largest relative deviation of a frequency of the layers that the schedule is for.

    None where they have another number of pairs, and where no layer was seen.
    """

    attention_factor: float | None = None
    """The factor on cos and sin of these layers; None where no layer was seen."""


STAGES_IN_WORDS = {
    "config": "the config",
    "load": "loading the model",
    "forward": "the first forward pass",
}
"""Where a runtime fails, in words."""
WORDS_ON_SCHEDULE = ("frequencies", "attention factor", "inside the trained context")
"""How the differences begin, in words, of a runtime that ignores the scaling.

A runtime with other differences too, as in its pairs, computes something else.
"""
SeenLayer = tuple[str, ProbedRope | None]
"""The kind of a layer in the source ("global", "local" or "none"), and what it rotates with."""


def judge_answer(answer: RuntimeAnswer, expected: Expected) -> Outcome:
    """Compare the RoPE that a runtime computes with the RoPE that a config should give.

    The status of the result is "exact", "differs", "ignored" (the runtime computes the model
    without scaling), "refused" (it fails), "unsupported" (it does not have the model) or "unknown".

    Args:
        answer: The RoPE of each layer, as the runtime computes it, or the reason for no answer.
        expected: The schedule that the config should give, and the RoPE of the source.
    """
    # no answer: the runtime cannot be asked here, does not have the model, or fails
    if answer.unseen:
        return Outcome("unknown", answer.unseen)
    if answer.absent:
        return Outcome("unsupported", answer.absent)
    if answer.error:
        stage = STAGES_IN_WORDS.get(answer.stage, answer.stage)
        return Outcome("refused", f"it fails at {stage}: {answer.error}")

    # The global layers, which the schedule is for. A layer that the runtime does not rotate has the
    # RoPE None.
    layers = list(_seen_layers(answer, expected.before))
    ropes_of_global_layers = [rope for kind, rope in layers if kind == "global"]
    if not ropes_of_global_layers:
        return Outcome("unknown", "no layer was seen that the schedule is for")
    ropes = [rope for rope in ropes_of_global_layers if rope is not None]

    # The status follows from the gravest difference, the first. A runtime that only ignores the
    # scaling ("ignored") computes a model that works up to the old context. WORDS_ON_SCHEDULE are
    # the first words of differences in the scaling, such as "frequencies".
    difference = next(_differences(answer, layers, expected), "")
    status: Status = "exact"
    if difference:
        is_about_scaling = difference.startswith(WORDS_ON_SCHEDULE)
        is_ignored = is_about_scaling and _is_unscaled(answer, ropes, expected)
        status = "ignored" if is_ignored else "differs"
    if not ropes:  # no global layer rotates, so there are no numbers
        return Outcome(status, difference)

    # the numbers for the user, from the worst layers: the largest deviation of frequencies, and the
    # attention factor with the largest error
    schedule = expected.schedule
    largest_deviation = max(_deviation(rope.inv_freq, schedule.inv_freq) for rope in ropes)
    attention_factors = [rope.attention_factor for rope in ropes]
    worst_factor = max(
        attention_factors, key=lambda factor: abs(factor - schedule.attention_factor)
    )
    deviation = largest_deviation if math.isfinite(largest_deviation) else None
    return Outcome(status, difference, deviation, worst_factor)


def _seen_layers(answer: RuntimeAnswer, before: RopeSpec) -> Iterator[SeenLayer]:
    """Yield the kind of each layer in the source, and what the runtime rotates it with.

    Models that were made small have only their first layers in the answer.
    """
    kinds = before.layers or ("global",) * len(answer.layers)
    for kind, index in zip(kinds, answer.layers, strict=False):
        rope = None  # the layer does not rotate
        if index is not None:
            rope = answer.ropes[index]
        yield kind, rope


def _differences(
    answer: RuntimeAnswer, layers: list[SeenLayer], expected: Expected
) -> Iterator[str]:
    """Yield how the RoPE of a runtime differs from a schedule, the gravest difference first.

    For example, "rotates interleaved pairs" or "attention factor 1, not 1.1386".

    Args:
        answer: The answer of the runtime.
        layers: For each layer, its kind in the source and its RoPE in the runtime. The kind is
            "global", "local" (with a sliding window) or "none" (without RoPE). The RoPE is None for
            a layer that the runtime does not rotate.
        expected: The schedule of the global layers, and the RoPE of the source (`before`), which
            local layers keep.
    """
    # layers that the runtime should rotate and does not, or rotates and should not
    for kind, rope in layers:
        should_rotate = kind != "none"
        if rope is None and should_rotate:
            yield "a layer that rotates does not"
        if rope is not None and not should_rotate:
            yield "a layer rotates that has no RoPE"

    local_inv_freq = expected.before.local_inv_freq
    for kind, rope in layers:
        if rope is None or kind == "none":
            continue

        # the dimensions that rotate together, "half" or "interleaved"
        pairs = _pairs(answer, rope, expected.family)
        if pairs != expected.family.layout:
            yield f"rotates {pairs} pairs"

        # global layers: the frequencies and the attention factor of the schedule
        if kind == "global":
            yield from _schedule_differences(rope, expected.schedule)
        # local layers: the frequencies of the source, and the attention factor 1
        elif local_inv_freq is not None:
            yield from _vector_differences("window layers: ", rope.inv_freq, local_inv_freq)
            yield from _factor_differences(
                "window layers: attention factor", rope.attention_factor, 1.0
            )

    # a runtime that reads a prompt in several passes (`mixed`), with frequencies that depend on the
    # length so far (`switches`)
    depends_on_length = any(rope.switches for rope in answer.ropes)
    if answer.mixed and depends_on_length:
        yield "the two factor lists are mixed in one prompt"

    # the factors on logits and on queries
    yield from _logit_differences(answer, expected)


def _schedule_differences(rope: ProbedRope, schedule: Schedule) -> Iterator[str]:
    """Yield how frequencies and factor differ from the schedule, for long and for short prompts.

    Args:
        rope: The RoPE that the runtime gives a layer.
        schedule: The RoPE that it has to compute.
    """
    # prompts as long as the context
    expected_factor = schedule.attention_factor
    yield from _vector_differences("", rope.inv_freq, schedule.inv_freq)
    yield from _factor_differences("attention factor", rope.attention_factor, expected_factor)

    # Short prompts in the schedule: only two lists, as in LongRoPE, give them other frequencies.
    # The attention factor is the same.
    expected_short = schedule.inv_freq
    if schedule.short_inv_freq is not None:
        expected_short = schedule.short_inv_freq

    # Short prompts in the runtime: an answer leaves out what is the same as for long ones.
    answered_short = rope.inv_freq
    if len(rope.short_inv_freq) > 0:
        answered_short = rope.short_inv_freq
    answered_short_factor = rope.attention_factor
    if rope.short_attention_factor is not None:
        answered_short_factor = rope.short_attention_factor

    inside = "inside the trained context: "
    yield from _vector_differences(inside, answered_short, expected_short)
    yield from _factor_differences(
        f"{inside}attention factor", answered_short_factor, expected_factor
    )


def _pairs(answer: RuntimeAnswer, rope: ProbedRope, family: Family) -> str:
    """Return which dimensions turn together; those of the family where nothing is said."""
    if answer.interleaved is not None and family.name not in FAMILIES_PERMUTED_BY_VLLM:
        return "interleaved" if answer.interleaved else "half"
    return rope.pairs or family.layout


def _vector_differences(
    prefix: str, answered: tuple[float, ...], expected: Vector
) -> Iterator[str]:
    """Yield in words how the frequencies of a runtime differ from the expected frequencies.

    Args:
        prefix: The beginning of each text, such as "window layers: ", or empty.
        answered: The frequencies that the runtime uses, [rotary_dim / 2] in radians per token. A
            pair of dimensions with the frequency 0 does not rotate.
        expected: The frequencies that the runtime should use.
    """
    if len(answered) != len(expected):
        yield f"{prefix}rotates {len(answered)} pairs, not {len(expected)}"
        return

    # pairs that should stand still have frequency 0, of which there is no ratio
    given = np.asarray(answered)
    rotates = expected != 0
    wrong = np.count_nonzero(given[~rotates])
    if wrong:
        yield f"{prefix}frequencies are not 0 in {wrong} pairs that stand still in the schedule"
        return

    ratio = given[rotates] / expected[rotates]
    if ratio.size and np.abs(ratio - 1).max() > FREQUENCY_TOLERANCE:
        yield (
            f"{prefix}frequencies are {ratio.min():.6g} to {ratio.max():.6g} times those of the"
            " schedule"
        )


def _factor_differences(words: str, answered: float, expected: float) -> Iterator[str]:
    """Yield how a factor differs from the one that is expected."""
    if abs(answered - expected) > FACTOR_TOLERANCE * expected:
        yield f"{words} {answered:.6g}, not {expected:.6g}"


def _deviation(answered: tuple[float, ...], expected: Vector) -> float:
    """Return the largest relative deviation of a frequency; infinite for other numbers of pairs."""
    if len(answered) != len(expected):
        return math.inf
    given = np.asarray(answered)
    rotates = expected != 0
    if np.any(given[~rotates]):
        return math.inf
    return float(np.abs(given[rotates] / expected[rotates] - 1).max(initial=0.0))


def _logit_differences(answer: RuntimeAnswer, expected: Expected) -> Iterator[str]:
    """Yield in words how a runtime's factors on logits and on queries differ from a schedule.

    Args:
        answer: The factors that the runtime uses, `scaling` on logits and `query_scale` on queries.
        expected: The schedule, with the factors that the runtime should use.
    """
    schedule = expected.schedule
    family = expected.family

    # Latent attention (MLA): the factor on logits is a softmax scale times the usual
    # 1 / sqrt(width of a head). Only the former is in a schedule.
    if family.mla and answer.scaling:
        answered = answer.scaling / _usual_scaling(expected)
        yield from _factor_differences("factor on logits", answered, schedule.softmax_scale)

    # families whose queries may grow with their position, such as Ministral 3
    if family.keys.query_beta:
        answered_scale = 1.0 if answer.query_scale is None else answer.query_scale
        yield from _factor_differences(
            "factor on queries", answered_scale, _largest_query_scale(schedule)
        )


def _usual_scaling(expected: Expected) -> float:
    """Return what every attention multiplies logits by, 1 / sqrt(width of a head), in MLA."""
    part = text_part(expected.config, expected.family)
    width = part["qk_nope_head_dim"] + part["qk_rope_head_dim"]
    usual: float = float(width) ** -0.5
    return usual


def _largest_query_scale(schedule: Schedule) -> float:
    """Return Llama 4's temperature on the query at the last position, where it is the largest.

    It is 1 + beta ln(1 + floor(p / length)) at position p. Runtimes are asked for it there too.
    """
    scaling = schedule.query_scaling
    if scaling is None:
        return 1.0
    last = schedule.context - 1
    return 1.0 + scaling.beta * math.log1p(last // scaling.length)


def _is_unscaled(answer: RuntimeAnswer, ropes: list[ProbedRope], expected: Expected) -> bool:
    """Return whether a runtime ignores a scaling, and computes the model's RoPE without scaling.

    Args:
        answer: The answer of the runtime.
        ropes: The RoPE of each global layer in the runtime.
        expected: The schedule, and `before`, the RoPE of the source.
    """
    # the plain frequencies theta^(-2i / d) of the model's base
    source_rope = expected.before
    plain_form = source_rope.base_form(source_rope.rope_theta)
    unscaled = plain_form.inv_freq(source_rope.rotary_dim)

    # a schedule without a scaling has nothing that could be ignored
    schedule = expected.schedule
    has_plain_frequencies = _is_same_vector(tuple(schedule.inv_freq), unscaled)
    if has_plain_frequencies and schedule.attention_factor == 1:
        return False

    # the usual pairs, the plain frequencies, and no attention factor, in each layer
    for rope in ropes:
        pairs = _pairs(answer, rope, expected.family)
        if pairs != expected.family.layout:
            return False
        if not _is_same_vector(rope.inv_freq, unscaled):
            return False
        has_attention_factor = abs(rope.attention_factor - 1.0) > FACTOR_TOLERANCE
        if has_attention_factor:
            return False
    return len(ropes) > 0


def _is_same_vector(answered: tuple[float, ...], expected: Vector) -> bool:
    """Whether frequencies are those that are expected, within `FREQUENCY_TOLERANCE`."""
    differences = list(_vector_differences("", answered, expected))
    return not differences
