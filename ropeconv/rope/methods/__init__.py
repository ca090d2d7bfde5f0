"""Every method, in the order in which they are listed to people."""

from . import bases, ntk, parts, special, vectors
from .method import REGISTRY, Method, Value

__all__ = ["REGISTRY", "Method", "Value", "bases", "ntk", "parts", "special", "vectors"]
