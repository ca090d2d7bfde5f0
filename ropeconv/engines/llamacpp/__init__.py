"""llama.cpp as an engine, in a process of its own."""

from .llamacpp_engine import LlamaCppEngine

__all__ = ["LlamaCppEngine"]
