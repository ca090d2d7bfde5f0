"""A checkpoint as GGUF: its hyperparameters, tensors, tokenizer and description."""

from .model import Exported, export

__all__ = ["Exported", "export"]
