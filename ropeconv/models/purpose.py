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
"""Ends of the names of classes that give scores:
https://docs.vllm.ai/en/latest/models/pooling_models/.
"""
DIFFUSION = ("diffusion", "llada", "dream", "rnd1")
"""Beginnings of the model types of models that fill in masks instead of predicting the next
token.
"""
POOLING = "modules.json"
"""The file by which sentence-transformers, and vLLM after it, knows a model that pools its hidden
states.
"""


def checkpoint_purpose(source: Source) -> Purpose:
    """Return what a checkpoint is run for, from its model type, its classes, its files and its
    family.
    """
    config: Config = {}
    is_encoder = has_pooling = False
    with suppress(BadSource):
        config = source.config()
        has_pooling = any(file.name == POOLING for file in source.files())
        is_encoder = source.family.encoder
    classes = config.get("architectures")
    names = [name for name in classes if isinstance(name, str)] if isinstance(classes, list) else []
    if str(config.get("model_type", "")).lower().startswith(DIFFUSION):
        return "diffusion"
    if any(name.endswith(RANKS) for name in names):
        return "ranking"
    return "embedding" if is_encoder or has_pooling else "text"
