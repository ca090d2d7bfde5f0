"""Encodings, which turn a Schedule into edits of a checkpoint or GGUF file, and Target, which selects one."""

from .checkpoint import CheckpointResult, EncodeRequest, all_encodings, select
from .result import EncodeResult
from .target import FoldTarget, GgufTarget, Target

__all__ = [
    "CheckpointResult",
    "EncodeRequest",
    "EncodeResult",
    "FoldTarget",
    "GgufTarget",
    "Target",
    "all_encodings",
    "select",
]
