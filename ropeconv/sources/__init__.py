"""Where checkpoints come from: a folder, the Hub, Meta's original layout. One view for all."""

from .base import RECEIPT, Source, SourceFile
from .inspection import Inspection, inspect_source
from .open import open_source

__all__ = ["RECEIPT", "Inspection", "Source", "SourceFile", "inspect_source", "open_source"]
