"""Compares what a runtime answered with what it has to compute, as `ropeconv probe` does."""

import json
from typing import Any

from ropeconv.engines.probes.outcome import (
    Expected,
    Outcome,
    RuntimeAnswer,
    judge_answer,
    parse_runtime_answer,
)

from .cells import Cell

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
    "'expert_hidden_dim'",
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


def outcome(cell: Cell, answer: dict[str, Any]) -> Outcome:
    """Return the outcome of a cell, with the status that a verdict on it must have."""
    parsed = parse_runtime_answer(json.dumps(answer)) or RuntimeAnswer(
        unseen="its answer cannot be read"
    )
    if any(words in parsed.error for words in LACKING):
        return Outcome("unknown", "untested: it requires what the lab does not have")
    if "transformers backend" in parsed.absent:
        return Outcome("unknown", parsed.absent)
    return judge_answer(parsed, Expected(cell.config, cell.family, cell.schedule, cell.before))
