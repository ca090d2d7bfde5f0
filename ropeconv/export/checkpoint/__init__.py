"""Conversion of a GGUF file to a checkpoint: the way back of `export`, from the same tables."""

from .source import GgufCheckpoint

__all__ = ["GgufCheckpoint"]
