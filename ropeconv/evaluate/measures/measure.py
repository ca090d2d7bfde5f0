"""Measure, the interface of what can be measured, and REGISTRY."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, TypeVar

from ...engines.engine import Engine, Output, TokenLosses
from ...rope.registry import Registry
from ..cases import Case, EvaluationSizes, Observation
from ..texts import Texts, Tokenizer

M = TypeVar("M", bound="type[Measure]")


class Measure(ABC):
    """Something that can be measured with sequences of tokens, the same ones for all rows.

    name: on the command line. summary: a phrase for help and docs. metrics: what it yields, the headline first.
    runs_model: whether it runs the model of a row itself. sizes: fields of `EvaluationSizes` that change its sequences,
    besides lengths, windows and seed, which all measures read.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]] = ("loss",)
    runs_model: ClassVar[bool] = False
    sizes: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def cases(self, texts: Texts, asked: EvaluationSizes) -> Iterator[Case]:
        """The sequences, in an order in which a run that is stopped early has something of every length.

        Raises BadSource where the texts are too short.
        """

    @abstractmethod
    def observe(self, case: Case, losses: TokenLosses) -> list[Observation]:
        """What a row's losses at the targets of a case say."""

    def needs(self, case: Case) -> Output | None:
        """What an engine has to give for a case; None for a model that is run here."""
        if self.runs_model:
            return None
        return "tokens" if case.generate else "token_losses"

    def placed(self, case: Case, found: Observation) -> Observation:
        """An observation from the journal with the place that its case has in this run.

        case: with the same tokens as the one that was measured. found: what was measured.
        """
        return replace(found, document=case.document, window=case.window, depth=case.depth)

    def combine(self, rows: dict[str, list[Observation]], sizes: EvaluationSizes) -> str:
        """Change the observations of all rows, where these depend on each other; return why it has none, or empty.

        rows: by name, in the order of the table.
        """
        return ""

    def observe_text(self, case: Case, text: str) -> list[Observation]:
        """What the text that a row generated behind a case says; only for measures with an answer."""
        raise NotImplementedError(self.name)

    def observe_model(self, case: Case, engine: Engine, tokenizer: Tokenizer) -> list[Observation]:
        """What a measure that runs the model itself found.

        case: of this measure. engine: of the row. tokenizer: of the model. Raises RopeconvError where it cannot run.
        """
        raise NotImplementedError(self.name)


REGISTRY: Registry[Measure] = Registry("measure", __package__ or "")


def register(cls: M) -> M:
    """Class decorator: adds a measure to REGISTRY under its name."""
    REGISTRY.add(cls.name, cls(), cls.__module__)
    return cls
