"""Measure, the interface of a measure, and REGISTRY."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, TypeVar

import numpy as np

from ...engines.engine import Engine, Output, TokenLosses
from ...errors import NotFinite
from ...rope.registry import Registry
from ..cases import Case, EvaluationSizes, Observation
from ..texts import Texts, Tokenizer

M = TypeVar("M", bound="type[Measure]")


class Measure(ABC):
    """A measure, which has the same sequences of tokens for all rows.

    name: on the command line. summary: a phrase for help and docs. metrics: the headline first.
    pass_of: the measure whose passes and lines of the journal it reads, if not its own. runs_model:
    whether it runs the model itself. sizes: fields of `EvaluationSizes` that change its sequences,
    besides lengths, windows and seed, which all measures read.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]] = ("loss",)
    pass_of: ClassVar[str] = ""
    runs_model: ClassVar[bool] = False
    sizes: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def cases(self, texts: Texts, sizes: EvaluationSizes) -> Iterator[Case]:
        """The sequences, in an order in which a run that is stopped early has something of every
        length.

        Raises BadSource where the texts are too short.
        """

    @abstractmethod
    def observe(self, case: Case, losses: TokenLosses) -> list[Observation]:
        """The observations from the losses of a row at the targets of a case."""

    def needs(self, case: Case) -> Output | None:
        """The output that an engine has to give for a case; None for a model that the measure
        runs.
        """
        if self.runs_model:
            return None
        return "tokens" if case.generate else "token_losses"

    def placed(self, case: Case, observation: Observation) -> Observation:
        """An observation from the journal as one of this measure, with the place of its case in
        this run.
        """
        return replace(
            observation,
            measure=self.name,
            document=case.document,
            window=case.window,
            depth=case.depth,
        )

    def combine(self, rows: dict[str, list[Observation]], sizes: EvaluationSizes) -> str:
        """Change the observations of all rows, where these depend on each other; return why it has
        none, or empty.

        rows: by name, in the order of the table.
        """
        return ""

    def run(self, row: str, case: Case, engine: Engine, tokenizer: Tokenizer) -> list[Observation]:
        """The observations of a row in a case, whose engine runs. row: its name.

        Raises RopeconvError where the engine cannot run the case, NotFinite where a loss is NaN or
        infinite.
        """
        losses = engine.token_losses(case.ids.tolist(), case.targets.tolist())
        if not np.isfinite(losses.loss).all():
            first = int(case.targets[~np.isfinite(losses.loss)][0])
            where = engine.not_finite_in(case.ids.tolist())
            raise NotFinite(
                f"{row} gives NaN or infinite logits at position {first:,} of"
                f" {len(case.ids):,}{where and f', which begin in the output of {where}'}; give"
                " --dtype float32 or bfloat16"
            )
        return self.observe(case, losses)


REGISTRY: Registry[Measure] = Registry("measure", __package__ or "")


def register(cls: M) -> M:
    """Class decorator: add a measure to REGISTRY under its name."""
    REGISTRY.add(cls.name, cls(), cls.__module__)
    return cls
