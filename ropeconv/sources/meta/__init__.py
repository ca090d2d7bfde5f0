"""Meta's original layout: params.json, consolidated.NN.pth, tokenizer.model, converted to the HF layout in a stream."""

from .source import MetaSource, is_meta

__all__ = ["MetaSource", "is_meta"]
