"""Checks of a checkpoint that need no forward pass: its source, frequencies, and folded weights."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from ...encode import all_encodings
from ...engines.probe import Probe, ProbeCache
from ...errors import BadSource
from ...formats.regular import read_text
from ...receipts.receipt import CheckRecord
from ..comparison import Comparison
from .files import check_same_model, check_tokenizer
from .fold import check_fold
from .frequencies import compare
from .trust import needs_trust


def check_before_forward(comparison: Comparison, trust_remote_code: bool = False, weights: bool = True) -> CheckRecord:
    """Runs the checks of what an output computes that need no forward pass. `verify` compares its files.

    comparison: the output and its source. trust_remote_code: run code in the output that ropeconv has not written.
    weights: compare folded weights, which `verify` has done already unless it left weights out. Returns what the
    installed transformers computed. Raises BadSource where the output is not of the source, Disagreement where other
    frequencies are computed or folded weights are wrong.
    """
    baked, receipt, source = comparison.baked, comparison.receipt, comparison.checkpoint
    said, encoding = receipt.in_config, all_encodings().get(receipt.encoding)
    if said is None or encoding is None:
        raise BadSource(f"{baked} was written as {receipt.encoding}, which is not known here; run apply again")
    check_same_model(baked, source, encoding)
    check_tokenizer(baked, source)
    own = needs_trust(baked, trust_remote_code)
    schedule = replace(comparison.schedule, attention_factor=said.attention_factor, softmax_scale=said.softmax_scale)
    found = compare(_answer(comparison, schedule.context, own), schedule, comparison.spec, said.written_as)
    if encoding.folds and weights:
        check_fold(comparison)
    return found


def _answer(comparison: Comparison, context: int, own: bool) -> dict[str, Any]:
    """The answer of the installed transformers on an output, from the cache where `apply` has asked already."""
    baked, stands_for = comparison.baked, comparison.stands_for
    text = read_text(baked / "config.json", str(baked / "config.json"))
    cache = ProbeCache()
    model_type = stands_for or str(json.loads(text).get("model_type", ""))
    key = "" if own else cache.key(text, model_type, context, stands_for)
    known = cache.get(key)
    if known is None:
        with Probe() as probe:
            known = probe.ask(baked, context, own, stands_for)
        cache.put(key, known)
    return known
