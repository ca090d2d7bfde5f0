"""`ropeconv probe`: what an installed runtime computes from a model's config."""

from typing import Annotated

import typer

from ..command import expand_options
from ..options import FamilyOption, PythonOption
from ..screen import Screen
from ..typer_classes import Command

app = typer.Typer(add_completion=False)

EXAMPLES = """
ropeconv probe vllm ./Qwen3-8B-yarn4
ropeconv probe vllm ./Qwen3-8B-yarn4 --python ~/vllm/bin/python
ropeconv probe mlx-lm Qwen/Qwen3-8B --json
ropeconv probe vllm
"""


@app.command("probe", cls=Command, epilog=EXAMPLES)
@expand_options
def probe_command(
    runtime: Annotated[
        str,
        typer.Argument(metavar="RUNTIME", help="transformers, vllm, mlx-lm or exllamav3."),
    ],
    screen: Screen,
    model: Annotated[
        str,
        typer.Argument(
            metavar="[MODEL]",
            help="A folder, a config.json, or owner/name on the Hub; without it, only the version"
            " that is installed is printed.",
        ),
    ] = "",
    python: PythonOption = "",
    family: FamilyOption = "",
) -> None:
    """Ask an installed runtime what it computes from a model's config.

    The runtime builds its own model class from config.json, without weights and on the CPU, in a
    process of its own. Its frequencies, attention factor and layers are compared with the method
    of an output, or with what transformers reads from the config of another model.

    Exit codes: 0 it computes them, 1 it cannot be asked about this model, 3 it computes something
    else or fails.
    """
    from ...errors import UsageError
    from ...models.open import open_source
    from ...verbs.probing import probe_source, require_installed

    installed = require_installed(runtime, python)
    if not model:
        if family:
            raise UsageError("--family goes with a MODEL; name one, or leave it out")
        if screen.as_json:
            screen.data(
                {
                    "runtime": installed.name,
                    "version": installed.version,
                    "python": installed.installation.python,
                    "versions": installed.installation.versions,
                }
            )
        else:
            screen.say(f"{installed.title} is installed in {installed.installation.python}")
        return

    installed.tell = screen.note
    try:
        result = probe_source(installed, open_source(model, family))
    finally:
        installed.stop()
    if screen.as_json:
        screen.data(result.to_dict())
    elif screen.quiet:
        screen.say(result.status)
    else:
        screen.table(f"{model} in {result.title}", ("", ""), result.rows())
    if result.is_wrong:
        raise SystemExit(3)
    if not result.is_right:
        raise SystemExit(1)
