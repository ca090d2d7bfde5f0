"""Read access to models: a folder, a Hub repository, Meta's original layout, a config.json alone, a GGUF file."""

from .gguf import GgufSource
from .open import open_checkpoint, open_source
from .reference import resolved
from .source import RECEIPT, Origin, Source, SourceFile

__all__ = ["RECEIPT", "GgufSource", "Origin", "Source", "SourceFile", "open_checkpoint", "open_source", "resolved"]
