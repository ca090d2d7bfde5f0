"""Models in the installed transformers: loaded as anybody loads them, patched, and read in chunks."""

from .device import DeviceSpec, device_spec
from .model import TransformersEngine
from .patch import Undo, patch

__all__ = ["DeviceSpec", "TransformersEngine", "Undo", "device_spec", "patch"]
