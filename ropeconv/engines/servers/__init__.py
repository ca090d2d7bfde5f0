"""Running inference servers as engines: one file per protocol."""

from .connect import connect
from .protocol import Served, Server

__all__ = ["Served", "Server", "connect"]
