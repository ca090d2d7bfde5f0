"""What a checkpoint is now, and what is wrong with its settings."""

from .inspect import Inspection, inspect_source

__all__ = ["Inspection", "inspect_source"]
