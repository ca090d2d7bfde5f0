"""Conversion of a checkpoint to GGUF: hyperparameters, tensors, tokenizer and general metadata."""

from .exported import Exported, export

__all__ = ["Exported", "export"]
