"""`ropeconv profiles`: one model for several contexts, as folders or branches that share its weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from msgspec import to_builtins

from ...errors import Interrupted, UsageError
from ...hub.options import PublishOptions, repository
from ...options import Option, OutputPlace, TargetOptions, options
from ...rope.errors import counted
from ..command import HUB, METHOD, OUTPUT, OptionGroup, Positional, command, flag
from ..options import (
    SOURCE,
    DryRunOption,
    ExplainOption,
    FamilyOption,
    JsonOption,
    QuietOption,
    recipe_options,
    variable,
)
from ..output import Output
from ..output_options import build_target

if TYPE_CHECKING:
    from ...bake.checkpoint import CheckpointPlan
    from ...bake.profiles import ProfilesPlan
    from ...rope.recipe import Recipe

EXAMPLES = """
ropeconv profiles ./Qwen3-8B base yarn:2 yarn:4 -o ./qwen3
ropeconv profiles ./Qwen3-8B --yarn 2 --yarn 4 --yarn 8 -o ./qwen3
ropeconv profiles ./Qwen3-8B-Q4_K_M.gguf yarn:2 yarn:4 -o ./qwen3
ropeconv profiles Qwen/Qwen3-8B base yarn:4 --push me/Qwen3-8B-profiles
"""


def method_options() -> list[Option]:
    """The options of methods that have a value, each repeatable, as text."""
    valued = (one for one in recipe_options() if one.group == METHOD and one.kind is not bool)
    return [replace(one, kind=str, default=(), many=True) for one in valued]


def target_options() -> list[Option]:
    """The options of an output that hold for all profiles."""
    return [
        one for one in options(OutputPlace, TargetOptions) if one.name in ("out", "runtimes", "replace", "encoding")
    ]


@command(EXAMPLES, private=(lambda given: given["push"], "goes with --push OWNER/NAME; add it, or leave --private out"))
def profiles_command(
    model: Annotated[str, Positional("MODEL", SOURCE)],
    methods: Annotated[dict[str, Any], OptionGroup(method_options)],
    target: Annotated[dict[str, Any], OptionGroup(target_options)],
    named: Annotated[
        list[str] | None,
        Positional("[METHOD:VALUE]...", "The profiles, such as yarn:4, or base for the unchanged model."),
    ] = None,
    copy: Annotated[
        bool, flag("Copy the weights once, instead of making hard links to those of MODEL.", "--copy", OUTPUT)
    ] = False,
    push: Annotated[
        str, flag("Publish the first profile as main, and each other one as a branch.", "--push", HUB,
                  metavar="OWNER/NAME"),
    ] = "",
    private: Annotated[bool, flag("Make the repository private.", "--private", HUB)] = False,
    family: FamilyOption = "",
    dry_run: DryRunOption = False,
    explain: ExplainOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:  # fmt: skip
    """Write one model for several contexts, with its weights stored once.

    Each profile is a folder that can be served, validated, restored and pushed like an output of `apply`. All are
    written, or none. With -q, only the folder is printed.
    """
    from ...bake.profiles import profile_plans, profiles_plan
    from ...hub.upload_set import with_card
    from ...models.open import open_source
    from ...views.profiles import show_profiles

    output, recipes = Output(as_json, quiet), recipes_of(named or [], methods)
    how = PublishOptions(private, repo_id=repository(push)) if push else None
    source, chosen = open_source(model, family), build_target(target)
    plans = profile_plans(source, recipes, chosen)
    if how and source.kind == "gguf":
        raise UsageError(
            f"--push is for checkpoints; write GGUF profiles with -o, and publish each with `ropeconv push FILE {push}`"
        )
    keeps = how is None or chosen.out is not None
    plans = {name: with_card(plan) if keeps else plan for name, plan in plans.items()}
    plan = profiles_plan(source, plans, chosen.out or Path(f"{source.name}-profiles"), copy)
    if not (quiet or as_json):
        show_profiles(plan, output, explain, keeps)
    document: dict[str, Any] = {"out": str(plan.out), "shared_bytes": plan.shared_bytes}
    more: dict[str, dict[str, Any]] = {name: {"own_bytes": plan.own_bytes(name)} for name in plans}
    for name in plans if how else ():
        more[name]["branch"] = "main" if name == next(iter(plans)) else name
    if dry_run and not as_json:
        branches = ", ".join(str(one["branch"]) for one in more.values()) if how else ""
        output.copyable(f"Would publish {push}: {branches}" if how else f"Would write {plan.out}")
    if keeps and not dry_run:
        _write(plan, more, output)
    if how and not dry_run:
        _publish(plan, how, keeps, more, output)
    if as_json:
        profiles = [{"name": name, **more[name], **made.to_dict()} for name, made in plans.items()]
        output.data(document | {"profiles": profiles})


def recipes_of(named: list[str], methods: dict[str, Any]) -> list[Recipe]:
    """The recipes of the profiles, those after MODEL first. Raises UsageError where there is none."""
    from ...evaluate.row import parse_rows
    from ...rope.methods.method import REGISTRY
    from ...rope.methods.vectors import AsIs
    from ...rope.recipe import Recipe

    spelled = {variable(name): name for name in (*REGISTRY, "recipe")}
    texts = [*named, *(f"{spelled[name]}:{value}" for name, values in methods.items() for value in values or ())]
    if not texts:
        raise UsageError("name the profiles after MODEL, such as base yarn:2 yarn:4")
    return [row.recipe or Recipe(AsIs()) for text in texts for row in parse_rows(text)]


def _write(plan: ProfilesPlan, more: dict[str, dict[str, Any]], output: Output) -> None:
    """Writes the folder, and prints the command of each profile. more: what the document says of each, by name."""
    from ...bake.profiles import write_profiles
    from ...bake.warnings import run_commands

    try:
        with output.progress("Writing", plan.bytes) as advance:
            done = write_profiles(plan, advance=advance)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; {plan.out} does not exist yet, and the same command continues with the finished files"
        ) from None
    for reason in dict.fromkeys(filter(None, done.reasons.values())):
        output.note(f"Not checked: {reason}.")
    checks = [check for check in done.checks.values() if check]
    if checks and not (output.as_json or output.quiet):
        ulp = max(check.max_ulp for check in checks)
        output.say(
            f"Checked: transformers {checks[0].transformers} computes the frequencies of "
            f"{counted(len(checks), 'profile')} within {ulp} ulp of float32."
        )
    if not output.as_json:
        output.copyable(str(plan.out) if output.quiet else f"Wrote {plan.out}")
    for name, made in plan.plans.items():
        commands = run_commands(made, path := done.paths[name])
        more[name] |= {"check": to_builtins(done.checks.get(name)), "path": str(path), "run": commands}
        for line in commands if not (output.as_json or output.quiet) else ():
            output.copyable(f"{name}: {line}")


def _publish(
    plan: ProfilesPlan, how: PublishOptions, written: bool, more: dict[str, dict[str, Any]], output: Output
) -> None:
    """Publishes each profile, the first one as main. written: whether they are on this disk."""
    from ...hub.upload_set import from_plan
    from .push import publish_staged, send

    for name, made in plan.plans.items():
        here = replace(how, revision=name, exist_ok=True) if more[name]["branch"] == name else how
        if written:
            url = send(from_plan(made, made.out), here, output)
        else:
            url = publish_staged(cast("CheckpointPlan", made), None, here, output, checksum=False)[1]
        more[name] |= {"published": url}
        if not output.as_json:
            output.copyable(url if output.quiet else f"{name}: {url}")
