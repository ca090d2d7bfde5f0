"""`ropeconv apply`: plans outputs, writes and checks them, and publishes them where that is asked
for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import UsageError
from ...formats.kind import is_graph
from ...hub.options import PublishOptions, repository
from ..command import expand_options
from ..options import (
    OR_GRAPH,
    RecipeValues,
    TargetValues,
    build_recipe,
    build_target,
    chosen_methods,
    names_ollama,
    split,
)
from ..screen import ProgressScreen, Screen
from ..typer_classes import Command
from ..units import Flags, OutputUnit, check_flags, other_option, units_of

if TYPE_CHECKING:
    from ...rope.recipe import Recipe

app = typer.Typer(add_completion=False)

EXAMPLES = """
ropeconv apply meta-llama/Llama-2-7b --yarn 16
ropeconv apply ./Qwen2.5-7B-Instruct --mixed 4 --runtime transformers --runtime vllm --dry-run
ropeconv apply ./Meta-Llama-3-8B --theta-for 256k -o ./llama3-256k
ropeconv apply ./Qwen2.5-7B-Instruct --yarn 4 --to safetensors --to gguf --outtype q8_0 --outtype q4_k_m
ropeconv apply ./Llama-2-7b ./Llama-2-13b --yarn 4 -o ./extended/
ropeconv apply model-Q4_K_M.gguf --yarn 4 --in-place
ropeconv apply model-F16.gguf --yarn 4 --to safetensors
ropeconv apply Qwen/Qwen3-8B --yarn 4 --push me/Qwen3-8B-128k
ropeconv apply Qwen/Qwen3-8B --yarn 4 --to overrides --runtime sglang
ropeconv apply ./Meta-Llama-3-8B-Instruct --yarn 4 --draft ./EAGLE3-LLaMA3-Instruct-8B -o ./llama3-32k
"""


OVERRIDING = (
    "to",
    "runtime",
    "encoding",
    "replace",
    "dual_chunk",
    "allow_approximate",
    "allow_untested",
    "family",
    "by_length",
    "dry_run",
    "explain",
)
"""Options that go with `--to overrides`, beside the method."""


@app.command("apply", cls=Command, epilog=EXAMPLES)
@expand_options
def apply_command(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE", help=OR_GRAPH)],
    recipe: RecipeValues,
    target: TargetValues,
    flags: Flags,
    screen: ProgressScreen,
) -> None:
    """Write a checkpoint or GGUF file with a longer context.

    With several sources, all outputs are planned before the first one is written. With -q, only the
    path is printed. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the output does not compute the
    method, 130 interrupted.
    """
    from ...engines.probe import Probe

    if flags.private and not flags.push:
        raise UsageError("--private goes with --push OWNER/NAME; add it, or leave --private out")
    if flags.create_pr and not flags.push:
        raise UsageError(
            "--create-pr goes with --push OWNER/NAME; add it, or leave --create-pr out"
        )
    chosen = build_recipe(recipe)
    if "overrides" in target["to"]:
        print_overrides(sources, chosen, target, flags, screen)
        return
    if any(is_graph(source) for source in sources):
        from ..graphs import apply_graphs

        apply_graphs(sources, chosen, target, flags, screen)
        return
    units = units_of(sources, target)
    if flags.draft:
        units.append(OutputUnit(flags.draft, units[0].given, None, flags.draft, is_draft=True))
    flags = replace(
        flags, ollama=flags.ollama or names_ollama(target), by_length=not chosen_methods(recipe)
    )
    check_flags(units, flags)
    if flags.push:
        publication = PublishOptions(
            flags.private, create_pr=flags.create_pr, repo_id=repository(flags.push)
        )
        flags = replace(flags, publication=publication)
    probing = not (flags.dry_run or all(unit.to_gguf for unit in units)) and Probe.available()
    with Probe() if probing else nullcontext() as probe:
        # after the probe has been started, which takes longer to import transformers than all of
        # this
        from ..batch import Batch

        batch = Batch(units, flags, screen)
        batch.plan(chosen)
        if flags.dry_run:
            batch.show()
        else:
            batch.run(probe)
    if batch.code:
        raise SystemExit(batch.code)


def print_overrides(
    sources: Sequence[str], recipe: Recipe, target: dict[str, Any], flags: Flags, screen: Screen
) -> None:
    """Prints what `--to overrides` asks for: the JSON on stdout, and the command with it on stderr.

    Raises UsageError for several sources, for options of an output that is written, and as
    `override_commands` does.
    """
    from ...bake.apply import make_plan
    from ...bake.overrides import kept_limits, override_commands, overrides
    from ...models.open import open_source
    from ...models.reference import names_gguf
    from ...models.source import Source
    from ...views.sheet import sentence

    given = other_option(flags, target, OVERRIDING)
    if given or len(sources) > 1 or len(target["to"]) > 1:
        raise UsageError(
            "--to overrides prints JSON for one SOURCE and writes nothing; leave"
            f" {given or 'the others'} out"
        )
    from_gguf = names_gguf(sources[0])
    runtimes = target["runtime"] or ([] if from_gguf else ["vllm"])
    unit, *_ = split(target | {"to": (), "runtime": runtimes}, from_gguf)
    source = open_source(sources[0], flags.family)
    before = source.config() if isinstance(source, Source) else {}
    plan = make_plan(source, recipe, build_target(unit))
    values = overrides(plan, before)
    text = json.dumps(values)
    run = override_commands(plan, text)
    if screen.as_json:
        document = {
            "overrides": values,
            "context": plan.schedule.context,
            "run": run,
            "warnings": list(plan.warnings),
        }
        screen.data(document)
        return
    screen.copyable(text)
    for note in (*plan.warnings, *filter(None, [kept_limits(plan)])):
        screen.note(f"Note: {sentence(note)}")
    for line in run:
        screen.copyable(f"Next: {line}", aside=True)
