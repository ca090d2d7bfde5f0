"""Asked: what a page wants to know, as it is handed to a process."""

from __future__ import annotations

from dataclasses import dataclass

from .forms import Form
from .rules import Rules


@dataclass(frozen=True)
class Asked:
    """A task for a process.

    task: its name in the registry. form: what was typed. rules: for visitors. token: of the visitor's login.
    """

    task: str
    form: Form
    rules: Rules
    token: str = ""
