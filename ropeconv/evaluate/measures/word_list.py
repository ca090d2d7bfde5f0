"""word_list: the longest list of words that fits into a sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...errors import UsageError
from .haystack import Haystack, Prompt


def word_list(frame: Prompt, haystack: Haystack, length: int, least: int, words: Callable[[int], list[str]]) -> Prompt:
    """A prompt with the longest list that fits; the few tokens that are left become haystack before it.

    frame: the prompt without facts. haystack: where the sequence is from. length: of the sequence in tokens. least:
    words that the list must have. words: a list of about so many words. Raises UsageError where fewer than `least` fit.
    """
    room = haystack.room(frame, length)

    def fits(size: int) -> bool:
        return sum(len(haystack.tokens(f" {word}")) for word in words(size)) <= room

    if room < least or not fits(least):
        raise UsageError(f"{length:,} tokens have no room for a list of {least} words; give longer --lengths")
    low, high = least, room + 1  # a word has at least one token
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return replace(frame, facts=tuple((1.0, f" {word}") for word in words(low)))
