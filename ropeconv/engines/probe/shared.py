"""SharedProbe: one probe for many outputs, which starts with the first question that no cache answers."""

from __future__ import annotations

import subprocess
import sys
from functools import cached_property
from typing import Any

from .client import Probe


class SharedProbe(Probe):
    """A probe that outlives the outputs it is asked about. It ends with the process that holds it."""

    def __init__(self, python: str = sys.executable) -> None:
        self.python = python

    @cached_property
    def process(self) -> subprocess.Popen[str]:  # type: ignore[override]
        """The process, started on first use."""
        return Probe(self.python).process

    def ask(self, folder: Any, context: int, own: bool = False, stands_for: str = "") -> dict[str, Any]:
        """As in `Probe`; a process that has ended is started anew. folder, context, own, stands_for: as there."""
        if "process" in self.__dict__ and self.process.poll() is not None:
            del self.process
        return super().ask(folder, context, own, stands_for)

    def prefetch(self, model_type: str) -> None:
        """Starts nothing ahead: the process may be there already."""

    def stop(self) -> None:
        """Leaves the process for the next output."""
