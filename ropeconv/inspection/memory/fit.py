"""Whether a model fits a machine, and the longest context that does.

`find_fit` answers for one runtime. A `MemoryNeed` is what a length takes, and a `Fit` is a need
beside the memory of a machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ...errors import UsageError
from ...options import MachineOptions
from ..document import FitDocument, MachineDocument, ThriftyDocument
from .machine import GIB, Machine, given_memory, size, this_machine
from .runtime import MEMORY, RuntimeMemory
from .shape import ModelShape

MOST_TOKENS = 1 << 24
"""Tokens up to which the longest context is searched."""
STEP = 256
"""The longest context is a multiple of so many tokens."""
USUAL_TYPES = ("bfloat16", "float16", "float32", "f16")
"""Types of a cache that need no option."""


@dataclass(frozen=True)
class MemoryNeed:
    """The memory that a context takes in a runtime, in bytes."""

    tokens: int

    cache_type: str
    """The type of the numbers in the key-value cache."""

    weights: int | None
    """None where the source has no weights to count."""

    cache: int

    activations: int
    """All else, at the peak: hidden states, scores and logits."""

    @property
    def total(self) -> int:
        """The sum."""
        return (self.weights or 0) + self.cache + self.activations


@dataclass(frozen=True)
class Thrift:
    """A smaller type of the cache, and what fits with it."""

    cache_type: str
    option: str
    """The option of the runtime that sets it."""

    longest: int
    """The longest context that fits, in tokens."""


@dataclass(frozen=True)
class Fit:
    """A need beside the memory of a machine."""

    runtime: RuntimeMemory
    need: MemoryNeed
    machine: Machine

    devices: int
    """The devices over which the model is divided; 0 where it does not fit all of them."""

    longest: int
    """The longest context that fits all of them, in tokens; 0 where none does."""

    thrift: Thrift | None
    """A smaller type of the cache, where the need does not fit and that helps."""

    setting: str = ""
    """The setting of the type of the cache, where the command that is shown lacks it; or empty."""

    @property
    def fits(self) -> bool:
        """Whether the parts that are known fit."""
        return self.devices > 0

    @property
    def is_known(self) -> bool:
        """Whether more is known than that all but the weights fits."""
        return self.need.weights is not None or not self.fits

    @property
    def memory(self) -> str:
        """The parts of the need in words."""
        need = self.need
        parts = [f"KV cache {size(need.cache)}", f"activations {size(need.activations)}"]
        if need.weights is None:
            return f"{' + '.join(parts)}, beside the weights"
        parts.insert(0, f"weights {size(need.weights)}")
        return f"{' + '.join(parts)} = {size(need.total)}"

    @property
    def detail(self) -> str:
        """The parts of the need with the runtime and the length, as a sentence."""
        kind = self.need.cache_type
        return (
            f"Memory in {self.runtime.display_name} at {self.need.tokens:,} tokens ({kind} cache):"
            f" {self.memory}."
        )

    @property
    def sentence(self) -> str:
        """Whether the model fits into the memory, and the longest context that fits, in a line.

        For instance "yes, 12.3 of 24.0 GiB RAM in llama.cpp; up to 218,112 tokens", or "no, 30.1 of
        24.0 GiB RAM in llama.cpp; up to 8,192 tokens, 16,384 with --cache-type-k q8_0".
        """
        where = f"{self.machine.sentence} in {self.runtime.display_name}"
        used_memory = f"{_gib_without_unit(self.need.total)} of {where}"
        longest_context = self._longest_in_words  # such as "8,192"

        # without weights to count, only the cache and the activations are known
        if not self.is_known:
            return f"unknown without weights; the rest takes {used_memory}"

        if self.fits:
            text = f"yes, {used_memory}"
            if self.devices > 1:
                text += f", over {self.devices} of them"
            text += f"; up to {longest_context} tokens"
            if self.setting:  # an option that the user has to add to the shown command
                text += f", with {self.setting}"
            return text

        # too large, and without weights even larger than shown
        has_weights = self.need.weights is not None
        text = f"no, {used_memory}" if has_weights else f"no, without weights already {used_memory}"
        if self.longest == 0:
            text += f"; {self._why_no_length_fits}"
        elif has_weights:
            text += f"; up to {longest_context} tokens"
        else:
            text += f"; at most {longest_context} tokens"

        # a smaller type of the cache, such as q8_0, if more tokens fit with it
        smaller_cache = self.thrift
        if smaller_cache:
            text += f", {smaller_cache.longest:,} with {smaller_cache.option}"
        return text

    @property
    def _why_no_length_fits(self) -> str:
        """The part that is too large where no length fits, in words."""
        devices = self.machine.count
        weights = self.need.weights or 0
        usable = self.runtime.usable(self.machine) * devices
        if weights > self.machine.bytes * devices:
            return "the weights are too large"
        if weights > usable or not usable:
            return f"{size(usable)} of that are for the model"
        return f"not even {STEP} tokens fit"

    @property
    def _longest_in_words(self) -> str:
        """The longest context for people, such as "8,192"."""
        # if all layers have a sliding window, the cache stops growing, and any number fits
        return "any number of" if self.longest >= MOST_TOKENS else f"{self.longest:,}"

    @property
    def short(self) -> str:
        """The answer for a cell of a table: `yes`, `24,576`, or `no` where no length fits."""
        if not self.is_known:
            return "?"
        if self.fits:
            return "yes"
        return f"{self.longest:,}" if self.longest else "no"

    def document(self) -> FitDocument:
        """Return the fit as a part of a JSON document."""
        machine = MachineDocument(
            kind=self.machine.kind,
            name=self.machine.name,
            bytes=self.machine.bytes,
            count=self.machine.count,
            usable=self.runtime.usable(self.machine),
        )
        thrifty = None
        if self.thrift is not None:
            thrifty = ThriftyDocument(
                cache_type=self.thrift.cache_type,
                option=self.thrift.option,
                longest=self.thrift.longest,
            )
        return FitDocument(
            runtime=self.runtime.name,
            tokens=self.need.tokens,
            cache_type=self.need.cache_type,
            weights=self.need.weights,
            kv_cache=self.need.cache,
            activations=self.need.activations,
            total=self.need.total,
            machine=machine,
            fits=self.fits,
            devices=self.devices,
            longest=self.longest,
            thrifty=thrifty,
        )


def needed(
    runtime: RuntimeMemory,
    shape: ModelShape,
    tokens: int,
    machine: Machine,
    cache_type: str = "",
) -> MemoryNeed:
    """Return the memory that a context takes in a runtime.

    Args:
        runtime: Its formulas, from `MEMORY`.
        shape: The model.
        tokens: The length of one sequence.
        machine: Where it runs, which decides the kernels and the size of batches.
        cache_type: The type of the cache; empty for the usual one.

    Raises:
        UsageError: The runtime does not have that type.
    """
    name, dtype = runtime.cache_type(shape, cache_type)
    return MemoryNeed(
        tokens=tokens,
        cache_type=name,
        weights=None if shape.weights is None else runtime.weights(shape),
        cache=runtime.cache(shape, tokens, dtype, machine),
        activations=runtime.activations(shape, tokens, machine),
    )


def chosen_machine(options: MachineOptions) -> Machine:
    """Return the machine of `--memory`, else that of ROPECONV_MEMORY, else this one.

    Raises:
        UsageError: The value is not a size.
    """
    given = options.memory or os.environ.get("ROPECONV_MEMORY", "")
    return given_memory(given) if given else this_machine()


def check_machine(options: MachineOptions) -> None:
    """Refuse a memory or a type of the cache that no machine and no runtime can have.

    Raises:
        UsageError: The memory is not a size, or no runtime has the type.
    """
    chosen_machine(options)  # raises for a memory that is not a size; the machine is not needed

    # the types of all runtimes, each once and in this order (the keys of a dict)
    known = dict.fromkeys(USUAL_TYPES)
    for runtime in MEMORY.values():
        known |= dict.fromkeys(runtime.cache_options)
    name = options.cache_type
    if name and name not in known:
        raise UsageError(
            f"--cache-type {name}: no runtime has it; choose one of {', '.join(known)}"
        )


def find_fit(
    runtime: str, shape: ModelShape, tokens: int, machine: Machine, cache_type: str = ""
) -> Fit:
    """Return whether a context fits into the memory of a machine, and the longest that does.

    Args:
        runtime: The name of the runtime, a key of `MEMORY`.
        shape: The model.
        tokens: The length of one sequence.
        machine: The machine.
        cache_type: The type of the key-value cache, such as "q8_0"; empty for the usual type.

    Raises:
        UsageError: The runtime does not have the type.
    """
    formulas = MEMORY[runtime]
    need = needed(formulas, shape, tokens, machine, cache_type)
    devices = _devices(formulas, need, machine)  # how many the model needs; 0 if it does not fit
    longest = _longest(formulas, shape, machine, need.cache_type)  # in tokens

    # if the context does not fit, advise a smaller type, unless the user has chosen a type
    smaller_cache = None
    if devices == 0 and not cache_type:
        smaller_cache = _find_smaller_cache(formulas, shape, machine, longest)
    return Fit(
        runtime=formulas,
        need=need,
        machine=machine,
        devices=devices,
        longest=longest,
        thrift=smaller_cache,
    )


def all_fits(
    shape: ModelShape | None, tokens: int, is_folder: bool, options: MachineOptions
) -> list[Fit]:
    """Return whether a model fits into the memory of a machine, for every runtime that loads it.

    A runtime that does not have the type of `--cache-type` is left out.

    Args:
        shape: The model; None where its memory is not known.
        tokens: The context.
        is_folder: Whether it is a checkpoint, and not a GGUF file.
        options: The machine and the type of the cache.
    """
    fits: list[Fit] = []
    if shape is None:
        return fits
    cache_type = options.cache_type  # empty for the usual one of each runtime
    for name, formulas in MEMORY.items():
        loads_folders = formulas.format == "folder"
        if loads_folders != is_folder:
            continue
        if cache_type and cache_type not in formulas.cache_types(shape):
            continue
        fits.append(find_fit(name, shape, tokens, chosen_machine(options), cache_type))
    return fits


def _devices(runtime: RuntimeMemory, need: MemoryNeed, machine: Machine) -> int:
    """Return over how many devices a model must be divided; 0 where all are too small.

    Weights and cache are divided, and each device has activations of its own.
    """
    usable = runtime.usable(machine)
    for count in range(1, machine.count + 1):
        shared = (need.weights or 0) + need.cache
        if shared / count + need.activations <= usable:
            return count
    return 0


def _longest(runtime: RuntimeMemory, shape: ModelShape, machine: Machine, cache_type: str) -> int:
    """Return the longest context that fits a machine, a multiple of STEP; 0 where none does."""
    # the need grows with the length, so the boundary is found by halving
    low = 0
    high = MOST_TOKENS // STEP
    while low < high:
        middle = (low + high + 1) // 2
        need = needed(runtime, shape, middle * STEP, machine, cache_type)
        if _devices(runtime, need, machine):
            low = middle
        else:
            high = middle - 1
    return low * STEP


def _find_smaller_cache(
    runtime: RuntimeMemory, shape: ModelShape, machine: Machine, longest: int
) -> Thrift | None:
    """Return the first type of the cache with which a longer context fits, or None."""
    for name, option in runtime.cache_options.items():
        dtype = runtime.cache_types(shape)[name]
        if any(group.keys % dtype.block or group.values % dtype.block for group in shape.layers):
            continue
        reached = _longest(runtime, shape, machine, name)
        if reached > longest:
            return Thrift(name, option, reached)
    return None


def _gib_without_unit(number: int) -> str:
    """Return a number of bytes as GiB without the unit, which stands behind the next number."""
    if number < GIB:
        return size(number)
    return f"{number / GIB:.1f}"
