"""The types of the probe's answers, which are read from a pipe and from the cache."""

from __future__ import annotations

import json
from typing import Any

import msgspec


class Module(msgspec.Struct, frozen=True):
    """A set of frequencies. inv_freq, short: radians per token, at the end of the context and at its beginning."""

    inv_freq: tuple[float, ...]
    short: tuple[float, ...]
    attention_factor: float


class Answer(msgspec.Struct, frozen=True):
    """What transformers computes, by "global" and "local".

    transformers: its version. read_as: the model type that was put in the place of one that it does not have.
    """

    modules: dict[str, Module]
    transformers: str = ""
    read_as: str = ""


class Failure(msgspec.Struct, frozen=True):
    """Why it computes nothing."""

    error: str


def parsed(text: str) -> dict[str, Any] | None:
    """An answer as JSON-ready data; None for a text that is none, such as one with NaN among its numbers."""
    for kind in (Failure, Answer):
        try:
            msgspec.json.decode(text, type=kind)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
        found: dict[str, Any] = json.loads(text)
        return found
    return None
