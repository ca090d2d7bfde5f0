"""Conversion of tokenizers to GGUF keys: SentencePiece and byte-level BPE."""

from .keys import tokenizer_keys

__all__ = ["tokenizer_keys"]
