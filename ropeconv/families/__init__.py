"""Model families as data: `data/*.toml`, one per family, and their reader."""

from .family import Family, by_model_type, families

__all__ = ["Family", "by_model_type", "families"]
