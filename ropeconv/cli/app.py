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
    list,
    plot,
    push,
    restore,
    run,
    train_config,
    tune,
    ui,
    validate,
)


def _typer(name: str, help: str) -> typer.Typer:
    return typer.Typer(
        name=name,
        cls=Group,
        help=help,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


app = _typer("ropeconv", "Extend the context of models with RoPE, and verify that runtimes compute the extension.")
tables = _typer("list", "List methods, model families, GGUF architectures or runtimes.")


def _version(requested: bool) -> None:
    if requested:
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
    "inspect": (inspect.inspect_command, inspect.INSPECT_EXAMPLES),
    "advise": (advise.advise_command, advise.EXAMPLES),
    "apply": (apply.apply_command, apply.EXAMPLES),
    "validate": (validate.validate_command, validate.EXAMPLES),
    "compare": (inspect.compare_command, inspect.COMPARE_EXAMPLES),
    "restore": (restore.restore_command, restore.EXAMPLES),
    "push": (push.push_command, push.EXAMPLES),
    "train-config": (train_config.train_config_command, train_config.EXAMPLES),
    "eval": (eval.eval_command, eval.EXAMPLES),
    "tune": (tune.tune_command, tune.EXAMPLES),
    "run": (run.run_command, run.EXAMPLES),
    "ui": (ui.ui_command, ui.EXAMPLES),
    "plot": (plot.plot_command, plot.EXAMPLES),
    "bound": (bound.bound_command, bound.EXAMPLES),
    "list methods": (list.methods_command, list.METHODS_EXAMPLES),
    "list families": (list.families_command, list.FAMILIES_EXAMPLES),
    "list archs": (list.archs_command, list.ARCHS_EXAMPLES),
    "list runtimes": (list.runtimes_command, list.RUNTIMES_EXAMPLES),
}
"""Every command, with the examples below its help."""

app.add_typer(tables)
for _name, (_command, _examples) in COMMANDS.items():
    _parent, _, _last = _name.rpartition(" ")
    (tables if _parent else app).command(_last, cls=Command, epilog=_examples)(_command)
