"""The methods of context extension: one class each, in REGISTRY by the name of its flag."""

from . import bases, ntk, parts, special, vectors
from .method import REGISTRY, Method, Value

__all__ = ["REGISTRY", "Method", "Value", "bases", "ntk", "parts", "special", "vectors"]
