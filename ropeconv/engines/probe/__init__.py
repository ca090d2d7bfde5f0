"""The frequencies that the installed transformers computes from a config, asked in a process of its own."""

from .cache import ProbeCache
from .client import Probe

__all__ = ["Probe", "ProbeCache"]
