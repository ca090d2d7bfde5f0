"""Asks SGLang what it computes for an EAGLE-3 head beside its target;
`scripts/laboratory/drafts.py` runs it.

A question also has "target", the config of the target. The answer also has "rows", the positions in
the table of cos and sin of the head, "served", the tokens that SGLang serves with the pair, and
"refused", the message of SGLang where it starts such a head only with the variable that allows
longer contexts.
"""

from __future__ import annotations

import contextlib
import functools
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import probe_protocol as protocol
import sglang_program
import torch


@contextlib.contextmanager
def as_draft(served: int) -> Iterator[None]:
    """Let SGLang's ModelConfig be that of a draft model inside this block.

    TpModelWorker and EagleDraftWorker do the same (eagle_worker_v2.py:229).

    Args:
        served: The longest prompt that the server accepts, in tokens.
    """
    from sglang.srt.configs import model_config

    plain = model_config.ModelConfig
    model_config.ModelConfig = functools.partial(
        plain, is_draft_model=True, context_length=served, speculative_algorithm="EAGLE3"
    )
    try:
        yield
    finally:
        model_config.ModelConfig = plain


def load(config: dict[str, Any], served: int) -> tuple[torch.nn.Module, dict[str, str]]:
    """The head on meta, and the message with which SGLang refuses it, where it does."""
    from sglang.srt.environ import envs

    with as_draft(served):
        try:
            return sglang_program.load(dict(config))[1], {}
        except protocol.Refused as refused:
            with envs.SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN.override(True):
                return sglang_program.load(config)[1], {"refused": str(refused)}


def ask(config: dict[str, Any], question: dict[str, Any]) -> protocol.Answer:
    """Return what SGLang computes from the config of an EAGLE-3 head.

    Args:
        config: The config.json of the head.
        question: The config of its target model, the trained length and the context.

    Returns:
        The keys of an answer, and rows: the positions of its table; served: the longest prompt.
    """
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.utils.common import reserve_rope_cache_for_long_sequences

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(question["target"]), encoding="utf-8")
        target = ModelConfig(model_path=folder, dtype="float32")
    head, refused = load(config, target.context_len)
    reserve_rope_cache_for_long_sequences(
        head, target
    )  # for both the same: the length of the target
    (layer,) = sglang_program.layers_of(head, 1)
    rotary: Any = layer.self_attn.rotary_emb
    answer = protocol.answer([sglang_program.read(rotary, question, 0)])
    return {**answer, **refused, "rows": len(rotary.cos_sin_cache), "served": target.context_len}
