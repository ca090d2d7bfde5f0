"""`ropeconv apply`: plans an output, writes it, checks it, and publishes it where that is asked for."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import Interrupted, UsageError
from ..hub.publish_options import PublishOptions
from ..rope.recipe import Recipe
from .choices import Device
from .command import GENERAL, GGUF, HUB, OUTPUT, RUNTIMES
from .options import (
    DryRunOption,
    FamilyOption,
    ForceOption,
    JsonOption,
    NoFsyncOption,
    QuietOption,
    SourceArgument,
    build_recipe,
    with_recipe,
)
from .outcome import Outcome, show_outcome
from .output import Output
from .publishing import named, refuse_without_push, send, show_preview, with_publish, written_before
from .target_options import build_target, with_target

if TYPE_CHECKING:
    from ..bake import Plan
    from ..engines.probe import Probe
    from ..validate.rule.validation import Validation

EXAMPLES = """Examples:

ropeconv apply meta-llama/Llama-2-7b --yarn 16

ropeconv apply ./Qwen2.5-7B-Instruct --mixed 4 --runtime transformers --runtime vllm --dry-run

ropeconv apply ./Meta-Llama-3-8B --theta-for 256k -o ./llama3-256k

ropeconv apply ./Qwen2.5-7B-Instruct --yarn 4 --to gguf --outtype q4_k_m

ropeconv apply model-Q4_K_M.gguf --yarn 4 --in-place

ropeconv apply model-F16.gguf --yarn 4 --to safetensors

ropeconv apply Qwen/Qwen3-8B --yarn 4 --push me/Qwen3-8B-128k
"""


@with_recipe(build_recipe)
@with_target
@with_publish
def apply_command(
    source: SourceArgument,
    recipe: Recipe,
    target: dict[str, Any],
    how: PublishOptions,
    family: FamilyOption = "",
    dry_run: DryRunOption = False,
    force: ForceOption = False,
    link: Annotated[
        bool,
        typer.Option(
            "--link",
            help="Hard-link unchanged files. A trainer that saves into them changes the source too.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    checksum: Annotated[
        bool, typer.Option("--checksum", help="Hash copied weights as well, for the receipt.", rich_help_panel=OUTPUT)
    ] = False,
    no_fsync: NoFsyncOption = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Say what every runtime computes and why, and why each encoding was selected or not.",
            rich_help_panel=RUNTIMES,
        ),
    ] = False,
    push: Annotated[
        str,
        typer.Option(
            "--push",
            metavar="OWNER/NAME",
            help="Publish it on the Hub; without -o nothing large touches this disk.",
            rich_help_panel=HUB,
            show_default=False,
        ),
    ] = "",
    validate: Annotated[
        Device,
        typer.Option(
            "--validate",
            help="Validate the output on logits; auto: where a GPU is large enough.",
            rich_help_panel=GENERAL,
        ),
    ] = "off",
    ollama: Annotated[
        bool, typer.Option("--ollama", help="Write a Modelfile beside the GGUF file.", rich_help_panel=GGUF)
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Bake a context extension into a checkpoint. With -q only the path of the output is printed.

    Exit codes: 0 done, 1 a known failure, 2 usage, 3 the output does not compute the schedule, 130 interrupted.
    """
    from ..engines.probe import Probe

    output = Output(as_json, quiet)
    refuse_without_push(how, push)
    if Path(source).name.startswith("Modelfile"):  # others are resolved later: that imports numpy
        from ..sources import resolved

        source = resolved(source)
    gguf = source.endswith(".gguf")
    if target["in_place"] and gguf and not dry_run and target["out"] is None:
        recovered(source, output)
    to_gguf = target["to"] == "gguf" or (gguf and target["to"] is None)
    probing = not (dry_run or to_gguf) and Probe.available()
    with Probe() if probing else nullcontext() as probe:
        # after the probe has been started, which takes longer to import transformers than all of this
        from ..bake import make_plan
        from ..bake.running import modelfile_of, run_commands, write_modelfile
        from ..sources import open_source
        from .views import show_plan

        wanted = build_target(target)
        wanted.check(recipe, from_gguf=gguf)  # before anything is read or fetched
        output.note(recipe.method.slow_note)
        plan = make_plan(open_source(source, family), recipe, wanted)
        _check_flags(plan, link, force, checksum, no_fsync, validate, push)
        if ollama:
            modelfile_of(plan)
        if dry_run:
            if quiet and not as_json:
                output.copyable(str(plan.out))
            elif not as_json:
                show_plan(plan, output, explain)
            publication = {"publication": _previewed(plan, named(how, push), output)} if push else {}
            if as_json:
                output.data(plan.to_dict() | publication)
            return
        if push and not force and written_before(plan, output):
            output.note(f"{plan.out} is there from an earlier run of this command, and is published as it is.")
            done = Outcome(plan.out)
        else:
            done = _execute(
                plan, probe, named(how, push) if push else None, output, link, force, checksum, not no_fsync
            )
    if validate != "off" and done.path is not None:
        done.proof = _validated(plan, done.path, validate, output)
    if push and not done.published and done.path and (done.proof is None or done.proof.agrees):
        from ..hub.upload_set import from_gguf, from_plan

        what = from_plan(plan, done.path) if plan.is_folder else from_gguf(done.path)
        done.published = send(what, named(how, push), output)
    if done.path is not None:
        done.run = run_commands(plan, done.path, write_modelfile(plan) if ollama else None)
    show_outcome(plan, done, output, explain)
    if done.proof is not None and not done.proof.agrees:
        raise typer.Exit(3)


