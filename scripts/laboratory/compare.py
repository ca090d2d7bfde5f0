"""Compares what a runtime answered with what it has to compute. It shares no code with the table of
runtimes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ropeconv.models.config import text_part
from ropeconv.rope.spec import RopeSpec

from .cells import Cell

FREQUENCIES = 4e-6
"""Allowed relative deviation of a frequency: angles are evaluated in float32."""
FACTORS = 2e-6
PERMUTED = ("llama4",)
"""Families whose weights vLLM reorders while it loads them (models/llama4.py,
permute_qk_weight_for_rotary).
"""

LACKING = (
    "for argument tokenizer",
    "'convert_tokens_to_ids'",
    "image processor for",
    "HuggingFace processor",
    "KeyError: 'None'",
    "No model architectures are specified",
    "failed to be inspected",
    "'vit_config'",
    "'use_qk_norm'",
    "'image_size'",
    "'downsample_factor'",
    "Model Runner V1",
    "'compress_ratios'",
    "no list of 6 decoder layers",
    "'num_shared_expert'",
    "num_query_groups",
    "embed_dim must be divisible",
    "StubType",
    "Unrecognized configuration class",
    "'language_config'",
    "'pad_token_id'",
    "compression only supports ratios",
    "requires the validated ModelConfig quantization",
)
"""Parts of messages on what the lab's configs, folders or stubs lack."""


@dataclass(frozen=True)
class Outcome:
    """What a runtime does with a cell. status: as in `ropeconv.runtimes`. detail: what it computes,
    or its message.
    """

    status: str
    detail: str = ""


def outcome(cell: Cell, answer: dict[str, Any]) -> Outcome:
    """The outcome of a cell: the status that a verdict on it must have."""
    if "absent" in answer:
        backend = "transformers backend" in answer["absent"]
        return Outcome("unknown" if backend else "unsupported", answer["absent"])
    if "unseen" in answer:
        return Outcome("unknown", answer["unseen"])
    if "error" in answer and any(words in answer["error"] for words in LACKING):
        return Outcome("unknown", "untested: it requires what the lab does not have")
    if "error" in answer:
        return Outcome("refused", f"{answer['error']} ({answer['stage']})")
    if not any(kind == "global" for kind, _ in _layers(cell, answer)):
        return Outcome("unknown", "no layer was seen that the schedule is for")
    difference = next(_differences(cell, answer), "")
    if not difference:
        return Outcome("exact")
    of_schedule = difference.startswith(
        ("frequencies", "attention factor", "inside the trained context")
    )
    return Outcome("ignored" if of_schedule and _unscaled(cell, answer) else "differs", difference)


def _differences(cell: Cell, answer: dict[str, Any]) -> Iterator[str]:
    schedule, before = cell.schedule, cell.before
    local = before.local_inv_freq
    short = schedule.inv_freq if schedule.short_inv_freq is None else schedule.short_inv_freq
    layers = list(_layers(cell, answer))
    for kind, rope in layers:
        if (rope is None) != (kind == "none"):
            yield (
                "a layer that rotates does not"
                if rope is None
                else "a layer rotates that has no RoPE"
            )
    for kind, rope in layers:
        if rope is None or kind == "none":
            continue
        if _pairs(cell, answer, rope) != cell.family.layout:
            yield f"rotates {_pairs(cell, answer, rope)} pairs"
        expected, attention_factor = (
            (schedule.inv_freq, schedule.attention_factor) if kind == "global" else (local, 1.0)
        )
        words = "" if kind == "global" else "window layers: "
        yield from _vector(words, rope["inv_freq"], expected)
        yield from _factor(f"{words}attention factor", rope["attention_factor"], attention_factor)
        if kind == "global":
            inside = "inside the trained context: "
            yield from _vector(inside, rope.get("short_inv_freq", rope["inv_freq"]), short)
            yield from _factor(
                f"{inside}attention factor",
                rope.get("short_attention_factor", rope["attention_factor"]),
                attention_factor,
            )
    if answer.get("mixed") and any("short_inv_freq" in rope for rope in answer["ropes"]):
        yield "the two factor lists are mixed in one prompt"
    yield from _logits(cell, answer)


def _pairs(cell: Cell, answer: dict[str, Any], rope: dict[str, Any]) -> str:
    """Which dimensions a rope turns together, "half" or "interleaved"; that of the family where
    nothing is said.
    """
    if "interleaved" in answer and cell.family.name not in PERMUTED:
        return "interleaved" if answer["interleaved"] else "half"
    return str(rope.get("pairs", cell.family.layout))


def _layers(cell: Cell, answer: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """The kind of each layer that was seen, and its rope. Models that were made small show their
    first layers.
    """
    kinds = cell.before.layers or ("global",) * len(answer["layers"])
    for kind, index in zip(kinds, answer["layers"], strict=False):
        yield kind, None if index is None else answer["ropes"][index]


def _vector(words: str, answered: list[float], expected: Any) -> Iterator[str]:
    if len(answered) != len(expected):
        yield f"{words}rotates {len(answered)} pairs, not {len(expected)}"
        return
    rotating = np.asarray(expected) != 0
    turned = np.count_nonzero(np.asarray(answered)[~rotating])
    if turned:
        yield f"{words}frequencies are not 0 in {turned} pairs that stand still in the schedule"
        return
    ratio = np.asarray(answered)[rotating] / np.asarray(expected)[rotating]
    if np.abs(ratio - 1).max() > FREQUENCIES:
        yield (
            f"{words}frequencies are {ratio.min():.6g} to {ratio.max():.6g} times those of the"
            " schedule"
        )


def _factor(words: str, answered: float, expected: float) -> Iterator[str]:
    if abs(answered - expected) > FACTORS * expected:
        yield f"{words} {answered:.6g}, not {expected:.6g}"


def _logits(cell: Cell, answer: dict[str, Any]) -> Iterator[str]:
    expected = cell.schedule.softmax_scale
    if cell.family.mla and answer.get("scaling"):
        yield from _factor("factor on logits", answer["scaling"] / _unscaled_logits(cell), expected)
    steps = cell.schedule.query_scaling
    if cell.family.keys.query_beta:
        position = cell.schedule.context - 1
        scale = 1.0 if steps is None else 1 + steps.beta * math.log1p(position // steps.length)
        yield from _factor("factor on queries", answer.get("query_scale", 1.0), scale)


def _unscaled_logits(cell: Cell) -> float:
    """1 / sqrt(width of a head), the factor on the logits of MLA without any scaling."""
    part = text_part(cell.config, cell.family)
    return float((part["qk_nope_head_dim"] + part["qk_rope_head_dim"]) ** -0.5)


def _unscaled(cell: Cell, answer: dict[str, Any]) -> bool:
    """Whether every layer that a change is for rotates as it did before any scaling."""
    before: RopeSpec = cell.before
    plain = before.base_form(before.rope_theta).inv_freq(before.rotary_dim)
    schedule = cell.schedule
    if schedule.attention_factor == 1 and not list(_vector("", list(schedule.inv_freq), plain)):
        return False
    ropes = [rope for kind, rope in _layers(cell, answer) if kind == "global" and rope is not None]
    return bool(ropes) and all(
        _pairs(cell, answer, rope) == cell.family.layout
        and not list(_vector("", rope["inv_freq"], plain))
        and not list(_factor("", rope["attention_factor"], 1.0))
        for rope in ropes
    )
