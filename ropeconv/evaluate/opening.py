"""evaluate_model: an evaluation in one call; open_evaluation, the same in steps."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..engines.engine import Progress
from ..formats.journal import Journal, default_path
from ..options import SizeOptions
from .cases import EVAL, EvaluationSizes, parse_lengths
from .evaluation import Evaluation, parse_measures
from .result import Result
from .row import parse_rows
from .runners.opening import open_runner
from .runners.runner import RunnerRequest
from .texts import read_files, tokenized

STRIDE = 256
SOME = 4096
"""A trained context with which sizes are checked before that of the model is known."""


@dataclass(frozen=True)
class Sizes(SizeOptions):
    """What is measured, as users write it: the fields are those of `SizeOptions` in ropeconv/options.py."""

    def asked(self, trained: int) -> EvaluationSizes:
        """The sizes in tokens. trained: the trained context. Raises UsageError and RecipeError for wrong values."""
        stride = parse_measures(self.measures)[1] or STRIDE
        return EvaluationSizes(
            parse_lengths(self.lengths, trained), trained, self.windows, self.targets, self.depths, self.seed, stride,
            self.generate, self.chat,
        )  # fmt: skip


@contextmanager
def open_evaluation(opening: RunnerRequest, sizes: Sizes, files: Sequence[tuple[str, str]]) -> Iterator[Evaluation]:
    """An evaluation that can be estimated and run while it is entered; its result stays.

    opening: the model and its rows. sizes: what is measured. files: names and contents of texts.
    Raises UsageError for options that do not go together, BadSource where the model or a text cannot be read.
    """
    measures, _ = parse_measures(sizes.measures)
    sizes.asked(SOME)  # before a model is loaded
    with open_runner(opening) as (runner, rows):
        yield Evaluation(rows, measures, tokenized(files, runner.tokenizer), sizes.asked(runner.trained), runner)


def evaluate_model(
    model: str | os.PathLike[str],
    methods: str,
    texts: Sequence[str | os.PathLike[str]],
    sizes: Sizes | None = None,
    journal: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Result:
    """Measures what methods do to a model.

    model: a checkpoint, a GGUF file, or an output of `apply`. methods: the rows, such as "base,yarn:4". texts: files or
    patterns. sizes: what is measured, by default the loss of the same tokens at four lengths. journal: the file of
    finished sequences, by default in the cache. progress: callbacks. options: other fields of `RunnerRequest`. Raises
    RopeconvError where a model, a text or all rows cannot be run.
    """
    opening = RunnerRequest(str(model), parse_rows(methods) if methods else [], **options)
    with open_evaluation(opening, sizes or Sizes(), read_files([str(name) for name in texts])) as found:
        source = found.runner.source
        with Journal(default_path(source) if journal is None else Path(journal), EVAL, source) as opened:
            found.run(opened, progress)
    return found.result(str(model))
