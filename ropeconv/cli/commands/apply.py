"""`ropeconv apply`: plans outputs, writes and checks them, and publishes them if that is asked for.

`apply_command` reads the options. The outputs themselves are made by `ropeconv.verbs.batch.Batch`,
and shown by `ropeconv.cli.batch.BatchView`. `--to overrides` writes nothing: `print_overrides`.
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
from ...rope.features import hook
from ...verbs.recipes import build_recipe, chosen_methods
from ...verbs.request import (
    ApplyRequest,
    OutputUnit,
    build_target,
    check_request,
    options_of_outputs,
    other_option,
    units_of,
)
from ..command import expand_options
from ..options import OR_GRAPH, ExplainOption, RecipeValues, TargetValues
from ..screen import ProgressScreen, Screen
from ..typer_classes import Command

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
)
"""Options that go with `--to overrides`, beside the method."""


@app.command("apply", cls=Command, epilog=EXAMPLES)
@expand_options
def apply_command(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE", help=OR_GRAPH)],
    recipe: RecipeValues,
    target: TargetValues,
    request: ApplyRequest,
    screen: ProgressScreen,
    explain: ExplainOption = False,
) -> None:
    """Write a checkpoint or GGUF file with a longer context.

    With several sources, all outputs are planned before the first one is written. With -q, only the
    path is printed. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the output does not compute the
    method (one that a validation does not confirm is kept), 130 interrupted.
    """
    from ...engines.probe import Probe

    # --context without a method chooses one (`by_length`)
    chosen = build_recipe(recipe)
    request = replace(request, by_length=not chosen_methods(recipe))

    # two kinds of output are made elsewhere: JSON for the command line of a server, and graphs
    if "overrides" in target["to"]:
        print_overrides(sources, chosen, target, request, screen)
        return
    if any(is_graph(source) for source in sources):
        if explain:
            raise UsageError("--explain does not go with a compiled graph; leave it out")
        hook("apply_graphs")(sources, chosen, target, request, screen)
        return

    # the outputs that are asked for, and whether all options go together
    units = units_of(sources, target)
    if request.draft:
        units.append(
            OutputUnit(
                source=request.draft,
                given=units[0].given,
                folder=None,
                label=request.draft,
                is_draft=True,
            )
        )
    if "ollama" in target["to"]:  # GGUF with a Modelfile, as with --runtime ollama
        request = replace(request, ollama=True)
    check_request(units, request)
    if request.push:
        publication = PublishOptions(
            request.private, create_pr=request.create_pr, repo_id=repository(request.push)
        )
        request = replace(request, publication=publication)

    # the probe asks the installed transformers about the first folder that is written
    writes_folder = not request.dry_run and not all(unit.to_gguf for unit in units)
    needs_probe = writes_folder and not request.no_check and Probe.available()
    with Probe() if needs_probe else nullcontext() as probe:
        # imported only here: meanwhile the probe, a process of its own, imports transformers
        from ...verbs.batch import Batch
        from ..batch import BatchView, complain_about

        batch = Batch(units, request, screen, complain_about)
        batch.plan(chosen)
        view = BatchView(batch, screen, explain)
        if request.dry_run:
            view.show_plans()
        else:
            view.write(probe)
    if batch.code:
        raise SystemExit(batch.code)


def print_overrides(
    sources: Sequence[str],
    recipe: Recipe,
    target: dict[str, Any],
    request: ApplyRequest,
    screen: Screen,
) -> None:
    """Print the JSON of `--to overrides` on stdout, and the commands with it on stderr.

    A runtime can get the RoPE of an extended model as an option, in JSON with keys of config.json,
    such as `--hf-overrides` of vLLM. So nothing is written, and options for writing are refused.

    Args:
        sources: The models; there may be one.
        recipe: The method and its modifiers.
        target: The options of the output, by name.
        request: The other options of `apply`.
        screen: Where it is printed.

    Raises:
        UsageError: For several sources, for options that say how an output is written, such as
            -o, and as `override_commands` does.
    """
    from ...bake.apply import make_plan
    from ...bake.overrides import describe_kept_limits, override_commands, overrides
    from ...models.open import open_source
    from ...models.reference import names_gguf
    from ...models.source import Source
    from ...views.sheet import sentence

    option_for_writing = other_option(request, target, OVERRIDING)
    if option_for_writing or len(sources) > 1 or len(target["to"]) > 1:
        superfluous = option_for_writing or "the others"
        raise UsageError(
            f"--to overrides prints JSON for one SOURCE and writes nothing; leave {superfluous} out"
        )

    # plan one output in the format of the source (no `to`), by default for vLLM
    from_gguf = names_gguf(sources[0])
    runtimes = target["runtime"]
    if not runtimes and not from_gguf:
        runtimes = ["vllm"]
    target_values = {**target, "to": (), "runtime": runtimes}
    options, *_ = options_of_outputs(target_values, from_gguf)
    source = open_source(sources[0], request.family)
    plan = make_plan(source, recipe, build_target(options))

    # its config, compared with that of the source, gives the JSON
    before = source.config() if isinstance(source, Source) else {}
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
    for warning in plan.warnings:
        screen.note(f"Note: {sentence(warning)}")
    kept_limits = describe_kept_limits(plan)
    if kept_limits:
        screen.note(f"Note: {sentence(kept_limits)}")
    for line in run:
        screen.copyable(f"Next: {line}", aside=True)
