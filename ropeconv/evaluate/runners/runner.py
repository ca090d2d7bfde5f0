"""Runner, the interface to what runs the rows of an evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from ...engines import Engine
from ...rope.schedule import Schedule
from ..row import Row
from ..texts.documents import Tokenizer


class Runner(ABC):
    """Runs the rows of an evaluation, one at a time.

    swaps: whether another row costs much less than another sequence, so that every sequence is read by all rows before
    the next one. runtime: name and version. device, dtype: where and in which precision it computes, for the result.
    source: identity of the model, for the journal. trained: context of the unscaled model, in tokens. tokenizer: of the
    model.
    """

    swaps: ClassVar[bool] = False
    runtime: str
    device: str = "cpu"
    dtype: str = ""
    source: str
    trained: int
    tokenizer: Tokenizer

    @abstractmethod
    def schedule(self, row: Row) -> Schedule | None:
        """What a row computes; None where that is not known. Raises RopeconvError where this model cannot have it."""

    @abstractmethod
    def digest(self, row: Row) -> str:
        """What decides the numbers of a row besides source, runtime and sequence: for the journal."""

    def memory(self, tokens: int) -> str:
        """A sentence on the memory that a sequence of `tokens` tokens takes; empty where it is not known."""
        return ""

    @contextmanager
    @abstractmethod
    def engine(self, row: Row) -> Iterator[Engine]:
        """The engine of a row, while it is entered. Raises RopeconvError where this model cannot have it."""
        raise NotImplementedError
        yield
