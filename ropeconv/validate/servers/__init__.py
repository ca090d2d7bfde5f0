"""Running inference servers as the judge: one file per protocol, and the comparison over what they answer."""

from .base import Served, Server
from .connect import connect

__all__ = ["Served", "Server", "connect"]
