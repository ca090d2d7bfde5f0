"""`ropeconv profiles`: one model for several contexts, as folders that share its weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import to_builtins

from ropeconv.cli.command import OptionGroup, expand_options
from ropeconv.cli.options import SOURCE, DryRunOption, ExplainOption, FamilyOption
from ropeconv.cli.screen import ProgressScreen, Screen
from ropeconv.cli.typer_classes import Command
from ropeconv.errors import UsageError
from ropeconv.hub.options import PublishOptions, repository
from ropeconv.options import (
    HUB,
    METHOD,
    OUTPUT,
    Option,
    OutputPlace,
    TargetOptions,
    Writes,
    options,
)
from ropeconv.verbs.recipes import recipe_options
from ropeconv.verbs.request import build_target

if TYPE_CHECKING:
    from ropeconv.bake.output import Output

    from .plan import ProfilesPlan

app = typer.Typer(add_completion=False)

EXAMPLES = """
ropeconv profiles ./Qwen3-8B base yarn:2 yarn:4 -o ./qwen3
ropeconv profiles ./Qwen3-8B --yarn 2 --yarn 4 --yarn 8 -o ./qwen3
ropeconv profiles ./Qwen3-8B-Q4_K_M.gguf yarn:2 yarn:4 -o ./qwen3
ropeconv profiles Qwen/Qwen3-8B base yarn:4 --push me/Qwen3-8B-profiles
"""


def method_options() -> list[Option]:
    """Return an option for each method that has a value, such as --yarn.

    Each can be given several times, once for a profile, and its value is a text.
    """
    repeatable = []
    for option in recipe_options():
        if option.group == METHOD and option.kind is not bool:
            repeatable.append(replace(option, kind=str, default=(), many=True))
    return repeatable


def target_options() -> list[Option]:
    """Return the options of an output that hold for all profiles."""
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
        Writes(),
    ] = False,
    push: Annotated[
        str,
        typer.Option(
            "--push",
            help="Publish the first profile as main, and each other one as a branch.",
            rich_help_panel=HUB,
            metavar="OWNER/NAME",
        ),
        Writes(),
    ] = "",
    private: Annotated[
        bool,
        typer.Option("--private", help="Make the repository private.", rich_help_panel=HUB),
        Writes(),
    ] = False,
    family: FamilyOption = "",
    dry_run: DryRunOption = False,
    explain: ExplainOption = False,
) -> None:
    """Write one model for several contexts, with its weights stored once.

    Each profile is a folder that can be served, validated, restored and pushed like an output of
    `apply`. All are written, or none. With -q, only the folder is printed.
    """
    from ropeconv.models.open import open_source

    from .views import show_profiles
    from .writing import (
        ProfilesRequest,
        parse_profiles,
        plan_profiles,
        profile_document,
        publish_profiles,
        write_profile_set,
    )

    if private and not push:
        raise UsageError("--private goes with --push OWNER/NAME; add it, or leave --private out")
    recipes = parse_profiles(named or [], methods)
    publication = None
    if push:
        publication = PublishOptions(private, repo_id=repository(push))
    request = ProfilesRequest(
        target=build_target(target), copy=copy, publication=publication, dry_run=dry_run
    )
    plan = plan_profiles(open_source(model, family), recipes, request)
    if not screen.quiet and not screen.as_json:
        show_profiles(plan, screen, explain, written=request.keeps)

    # with --push, the profiles are kept on this disk only if -o names a place
    documents = {name: profile_document(plan, name) for name in plan.plans}
    if request.keeps and not dry_run:
        outputs = write_profile_set(plan, screen)
        _show(plan, outputs, screen)
        for name, output in outputs.items():
            documents[name] |= _outcome(output)
    if publication and not dry_run:
        published = publish_profiles(plan.plans, publication, screen)
        for name, (branch, url) in published.items():
            documents[name] |= {"branch": branch, "published": url}
            if not screen.as_json:
                screen.copyable(url if screen.quiet else f"{name}: {url}")

    if screen.as_json:
        document = {
            "out": str(plan.out),
            "shared_bytes": plan.shared_bytes,
            "profiles": list(documents.values()),
        }
        screen.data(document)
    elif dry_run:
        _show_intention(plan, push, screen)


def _show_intention(plan: ProfilesPlan, push: str, screen: Screen) -> None:
    """Print what would be written or published; `push` is the repository, or empty."""
    if not push:
        screen.copyable(f"Would write {plan.out}")
        return
    _, *others = plan.plans  # the first profile is main, and the others are branches
    branches = ", ".join(["main", *others])
    screen.copyable(f"Would publish {push}: {branches}")


def _outcome(output: Output) -> dict[str, Any]:
    """Return the part of the JSON document about a profile that was written."""
    return {
        "path": str(output.path),
        "check": to_builtins(output.check),
        "run": list(output.steps.run),
        "train": output.steps.train,
        "validate": output.steps.check,
    }


def _show(plan: ProfilesPlan, outputs: dict[str, Output], screen: Screen) -> None:
    """Print what was written, what was checked, and the commands of each profile.

    Args:
        plan: The plan of all profiles, which was executed.
        outputs: The outputs by the name of the profile, such as "yarn4".
        screen: Where they are printed.
    """
    from ropeconv.inspection.receipts.receipt import CheckRecord, GgufCheckRecord

    if screen.as_json:
        return
    if screen.quiet:
        screen.copyable(str(plan.out))
        return
    are_complete = all(output.was_complete for output in outputs.values())
    verb = "Unchanged:" if are_complete else "Wrote"
    screen.copyable(f"{verb} {plan.out}")

    # one line for all profiles with the same check
    computed = [name for name, done in outputs.items() if isinstance(done.check, CheckRecord)]
    if computed:
        names = ", ".join(computed)
        screen.say(f"Checked: the installed transformers computes the frequencies of {names}.")
    read_back: dict[str, list[str]] = {}
    for name, done in outputs.items():
        if isinstance(done.check, GgufCheckRecord):
            read_back.setdefault(done.check.sentence, []).append(name)
    for sentence, checked in read_back.items():
        screen.say(f"Checked ({', '.join(checked)}): {sentence}")

    for name, output in outputs.items():
        if output.steps.train:
            screen.copyable(f"Train: {output.steps.train}")
        for line in output.steps.run:
            screen.copyable(f"{name}: {line}")
        if output.steps.check:
            screen.copyable(f"Check: {output.steps.check}")
