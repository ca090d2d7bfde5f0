"""Carriers: other architectures of llama.cpp that compute the same network and take any frequency vector."""

from . import same_graph, step35, wide_window  # noqa: F401  registers them
from .carrier import CARRIERS, Carried, carry

__all__ = ["CARRIERS", "Carried", "carry"]
