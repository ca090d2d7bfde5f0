"""Models in the installed transformers: loaded with `from_pretrained`, patched, and read in chunks."""

from .device import DeviceSpec, device_spec
from .patch import Undo, patch
from .transformers_engine import TransformersEngine

__all__ = ["DeviceSpec", "TransformersEngine", "Undo", "device_spec", "patch"]
