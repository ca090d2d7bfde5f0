"""Whether a model fits a machine, in the runtime whose command is shown for it."""

from __future__ import annotations

from collections.abc import Iterable

from ..inspection.memory.fit import Fit, chosen_machine, find_fit
from ..inspection.memory.runtime import MEMORY
from ..inspection.memory.shape import ModelShape
from ..options import MachineOptions
from ..runtimes.runtime import LLAMA_CPP
from ..runtimes.verdict import Verdict
from .shown_runtime import shown_runtime

LIKE_LLAMA_CPP = ("ik-llama-cpp", "koboldcpp", "lm-studio", "ollama")
"""Runtimes of GGUF files that run the code of llama.cpp."""


def formulas_of(runtime: str) -> str:
    """Return the runtime whose formulas hold for one, a key of `MEMORY`; empty for others."""
    if runtime in LIKE_LLAMA_CPP:
        return LLAMA_CPP
    return runtime if runtime in MEMORY else ""


def shown_fit(
    shape: ModelShape | None,
    tokens: int,
    verdicts: Iterable[Verdict],
    is_folder: bool,
    options: MachineOptions,
    named: tuple[str, ...] = (),
) -> Fit | None:
    """Return whether a model fits, in the runtime whose command is shown.

    Args:
        shape: The model; None where its memory is not known.
        tokens: The context.
        verdicts: Those of its runtimes, which choose the one that is shown.
        is_folder: Whether it is a checkpoint, and not a GGUF file.
        options: The machine and the type of the cache.
        named: The values of --runtime.

    Returns:
        The fit; None where the memory of the model or of the runtime is not known.

    Raises:
        UsageError: For a `--memory` or `--cache-type` that the runtime cannot have.
    """
    if shape is None:
        return None
    runtime = formulas_of(shown_runtime(verdicts, is_folder, named))
    if not runtime:
        return None
    return find_fit(runtime, shape, tokens, chosen_machine(options), options.cache_type)
