"""What can be measured: one class each, in REGISTRY by name."""

from . import growth, niah, passkey, position, sliding
from .measure import REGISTRY, Measure

__all__ = ["REGISTRY", "Measure", "growth", "niah", "passkey", "position", "sliding"]
