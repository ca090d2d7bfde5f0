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
    """Return the runtime by whose formulas the memory of a runtime is computed.

    That is "llama.cpp" for koboldcpp, which runs the same code, and most runtimes have their own.
    Empty for a runtime whose memory is not known. The result is a key of `MEMORY`.
    """
    if runtime in LIKE_LLAMA_CPP:
        return LLAMA_CPP
    return runtime if runtime in MEMORY else ""


def with_own_types(fit: Fit, runtime: str, cache_type: str) -> Fit:
    """Return a fit in llama.cpp with the words by which another runtime sets the type of KV cache.

    Ollama runs the same code as llama-server, but has no option `--cache-type-k q8_0`: there, one
    sets `OLLAMA_KV_CACHE_TYPE=q8_0` before it starts.

    Args:
        fit: The memory that the model takes in llama.cpp, and the options that save some.
        runtime: The runtime that runs the file; one with llama-server's options changes nothing.
        cache_type: The type of --cache-type; empty for the usual one.

    Raises:
        UsageError: The runtime does not have the type.
    """
    cache_setting = CACHE_SETTINGS.get(runtime)
    if cache_setting is None:
        return fit
    words_by_type = cache_setting.types  # e.g. {"q8_0": "--quantkv 1 --flashattention"}

    # The type that the user chose. koboldcpp has an option for it, which the command has anyway.
    # Other runtimes set it elsewhere, so the words are shown beside the command (`setting`).
    if cache_type and cache_type not in words_by_type:
        raise UsageError(
            f"--cache-type {cache_type}: {cache_setting.title} does not have it; choose one of"
            f" {', '.join(words_by_type)}"
        )
    if cache_type and not cache_setting.in_command:
        fit = replace(fit, setting=words_by_type[cache_type])

    # the advice (`thrift`) to take a smaller type, such as q8_0, so that a longer context fits
    advice = fit.thrift
    if advice is None:
        return fit
    if advice.cache_type not in words_by_type:
        return replace(fit, thrift=None)
    advice_for_runtime = replace(advice, option=words_by_type[advice.cache_type])
    return replace(fit, thrift=advice_for_runtime)


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
    """Return the message on a type of KV cache that the runtimes of a model do not have.

    It names the runtimes that have it: of the same format of models, else of the other one.
    """
    names = runtimes_with(cache_type, shape, is_folder)
    if names:
        option = f"--runtime {names[0]}"
    else:
        names = runtimes_with(cache_type, shape, not is_folder)
        option = "--to gguf" if is_folder else "--to safetensors"
    titles = [MEMORY[name].display_name for name in names]
    listed = " and ".join(titles) or "none"
    return (
        f"--cache-type {cache_type}: no runtime that is known to run the model has it; it is of"
        f" {listed} (`ropeconv apply` with {option})"
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
        tokens: The context in tokens.
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
    # the runtime for which a command is shown, such as "vllm" or "koboldcpp"
    cache_type = options.cache_type
    shown = _runtime_with_type(cache_type, shape, tuple(verdicts), is_folder, named)

    # its memory, by the formulas of a runtime with the same code: llama.cpp for koboldcpp
    runtime_of_formulas = formulas_of(shown)
    if not runtime_of_formulas:
        return None
    fit = find_fit(runtime_of_formulas, shape, tokens, chosen_machine(options), cache_type)

    # the words by which the shown runtime sets the type of the KV cache: OLLAMA_KV_CACHE_TYPE=q8_0,
    # say, where llama-server has --cache-type-k q8_0
    runtime_to_start = "ollama" if in_ollama else shown
    return with_own_types(fit, runtime_to_start, cache_type)


def _runtime_with_type(
    cache_type: str,
    shape: ModelShape,
    verdicts: tuple[Verdict, ...],
    is_folder: bool,
    named: tuple[str, ...],
) -> str:
    """Return the first runtime that supports a model and has a type of the KV cache, or empty.

    Args:
        cache_type: The type, such as "q8_0" (`--cache-type`); empty for the usual one.
        shape: The model.
        verdicts: Which runtimes support the model.
        is_folder: Whether it is a checkpoint, and not a GGUF file.
        named: The runtimes that the user names with --runtime, which come first.

    Raises:
        UsageError: Runtimes support the model, and none of them has the type.
    """
    runtimes_with_type = runtimes_with(cache_type, shape, is_folder)
    # `shown_runtime` chooses among the named runtimes, else among `usual`
    has_choice = bool(runtimes_with_type) or bool(named)
    if has_choice:
        runtime = shown_runtime(verdicts, is_folder, named, usual=runtimes_with_type)
        if runtime:
            return runtime

    # a runtime that supports the model, with any type of the cache
    supporting_runtime = shown_runtime(verdicts, is_folder, named)
    if supporting_runtime:
        raise UsageError(_who_has(cache_type, shape, is_folder))
    return ""
