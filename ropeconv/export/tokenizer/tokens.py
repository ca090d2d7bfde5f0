"""Tokens: a vocabulary as GGUF has it, with text, kind and score of every token."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from ...errors import BadSource, counted, shown
from .files import Added

SPACE = "▁"
"""How SentencePiece writes a space."""


class Kind(IntEnum):
    """Kinds of tokens, with llama.cpp's numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass
class Tokens:
    """A vocabulary. texts: in UTF-8, kinds, scores: lists with an entry per token id."""

    texts: list[bytes]
    kinds: list[Kind]
    scores: list[float]

    @classmethod
    def unused(cls, count: int) -> Tokens:
        """A vocabulary of `count` unused tokens, for embeddings with that many rows."""
        texts = [f"[PAD{index}]".encode() for index in range(count)]
        return cls(texts, [Kind.UNUSED] * count, [-10000.0] * count)

    def put(self, index: int, text: str, kind: Kind, score: float = 0.0) -> None:
        """Sets the text, kind and score of a token.

        index: its id. text: its content. kind: such as NORMAL. score: for the order of merges, in SentencePiece.
        Raises BadSource for an id without a row in the embeddings.
        """
        if not 0 <= index < len(self.texts):
            raise BadSource(
                f"the tokenizer has a token {index} ({shown(text)}), and the embeddings have "
                f"{counted(len(self.texts), 'row')}; give the tokenizer of this model"
            )
        self.texts[index], self.kinds[index], self.scores[index] = text.encode("utf-8", "replace"), kind, score

    def add(self, added: list[Added]) -> None:
        """Sets tokens that were added to a vocabulary; special ones, and ones spelled <|...|>, become control tokens.

        added: as in `added_tokens` of tokenizer.json. llama.cpp searches for the others in the text as it was given,
        so SentencePiece's U+2581 is a space in them (https://github.com/ggml-org/llama.cpp/pull/8228). Raises BadSource
        for one without an id, and as `put`.
        """
        for entry in added:
            text, index = entry.content, entry.id
            if index is None:
                raise BadSource(f"the added token {shown(text)} has no id; download tokenizer.json again")
            if index < len(self.texts) and self.kinds[index] in (Kind.UNKNOWN, Kind.BYTE):
                continue
            control = entry.special or re.fullmatch(r"<[|\uff5c].*[|\uff5c]>", text)
            if control:
                self.put(index, text, Kind.CONTROL, -1000.0)
            else:
                self.put(index, text.replace(SPACE, " "), Kind.USER_DEFINED, -1000.0)


def is_byte(text: str) -> bool:
    """Whether the text of a token stands for one byte, like `<0x0A>`."""
    return re.fullmatch(r"<0x[0-9A-Fa-f]{2}>", text) is not None
