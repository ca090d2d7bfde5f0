"""Carriers: other architectures of llama.cpp that compute the same network and take any frequency vector."""

from . import plain, sliding, step35  # noqa: F401  registers them
from .base import CARRIERS, Carried, carry

__all__ = ["CARRIERS", "Carried", "carry"]
