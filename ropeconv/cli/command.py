"""Panels of the help, and options that are fields of dataclasses, which every command shares.

`expand_options` is the first thing to read: it lets a function have one parameter for many options.
All else about a command is Typer's: its parameters are `Annotated[kind, typer.Option(...)]`.
"""

import inspect
from collections.abc import Callable, Set
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
    """Several options in the place of one parameter, in its annotation."""

    options: Callable[[], list[Option]]
    """Returns the options."""

    build: Callable[[dict[str, Any]], Any] = dict
    """Makes the value of the parameter from those of the options, by name."""


def expand_options(function: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command so that one parameter can stand for a group of options.

    Such a parameter is annotated with a dataclass, whose fields are made with
    `ropeconv.options.option`, or with `Annotated[kind, OptionGroup(...)]`. Typer gets a function
    that has every option as a parameter of its own, collects their values, and calls the command:

        def restore(output: str, flags: WriteOptions)           # the command
        def restore(*, output: str, dry_run: bool, force: bool)  # the function that Typer gets
    """
    # the parameters that Typer sees: each group is replaced by its options
    groups: dict[str, OptionGroup] = {}
    options_of_group: dict[str, list[Option]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        name = parameter.name
        group = _group_of(parameter.annotation)
        if group is None:
            # keyword-only, so that the order below need not put those with a default last
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[name] = group
        options_of_group[name] = group.options()
        for option in options_of_group[name]:
            parameters.append(_as_parameter(option))

    # Typer shows the options in the order of the parameters
    hidden = [parameter for parameter in parameters if _panel(parameter) == EXPERT]
    parameters.append(_help_all(len(hidden)))
    parameters.sort(key=_place_in_help)

    @wraps(function)
    def with_groups(**values: Any) -> None:
        """Collect the values of each group into its dataclass, and call the function."""
        values.pop("help_all", None)
        for name, group in groups.items():
            values_of_group = {}
            for option in options_of_group[name]:
                values_of_group[option.parameter] = values.pop(option.parameter)
            values[name] = group.build(values_of_group)
        function(**values)

    with_groups.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_groups.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_groups


def _group_of(annotation: Any) -> OptionGroup | None:
    """Return the options that a parameter with this annotation stands for, if it does."""
    if isinstance(annotation, type) and is_dataclass(annotation):
        return OptionGroup(partial(options, annotation), partial(from_command_line, annotation))
    for about in getattr(annotation, "__metadata__", ()):
        if isinstance(about, OptionGroup):
            return about
    return None


def _as_parameter(option: Option) -> inspect.Parameter:
    """Return an option as a parameter with the annotation that Typer reads.

    Typer makes an option of a parameter such as `yarn: Annotated[float, typer.Option("--yarn")]`.

    Args:
        option: A field of a dataclass as an option: its flag, type, default, help and so on.
    """
    # The type of one value, and a function that parses it. An option can be given several times if
    # its field is a tuple (`many`), or if there is one output for each value (`repeatable`).
    may_be_repeated = option.many or option.repeatable
    value_type: Any = option.kind
    parser: Callable[[Any], Any] | None = None
    if value_type is Path:
        parser = expand_home
    elif option.choices and may_be_repeated:
        # Typer knows Literal["a", "b"], but not a list of it, so each value is checked here
        value_type = str
        parser = partial(_choose, option.choices)
    elif option.choices:
        value_type = Literal.__getitem__(option.choices)  # Literal["a", "b"], of a tuple

    flags = [option.flag]
    if option.short:
        flags.append(option.short)

    # the word after the flag in the help: one of its own, its choices, or the word for its type
    metavar = option.metavar or "|".join(option.choices)
    if not metavar and value_type is not bool:
        metavar = METAVARS.get(value_type, "TEXT")

    # without a default it must be given; Typer wants a list for an option that may be repeated
    default = option.default
    if default is MISSING:
        default = inspect.Parameter.empty
    elif may_be_repeated:
        default = list(default or ())

    about = typer.Option(
        *flags,
        help=option.help,
        rich_help_panel=option.group,
        hidden=option.group == EXPERT,
        metavar=metavar or None,
        min=option.least,
        max=option.most,
        show_default=option.shown,
        envvar=option.variable or None,  # an environment variable with the default
        parser=parser,
        autocompletion=COMPLETIONS.get(option.flag),
    )
    # `Writes` marks an option that changes what is written; the tests of faults search for it
    marks: tuple[Any, ...] = (about,)
    if option.writes:
        marks = (about, Writes())

    # attention_factor: Annotated[float, typer.Option("--attention-factor", ...), Writes()]
    hint: Any = list[value_type] if may_be_repeated else value_type
    return inspect.Parameter(
        option.parameter,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[(hint, *marks)],
    )


METAVARS: dict[Any, str] = {int: "N", float: "X", Path: "PATH"}
"""The word for a value in the help, by its type."""


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


def _place_in_help(parameter: inspect.Parameter) -> tuple[int, bool]:
    """Return a key that sorts the parameters of a command as the help shows them.

    Arguments come first, then options by panel, and in each panel those of the screen last.
    """
    panel = _panel(parameter)
    place = 0
    if panel is not None:
        place = PANELS.index(panel) + 1
    is_of_screen = parameter.name in ("json", "quiet", "help_all")
    return place, is_of_screen


def _help_all(count: int) -> inspect.Parameter:
    """Return the option `--help-all`, which shows `count` options more than `--help`."""
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
    """Print the help with the options that `--help` hides, and exit."""
    if not value or ctx.resilient_parsing:
        return
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


def option_names(typed: Set[str]) -> set[str]:
    """Return the names of options in Python, such as "device_map", from their flags."""
    return {flag.lstrip("-").replace("-", "_") for flag in typed}
