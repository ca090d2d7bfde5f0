"""`ropeconv` with all its commands, which are imported when they are called.

`complete_app` makes the app: for each command it has a stub with the line for the help, and
`import_command` brings the command itself when it is called.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.main import get_command

from ..rope.errors import RopeconvError
from ..rope.features import load_features
from ..version import __version__
from .typer_classes import Command, LazyGroup, Stub

COMMANDS = {
    "inspect": (
        "inspect",
        "Show the RoPE of a model, the runtimes that support it, and problems with their fixes.",
    ),
    "advise": (
        "inspect",
        "Compare the methods that reach a context length, with the command for each.",
    ),
    "apply": ("apply", "Write a checkpoint or GGUF file with a longer context."),
    "validate": (
        "validate",
        "Check that a runtime computes the method: compare logits with the source, scaled at run"
        " time.",
    ),
    "probe": ("probe", "Ask an installed runtime what it computes from a model's config."),
    "restore": ("restore", "Undo: recreate the original model from an output."),
    "push": (
        "push",
        "Publish an output on the Hub; files that the source repository has are copied there, not"
        " uploaded.",
    ),
    "plot": (
        "plot",
        "Show the frequencies of one or several methods: a table, or a picture or a CSV file with"
        " -o.",
    ),
    "list methods": ("list", "List the methods, or show one with its formula, settings and paper."),
    "list families": (
        "list",
        "List the model families, with their rope types and GGUF architectures.",
    ),
    "list archs": (
        "list",
        "List the GGUF architectures, with the rope tensors and keys that llama.cpp supports for"
        " each.",
    ),
    "list runtimes": (
        "list",
        "List the runtimes, and how many model families each was tested with.",
    ),
}
"""For each command, in the order of the help, its module in `commands`, and the first line of its
docstring.

The lines are here too, so that `ropeconv --help` does not import every command.
"""
GROUPS = {
    "list": "List methods, model families, GGUF architectures or runtimes.",
    "evidence": "Compare rows of measurements, and add them to the public record.",
}
"""Commands of two words, by the first one, with a line for the help."""

app = typer.Typer(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    pretty_exceptions_enable=False,
)


def import_command(name: str) -> Any:
    """Import and return a command, such as `list methods`, also one of a feature."""
    module, _ = all_commands()[name]
    command: Any = get_command(import_module(module).app)
    # Typer makes a group of an app with several commands, and a command of one with a single one
    if hasattr(command, "commands"):
        return command.commands[name.rpartition(" ")[2]]
    return command


def find(name: str) -> Command:
    """Import and return a command of ropeconv with its examples and options."""
    command = import_command(name)
    assert isinstance(command, Command), name
    return command


def all_commands() -> dict[str, tuple[str, str]]:
    """Return all commands, those of the core first, then those of features.

    By the name of each they are its module and its line in the help, such as {"apply":
    ("ropeconv.cli.commands.apply", "Write a checkpoint or GGUF file with ..."), ...}.

    Raises:
        RopeconvError: For a feature that cannot be loaded, and for a command whose name is taken.
    """
    commands = {}
    for name, (module, summary) in COMMANDS.items():
        commands[name] = (f"{__package__}.commands.{module}", summary)
    for feature in load_features().values():
        for name, (module, summary) in feature.commands.items():
            if name in commands:
                raise RopeconvError(f"{module} has a command {name}, as ropeconv has; rename it")
            commands[name] = (module, summary)
    return commands


@cache
def complete_app() -> typer.Typer:
    """Return the app with all commands. Raises as `all_commands` does.

    Each command is a `Stub` with the line for the help and a function. When the command is called,
    the stub calls its function, which imports the module of the command (`import_command`). So
    `ropeconv --help` imports none of these modules.

    `list methods` is the command `methods` in the group `list`.
    """
    groups: dict[str, typer.Typer] = {}
    for name, (_, summary) in all_commands().items():
        first_word, _, second_word = name.partition(" ")
        is_in_group = bool(second_word)
        if is_in_group and first_word not in groups:
            group = typer.Typer(cls=LazyGroup)
            group_help = GROUPS.get(first_word, "")
            app.add_typer(group, name=first_word, help=group_help, short_help=group_help)
            groups[first_word] = group

        # `command` is a decorator, of a function that imports the real command
        parent = groups[first_word] if is_in_group else app
        add_stub = parent.command(second_word or first_word, cls=Stub, short_help=summary)
        add_stub(_importer_of(name))
    return app


def _importer_of(name: str) -> Callable[[], Any]:
    """Return a function without parameters that imports the command of that name."""

    def load() -> Any:
        return import_command(name)

    return load


def _print_version(value: bool) -> None:
    if value:
        # imported here, so that the help needs none of it
        from ..runtimes.stored import current_data

        current = current_data()
        typer.echo(f"ropeconv {__version__} (runtime data {current.about.version})")
        if current.note:
            typer.echo(f"ropeconv: {current.note}", err=True)
        raise typer.Exit


@app.callback()
def ropeconv(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            help="Print the version, and that of the data about runtimes, and exit.",
            is_eager=True,
            callback=_print_version,
        ),
    ] = False,
) -> None:
    """Extend the context of models with RoPE, and verify that runtimes compute the extension."""
