"""What can be measured: one class each, in REGISTRY by name."""

from . import losses, retrieval

__all__ = ["losses", "retrieval"]
