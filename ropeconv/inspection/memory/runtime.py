"""The base of the formulas of a runtime, and the registry of all of them.

A runtime is a module in `runtimes/` with a subclass of `RuntimeMemory` and `@register`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Literal, TypeVar

from ...errors import UsageError
from ...formats.gguf.header import TensorType
from ...models.config import CachedLayers
from ...rope.registry import Registry
from ..kv_cache import CACHE_DTYPES
from .machine import GIB, Machine
from .shape import ModelShape

ModelFormat = Literal["folder", "gguf"]
SYSTEM = 2 * GIB
"""RAM that is left to the system and to other programs: an assumption, and no measurement."""


class RuntimeMemory(ABC):
    """The memory that one runtime needs for a prompt that fills the context."""

    name: ClassVar[str]
    """The name for `--runtime`, in lower case."""

    display_name: ClassVar[str]

    format: ClassVar[ModelFormat]
    """What it loads."""

    source: ClassVar[str]
    """The place in its code where the formulas were read."""

    measured: ClassVar[bool]
    """Whether docs/evidence/memory.json compares the formulas with the runtime."""

    cache_options: ClassVar[Mapping[str, str]] = {}
    """By a type of the cache other than the usual one: the option that sets it."""

    def compute_dtype(self, shape: ModelShape) -> str:
        """Return the type in which the runtime computes."""
        return shape.dtype

    def width(self, shape: ModelShape) -> int:
        """Return the bytes of a number in that type."""
        return CACHE_DTYPES.get(self.compute_dtype(shape), CACHE_DTYPES["bfloat16"]).size

    def cache_types(self, shape: ModelShape) -> dict[str, TensorType]:
        """Return the types that the cache can have, the usual one first."""
        dtype = self.compute_dtype(shape)
        types = {dtype: CACHE_DTYPES.get(dtype, CACHE_DTYPES["bfloat16"])}
        for name in self.cache_options:
            types[name] = CACHE_DTYPES[name]
        return types

    def cache_type(self, shape: ModelShape, name: str = "") -> tuple[str, TensorType]:
        """Return a type of the cache by its name; the usual one for an empty name.

        Raises:
            UsageError: The runtime does not have it, or its blocks do not divide the layers.
        """
        types = self.cache_types(shape)
        if not name:
            usual_name = next(iter(types))
            return usual_name, types[usual_name]
        if name not in types:
            known = ", ".join(types)
            raise UsageError(
                f"--cache-type {name}: {self.display_name} does not have it; choose one of {known}"
            )

        block = types[name].block
        for group in shape.layers:
            if group.keys % block or group.values % block:
                raise UsageError(
                    f"--cache-type {name}: it stores blocks of {block} numbers, which do not divide"
                    " the keys or values of a layer; leave it out"
                )
        return name, types[name]

    def weights(self, shape: ModelShape) -> int:
        """Return the bytes of the weights in the runtime."""
        return shape.weights or 0

    @abstractmethod
    def cache(self, shape: ModelShape, tokens: int, dtype: TensorType, machine: Machine) -> int:
        """Return the bytes of the key-value cache with one sequence.

        Args:
            shape: The model.
            tokens: The length of the sequence.
            dtype: The type of the numbers in the cache.
            machine: Where it runs.
        """

    @abstractmethod
    def activations(self, shape: ModelShape, tokens: int, machine: Machine) -> int:
        """Return the bytes of all other tensors at the peak.

        Args:
            shape: The model.
            tokens: The length of the sequence.
            machine: Where it runs.
        """

    def usable(self, machine: Machine) -> int:
        """Return the bytes of one device that the model can have."""
        if machine.kind == "ram":
            return max(0, machine.bytes - SYSTEM)
        return machine.bytes


MEMORY: Registry[RuntimeMemory] = Registry(
    "memory of a runtime", "ropeconv.inspection.memory.runtimes"
)
"""The formulas by the name of the runtime."""

R = TypeVar("R", bound=type[RuntimeMemory])


def register(order: int) -> Callable[[R], R]:
    """Register the formulas of a runtime.

    Args:
        order: The place in lists, lowest first.
    """

    def add(kind: R) -> R:
        MEMORY.add(kind.name, kind(), kind.__module__, order)
        return kind

    return add


def pad(number: int, multiple: int) -> int:
    """Return the next multiple of a number."""
    return -(-number // multiple) * multiple


def count_cached_numbers(
    layers: Iterable[CachedLayers], kept: Callable[[CachedLayers], int]
) -> int:
    """Return how many numbers a cache has.

    Args:
        layers: Groups of equal layers.
        kept: Returns how many tokens a layer of a group keeps.
    """
    return sum(group.count * (group.keys + group.values) * kept(group) for group in layers)


def in_bytes(count: int, dtype: TensorType) -> int:
    """Return the bytes of numbers in a type: Q8_0 has 34 for a block of 32."""
    return count // dtype.block * dtype.size
