"""The typer application with all commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from ..version import __version__
from .command import Command, Group
from .commands import (
    advise,
    apply,
    bound,
    eval,
    inspect,
    push,
    restore,
    run,
    schedule,
    tables,
    train_config,
    tune,
    ui,
    validate,
)

app = typer.Typer(
    name="ropeconv",
    cls=Group,
    help="Bake a RoPE context extension into a checkpoint, and prove that stock runtimes compute it.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ropeconv {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "apply": (apply.apply_command, apply.EXAMPLES),
    "restore": (restore.restore_command, restore.EXAMPLES),
    "inspect": (inspect.inspect_command, inspect.INSPECT_EXAMPLES),
    "compare": (inspect.compare_command, inspect.COMPARE_EXAMPLES),
    "advise": (advise.advise_command, advise.EXAMPLES),
    "bound": (bound.bound_command, bound.EXAMPLES),
    "plot": (schedule.plot_command, schedule.PLOT_EXAMPLES),
    "schedule": (schedule.schedule_command, schedule.SCHEDULE_EXAMPLES),
    "validate": (validate.validate_command, validate.EXAMPLES),
    "eval": (eval.eval_command, eval.EXAMPLES),
    "tune": (tune.tune_command, tune.EXAMPLES),
    "push": (push.push_command, push.EXAMPLES),
    "train-config": (train_config.train_config_command, train_config.EXAMPLES),
    "ui": (ui.ui_command, ui.EXAMPLES),
    "run": (run.run_command, run.EXAMPLES),
    "methods": (tables.methods_command, tables.METHODS_EXAMPLES),
    "families": (tables.families_command, tables.FAMILIES_EXAMPLES),
    "archs": (tables.archs_command, tables.ARCHS_EXAMPLES),
    "runtimes": (tables.runtimes_command, tables.EXAMPLES),
}
"""Every command, with the examples below its help."""

for _name, (_command, _examples) in COMMANDS.items():
    app.command(_name, cls=Command, epilog=_examples)(_command)
