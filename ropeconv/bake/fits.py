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
    """Replace llama-server's options for the type of the KV cache by the options of a runtime.

    Ollama runs the same code as llama-server. In place of `--cache-type-k q8_0`, it has the
    environment variable `OLLAMA_KV_CACHE_TYPE=q8_0`.

    Args:
        fit: Whether the model fits the memory in llama.cpp, with llama-server's options.
        runtime: The runtime that runs the file.
        cache_type: The type of --cache-type; empty for the default type.

    Returns:
        The fit with the options of the runtime, or the same fit for llama-server itself.

    Raises:
        UsageError: The runtime does not have the type.
    """
    cache_setting = CACHE_SETTINGS.get(runtime)
    if cache_setting is None:
        return fit
    words_by_type = cache_setting.types  # e.g. {"q8_0": "OLLAMA_KV_CACHE_TYPE=q8_0"}

    # The type that the user chose. koboldcpp has it in the command. For other runtimes, the words
    # are shown beside the command (`setting`).
    if cache_type and cache_type not in words_by_type:
        raise UsageError(
            f"--cache-type {cache_type}: {cache_setting.title} does not have it; choose one of"
            f" {', '.join(words_by_type)}"
        )
    if cache_type and not cache_setting.in_command:
        fit = replace(fit, setting=words_by_type[cache_type])

    # `fit.thrift` is the advice to choose a smaller type, with which a longer context fits
    advice = fit.thrift
    if advice is None:
        return fit
    if advice.cache_type not in words_by_type:
        return replace(fit, thrift=None)
    new_advice = replace(advice, option=words_by_type[advice.cache_type])
    return replace(fit, thrift=new_advice)


def runtimes_with(cache_type: str, shape: ModelShape | None, is_folder: bool) -> tuple[str, ...]:
    """Return the runtimes that offer a type of the KV cache, the most common runtimes first.

    Args:
        cache_type: The type, such as "q8_0"; empty for the default type, which all have. Only the
            most common runtimes are returned then.
        shape: The sizes of the model; None where they are not known.
        is_folder: True for a checkpoint, False for a GGUF file.
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
    """Return the message on a type of KV cache that no runtime of a model offers.

    The message names the runtimes that offer the type, for another format of models if necessary.
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
    """Return whether a model fits the memory of a machine, in a runtime that supports the model.

    Args:
        shape: The sizes of the model; None where they are not known.
        tokens: The context in tokens.
        verdicts: Which runtimes support the model.
        is_folder: True for a checkpoint, False for a GGUF file.
        options: The machine and the type of the KV cache.
        named: The runtimes that the user names with --runtime.
        in_ollama: Whether Ollama runs the model, from a Modelfile.

    Returns:
        The fit; None where the sizes of the model or the memory of the runtime are not known.

    Raises:
        UsageError: For a `--memory` or `--cache-type` that the runtime cannot have.
    """
    if shape is None:
        return None
    cache_type = options.cache_type
    runtime = _runtime_with_type(cache_type, shape, tuple(verdicts), is_folder, named)

    # koboldcpp and others run llama.cpp's code, so their memory follows llama.cpp's formulas
    runtime_of_formulas = formulas_of(runtime)
    if not runtime_of_formulas:
        return None
    fit = find_fit(runtime_of_formulas, shape, tokens, chosen_machine(options), cache_type)

    # they have other options: in Ollama, --cache-type-k q8_0 is OLLAMA_KV_CACHE_TYPE=q8_0
    runtime_to_start = "ollama" if in_ollama else runtime
    return with_own_types(fit, runtime_to_start, cache_type)


def _runtime_with_type(
    cache_type: str,
    shape: ModelShape,
    verdicts: tuple[Verdict, ...],
    is_folder: bool,
    named: tuple[str, ...],
) -> str:
    """Return a runtime that supports a model and offers a type of the KV cache.

    Args:
        cache_type: The type, such as "q8_0" (`--cache-type`); empty for the default type.
        shape: The sizes of the model.
        verdicts: Which runtimes support the model.
        is_folder: True for a checkpoint, False for a GGUF file.
        named: The runtimes that the user names with --runtime, which come first.

    Returns:
        The name of the runtime; empty where no runtime supports the model.

    Raises:
        UsageError: A runtime supports the model, but none of these offers the type.
    """
    # A runtime that the user names comes first, even without the type: a later check refuses it.
    candidates = runtimes_with(cache_type, shape, is_folder)
    if candidates or named:
        runtime = shown_runtime(verdicts, is_folder, named, candidates=candidates)
        if runtime:
            return runtime

    # no candidate supports the model; does any runtime?
    runtime_without_type = shown_runtime(verdicts, is_folder, named)
    if runtime_without_type:
        raise UsageError(_who_has(cache_type, shape, is_folder))
    return ""
