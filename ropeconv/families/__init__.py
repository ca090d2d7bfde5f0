"""Model families: `data/*.toml`, one file per family, those of the user, and the functions that read them."""

from .family import Family
from .registry import by_model_type, families

__all__ = ["Family", "by_model_type", "families"]
