"""One model for several contexts, as folders or branches that share its weights."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

from ropeconv.bake.apply import AppliedPlan
from ropeconv.bake.checkpoint import CheckpointPlan
from ropeconv.bake.hidden import discard_stopped_run
from ropeconv.bake.output import Output
from ropeconv.bake.plan import Plan
from ropeconv.convert.target import Target
from ropeconv.errors import Interruption, UsageError
from ropeconv.formats.files import expand_home
from ropeconv.formats.jsontext import JsonObject
from ropeconv.hub.card import list_branch, with_card
from ropeconv.hub.options import PublishOptions
from ropeconv.keywords import StrPath
from ropeconv.models.gguf import GgufSource
from ropeconv.models.source import Source
from ropeconv.reporting import Reporter, SilentReporter
from ropeconv.rope.methods.method import REGISTRY, Value
from ropeconv.rope.methods.vectors import AsIs
from ropeconv.rope.recipe import Recipe
from ropeconv.verbs.arguments import check_arguments, source_of
from ropeconv.verbs.output import make_output
from ropeconv.verbs.recipes import build_recipe, variable
from ropeconv.verbs.rows import parse_rows

from .plan import ProfilesPlan, plan_each_profile, plan_shared_folder, write_profiles


@dataclass(frozen=True)
class ProfilesRequest:
    """How profiles are made."""

    target: Target
    """Runtimes, encoding and place; `out` is the folder of all profiles, None for the usual one."""

    copy: bool = False
    """Copy the weights once, instead of making hard links to those of the model."""

    publication: PublishOptions | None = None
    """How the profiles are published: the first as main, each other one as a branch."""

    dry_run: bool = False
    """Whether nothing is written."""

    @property
    def keeps(self) -> bool:
        """Whether the profiles are kept on this disk."""
        return self.publication is None or self.target.out is not None


@check_arguments
def profiles(
    model: object,
    methods: str | Sequence[str],
    out: StrPath | None = None,
    *,
    runtime: str | Sequence[str] = (),
    encoding: str = "auto",
    replace: bool = False,
    copy: bool = False,
    family: str = "",
    reporter: Reporter | None = None,
) -> dict[str, Output]:
    """Write one model for several contexts, with its weights stored once.

    Args:
        model: A path, an id on the Hub, or a source.
        methods: The profiles, such as "base,yarn:2,yarn:4" or a list of them.
        out: The folder of all profiles, by default `./NAME-profiles`.
        runtime: Runtimes that all profiles are for.
        encoding: How the methods are written.
        replace: Replace the scaling that the model has.
        copy: Copy the weights once, instead of making hard links to those of the model.
        family: The family to treat it as.
        reporter: Receives progress, and sentences for the user.

    Returns:
        The outputs by name; all are written, or none.

    Raises:
        UsageError: For two profiles of one name, and none.
        RopeconvError: As `apply` does, and for a method that changes weights.
    """
    # "base,yarn:2" or ["base", "yarn:2"]; one runtime or several
    texts = methods.split(",") if isinstance(methods, str) else list(methods)
    runtimes = (runtime,) if isinstance(runtime, str) else tuple(runtime)
    folder = None
    if out is not None:
        folder = expand_home(os.fspath(out))
    target = Target(out=folder, runtimes=runtimes, encoding=encoding, replace=replace)

    source = source_of("profiles", model, family)
    plan = plan_profiles(source, parse_profiles(texts), ProfilesRequest(target, copy))
    return write_profile_set(plan, reporter or SilentReporter())


def parse_profiles(texts: Iterable[str], methods: Mapping[str, Any] = {}) -> list[Recipe]:
    """Return a recipe for each profile that the user has named, by a text or by an option.

    Args:
        texts: Such as "yarn:4", "yarn:2,yarn:4", or "base" for the unchanged model.
        methods: The values of each option, by its name: {"yarn": ["2", "4"]} for
            `--yarn 2 --yarn 4`.

    Returns:
        First the recipes from texts, then the recipes from options; options with a file come last.

    Raises:
        UsageError: No profile is named.
        RecipeError: A method cannot have its value.
    """
    # `--yarn 4` is made into the text "yarn:4". A path may contain a colon, so options with a file
    # are not: methods such as `--longrope FILE`, and `--recipe FILE`, which is not a method.
    all_texts = list(texts)
    recipes_with_files = []
    method_by_option = {variable(name): method for name, method in REGISTRY.items()}
    for option, values in methods.items():
        method = method_by_option.get(option)  # None for --recipe
        for value in values or ():
            if method is None or method.value is Value.FILE:
                recipes_with_files.append(build_recipe({option: value}))
            else:
                all_texts.append(f"{method.name}:{value}")

    # "yarn:2,yarn:4" has two rows; "base" has no recipe, since the model stays unchanged
    recipes = []
    for text in all_texts:
        for row in parse_rows(text):
            recipes.append(row.recipe or Recipe(AsIs()))
    recipes += recipes_with_files
    if not recipes:
        raise UsageError("name the profiles after MODEL, such as base yarn:2 yarn:4")
    return recipes


def plan_profiles(
    source: Source | GgufSource, recipes: Sequence[Recipe], request: ProfilesRequest
) -> ProfilesPlan:
    """Plan the folder of several profiles, and write nothing.

    Profiles are outputs of one model with several methods, which share its weights.

    Args:
        source: The model, as `open_source` opens it.
        recipes: A recipe for each profile.
        request: The options of the user.

    Raises:
        UsageError: Two profiles have one name, or GGUF profiles should be published.
        RopeconvError: As `plan_each_profile` does.
    """
    publication = request.publication
    if publication and source.kind == "gguf":
        raise UsageError(
            "--push is for checkpoints; write GGUF profiles with -o, and publish each with"
            f" `ropeconv push FILE {publication.repo_id} --exist-ok`"
        )

    # an earlier run may have been killed before it removed its hidden files beside the folder
    out = request.target.out or Path(f"{source.name}-profiles")
    if out.exists() and not request.dry_run:
        discard_stopped_run(out)

    # with --push and without -o, the profiles are only uploaded, and not kept on this disk
    stay_on_disk = request.keeps
    folder = out if stay_on_disk else None
    plans = plan_each_profile(source, recipes, changed(request.target, out=folder))
    if stay_on_disk:  # otherwise the upload adds the model cards
        plans = {name: with_card(plan) for name, plan in plans.items()}
    return plan_shared_folder(source, plans, out, request.copy)


def write_profile_set(plan: ProfilesPlan, reporter: Reporter) -> dict[str, Output]:
    """Write all profiles, or none, and return them by name.

    Raises:
        Interruption: At Ctrl-C; the same command continues.
        RopeconvError: As `write_profiles` does.
    """
    try:
        with reporter.progress("Writing", plan.bytes) as advance:
            written = write_profiles(plan, advance=advance)
    except KeyboardInterrupt:
        raise Interruption(
            f"interrupted; {plan.out} does not exist yet, and the same command continues"
        ) from None

    # why outputs were not checked, which is usually the same for all
    reasons = dict.fromkeys(done.reason for done in written.values())
    for reason in reasons:
        if reason:
            reporter.note(f"Not checked: {reason}.")
    return {name: _make_output(plan, name, done) for name, done in written.items()}


def publish_profiles(
    plans: Mapping[str, Plan], publication: PublishOptions, reporter: Reporter
) -> dict[str, tuple[str, str]]:
    """Publish profiles in one repository of the Hub: the first as main, each other one as a branch.

    Args:
        plans: The plans by the name of the profile, which is that of its branch.
        publication: The repository, and how it is published.
        reporter: Receives progress, and sentences for the user.

    Returns:
        The branch and the URL of each profile, by name.
    """
    from ropeconv.verbs.publishing import publish_staged

    # the first creates the repository, and its card lists the branches of the others
    first, *others = plans
    branches = tuple(list_branch(plans[name], publication.repo_id, name) for name in others)
    published = {}
    for name, plan in plans.items():
        if name == first:
            options = changed(publication, branches=branches)
        else:
            options = changed(publication, revision=name, exist_ok=True)
        assert isinstance(plan, CheckpointPlan)  # `plan_profiles` refuses GGUF files
        output = publish_staged(plan, options, reporter)
        branch = options.revision or "main"
        published[name] = (branch, output.published)
    return published


def profile_document(plan: ProfilesPlan, name: str) -> JsonObject:
    """Return what `profiles --json` prints about a profile before it is written."""
    return {"name": name, "own_bytes": plan.own_bytes(name), **plan.plans[name].to_dict()}


def _make_output(plan: ProfilesPlan, name: str, done: AppliedPlan) -> Output:
    """Return a profile that was written, with the commands that follow.

    Args:
        plan: The plan of all profiles.
        name: The name of the profile.
        done: The place and the check of the written files.
    """
    # `validate` compares a profile with the source. A GGUF profile is compared with the unchanged
    # model in shards, by the path of its first shard.
    base_shard = ""  # a checkpoint
    if isinstance(plan.source, GgufSource):
        first_shard = plan.files[0]
        base_shard = str(plan.out / first_shard.name)
    return make_output(plan.plans[name], done, against=base_shard)
