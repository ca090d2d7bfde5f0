"""`ropeconv` with all its commands, which are imported when they are called."""

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
"""The module in `commands` of each command, and the first line of its docstring, in the order of
the help.

The lines are here too, so that `ropeconv --help` does not import every command.
"""
LISTS = "List methods, model families, GGUF architectures or runtimes."

app = typer.Typer(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    pretty_exceptions_enable=False,
)
lists = typer.Typer(cls=LazyGroup)
app.add_typer(lists, name="list", help=LISTS, short_help=LISTS)


def find(name: str) -> Command:
    """Import and return the command of a name, such as `list methods`, also one of a feature."""
    if name in COMMANDS:
        module = f"{__package__}.commands.{COMMANDS[name][0]}"
    else:
        module = feature_commands()[name][0]
    command: Any = get_command(import_module(module).app)
    if hasattr(command, "commands"):  # a module with several commands is a group
        command = command.commands[name.removeprefix("list ")]
    assert isinstance(command, Command), name
    return command


def feature_commands() -> dict[str, tuple[str, str]]:
    """Return the commands of features: the module, and the line for the help.

    Raises:
        RopeconvError: For a feature that cannot be loaded, and for a command whose name is taken.
    """
    found: dict[str, tuple[str, str]] = {}
    for feature in load_features().values():
        for name, (module, summary) in feature.commands.items():
            if name in COMMANDS or name in found:
                raise RopeconvError(f"{module} has a command {name}, as ropeconv has; rename it")
            found[name] = (module, summary)
    return found


def all_commands() -> dict[str, tuple[str, str]]:
    """Return all commands, those of the core first: the module, and the line for the help."""
    return COMMANDS | feature_commands()


def _stub(name: str) -> Callable[[], Command]:
    """Return the function of a stub, which imports the command of that name."""

    def load() -> Command:
        return find(name)

    return load


for _name, (_, _summary) in COMMANDS.items():
    _group = lists if _name.startswith("list ") else app
    _group.command(_name.removeprefix("list "), cls=Stub, short_help=_summary)(_stub(_name))


@cache
def complete_app() -> typer.Typer:
    """Return the app with the commands of features. Raises as `feature_commands` does."""
    for name, (module, summary) in feature_commands().items():
        app.command(name, cls=Stub, short_help=summary)(_feature_stub(module))
    return app


def _feature_stub(module: str) -> Callable[[], Any]:
    """Return the function of a stub, which imports the command of a feature from its module."""

    def load() -> Any:
        return get_command(import_module(module).app)

    return load


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"ropeconv {__version__}")
        raise typer.Exit


@app.callback()
def ropeconv(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            help="Print the version and exit.",
            is_eager=True,
            callback=_print_version,
        ),
    ] = False,
) -> None:
    """Extend the context of models with RoPE, and verify that runtimes compute the extension."""
