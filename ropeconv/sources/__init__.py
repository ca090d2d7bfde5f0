"""Where checkpoints come from: a folder, the Hub, Meta's original layout. One view for all."""

from .base import RECEIPT, Source, SourceFile
from .open import open_source

__all__ = ["RECEIPT", "Source", "SourceFile", "open_source"]
