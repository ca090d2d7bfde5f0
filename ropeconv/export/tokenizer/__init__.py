"""Conversion of tokenizers to GGUF keys: SentencePiece and byte-level BPE."""

from .keys import composes_characters, tokenizer_keys

__all__ = ["composes_characters", "tokenizer_keys"]
