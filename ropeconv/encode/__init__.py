"""Encodings: a Schedule in, edits out. One file each; `choose` picks one."""

from .choose import ENCODINGS, Choice, choose

__all__ = ["ENCODINGS", "Choice", "choose"]
