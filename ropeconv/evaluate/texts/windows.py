"""Where the windows of a measure end: spread over all texts that are long enough."""

from __future__ import annotations

from ...errors import BadSource
from ...rope.lengths import format_tokens
from ..asked import Asked
from .documents import Texts


def long_enough(texts: Texts, length: int) -> list[int]:
    """Numbers of the documents that fill a sequence of `length` tokens. Raises BadSource where there is none."""
    found = [
        number for number, document in enumerate(texts.documents) if len(document.ids) + len(texts.prefix) >= length
    ]
    if not found:
        most = max(len(document.ids) for document in texts.documents) + len(texts.prefix)
        raise BadSource(
            f"the longest text has {most:,} tokens, and sequences of {length:,} are asked for; give a longer --text, "
            f"or --lengths up to {format_tokens(most)}"
        )
    return found


def window_ends(texts: Texts, asked: Asked, apart: int) -> list[tuple[int, int]]:
    """(document, end) of windows of the longest length, in turn from all documents that are long enough.

    In each document they are spread evenly, and end at least `apart` tokens from each other; so there are fewer than
    `asked.windows` where the texts are short. texts: to choose from. asked: sizes. apart: in tokens.
    """
    room = asked.longest - len(texts.prefix)
    documents = long_enough(texts, asked.longest)
    ends: dict[int, list[int]] = {}
    for place, number in enumerate(documents):
        wanted = asked.windows // len(documents) + (place < asked.windows % len(documents))
        size = len(texts.documents[number].ids)
        count = min(wanted, 1 + (size - room) // apart)
        step = (size - room) / max(count - 1, 1)
        ends[number] = [size - int(index * step) for index in reversed(range(count))]
    turns = max(map(len, ends.values()))
    return [(number, found[turn]) for turn in range(turns) for number, found in ends.items() if turn < len(found)]
