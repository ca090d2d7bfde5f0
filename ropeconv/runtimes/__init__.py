"""How runtimes read a config: `data/*.toml`, one file per version, and the code that applies their rules."""

from .runtime import Runtime, Status, find, newest, runtimes

__all__ = ["Runtime", "Status", "find", "newest", "runtimes"]
