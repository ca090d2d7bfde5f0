"""Encodings of a checkpoint: one file each in `encodings/`, and the selection among them."""

from . import encodings as _encodings  # noqa: F401  registers them
from .encoding import Encoding, all_encodings
from .request import CheckpointResult, EncodeRequest
from .select import select

__all__ = ["CheckpointResult", "EncodeRequest", "Encoding", "all_encodings", "select"]
