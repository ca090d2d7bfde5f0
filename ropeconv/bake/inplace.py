"""Carries out a GGUF plan where the file lies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..errors import RopeconvError
from ..formats.gguf.inplace import steps
from .gguf import GgufPlan


def where_it_lies(plan: GgufPlan) -> GgufPlan:
    """The same plan for the source's own file, of a split one the first shard."""
    path = plan.source.path
    return replace(plan, out=path, steps=(replace(plan.steps[0], name=path.name),))


def apply_in_place(plan: GgufPlan) -> Path:
    """Changes the first shard of the source. A kill at any moment is undone by running again.

    Raises RopeconvError for links into a cache and where the filesystem cannot make room; nothing is changed then.
    """
    path = plan.source.path
    if path.is_symlink():
        raise RopeconvError(f"{path} is a link, likely into a cache that others read; write a new file with -o")
    for _ in steps(plan.source.file, plan.edit):
        pass
    return path
