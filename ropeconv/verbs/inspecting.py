"""`inspect` and `advise`: the RoPE of a model, and the methods that extend it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..bake.ranked import RankedMethods, advised
from ..inspection.inspection import Inspection
from ..rope.lengths import parse_tokens
from .arguments import check_arguments, source_of
from .asking import asking_installed
from .opened import inspect_opened


@check_arguments
def inspect(model: object, family: str = "", *, python: str = "") -> Inspection:
    """Inspect the RoPE of a checkpoint, its runtime support and its problems.

    Args:
        model: A path, an id on the Hub, a loaded model, or a source.
        family: The family to treat it as, in place of that of its model_type.
        python: The interpreter of another environment, whose runtimes are asked what they compute;
            empty for this one.

    Raises:
        UsageError: For something that is not a model, and for an environment without a runtime
            that can be asked.
        BadSource: For a damaged checkpoint, or one whose RoPE is not known.
    """
    if isinstance(model, Inspection):
        return model
    source = source_of("inspect", model, family)
    # every runtime that is installed in the environment says how it reads the config
    with asking_installed(names=None, python=python):
        return inspect_opened(source)


@check_arguments
def advise(
    model: object,
    context: int | str,
    *,
    measured: str | os.PathLike[str] | None = None,
    runtime: str | Sequence[str] = (),
    family: str = "",
    python: str = "",
) -> RankedMethods:
    """Compare the methods that reach a context.

    Args:
        model: As in `inspect`.
        context: A number of tokens, or a text such as "128k".
        measured: A result of `evaluate` that was written as JSON, by which methods are sorted.
        runtime: The runtimes that must compute an output, such as "vllm".
        family: As in `inspect`.
        python: As in `inspect`.

    Returns:
        The methods, the best first, and why others were passed over.

    Raises:
        UsageError: For a context that the model has already.
        BadSource: As `inspect` does.
    """
    path = None if measured is None else Path(measured)
    source = source_of("advise", model, family)
    with asking_installed(None, python):
        runtimes = (runtime,) if isinstance(runtime, str) else tuple(runtime)
        return advised(source, parse_tokens(str(context)), path, runtimes=runtimes)
