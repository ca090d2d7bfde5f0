"""Panels of the help, and options that are fields of dataclasses, which every command shares.

`expand_options` is the first thing to read: it lets a function have one parameter for many options.
All else about a command is Typer's: its parameters are `Annotated[kind, typer.Option(...)]`.
"""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..formats.files import expand_home
from ..options import (
    EXPERT,
    GENERAL,
    PANELS,
    Option,
    Writes,
    from_command_line,
    options,
)
from .completion import COMPLETIONS


@dataclass(frozen=True)
class OptionGroup:
    """Several options in the place of one parameter, in its annotation. build: makes its value from
    theirs, by name.
    """

    options: Callable[[], list[Option]]
    build: Callable[[dict[str, Any]], Any] = dict


def expand_options(function: Callable[..., None]) -> Callable[..., None]:
    """Decorator: the function gets options for its parameters that stand for several of them.

    Such a parameter is annotated with a dataclass, whose fields are made with
    `ropeconv.options.option`, or with `Annotated[kind, OptionGroup(...)]`. Typer reads
    `__signature__` and `__annotations__` of the returned function, which are those of all options
    one by one. It calls this with their values, and the function with those of its own parameters.
    """
    groups: dict[str, tuple[list[Option], Callable[[dict[str, Any]], Any]]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        group = _group_of(parameter.annotation)
        if group is None:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        else:
            members = group.options()
            groups[parameter.name] = members, group.build
            parameters += [_as_parameter(option) for option in members]
    hidden = sum(_panel(parameter) == EXPERT for parameter in parameters)
    parameters.append(_help_all(hidden))
    parameters.sort(key=_place)

    @wraps(function)
    def with_groups(**values: Any) -> None:
        values.pop("help_all", None)
        for name, (members, build) in groups.items():
            values[name] = build(
                {option.parameter: values.pop(option.parameter) for option in members}
            )
        function(**values)

    with_groups.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_groups.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_groups


def _group_of(hint: Any) -> OptionGroup | None:
    """Return the options that the annotation of a parameter stands for."""
    if isinstance(hint, type) and is_dataclass(hint):
        return OptionGroup(partial(options, hint), partial(from_command_line, hint))
    for about in getattr(hint, "__metadata__", ()):
        if isinstance(about, OptionGroup):
            return about
    return None


def _as_parameter(option: Option) -> inspect.Parameter:
    """Return an option as a parameter with the annotation that Typer reads."""
    several = option.many or option.repeatable
    kind: Any = option.kind
    parser: Callable[[Any], Any] | None = None
    if kind is Path:
        parser = expand_home
    elif option.choices and several:  # Typer has no list[Literal[...]]
        kind = str
        parser = partial(_choose, option.choices)
    elif option.choices:
        kind = Literal.__getitem__(option.choices)
    metavar = option.metavar or "|".join(option.choices)
    if not metavar and kind is not bool:
        metavar = {int: "N", float: "X", Path: "PATH"}.get(kind, "TEXT")

    about = typer.Option(
        option.flag,
        *([option.short] if option.short else []),
        help=option.help,
        rich_help_panel=option.group,
        hidden=option.group == EXPERT,
        metavar=metavar or None,
        min=option.least,
        max=option.most,
        show_default=option.shown,
        envvar=option.variable or None,
        parser=parser,
        autocompletion=COMPLETIONS.get(option.flag),
    )
    default = option.default
    if default is MISSING:
        default = inspect.Parameter.empty
    elif several:
        default = list(default or ())
    marks = (about, Writes()) if option.writes else (about,)
    return inspect.Parameter(
        option.parameter,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[(list[kind] if several else kind, *marks)],
    )


def _choose(choices: tuple[str, ...], value: str) -> str:
    """Return a value that is one of some choices. Raises ValueError for another one, in the words
    of Typer.
    """
    if value not in choices:
        raise ValueError(f"{value!r} is not one of {', '.join(map(repr, choices))}.")
    return value


def _panel(parameter: inspect.Parameter) -> str | None:
    """Return the panel of an option; None for an argument."""
    for about in getattr(parameter.annotation, "__metadata__", ()):
        return getattr(about, "rich_help_panel", None)
    return None


def _place(parameter: inspect.Parameter) -> tuple[int, bool]:
    """The place in the help: arguments, then options by panel, in each of which those of the screen
    come last.
    """
    panel = _panel(parameter)
    return PANELS.index(panel) + 1 if panel else 0, parameter.name in ("json", "quiet", "help_all")


def _help_all(count: int) -> inspect.Parameter:
    """Return `--help-all`. count: of the options that it adds to those of `--help`."""
    about = typer.Option(
        "--help-all",
        help=f"Show this message with {count} expert options, and exit.",
        rich_help_panel=GENERAL,
        hidden=not count,
        is_eager=True,
        expose_value=False,
        callback=_show_all,
    )
    return inspect.Parameter(
        "help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, about]
    )


def _show_all(ctx: typer.Context, value: bool) -> None:
    """Print the help with the options that `--help` hides."""
    if value and not ctx.resilient_parsing:
        for param in ctx.command.params:
            if hasattr(param, "hidden"):
                param.hidden = False
        typer.echo(ctx.get_help())
        raise typer.Exit


def typed_options(ctx: typer.Context) -> set[str]:
    """Return the options that are on the command line, such as `--seed`, also where they have their
    default values.
    """
    flags = set()
    for param in ctx.command.params:
        source = ctx.get_parameter_source(param.name)
        if source is not None and source.name == "COMMANDLINE":
            flags.add(param.opts[0])
    return flags
