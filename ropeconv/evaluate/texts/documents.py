"""Documents and Texts: what a model reads, as tokens."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ...errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Tokenizer(ABC):
    """The tokenizer of a model.

    prefix: the tokens that it puts before every text, such as a beginning-of-text token.
    """

    prefix: tuple[int, ...] = ()

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without the prefix."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens."""

    def chat(self) -> tuple[list[int], list[int]]:
        """The tokens before and behind the message of a user whom the model answers next.

        Raises UsageError where the tokenizer has no chat template.
        """
        raise UsageError("this tokenizer has no chat template; leave --chat out")


def prefix_of(with_special: Sequence[int], plain: Sequence[int]) -> tuple[int, ...]:
    """The tokens before a text. with_special: tokens of it as a model reads it. plain: those of the text alone."""
    count = len(with_special) - len(plain)
    before = next((k for k in range(count + 1) if list(with_special[k : k + len(plain)]) == list(plain)), 0)
    return tuple(with_special[:before])


@dataclass(frozen=True, eq=False)
class Document:
    """One text. name: of its file, or a number in a dataset. ids: its tokens, without a prefix, int32."""

    name: str
    ids: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Texts:
    """All texts of an evaluation. documents: at least one. tokenizer: of the model. notes: on texts that measure
    little.
    """

    documents: tuple[Document, ...]
    tokenizer: Tokenizer
    notes: tuple[str, ...] = ()

    @property
    def prefix(self) -> tuple[int, ...]:
        """The tokens before every sequence."""
        return self.tokenizer.prefix

    def window(self, document: int, end: int, length: int) -> NDArray[np.int32]:
        """A sequence of `length` tokens: the prefix, and the tokens of a document before `end`.

        document: its number. end: index into its tokens, behind the last one.
        """
        own = self.documents[document].ids[end - (length - len(self.prefix)) : end]
        return np.concatenate([np.array(self.prefix, np.int32), own])

    @cached_property
    def sha256(self) -> str:
        """sha256 over the tokens of all documents."""
        digest = hashlib.sha256()
        for document in self.documents:
            digest.update(len(document.ids).to_bytes(8, "little") + document.ids.astype("<i4").tobytes())
        return digest.hexdigest()
