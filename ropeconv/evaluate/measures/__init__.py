"""What can be measured: one class each, in REGISTRY by name."""

from . import cwe, fwe, growth, kv, niah, passkey, position, sliding, vt, yarn_grid
from .measure import REGISTRY, Measure

__all__ = [
    "REGISTRY", "Measure", "cwe", "fwe", "growth", "kv", "niah", "passkey", "position", "sliding", "vt", "yarn_grid",
]  # fmt: skip
