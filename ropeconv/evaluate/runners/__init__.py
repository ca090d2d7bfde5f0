"""Runners: how the rows of an evaluation become engines."""

from .runner import Runner

__all__ = ["Runner"]
