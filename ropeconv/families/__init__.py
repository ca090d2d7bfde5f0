"""Model families: `data/*.toml`, one file per family, and the functions that read them."""

from .family import Family, by_model_type, families

__all__ = ["Family", "by_model_type", "families"]
