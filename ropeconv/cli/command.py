"""The classes of typer commands, which sort options into panels in one order and show no type for flags."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

from .printable import trimmed_stdout

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
    """Options sorted by their panels, GENERAL for those without one; flags get an empty metavar."""
    for param in params:
        if param.param_type_name != "option":
            continue
        if not getattr(param, "rich_help_panel", None):
            param.rich_help_panel = GENERAL
        if param.is_flag and param.metavar is None:
            param.metavar = ""
    return sorted(params, key=lambda param: PANELS.index(getattr(param, "rich_help_panel", None) or GENERAL))


class Command(TyperCommand):
    """The class of the commands of ropeconv."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters of the command in the order of the help: arguments, then options by panel."""
        params = super().get_params(ctx)
        arguments: list[Any] = [param for param in params if param.param_type_name != "option"]
        for argument in arguments:
            argument.display_type = lambda ctx: None  # what it is stands in its name and its help
        return arguments + _arranged([param for param in params if param not in arguments])

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Prints the help without blanks at the ends of lines."""
        with trimmed_stdout():
            super().format_help(ctx, formatter)


class Group(TyperGroup):
    """The class of `ropeconv` itself, which has the commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The options of `ropeconv` itself, by panel."""
        return _arranged(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Prints the help without blanks at the ends of lines."""
        with trimmed_stdout():
            super().format_help(ctx, formatter)
