"""Inspection of a checkpoint or GGUF file: its RoPE, and problems in its settings."""

from .config_problems import Problem
from .inspect import Inspection, inspect_source

__all__ = ["Inspection", "Problem", "inspect_source"]
