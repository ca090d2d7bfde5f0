"""What can be measured: one class each, in REGISTRY by name."""

from . import growth, position, sliding, yarn_grid
from .measure import REGISTRY, Measure

__all__ = ["REGISTRY", "Measure", "growth", "position", "sliding", "yarn_grid"]
