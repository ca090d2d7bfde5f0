"""How the help of every command looks: panels in one order, no types where there is nothing to type."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

METHOD = "Method (one of them)"
LENGTH = "Length and attention factor"
OUTPUT = "Output"
RUNTIMES = "Runtimes and encoding"
GGUF = "GGUF"
FOLDING = "Folding"
HUB = "Hub"
MODEL = "Model"
RUNNING = "Running"
GENERAL = "General"
SETTINGS = "Settings of a method"
PANELS = (METHOD, LENGTH, MODEL, RUNNING, OUTPUT, RUNTIMES, GGUF, FOLDING, HUB, GENERAL, SETTINGS)


def _arranged(params: list[Any]) -> list[Any]:
    """Options by their panels; of flags no type is shown, and options without a panel are general ones."""
    for param in params:
        if param.param_type_name != "option":
            continue
        if not getattr(param, "rich_help_panel", None):
            param.rich_help_panel = GENERAL
        if param.is_flag and param.metavar is None:
            param.metavar = ""
    return sorted(params, key=lambda param: PANELS.index(getattr(param, "rich_help_panel", None) or GENERAL))


class Command(TyperCommand):
    """A command of ropeconv."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its parameters, in the order of the help."""
        params = super().get_params(ctx)
        arguments = [param for param in params if param.param_type_name != "option"]
        return arguments + _arranged([param for param in params if param not in arguments])


class Group(TyperGroup):
    """ropeconv itself."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its options."""
        return _arranged(super().get_params(ctx))