def _previewed(plan: Plan, how: PublishOptions, output: Output) -> dict[str, Any]:
    """Prints what publishing a plan would do, and returns it as JSON-ready data."""
    from ..hub.upload_set import planned

    return {} if output.quiet and not output.as_json else show_preview(planned(plan), how, output)


def _execute(
    plan: Plan,
    probe: Probe | None,
    how: PublishOptions | None,
    output: Output,
    link: bool,
    force: bool,
    checksum: bool,
    fsync: bool,
) -> Outcome:
    """Executes a plan. With `how` and without -o it is written to a temporary folder and published from there."""
    from ..bake import CheckpointPlan, apply
    from .publishing import publish_staged

    if how is not None and plan.target.out is None and isinstance(plan, CheckpointPlan):
        check, published = publish_staged(plan, probe, how, output, checksum)
        return Outcome(check=check, published=published)
    try:
        with output.progress("Writing", plan.bytes) as advance:
            done = apply(plan, link=link, force=force, checksum=checksum, fsync=fsync, advance=advance, probe=probe)
    except KeyboardInterrupt:
        raise Interrupted(_left(plan)) from None
    output.note(done.reason and f"Not checked: {done.reason}.")
    return Outcome(done.path, done.check)


def _left(plan: Plan) -> str:
    """The message of an interrupted run: what remains on disk, and how to go on."""
    if plan.target.in_place:
        return f"interrupted in a change of {plan.out}; the same command undoes it first, and then starts again"
    return (
        f"interrupted; {plan.out} is not there yet, and finished files are kept in a hidden folder beside it: the same "
        "command goes on from them"
    )


def _check_flags(plan: Plan, link: bool, force: bool, checksum: bool, no_fsync: bool, validate: str, push: str) -> None:
    """Raises UsageError for options that have no effect on the output of a plan."""
    from ..bake import CheckpointPlan

    folder = isinstance(plan, CheckpointPlan)
    if validate != "off" and not folder:
        raise UsageError("--validate is for checkpoints; run `ropeconv validate` on the GGUF file afterwards")
    if checksum and not folder:
        raise UsageError("--checksum goes with a folder as output, whose receipt lists files; leave it out")
    given = {"--link": link, "--push": push, "--force": force, "--no-fsync": no_fsync}
    flag = next((name for name, value in given.items() if value), "")
    if plan.target.in_place and flag:
        raise UsageError(f"{flag} does not go with --in-place; leave one out")
    if link and not folder:
        raise UsageError("--link goes with a folder as output, whose unchanged files it links; leave it out")
    if push and validate != "off" and plan.target.out is None:
        raise UsageError("--push with --validate needs -o, so that there is something to validate; add it")


def _validated(plan: Plan, path: Path, where: str, output: Output) -> Validation | None:
    """Validates an output. Returns None, after a note, where `auto` finds no GPU with enough memory."""
    from ..engines.transformers.device import free_gpu_bytes
    from ..validate.comparison import Comparison
    from ..validate.settings import Settings
    from ..verify import Options
    from .running import compare_files, run_checkpoint

    if where == "auto":
        free = free_gpu_bytes()
        if free < 1.2 * plan.bytes:
            reason = "no GPU is here" if not free else "the GPU is too small"
            again = f"`ropeconv validate {path} --against {plan.source.reference}` does it on the CPU"
            output.note(f"Not validated: {reason}; {again}.")
            return None
    comparison = Comparison.open(path, plan.source.reference)
    settings = Settings(device="cuda" if where == "auto" else where)
    settings.place()
    return run_checkpoint(comparison, settings, output, compare_files(comparison, Options(), output))


def recovered(source: str, output: Output) -> None:
    """Undoes an interrupted change of a GGUF file, and says so."""
    from ..formats.gguf.inplace import recover

    if recover(Path(source)):
        output.note(f"An interrupted change of {source} was undone first.")
