"""`ropeconv` with all its commands, which are imported when they are needed."""

import click

from ..version import __version__
from .command import Group

LISTS = {"methods": "list", "families": "list", "archs": "list", "runtimes": "list"}
MODULES = {
    "inspect": "inspect", "advise": "inspect", "apply": "apply", "profiles": "profiles", "validate": "validate",
    "compare": "inspect", "restore": "restore", "push": "push", "train-config": "push", "eval": "eval", "tune": "tune",
    "run": "run", "ui": "ui", "plot": "plot", "bound": "bound",
}  # fmt: skip
"""The module in `commands` of each command, in the order of the help."""
COMMANDS = (*MODULES, *(f"list {name}" for name in LISTS))
"""The names of all commands."""


app = Group(
    "ropeconv", "Extend the context of models with RoPE, and verify that runtimes compute the extension.", MODULES
)
click.version_option(
    __version__, "-V", "--version", message="ropeconv %(version)s", help="Print the version and exit."
)(app)
app.add_command(Group("list", "List methods, model families, GGUF architectures or runtimes.", LISTS))


def find(name: str) -> click.Command:
    """Return the command of a name, such as `list methods`."""
    command: click.Command = app
    for word in name.split():
        assert isinstance(command, Group)
        subcommand = command.get_command(click.Context(command), word)
        assert subcommand is not None, name
        command = subcommand
    return command
