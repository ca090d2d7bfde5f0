"""Encodings: a Schedule in, edits out. One file each; `choose` picks one."""

from .choice import Choice
from .choose import ENCODINGS, ConfigChoice, choose

__all__ = ["ENCODINGS", "Choice", "ConfigChoice", "choose"]
