"""ArchKeys: typed access to the keys of a GGUF header, with the checks that llama.cpp makes."""

from __future__ import annotations

from typing import Any

from ...errors import BadSource, shown
from ...rope.zero_frequencies import LARGEST_FLOAT32
from .archs import Arch, Keys


class ArchKeys:
    """Typed access to the keys of one architecture, by their names without `ARCH.`."""

    def __init__(self, keys: Keys, arch: Arch) -> None:
        self.keys, self.arch, self.prefix = keys, arch, arch.name + "."

    def get(self, key: str) -> Any:
        """The value of a key, decoded; None where it is absent."""
        return self.keys.get(self.prefix + key)

    def whole(self, key: str, default: int | None = None) -> int:
        """The value of a key that is a whole number of at least 0.

        default: for an absent key, None where llama.cpp requires the key. Raises BadSource for another value.
        """
        value = self.get(key)
        if value is None and default is None:
            raise BadSource(f"the header has no {self.prefix}{key}, which llama.cpp requires; fetch the file again")
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise BadSource(f"the header has {self.prefix}{key} = {shown(value)}; a whole number belongs there")
        return value

    def number(self, key: str, default: float, prefix: str | None = None) -> float:
        """The value of a key that is a finite f32.

        default: for an absent key. prefix: of the key's name, by default `ARCH.`. Raises BadSource for another value.
        """
        name = (self.prefix if prefix is None else prefix) + key
        value = self.keys.get(name)
        value = default if value is None else value
        if not isinstance(value, float) or not abs(value) <= LARGEST_FLOAT32:
            raise BadSource(f"the header has {name} = {shown(value)}; a finite f32 belongs there")
        return value

    def text(self, key: str, default: str) -> str:
        """The value of a key as a string; `default` where it is absent."""
        value = self.get(key)
        return default if value is None else str(value)
