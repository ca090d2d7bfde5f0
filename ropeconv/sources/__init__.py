"""Where checkpoints come from: a folder, the Hub, Meta's original layout, GGUF. Access only; nothing is interpreted."""

from .gguf import GgufSource
from .open import open_checkpoint, open_source
from .source import RECEIPT, Origin, Source, SourceFile

__all__ = ["RECEIPT", "GgufSource", "Origin", "Source", "SourceFile", "open_checkpoint", "open_source"]
