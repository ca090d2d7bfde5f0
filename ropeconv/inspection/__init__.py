"""Inspection of a checkpoint or GGUF file: its RoPE, and problems in its settings."""

from .inspect import Inspection, inspect_source

__all__ = ["Inspection", "inspect_source"]
