"""What runtimes do with a config, by version and model family: `data/*.toml`, and the code that applies it."""

from .find import find, newest
from .rules import Status
from .runtime import Runtime, runtimes

__all__ = ["Runtime", "Status", "find", "newest", "runtimes"]
