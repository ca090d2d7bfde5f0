"""Typed access to the keys of a GGUF header, as strict as llama.cpp."""

from __future__ import annotations

import math
from typing import Any, Protocol

from ...errors import BadSource
from .archs import Arch


class Keys(Protocol):
    """What can be asked for a value."""

    def get(self, key: str, default: Any = None) -> Any:
        """A value by its full key."""


class ArchKeys:
    """Typed access to the keys of one architecture."""

    def __init__(self, keys: Keys, arch: Arch) -> None:
        self.keys, self.arch, self.prefix = keys, arch, arch.name + "."

    def get(self, key: str) -> Any:
        """A value, decoded."""
        return self.keys.get(self.prefix + key)

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number, not negative. Raises BadSource for anything else."""
        value = self.get(key)
        if value is None and default is None:
            raise BadSource(f"the header has no {self.prefix}{key}, which llama.cpp requires; fetch the file again")
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise BadSource(f"the header has {self.prefix}{key} = {value!r}; a whole number belongs there")
        return value

    def number(self, key: str, default: float, prefix: str | None = None) -> float:
        """A finite f32. Raises BadSource for anything else."""
        name = (self.prefix if prefix is None else prefix) + key
        value = self.keys.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, float) or not math.isfinite(value):
            raise BadSource(f"the header has {name} = {value!r}; a finite f32 belongs there")
        return value

    def text(self, key: str, default: str) -> str:
        """A string."""
        value = self.get(key)
        return default if value is None else str(value)
