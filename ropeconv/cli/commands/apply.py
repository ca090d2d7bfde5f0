"""`ropeconv apply`: plans outputs, writes and checks them, and publishes them where that is asked for."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated, Any

import typer

from ...hub.options import PublishOptions
from ..command import EXPERT, HUB, OUTPUT, RUNNING, Device
from ..options import (
    SOURCES,
    DryRunOption,
    ExplainOption,
    FamilyOption,
    ForceOption,
    JsonOption,
    NoFsyncOption,
    QuietOption,
    build_recipe,
    chosen_methods,
    with_recipe,
)
from ..output import Output
from ..output_options import names_ollama, with_target
from ..units import Flags, check_flags, refuse_push, units_of
from .push import named, refuse_without_push, with_publish

EXAMPLES = """Examples:

ropeconv apply meta-llama/Llama-2-7b --yarn 16

ropeconv apply ./Qwen2.5-7B-Instruct --mixed 4 --runtime transformers --runtime vllm --dry-run

ropeconv apply ./Meta-Llama-3-8B --theta-for 256k -o ./llama3-256k

ropeconv apply ./Qwen2.5-7B-Instruct --yarn 4 --to safetensors --to gguf --outtype q8_0 --outtype q4_k_m

ropeconv apply ./Llama-2-7b ./Llama-2-13b --yarn 4 -o ./extended/

ropeconv apply model-Q4_K_M.gguf --yarn 4 --in-place

ropeconv apply model-F16.gguf --yarn 4 --to safetensors

ropeconv apply Qwen/Qwen3-8B --yarn 4 --push me/Qwen3-8B-128k
"""


@with_recipe(dict)
@with_target
@with_publish
def apply_command(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE", help=SOURCES)],
    recipe: dict[str, Any],
    target: dict[str, Any],
    how: PublishOptions,
    family: FamilyOption = "",
    dry_run: DryRunOption = False,
    force: ForceOption = False,
    link: Annotated[
        bool,
        typer.Option(
            "--link",
            help="Hard-link unchanged files; programs that write into them also change the source.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    checksum: Annotated[
        bool, typer.Option("--checksum", help="Also record the hashes of copied weights.", rich_help_panel=EXPERT)
    ] = False,
    no_fsync: NoFsyncOption = False,
    explain: ExplainOption = False,
    push: Annotated[
        str,
        typer.Option(
            "--push",
            metavar="OWNER/NAME",
            help="Publish the output on the Hub; without -o, weights stay on the Hub.",
            rich_help_panel=HUB,
            show_default=False,
        ),
    ] = "",
    validate: Annotated[
        Device,
        typer.Option(
            "--validate",
            help="Compare logits after writing; auto: if a GPU is large enough.",
            rich_help_panel=RUNNING,
        ),
    ] = "off",
    ollama: Annotated[
        bool, typer.Option("--ollama", help="Write a Modelfile beside the GGUF file.", rich_help_panel=OUTPUT)
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write a checkpoint or GGUF file with a longer context.

    With several sources, all outputs are planned before the first one is written. With -q, only the path is printed.
    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the output does not compute the method, 130 interrupted.
    """
    from ...engines.probe import Probe

    output = Output(as_json, quiet)
    ollama = ollama or names_ollama(target)
    refuse_without_push(how, push)
    chosen = build_recipe(recipe)
    units = units_of(sources, target)
    if push:
        refuse_push(units)
    flags = Flags(
        how=named(how, push) if push else None,
        family=family,
        dry_run=dry_run,
        force=force,
        link=link,
        checksum=checksum,
        fsync=not no_fsync,
        explain=explain,
        validate=validate,
        ollama=ollama,
        by_length=not chosen_methods(recipe),
    )
    check_flags(units, flags)
    probing = not (dry_run or all(unit.to_gguf for unit in units)) and Probe.available()
    with Probe() if probing else nullcontext() as probe:
        # after the probe has been started, which takes longer to import transformers than all of this
        from ..batch import Batch

        batch = Batch(units, flags, output)
        plans = batch.plan(chosen)
        if dry_run:
            batch.show(plans)
        else:
            batch.run(plans, probe)
    if batch.code:
        raise typer.Exit(batch.code)
