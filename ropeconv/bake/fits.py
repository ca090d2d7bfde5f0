"""Whether a model fits a machine, in the runtime whose command is shown for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..errors import UsageError
from ..inspection.memory.fit import Fit, chosen_machine, find_fit
from ..inspection.memory.runtime import MEMORY
from ..inspection.memory.shape import ModelShape
from ..options import MachineOptions
from ..runtimes.runtime import LLAMA_CPP
from ..runtimes.verdict import Verdict
from .shown_runtime import shown_runtime, usual_runtimes

LIKE_LLAMA_CPP = ("ik-llama-cpp", "koboldcpp", "lm-studio", "ollama")
"""Runtimes of GGUF files that run the code of llama.cpp."""


@dataclass(frozen=True)
class CacheSetting:
    """How a runtime of GGUF files sets the type of the cache, other than llama-server."""

    title: str
    """The name of the runtime for people."""

    types: dict[str, str]
    """By type of the cache: the option, or what is set before it starts."""

    in_command: bool = False
    """Whether the command that runs a file takes the option."""


CACHE_SETTINGS = {
    # the FAQ of Ollama: the environment of its server; a quantised cache needs flash attention
    "ollama": CacheSetting(
        "Ollama",
        {
            "f16": "",
            "q8_0": "OLLAMA_KV_CACHE_TYPE=q8_0 OLLAMA_FLASH_ATTENTION=1",
            "q4_0": "OLLAMA_KV_CACHE_TYPE=q4_0 OLLAMA_FLASH_ATTENTION=1",
        },
    ),
    # koboldcpp.py 1.102: --quantkv 1 is q8 and 2 is q4; without flash attention, only K is
    "koboldcpp": CacheSetting(
        "koboldcpp",
        {
            "f16": "",
            "q8_0": "--quantkv 1 --flashattention",
            "q4_0": "--quantkv 2 --flashattention",
        },
        in_command=True,
    ),
    # `lms load` has no option for it; the settings of a model in the window of LM Studio have two
    "lm-studio": CacheSetting(
        "LM Studio",
        {
            "f16": "",
            "q8_0": "K and V Cache Quantization Type q8_0 in LM Studio",
            "q4_0": "K and V Cache Quantization Type q4_0 in LM Studio",
        },
    ),
}
"""By runtime of GGUF files; those that are not here have the options of llama-server."""


def formulas_of(runtime: str) -> str:
    """Return the runtime whose formulas hold for one, a key of `MEMORY`; empty for others."""
    if runtime in LIKE_LLAMA_CPP:
        return LLAMA_CPP
    return runtime if runtime in MEMORY else ""


def with_own_types(fit: Fit, runtime: str, cache_type: str) -> Fit:
    """Return a fit in llama.cpp with the way in which another runtime sets the type of the cache.

    Args:
        fit: The fit.
        runtime: The runtime that runs the file; one without a way of its own changes nothing.
        cache_type: The type of --cache-type; empty for the usual one.

    Raises:
        UsageError: The runtime does not have the type.
    """
    own = CACHE_SETTINGS.get(runtime)
    if own is None:
        return fit
    if cache_type and cache_type not in own.types:
        raise UsageError(
            f"--cache-type {cache_type}: {own.title} does not have it; choose one of"
            f" {', '.join(own.types)}"
        )
    if cache_type and not own.in_command:
        fit = replace(fit, setting=own.types[cache_type])
    thrift = fit.thrift
    if thrift is not None and thrift.cache_type not in own.types:
        thrift = None
    elif thrift is not None:
        thrift = replace(thrift, option=own.types[thrift.cache_type])
    return replace(fit, thrift=thrift)


def runtimes_with(cache_type: str, shape: ModelShape | None, is_folder: bool) -> tuple[str, ...]:
    """Return the runtimes that can have a type of the cache, those that are usual first.

    Args:
        cache_type: The type; empty for the usual one, with which the usual runtimes are returned.
        shape: The model; None where its memory is not known.
        is_folder: Whether it is a checkpoint, and not a GGUF file.
    """
    usual = usual_runtimes(is_folder)
    if not cache_type or shape is None:
        return usual
    names = []
    for name in dict.fromkeys((*usual, *MEMORY)):
        formulas = MEMORY[name]
        if (formulas.format == "folder") != is_folder:
            continue
        if cache_type in formulas.cache_types(shape):
            names.append(name)
    return tuple(names)


def _who_has(cache_type: str, shape: ModelShape, is_folder: bool) -> str:
    """Return a message on a type that no runtime which runs a model has, with those that do."""
    option = ""
    names = runtimes_with(cache_type, shape, is_folder)
    if names:
        option = f"--runtime {names[0]}"
    else:
        names = runtimes_with(cache_type, shape, not is_folder)
        option = "--to gguf" if is_folder else "--to safetensors"
    has = " and ".join(MEMORY[name].display_name for name in names) or "none"
    return (
        f"--cache-type {cache_type}: no runtime that is known to run the model has it; it is of"
        f" {has} (`ropeconv apply` with {option})"
    )


def shown_fit(
    shape: ModelShape | None,
    tokens: int,
    verdicts: Iterable[Verdict],
    is_folder: bool,
    options: MachineOptions,
    named: tuple[str, ...] = (),
    in_ollama: bool = False,
) -> Fit | None:
    """Return whether a model fits, in the runtime whose command is shown.

    Args:
        shape: The model; None where its memory is not known.
        tokens: The context.
        verdicts: Those of its runtimes, which choose the one that is shown.
        is_folder: Whether it is a checkpoint, and not a GGUF file.
        options: The machine and the type of the cache.
        named: The values of --runtime.
        in_ollama: Whether Ollama runs it, from a Modelfile.

    Returns:
        The fit; None where the memory of the model or of the runtime is not known.

    Raises:
        UsageError: For a `--memory` or `--cache-type` that the runtime cannot have.
    """
    if shape is None:
        return None
    verdicts = tuple(verdicts)
    usual = runtimes_with(options.cache_type, shape, is_folder)
    shown = ""
    if usual or named:
        shown = shown_runtime(verdicts, is_folder, named, usual=usual)
    # a type that decided against each runtime which would be shown without it
    if not shown and shown_runtime(verdicts, is_folder, named):
        raise UsageError(_who_has(options.cache_type, shape, is_folder))
    runtime = formulas_of(shown)
    if not runtime:
        return None
    fit = find_fit(runtime, shape, tokens, chosen_machine(options), options.cache_type)
    return with_own_types(fit, "ollama" if in_ollama else shown, options.cache_type)
