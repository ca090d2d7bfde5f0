"""The version, alone, so that every room can have it."""

__version__ = "0.1.0"
