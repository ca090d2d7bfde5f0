"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from ..version import __version__
from . import advise, apply, bound, inspect, plot, push, schedule, tables, validate

app = typer.Typer(
    name="ropeconv",
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
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.command("apply", epilog=apply.EXAMPLES)(apply.apply_command)
app.command("inspect")(inspect.inspect_command)
app.command("advise", epilog=advise.EXAMPLES)(advise.advise_command)
app.command("bound", epilog=bound.EXAMPLES)(bound.bound_command)
app.command("plot", epilog=plot.EXAMPLES)(plot.plot_command)
app.command("schedule", epilog=schedule.EXAMPLES)(schedule.schedule_command)
app.command("validate")(validate.validate_command)
app.command("push")(push.push_command)
app.command("methods")(tables.methods_command)
app.command("families")(tables.families_command)
app.command("archs")(tables.archs_command)
app.command("runtimes")(tables.runtimes_command)
