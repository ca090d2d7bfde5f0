"""llama.cpp, in a process of its own."""

from .model import LlamaCppEngine

__all__ = ["LlamaCppEngine"]
