"""The classes of typer commands, which sort options into panels in one order and show no type for flags."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from ..errors import UsageError
from ..options import Option, from_command_line, options
from .output import trimmed_stdout

METHOD = "Method (one of them; S is a factor such as 4, or a length such as 128k)"
LENGTH = "Length"
OUTPUT = "Output"
RUNTIMES = "Runtimes"
HUB = "Hub"
MODEL = "Model"
RUNNING = "Running"
GENERAL = "General"
EXPERT = "Expert options"
PANELS = (METHOD, LENGTH, MODEL, RUNNING, OUTPUT, RUNTIMES, HUB, GENERAL, EXPERT)
OTHER_WORDS = {
    "archs": "list archs",
    "bake": "apply",
    "check": "validate",
    "convert": "apply",
    "diff": "compare",
    "extend": "apply",
    "families": "list families",
    "info": "inspect",
    "methods": "list methods",
    "publish": "push",
    "recommend": "advise",
    "runtimes": "list runtimes",
    "schedule": "plot",
    "show": "inspect",
    "undo": "restore",
    "upload": "push",
    "verify": "validate",
}
"""Commands that people type by other names."""

F = TypeVar("F", bound=Callable[..., Any])
Rule = tuple[Callable[[Mapping[str, Any]], object], str]
"""Whether an option has an effect beside the values of all options, by name; and what to say where it has none."""


def needs(**rules: Rule) -> Callable[[F], F]:
    """Decorator: a command refuses options, by their names in Python, that its other options leave without an effect.

    Only options that stand on the command line are judged, not defaults. The sentence follows the flag.
    """

    def decorate(command: F) -> F:
        command.rules = rules  # type: ignore[attr-defined]
        return command

    return decorate


def _arranged(params: list[Any]) -> list[Any]:
    """Options sorted by their panels, GENERAL for those without one; flags get an empty metavar."""
    for param in params:
        if param.param_type_name != "option":
            continue
        if not getattr(param, "rich_help_panel", None):
            param.rich_help_panel = GENERAL
        if param.is_flag and param.metavar is None:
            param.metavar = ""
    return sorted(params, key=_panel)


def _panel(param: Any) -> int:
    return PANELS.index(getattr(param, "rich_help_panel", None) or GENERAL)


def _is_expert(param: Any) -> bool:
    return getattr(param, "rich_help_panel", None) == EXPERT


def _flag(param: Any) -> str:
    """The flag of an option in messages."""
    return str(next(spelling for spelling in param.opts if spelling.startswith("--")))


class Command(TyperCommand):
    """The class of the commands of ropeconv."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command. Raises UsageError for options that have no effect, as `needs` says."""
        for param in self.params:
            has_effect, sentence = getattr(self.callback, "rules", {}).get(param.name, (None, ""))
            typed = ctx.get_parameter_source(param.name).name == "COMMANDLINE"
            if has_effect is not None and typed and not has_effect(ctx.params):
                raise UsageError(f"{_flag(param)} {sentence}")
        return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the command line; `--help-all` is `--help` with the expert options."""
        if "--help-all" in args:
            ctx.meta[EXPERT], args = True, ["--help"]
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters of the command in the order of the help: arguments, then options by panel."""
        params = super().get_params(ctx)
        arguments: list[Any] = [param for param in params if param.param_type_name != "option"]
        for argument in arguments:
            argument.display_type = lambda ctx: None  # what it is stands in its name and its help
        return arguments + _arranged([param for param in params if param not in arguments])

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Prints the help without blanks at the ends of lines; expert options only with --help-all."""
        expert: list[Any] = list(filter(_is_expert, self.params))
        for param in expert:
            param.hidden = not ctx.meta.get(EXPERT)
        with trimmed_stdout():
            super().format_help(ctx, formatter)
            if expert and not ctx.meta.get(EXPERT):
                typer.echo(f" {len(expert)} expert options: --help-all\n")


class Group(TyperGroup):
    """The class of `ropeconv` and `ropeconv list`, which have commands."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Finds the command that is typed. Raises UsageError with its name for a command that has another one."""
        word = args[0] if args else ""
        if word in OTHER_WORDS and self.get_command(ctx, word) is None:
            raise UsageError(f"there is no command '{word}'; use `ropeconv {OTHER_WORDS[word]}`")
        return super().resolve_command(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """The options of `ropeconv` itself, by panel."""
        return _arranged(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Prints the help without blanks at the ends of lines."""
        with trimmed_stdout():
            super().format_help(ctx, formatter)


def option_group(
    name: str, added: Callable[[], list[inspect.Parameter]], build: Callable[[dict[str, Any]], Any]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: replaces a parameter of a command by several options.

    name: of the parameter. added: returns the options. build: from their values by name to the value of the parameter.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        parameters = inspect.signature(command, eval_str=True).parameters.values()
        group = added()
        names = {parameter.name for parameter in group}

        @wraps(command)
        def wrapper(**values: Any) -> Any:
            selected = {key: value for key, value in values.items() if key in names}
            return command(**{name: build(selected)}, **{k: v for k, v in values.items() if k not in names})

        shown = [parameter for p in parameters for parameter in (group if p.name == name else [p])]
        shown = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in shown]
        wrapper.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
        return wrapper

    return decorate


def parameters(*kinds: type) -> list[inspect.Parameter]:
    """The options of dataclasses as parameters of a command.

    An option without a default, or with an empty one, is None or False unless it is given.
    """
    return [_parameter(option) for option in options(*kinds)]


def typed_group(name: str, kind: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: replaces a parameter of a command by the options of a dataclass, which it gets an instance of."""
    return option_group(name, lambda: parameters(kind), lambda values: from_command_line(kind, values))


def _parameter(option: Option) -> inspect.Parameter:
    kind: Any = option.kind
    if option.choices:  # typer takes no list of Literals
        named = {choice: choice for choice in option.choices}
        kind = Enum(option.name, named) if option.repeatable else Literal.__getitem__(option.choices)
    if option.many or option.repeatable:
        kind = list[kind]
    default = None if option.default in ("", ()) else option.default
    spellings = [option.flag, *([option.short] if option.short else [])]
    shown = option.shown and default is not None and default is not False
    details = typer.Option(
        *spellings, help=option.help, metavar=option.metavar, rich_help_panel=option.group, min=option.least,
        show_default=shown,
    )  # fmt: skip
    if default is MISSING:
        default = inspect.Parameter.empty
    annotation: Any = Annotated[kind if default is not None else kind | None, details]
    return inspect.Parameter(option.parameter, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


TRAINING = Path(__file__).parent.parent / "hub" / "trainers"


def trainer_names() -> tuple[str, ...]:
    """The values of `--for`, from the file names of the trainers."""
    return tuple(sorted(path.stem for path in TRAINING.glob("*.toml")))


if TYPE_CHECKING:
    TrainerName = str
else:
    TrainerName = Literal.__getitem__(trainer_names())


Device = Literal["auto", "cuda", "cpu", "off"]
LogNKind = Literal["clamped", "full"]
Reference = Literal["patched", "config", "dequantised"]
