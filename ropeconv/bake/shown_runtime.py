"""The runtime whose command and memory are shown for a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..runtimes.runtime import LLAMA_CPP, RUNS, UNTESTED, canonical
from ..runtimes.verdict import Verdict

SERVERS = ("vllm", "sglang", "transformers")
"""Runtimes of a checkpoint whose command is shown by default."""


def shown_runtime(
    verdicts: Iterable[Verdict],
    is_folder: bool,
    named: Sequence[str] = (),
    allow_untested: bool = False,
    usual: Sequence[str] = (),
) -> str:
    """Return the runtime whose command is shown; empty where none supports the model.

    1. the first runtime that the user named with --runtime, if some version supports the model;
    2. else the first of the usual runtimes (vLLM, SGLang and transformers, or llama.cpp for GGUF)
       whose newest version supports it.

    Args:
        verdicts: From the oldest version of each runtime to the newest.
        is_folder: Whether it is a checkpoint, and not a GGUF file.
        named: The values of --runtime.
        allow_untested: Whether an untested runtime counts as supported if the user named it.
        usual: The runtimes of the second rule; empty for SERVERS or llama.cpp.
    """
    # `--runtime vllm@0.20` names a version too, which does not matter here
    names = [canonical(name).partition("@")[0] for name in named]

    # by runtime, whether each version supports the model, the newest last
    supported: dict[str, list[bool]] = {}
    for verdict in verdicts:
        # the tables have llama.cpp with GGUF files as a runtime of its own, llama-cpp-gguf
        name = verdict.runtime.partition("@")[0].removesuffix("-gguf")
        counts_untested = allow_untested and name in names
        is_supported = verdict.status in RUNS
        if verdict.status == UNTESTED and counts_untested:
            is_supported = True
        supported.setdefault(name, []).append(is_supported)

    # the two rules of the docstring
    for name in names:
        some_version_does = any(supported.get(name, []))
        if some_version_does:
            return name
    for name in usual or usual_runtimes(is_folder):
        versions = supported.get(name, [])
        newest_does = bool(versions) and versions[-1]
        if newest_does:
            return name
    return ""


def usual_runtimes(is_folder: bool) -> tuple[str, ...]:
    """Return the runtimes whose command is shown by default, for a checkpoint or a GGUF file."""
    return SERVERS if is_folder else (LLAMA_CPP,)
