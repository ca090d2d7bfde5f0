"""`ropeconv profiles`: one model for several contexts, as folders or branches that share its
weights.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import to_builtins

from ...errors import Interruption, UsageError
from ...hub.options import PublishOptions, repository
from ...options import Option, OutputPlace, TargetOptions, options
from ..command import HUB, METHOD, OUTPUT, OptionGroup, expand_options, refuse
from ..execution import steps_after
from ..options import (
    SOURCE,
    DryRunOption,
    ExplainOption,
    FamilyOption,
    build_recipe,
    build_target,
    recipe_options,
    variable,
)
from ..screen import ProgressScreen, Screen
from ..typer_classes import Command

if TYPE_CHECKING:
    from ...bake.plan import Plan
    from ...bake.profiles import ProfilesPlan
    from ...rope.recipe import Recipe

app = typer.Typer(add_completion=False)

EXAMPLES = """
ropeconv profiles ./Qwen3-8B base yarn:2 yarn:4 -o ./qwen3
ropeconv profiles ./Qwen3-8B --yarn 2 --yarn 4 --yarn 8 -o ./qwen3
ropeconv profiles ./Qwen3-8B-Q4_K_M.gguf yarn:2 yarn:4 -o ./qwen3
ropeconv profiles Qwen/Qwen3-8B base yarn:4 --push me/Qwen3-8B-profiles
"""


def method_options() -> list[Option]:
    """The options of methods that have a value, each repeatable, as text."""
    valued = (
        option for option in recipe_options() if option.group == METHOD and option.kind is not bool
    )
    return [replace(option, kind=str, default=(), many=True) for option in valued]


def target_options() -> list[Option]:
    """The options of an output that hold for all profiles."""
    names = ("out", "runtimes", "replace", "encoding")
    return [option for option in options(OutputPlace, TargetOptions) if option.name in names]


@app.command("profiles", cls=Command, epilog=EXAMPLES)
@expand_options
def profiles_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=SOURCE)],
    methods: Annotated[dict[str, Any], OptionGroup(method_options)],
    target: Annotated[dict[str, Any], OptionGroup(target_options)],
    screen: ProgressScreen,
    named: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="METHOD:VALUE",
            help="The profiles, such as yarn:4, or base for the unchanged model.",
        ),
    ] = None,
    copy: Annotated[
        bool,
        typer.Option(
            "--copy",
            help="Copy the weights once, instead of making hard links to those of MODEL.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    push: Annotated[
        str,
        typer.Option(
            "--push",
            help="Publish the first profile as main, and each other one as a branch.",
            rich_help_panel=HUB,
            metavar="OWNER/NAME",
        ),
    ] = "",
    private: Annotated[
        bool, typer.Option("--private", help="Make the repository private.", rich_help_panel=HUB)
    ] = False,
    family: FamilyOption = "",
    dry_run: DryRunOption = False,
    explain: ExplainOption = False,
) -> None:
    """Write one model for several contexts, with its weights stored once.

    Each profile is a folder that can be served, validated, restored and pushed like an output of
    `apply`. All are written, or none. With -q, only the folder is printed.
    """
    from ...bake.hidden import discard
    from ...bake.profiles import profile_plans, profiles_plan
    from ...hub.card import with_card
    from ...models.open import open_source
    from ...views.plan import show_profiles

    if private and not push:
        raise UsageError("--private goes with --push OWNER/NAME; add it, or leave --private out")
    recipes = recipes_of(named or [], methods)
    publication = PublishOptions(private, repo_id=repository(push)) if push else None
    source = open_source(model, family)
    chosen = build_target(target)
    refuse(
        (
            push and source.kind == "gguf",
            (
                "--push is for checkpoints; write GGUF profiles with -o, and publish each with"
                f" `ropeconv push FILE {push} --exist-ok`"
            ),
        )
    )
    out = chosen.out or Path(f"{source.name}-profiles")
    keeps = not push or chosen.out is not None
    if out.exists() and not dry_run:
        discard(out)  # of a run that was killed after the folder had its name
    plans = profile_plans(source, recipes, replace(chosen, out=out if keeps else None))
    if keeps:
        plans = {name: with_card(plan) for name, plan in plans.items()}
    plan = profiles_plan(source, plans, out, copy)
    if not (screen.quiet or screen.as_json):
        show_profiles(plan, screen, explain, keeps)
    documents = {
        name: {"name": name, "own_bytes": plan.own_bytes(name), **profile.to_dict()}
        for name, profile in plans.items()
    }
    if dry_run and not screen.as_json:
        branches = ", ".join(["main", *list(plans)[1:]])
        screen.copyable(f"Would publish {push}: {branches}" if push else f"Would write {plan.out}")
    if not dry_run:
        if keeps:
            _write(plan, documents, screen)
        if publication:
            _publish(plans, publication, documents, screen)
    if screen.as_json:
        shared = sum(file.size for file in plan.shared)
        screen.data(
            {"out": str(plan.out), "shared_bytes": shared, "profiles": list(documents.values())}
        )


def _publish(
    plans: dict[str, Plan],
    publication: PublishOptions,
    documents: dict[str, dict[str, Any]],
    screen: Screen,
) -> None:
    """Publishes the first profile as main and each other one as a branch, and adds the URLs to
    their documents.
    """
    from ...bake.checkpoint import CheckpointPlan
    from .push import publish_staged

    first, *others = plans
    main = replace(
        publication, branches=tuple((name, plans[name].schedule.context) for name in others)
    )
    for name, plan in plans.items():
        here = main if name == first else replace(publication, revision=name, exist_ok=True)
        assert isinstance(plan, CheckpointPlan)
        _, url = publish_staged(plan, None, here, screen, checksum=False)
        documents[name] |= {"branch": here.revision or "main", "published": url}
        if not screen.as_json:
            screen.copyable(url if screen.quiet else f"{name}: {url}")


def recipes_of(named: list[str], methods: dict[str, Any]) -> list[Recipe]:
    """The recipes of the profiles: those after MODEL, of options, and in files. Raises UsageError
    without any.
    """
    from ...evaluate.row import parse_rows
    from ...rope.methods.method import REGISTRY, Value
    from ...rope.methods.vectors import AsIs
    from ...rope.recipe import Recipe

    kinds = {
        variable(name): kind for name, kind in REGISTRY.items() if kind.value is not Value.FILE
    }
    given = [(name, value) for name, values in methods.items() for value in values or ()]
    texts = [*named, *(f"{kinds[name].name}:{value}" for name, value in given if name in kinds)]
    recipes = [row.recipe or Recipe(AsIs()) for text in texts for row in parse_rows(text)]
    recipes += [build_recipe({name: value}) for name, value in given if name not in kinds]
    if not recipes:
        raise UsageError("name the profiles after MODEL, such as base yarn:2 yarn:4")
    return recipes


def _write(plan: ProfilesPlan, documents: dict[str, dict[str, Any]], screen: Screen) -> None:
    """Writes the folder, and prints the command of each profile. documents: by profile, which get
    the outcome.
    """
    from ...bake.profiles import write_profiles
    from ...inspection.receipts.receipt import CheckRecord, GgufCheckRecord
    from ...models.gguf import GgufSource

    try:
        with screen.progress("Writing", plan.bytes) as advance:
            outputs = write_profiles(plan, advance=advance)
    except KeyboardInterrupt:
        raise Interruption(
            f"interrupted; {plan.out} does not exist yet, and the same command continues"
        ) from None
    computed = [name for name, done in outputs.items() if isinstance(done.check, CheckRecord)]
    read_back: dict[str, list[str]] = {}
    for name, done in outputs.items():
        if isinstance(done.check, GgufCheckRecord):
            read_back.setdefault(done.check.sentence, []).append(name)
    for reason in dict.fromkeys(done.reason for done in outputs.values()):
        screen.note(reason and f"Not checked: {reason}.")
    if not screen.as_json:
        screen.copyable(str(plan.out) if screen.quiet else f"Wrote {plan.out}")
        if computed and not screen.quiet:
            screen.say(
                "Checked: the installed transformers computes the frequencies of"
                f" {', '.join(computed)}."
            )
        if not screen.quiet:
            for sentence, names in read_back.items():
                screen.say(f"Checked ({', '.join(names)}): {sentence}")
    against = str(plan.out / plan.files[0].name) if isinstance(plan.source, GgufSource) else ""
    for name, done in outputs.items():
        profile = plan.plans[name]
        steps = steps_after(profile, done, done.path, against=against)
        documents[name] |= {
            "path": str(done.path),
            "check": to_builtins(done.check),
            "run": list(steps.run),
            "train": steps.train,
            "validate": steps.check,
        }
        if screen.as_json or screen.quiet:
            continue
        if steps.train:
            screen.copyable(f"Train: {steps.train}")
        for line in steps.run:
            screen.copyable(f"{name}: {line}")
        if steps.check:
            screen.copyable(f"Check: {steps.check}")
