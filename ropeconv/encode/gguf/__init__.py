"""Encodings of a GGUF file: metadata keys, rope tensors, and carriers, which are other architectures."""

from . import encodings as _encodings  # noqa: F401  registers them
from .gguf_encoding import all_gguf_encodings
from .gguf_model import GgufModel
from .gguf_result import GgufResult
from .select_gguf import select_gguf

__all__ = ["GgufModel", "GgufResult", "all_gguf_encodings", "select_gguf"]
