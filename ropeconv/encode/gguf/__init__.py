"""Encodings for GGUF: metadata keys, rope tensors, and other architectures that carry them."""

from .choice import GgufChoice
from .choose import GGUF_ENCODINGS, choose_gguf
from .model import Model

__all__ = ["GGUF_ENCODINGS", "GgufChoice", "Model", "choose_gguf"]
