"""The classes of `typer.core` that the command line changes: its groups and its commands.

Typer has public settings for everything else. These four have none, and `typer.Typer(cls=...)` and
`app.command(cls=...)` are the places for them:

- commands are imported when they are called (`LazyGroup`), since all of them together take a
  second;
- the help is plain text where stdout is not a terminal, with the same panels, so that it can be
  searched;
- examples are not wrapped, so that they can be copied (`Command.format_help`);
- an unknown command or option is answered with the one that was meant, also where that has another
  name.

Parameters of type Any are contexts and formatters of Typer, whose classes it does not export.
"""

import os
import sys
from difflib import get_close_matches
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from ..errors import UsageError
from ..options import GENERAL
from ..rope.errors import shown
from .other_words import OTHER_COMMANDS, OTHER_OPTIONS, PUSH_ONLY

COMPLETE = "_ROPECONV_COMPLETE"
"""The variable with which a shell asks for completions; `--show-completion` prints the script that
sets it.
"""


class Command(TyperCommand):
    """A command with examples below its help. They are the `epilog` of `app.command`, one a
    line.
    """

    def __init__(self, *, epilog: str | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.examples = (epilog or "").strip().splitlines()

    @property
    def arguments(self) -> list[TyperArgument]:
        """The arguments of the command."""
        return [param for param in self.params if isinstance(param, TyperArgument)]

    @property
    def options(self) -> list[TyperOption]:
        """The options of the command, without `--help`."""
        return [param for param in self.params if isinstance(param, TyperOption)]

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all parameters with `--help`, which is a general option. Switches have no type in
        the help.
        """
        params = super().get_params(ctx)
        for param in params:
            if isinstance(param, TyperOption):
                param.rich_help_panel = param.rich_help_panel or GENERAL
                param.metavar = "" if param.is_flag else param.metavar
        return params

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help: panels of rich in a terminal, and plain text elsewhere. Examples are
        never wrapped.
        """
        if not sys.stdout.isatty():
            self.rich_markup_mode = None
        super().format_help(ctx, formatter)
        with formatter.section("Examples"):
            for line in self.examples:
                formatter.write(f"  {line}\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the panels of the plain help, which Typer has only in that of rich."""
        arguments = [
            (argument.metavar or argument.name, argument.help or "") for argument in self.arguments
        ]
        panels = {"Arguments": arguments} if arguments else {}
        for option in self.get_params(ctx)[len(arguments) :]:
            record = option.get_help_record(ctx)
            if record is not None:  # it is not hidden
                panels.setdefault(option.rich_help_panel, []).append(record)
        for title, records in panels.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line. Raises UsageError for an unknown option, with the one that was
        meant.
        """
        words = [word for word in args if not word.startswith("-")]
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as problem:
            # `push OUT`: Typer gives OUT to the last argument, and misses the first one, of which
            # there may be many. An error without a message is about a missing value.
            if words and not problem.message and problem.param in self.arguments:
                problem.param = self.arguments[-1]
            raise
        except typer.TyperException as problem:
            if not is_unknown_option(problem):
                raise
            raise UsageError(self._repair(ctx, problem)) from None

    def _repair(self, ctx: Any, problem: Any) -> str:
        """Return the sentence on an unknown option. problem: as Typer raised it."""
        name = problem.option_name
        known = {flag for option in self.options for flag in option.opts}
        if self.name == "apply" and name in PUSH_ONLY:
            return (
                f"{name} is an option of `ropeconv push`; write the output with -o, and publish it"
                " with that"
            )
        other = OTHER_OPTIONS.get(name.replace("quantise", "quantize"), "")
        if other.partition(" ")[0] in known:
            return f"there is no option {name}; use {other}"
        if (
            name == "--model" and "--family" in known
        ):  # these commands have the model as an argument
            return f"there is no option {name}; use `{ctx.command_path} MODEL`"
        for close in problem.possibilities or ():
            if close in known:
                return f"there is no option {name}; did you mean {close}?"
        return f"there is no option {name}; `{ctx.command_path} --help-all` lists them"


def is_unknown_option(problem: typer.TyperException) -> bool:
    """Whether Typer found an option that a command does not have: it does not export the class of
    this error.
    """
    return hasattr(problem, "possibilities")


class Stub(TyperCommand):
    """A command in the list of a group, before it is imported. Its function imports the command and
    returns it.
    """


class LazyGroup(TyperGroup):
    """`ropeconv` or `ropeconv list`: stubs with names and summaries, each imported when it is
    called.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find and import the command that is typed. Raises UsageError for an unknown one, with the
        one that is meant.

        `ctx.resilient_parsing` is set while a shell asks for completions, where a wrong word is
        none of our business.
        """
        word = args[0]
        if word not in self.commands and not word.startswith("-") and not ctx.resilient_parsing:
            raise UsageError(f"there is no command {shown(word)}; {self._repair(ctx, word)}")
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, Stub) and command.callback is not None:
            command = command.callback()
        return name, command, rest

    def _repair(self, ctx: Any, word: str) -> str:
        """Return what to do instead of an unknown command."""
        outermost = ctx.parent is None
        close = get_close_matches(word, self.commands, 1)
        if outermost and word in OTHER_COMMANDS:
            meant = OTHER_COMMANDS[word]
        elif close:
            meant = close[0]
        elif outermost and ("/" in word or os.path.exists(word)):
            meant = "apply MODEL"
        else:
            return f"`{ctx.command_path} --help` lists them"
        return f"use `{ctx.command_path} {meant}`"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line, and print the help for an empty one. Raises UsageError for an
        unknown option.
        """
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit(2)
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as problem:
            if not is_unknown_option(problem):
                raise
            name = getattr(problem, "option_name", "")
            lists = f"`{ctx.command_path} --help` lists the options and commands"
            raise UsageError(f"there is no option {name} before a command; {lists}") from None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help: panels of rich in a terminal, and plain text elsewhere."""
        if not sys.stdout.isatty():
            self.rich_markup_mode = None
        super().format_help(ctx, formatter)

    def main(self, args: Any = None, *_: Any, **__: Any) -> Any:
        """Run a command line. Unlike in Typer, errors reach the caller, which prints each as one
        sentence.
        """
        if COMPLETE in os.environ:
            return super().main(args, "ropeconv", COMPLETE)
        with self.make_context("ropeconv", list(sys.argv[1:] if args is None else args)) as ctx:
            return self.invoke(ctx)
