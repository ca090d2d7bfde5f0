"""Runners: how the rows of an evaluation become engines."""

from .opening import Opening, open_runner
from .runner import Runner

__all__ = ["Opening", "Runner", "open_runner"]
