"""Every method: one class each, registered by its decorator."""

from . import bases, ntk, parts, special, vectors
from .method import REGISTRY, Method, Value

__all__ = ["REGISTRY", "Method", "Value", "bases", "ntk", "parts", "special", "vectors"]
