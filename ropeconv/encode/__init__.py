"""Encodings: a Schedule in, edits out. One file each; `choose` picks one."""

from .choice import Choice
from .choose import ENCODINGS, choose
from .task import ConfigChoice

__all__ = ["ENCODINGS", "Choice", "ConfigChoice", "choose"]
