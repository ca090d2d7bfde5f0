"""The probe: the frequencies that the installed transformers computes from a config, in a process of its own."""

from .cache import ProbeCache
from .client import Probe
from .shared import SharedProbe

__all__ = ["Probe", "ProbeCache", "SharedProbe"]
