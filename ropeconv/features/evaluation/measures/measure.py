"""Measure, the interface of a measure, and REGISTRY."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, TypeVar

import numpy as np

from ropeconv.engines.engine import Engine, Output, TokenLosses
from ropeconv.errors import NotFinite
from ropeconv.rope.registry import Registry

from ..cases import Case, EvaluationSizes, Observation
from ..texts import Texts, Tokenizer

M = TypeVar("M", bound="type[Measure]")


class Measure(ABC):
    """A measure, which has the same sequences of tokens for all rows."""

    name: ClassVar[str]
    """The name on the command line."""

    summary: ClassVar[str]
    """A phrase for help and docs."""

    metrics: ClassVar[tuple[str, ...]] = ("loss",)
    """Keys of METRICS, the headline first."""

    pass_of: ClassVar[str] = ""
    """The measure whose passes and lines of the journal it reads, if not its own."""

    runs_model: ClassVar[bool] = False
    """Whether it runs the model itself."""

    is_repeatable: ClassVar[bool] = True
    """Whether a later run may take its numbers from the journal; not those of time and memory."""

    is_tested: ClassVar[bool] = True
    """Whether differences of rows are tested; not where there are always too few numbers."""

    needs_text: ClassVar[bool] = True
    """Whether its sequences are made of the user's texts."""

    sizes: ClassVar[frozenset[str]] = frozenset()
    """Fields of `EvaluationSizes` that change its sequences.

    Lengths and windows are not among them: all measures read these.
    """

    @abstractmethod
    def cases(self, texts: Texts, sizes: EvaluationSizes) -> Iterator[Case]:
        """Yield the sequences.

        They are in an order in which a run that is stopped early has something of every length.

        Raises:
            BadSource: The texts are too short.
        """

    @abstractmethod
    def observe(self, case: Case, losses: TokenLosses) -> list[Observation]:
        """Return the observations from the losses of a row at the targets of a case."""

    def needs(self, case: Case) -> Output | None:
        """Return the output that an engine has to give for a case.

        It is None for a measure that runs the model itself.
        """
        if self.runs_model:
            return None
        return "tokens" if case.generate else "token_losses"

    def with_place(self, case: Case, observation: Observation) -> Observation:
        """Return an observation from the journal with the place of its case in this run."""
        return replace(
            observation,
            measure=self.name,
            document=case.document,
            window=case.window,
            depth=case.depth,
        )

    def combine(self, rows: dict[str, list[Observation]], sizes: EvaluationSizes) -> str:
        """Change the observations of all rows, where these depend on each other.

        Args:
            rows: The observations by row, in the order of the table.
            sizes: The sizes of the evaluation.

        Returns:
            Why there are no observations of this measure then; empty where there are some.
        """
        return ""

    def run(self, row: str, case: Case, engine: Engine, tokenizer: Tokenizer) -> list[Observation]:
        """Run a test sequence, and return the numbers that are measured on it.

        Args:
            row: The name of the row of the table, such as "yarn:4".
            case: The sequence, and which of its tokens are predicted.
            engine: The loaded model, with the method of the row.
            tokenizer: The tokenizer of the model.

        Raises:
            RopeconvError: The engine cannot run the sequence.
            NotFinite: A loss is NaN or infinite.
        """
        losses = engine.token_losses(case.ids.tolist(), case.targets.tolist())
        is_finite = np.isfinite(losses.loss)
        if is_finite.all():
            return self.observe(case, losses)

        # most often an overflow of float16: name the first module, so that it can be looked up
        broken_targets = case.targets[~is_finite]
        module = engine.not_finite_in(case.ids.tolist())
        where = (
            f"{row} gives NaN or infinite logits at position {int(broken_targets[0]):,} of"
            f" {len(case.ids):,}"
        )
        if module:
            where += f", which begin in the output of {module}"
        raise NotFinite(f"{where}; give --dtype float32 or bfloat16")


REGISTRY: Registry[Measure] = Registry("measure", __package__ or "")


def register(cls: M) -> M:
    """Class decorator: add a measure to REGISTRY under its name."""
    REGISTRY.add(cls.name, cls(), cls.__module__)
    return cls
