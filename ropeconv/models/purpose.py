"""The purpose of a checkpoint: text, embeddings, ranking, or masks that are filled in."""

from __future__ import annotations

from contextlib import suppress
from typing import Literal

from ..errors import BadSource
from .schema import Config
from .source import Source

Purpose = Literal["text", "embedding", "ranking", "diffusion"]
"""The purpose of a model; `runtimes/llamacpp/purpose.py` knows that of GGUF files."""
RANKS = ("ForSequenceClassification", "ForTokenClassification", "RewardModel", "ForRewardModeling")
"""Ends of the names of classes that give scores.

https://docs.vllm.ai/en/latest/models/pooling_models/
"""
DIFFUSION = ("diffusion", "llada", "dream", "rnd1")
"""Beginnings of the types of models that fill in masks instead of predicting the next token."""
POOLING = "modules.json"
"""The file that tells sentence-transformers and vLLM that a model pools its hidden states."""


def checkpoint_purpose(source: Source) -> Purpose:
    """Return what a checkpoint is run for, from its type, classes, files and family."""
    config: Config = {}
    is_encoder = False
    has_pooling = False
    with suppress(BadSource):
        config = source.config()
        has_pooling = any(file.name == POOLING for file in source.files())
        is_encoder = source.family.encoder

    # from particular to general: a model that ranks is an encoder too
    model_type = str(config.get("model_type", "")).lower()
    if model_type.startswith(DIFFUSION):
        return "diffusion"
    classes = config.get("architectures")
    if isinstance(classes, list):
        for name in classes:  # e.g. "BertForSequenceClassification"
            if isinstance(name, str) and name.endswith(RANKS):
                return "ranking"
    if is_encoder or has_pooling:
        return "embedding"
    return "text"
