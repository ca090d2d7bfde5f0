"""The tasks of a run, by name."""

from . import apply, evaluation, push, validate  # noqa: F401
from .task import TASKS, Tools, task

__all__ = ["TASKS", "Tools", "task"]
