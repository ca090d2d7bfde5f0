"""`ropeconv family`: the description of a model's family, derived from its class."""

from __future__ import annotations

from typing import Annotated

import typer

from ropeconv.cli.command import expand_options
from ropeconv.cli.options import SourceArgument, TrustOption
from ropeconv.cli.screen import ProgressScreen
from ropeconv.cli.typer_classes import Command
from ropeconv.errors import BadSource
from ropeconv.formats.drafts import write_file
from ropeconv.models.registry import by_model_type, family_folder
from ropeconv.options import OUTPUT, Writes

app = typer.Typer(add_completion=False)

EXAMPLES = """
ropeconv family ./new-model
ropeconv family ./new-model --save
ropeconv family ./new-model --trust-remote-code --save
"""


@app.command("family", cls=Command, epilog=EXAMPLES)
@expand_options
def family_command(
    source: SourceArgument,
    screen: ProgressScreen,
    trust_remote_code: TrustOption = False,
    save: Annotated[
        bool,
        typer.Option(
            "--save",
            help="Write it into the folder of your families, where every command finds it.",
            rich_help_panel=OUTPUT,
        ),
        Writes(),
    ] = False,
) -> None:
    """Print the description of a model's family, derived from its class.

    The class of the installed transformers is run without weights, or that of the model's own code
    with --trust-remote-code. Its queries and keys show which layers rotate, by which frequencies
    and in which pairs, and which keys of the config change that.
    """
    from .derivation import derive_family
    from .description import describe_in_toml, stated

    # the description as TOML, and for --json: `stated` returns the fields without the defaults, and
    # `not_derived` has sentences about facts that were not found
    family = derive_family(source, trust_remote_code=trust_remote_code)
    toml = describe_in_toml(family)
    json_document = {**stated(family), "not_derived": list(family.not_derived)}
    if not save:
        if screen.as_json:
            screen.data(json_document)
        else:
            screen.copyable(toml.rstrip("\n"))
        return

    # --save refuses a model type that has a description already
    model_type = family.model_types[0]
    known_family = by_model_type().get(model_type)
    if known_family is not None:
        raise BadSource(
            f"model_type {model_type!r} has a description already, the family"
            f" {known_family.name}; leave --save out"
        )
    path = family_folder() / f"{family.name}.toml"
    if path.exists():
        raise BadSource(f"{path} exists already; remove it first")

    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, toml)
    if screen.as_json:
        screen.data({**json_document, "file": str(path)})
        return
    screen.say(f"Wrote {path}")
    for fact in family.not_derived:
        screen.note(f"not found: {fact}")
