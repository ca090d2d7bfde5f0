"""Encodings: a Schedule in, edits out. `Target` says which one and for whom."""

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
