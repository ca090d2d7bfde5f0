"""The methods of context extension: one class each, in REGISTRY by the name of its flag."""

from . import bases, interpolation, vectors

__all__ = ["bases", "interpolation", "vectors"]
