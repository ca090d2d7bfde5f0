"""Runtimes as data: `data/*.toml`, one row per version, and a reader that computes what each would compute."""

from .runtime import Runtime, Status, find, newest, runtimes

__all__ = ["Runtime", "Status", "find", "newest", "runtimes"]
