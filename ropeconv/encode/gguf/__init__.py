"""Encodings for GGUF: metadata keys, rope tensors, and other architectures that carry them."""

from .choose import GGUF_ENCODINGS, GgufChoice, choose_gguf
from .model import Model

__all__ = ["GGUF_ENCODINGS", "GgufChoice", "Model", "choose_gguf"]
