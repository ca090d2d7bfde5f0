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
    candidates: Sequence[str] = (),
) -> str:
    """Return the runtime with which a model is run in the commands that are shown to the user.

    1. the first runtime that the user names with --runtime, if any version supports the model;
    2. otherwise the first candidate whose newest version supports the model.

    Args:
        verdicts: Whether each version of each runtime supports the model, the newest version last.
        is_folder: True for a checkpoint, False for a GGUF file.
        named: The runtimes that the user names with --runtime.
        allow_untested: Whether an untested runtime counts as supported if the user names it.
        candidates: The runtimes of the second rule. Empty for the default: vLLM, SGLang and
            transformers, or llama.cpp for a GGUF file.

    Returns:
        The name, such as "vllm"; empty where no runtime supports the model.
    """
    # the name without the version: "vllm" for `--runtime vllm@0.20`
    named_runtimes = [canonical(name).partition("@")[0] for name in named]

    # by runtime, whether each version supports the model: {"vllm": [False, True]}
    support_by_runtime: dict[str, list[bool]] = {}
    for verdict in verdicts:
        # the tables have llama.cpp with GGUF files as a runtime of its own, llama-cpp-gguf
        runtime = verdict.runtime.partition("@")[0].removesuffix("-gguf")
        is_supported = verdict.status in RUNS  # computed exactly or nearly so
        if verdict.status == UNTESTED and allow_untested and runtime in named_runtimes:
            is_supported = True
        support_by_runtime.setdefault(runtime, []).append(is_supported)

    # 1. runtimes that the user names
    for runtime in named_runtimes:
        if any(support_by_runtime.get(runtime, [])):
            return runtime
    # 2. candidates
    for runtime in candidates or usual_runtimes(is_folder):
        versions = support_by_runtime.get(runtime, [])
        if versions and versions[-1]:
            return runtime
    return ""


def usual_runtimes(is_folder: bool) -> tuple[str, ...]:
    """Return the runtimes whose command is shown by default, for a checkpoint or a GGUF file."""
    return SERVERS if is_folder else (LLAMA_CPP,)
