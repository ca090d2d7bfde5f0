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
import shlex
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from ..errors import UsageError
from ..options import GENERAL
from ..rope.errors import shown
from .other_words import OTHER_COMMANDS, OTHER_OPTIONS, PUSH_ONLY

LEAST_SIMILARITY = 0.67
"""How much of an unknown option is in the one that is suggested, as difflib counts it."""
START_OF_SURPLUS_ERROR = "Got unexpected extra argument"
"""How Typer begins its message on arguments that a command does not take."""
COMPLETE = "_ROPECONV_COMPLETE"
"""The variable with which a shell asks for completions; `--show-completion` prints the script that
sets it.
"""


class Command(TyperCommand):
    """A command with examples below its help, and with repairs for what is typed wrongly."""

    def __init__(self, *, epilog: str | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.examples = (epilog or "").strip().splitlines()
        """The lines of `epilog`, an argument of `app.command`."""

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
            if not isinstance(param, TyperOption):
                continue
            if not param.rich_help_panel:
                param.rich_help_panel = GENERAL
            if param.is_flag:
                param.metavar = ""
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
        """Write the options in their panels, for a help without colours and boxes.

        Typer groups options by panel only in the help that rich draws.
        """
        panels: dict[str, list[tuple[str, str]]] = {}
        for argument in self.arguments:
            record = (argument.metavar or argument.name or "", argument.help or "")
            panels.setdefault("Arguments", []).append(record)
        for option in self.get_params(ctx):
            if isinstance(option, TyperArgument):
                continue
            record = option.get_help_record(ctx)
            if record is not None:  # it is not hidden
                panels.setdefault(option.rich_help_panel, []).append(record)

        for title, records in panels.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line for Typer, with clearer errors than Typer's own.

        Raises:
            UsageError: For a source that is given as a second model, and for an unknown option;
                the error says what was meant.
        """
        words = list(args)  # Typer takes them out of `args`
        # arguments, and also values of options, which only Typer could tell apart from them
        words_without_dash = [word for word in words if not word.startswith("-")]
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as problem:
            # For `push OUT` without a REPOSITORY, Typer gives OUT to the last argument, and says
            # that the first one is missing. A user who gave OUT misses the last one, so that is
            # named instead. Typer's error for a missing value has no message of its own.
            is_about_missing = not problem.message and problem.param in self.arguments
            if words_without_dash and is_about_missing:
                problem.param = self.arguments[-1]
            raise
        except typer.TyperException as problem:
            # For `validate OUT MODEL`, Typer says "Got unexpected extra argument (MODEL)". The user
            # meant MODEL as the source of OUT, which is an option.
            is_surplus = problem.message.startswith(START_OF_SURPLUS_ERROR)
            takes_source = any("--against" in option.opts for option in self.options)
            if is_surplus and takes_source:
                source = words_without_dash[-1]
                raise UsageError(
                    f"`{ctx.command_path}` takes one model; name its source with --against, as in"
                    f" --against {shlex.quote(source)}"
                ) from None

            # An unknown option. Typer may name only a part of it: `-y` of `-yarn`.
            if not is_unknown_option(problem):
                raise
            unknown = _whole_option(getattr(problem, "option_name", ""), words)
            similar = getattr(problem, "possibilities", None) or ()
            raise UsageError(self._explain_unknown(ctx, unknown, similar)) from None

    def _explain_unknown(self, ctx: Any, name: str, similar: Sequence[str]) -> str:
        """Return the message for an unknown option, with the most similar option if there is one.

        Args:
            ctx: The context of the command.
            name: The unknown option.
            similar: Options with names like it, as Typer finds them.
        """
        known = set()
        for option in self.options:
            known.update(option.opts)

        # known mistakes first, then a guess by spelling
        if f"-{name}" in known:
            return f"there is no option {name}; did you mean -{name}?"
        if self.name == "apply" and name in PUSH_ONLY:
            return (
                f"{name} is an option of `ropeconv push`; write the output with -o, and publish it"
                " with that"
            )
        # an option of other tools: the table has its name here, such as "--outtype" for --quantize,
        # perhaps with a value: "--to gguf"
        in_american_english = name.replace("quantise", "quantize")
        option_here = OTHER_OPTIONS.get(in_american_english, "")
        flag_here, _, _ = option_here.partition(" ")
        if flag_here in known:
            return f"there is no option {name}; use {option_here}"
        # commands with --family have the model as an argument
        if name == "--model" and "--family" in known:
            return f"there is no option {name}; use `{ctx.command_path} MODEL`"
        # Typer compares the dashes too, and finds --mixed for --imatrix; so the names are compared
        # again without them
        for close in similar:
            is_near = get_close_matches(name.strip("-"), [close.strip("-")], 1, LEAST_SIMILARITY)
            if close in known and is_near:
                return f"there is no option {name}; did you mean {close}?"
        return f"there is no option {name}; `{ctx.command_path} --help-all` lists them"


def _whole_option(name: str, words: Sequence[str]) -> str:
    """Return an unknown option as it was typed: Typer reads -yarn as -y, -a, -r and -n."""
    for word in words:
        is_long = len(word) > 2 and not word.startswith("--")
        if is_long and word.startswith(name):
            return word.partition("=")[0]
    return name


def is_unknown_option(problem: typer.TyperException) -> bool:
    """Whether Typer found an option that a command does not have. It does not export the class of
    this error, which has names like that of the option.
    """
    return hasattr(problem, "possibilities")


class Stub(TyperCommand):
    """A command in the list of a group, before it is imported.

    Its function, `callback`, imports the command and returns it.
    """


class LazyGroup(TyperGroup):
    """`ropeconv` or `ropeconv list`: stubs with names and summaries, each imported when it is
    called.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the name, the command, and the remaining words of a command line.

        The module of the command is imported now, so that `ropeconv --help` imports no command.

        Args:
            ctx: The context of click.
            args: The words typed after the name of the group, such as ["inspect", "model"].

        Raises:
            UsageError: For an unknown command, with the most similar command.
        """
        word = args[0]
        is_option = word.startswith("-")
        # click sets `resilient_parsing` while a shell completes a word, which must not fail
        is_completion = ctx.resilient_parsing
        if word not in self.commands and not is_option and not is_completion:
            raise UsageError(f"there is no command {shown(word)}; {self._repair(ctx, word)}")

        # A command that is not imported yet is a `Stub`, whose callback imports the command and
        # returns it.
        name, command, remaining_words = super().resolve_command(ctx, args)
        if isinstance(command, Stub) and command.callback is not None:
            import_command = command.callback
            command = import_command()
        return name, command, remaining_words

    def _repair(self, ctx: Any, word: str) -> str:
        """Return what to do instead of an unknown command.

        Args:
            ctx: The context of this group.
            word: The unknown command.
        """
        # a command by the name that it has in other tools
        is_outermost = ctx.parent is None
        if is_outermost and word in OTHER_COMMANDS:
            return f"use `{ctx.command_path} {OTHER_COMMANDS[word]}`"
        # a spelling mistake
        close = get_close_matches(word, self.commands, 1)
        if close:
            return f"use `{ctx.command_path} {close[0]}`"
        # a model without a command
        is_model = "/" in word or os.path.exists(word)
        if is_outermost and is_model:
            return f"use `{ctx.command_path} apply MODEL`"
        return f"`{ctx.command_path} --help` lists them"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line, and print the help for an empty command line.

        Raises:
            UsageError: For an unknown option.
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
        words = list(sys.argv[1:] if args is None else args)
        with self.make_context("ropeconv", words) as ctx:
            return self.invoke(ctx)
