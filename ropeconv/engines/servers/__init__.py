"""Running inference servers as the judge: one file per protocol, and the comparison over what they answer."""

from .connect import connect
from .protocol import Served, Server

__all__ = ["Served", "Server", "connect"]
