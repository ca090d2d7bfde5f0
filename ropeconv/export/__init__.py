"""A checkpoint as GGUF: its hyperparameters, tensors, tokenizer and description."""

from .exported import Exported, export

__all__ = ["Exported", "export"]
