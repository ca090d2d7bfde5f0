"""Encodings: a Schedule in, edits out. One file each."""

from .checkpoint.request import ConfigChoice
from .checkpoint.select import ENCODINGS, choose
from .result import Choice

__all__ = ["ENCODINGS", "Choice", "ConfigChoice", "choose"]
