"""Encodings for GGUF: metadata keys, rope tensors, and other architectures that carry them."""

from .gguf_model import Model
from .result import GgufChoice
from .select import GGUF_ENCODINGS, choose_gguf

__all__ = ["GGUF_ENCODINGS", "GgufChoice", "Model", "choose_gguf"]
