"""Runners: how the rows of an evaluation become engines."""

from .opening import open_runner
from .request import Opening
from .runner import Runner

__all__ = ["Opening", "Runner", "open_runner"]
