"""Where checkpoints come from: a folder, the Hub, Meta's original layout. One view for all."""

from .base import RECEIPT, Source, SourceFile
from .gguf import GgufSource
from .inspection import Inspection, inspect_source
from .open import open_checkpoint, open_source

__all__ = [
    "RECEIPT",
    "GgufSource",
    "Inspection",
    "Source",
    "SourceFile",
    "inspect_source",
    "open_checkpoint",
    "open_source",
]
