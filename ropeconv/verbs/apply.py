"""`apply`, `plan` and `patch`: a context extension for a checkpoint, or for a loaded model.

These are the functions of Python. They turn their arguments into the request of a command line, so
that `Batch` does the work of both.
"""

from __future__ import annotations

import os
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from ..bake import apply as baking
from ..bake.output import Output
from ..bake.plan import Plan
from ..convert.target import Target
from ..engines.probe import Probe
from ..errors import UsageError
from ..hub.options import PublishOptions, repository
from ..keywords import ApplyKeywords, RecipeKeywords, RunKeywords, StrPath, TargetKeywords
from ..models.gguf import GgufSource
from ..models.source import Source
from ..options import ConverterOptions, OutputPlace, TargetOptions, ValidateOn, options
from ..reporting import Reporter, SilentReporter
from ..rope.recipe import Recipe
from .arguments import (
    check_keywords,
    check_value,
    describe_argument,
    is_loaded,
    list_keywords,
    reference_of,
    refuse_options_of_plan,
)
from .batch import Batch
from .recipes import as_texts, build_recipe, chosen_methods, length_text
from .request import VALIDATE, ApplyRequest, OutputUnit, check_request

if TYPE_CHECKING:
    from ..engines.transformers.patch import Undo

KEYWORDS_OF_WRITING = frozenset(
    (
        "force",
        "link",
        "checksum",
        "push",
        "private",
        "create_pr",
        "validate",
        "ollama",
        "draft",
        "draft_original_context",
        "adapter",
        "staged",
        "fsync",
        "check",
        "remember",
        "probe",
        "reporter",
    )
)
"""Keywords of `apply` that can act on a finished plan. All others are decided when it is made."""


@overload
def apply(
    model: object,
    recipe: Recipe | StrPath | None = None,
    *,
    dry_run: Literal[True],
    **keywords: Unpack[ApplyKeywords],
) -> Plan: ...
@overload
def apply(
    model: object,
    recipe: Recipe | StrPath | None = None,
    *,
    dry_run: Literal[False] = False,
    **keywords: Unpack[ApplyKeywords],
) -> Output: ...
@list_keywords(RecipeKeywords, TargetKeywords, RunKeywords)
def apply(
    model: object,
    recipe: Recipe | StrPath | None = None,
    *,
    dry_run: bool = False,
    **keywords: Unpack[ApplyKeywords],
) -> Output | Plan:
    """Bake a context extension into a checkpoint: `apply("Qwen/Qwen3-8B", yarn=4)`.

    Args:
        model: A path, an id on the Hub, a loaded model, a source, or a plan of `plan`.
        recipe: A `Recipe` or the path of a recipe file, in place of a keyword such as `yarn`.
        dry_run: Return the plan and write nothing. With `draft`, the plan of the large model is
            returned.
        keywords: The flags of `ropeconv apply` with underscores, such as `out`, `to` and `force`.

    Raises:
        UsageError: For keywords that do not exist or do not go together.
        Disagreement: The output differs from its plan, and is not kept; or a validation does not
            confirm the output, which is kept.
        RopeconvError: The model cannot be extended, or the output cannot be written.
    """
    # check all arguments before anything is read
    given = check_keywords("apply", keywords, ApplyKeywords)
    reporter = given.pop("reporter", None) or SilentReporter()
    probe = given.pop("probe", None)  # a process that has imported transformers, to check outputs
    # the default of `validate` is an environment variable, as on the command line
    validate = given.setdefault("validate", os.environ.get(VALIDATE) or "auto")
    check_value(VALIDATE, validate, ValidateOn)
    check_value("dry_run", dry_run, bool)
    check_value("probe", probe, Probe | None)

    # plan one output, and a second one for the draft model with `draft`
    if isinstance(model, Plan):
        batch = _continue_plan(model, recipe, given, dry_run, reporter)
    else:
        batch = _plan_model(model, recipe, given, dry_run, reporter)
    if dry_run:
        _unit, plan = batch.plans[0]
        return plan

    # write the planned outputs
    outputs = [output for _unit, output in batch.write(probe)]
    if batch.failures:
        _unit, problem = batch.failures[0]
        raise problem
    output = outputs[0]
    has_draft = len(outputs) > 1
    if has_draft:
        output = replace(output, draft=outputs[1])
    # a silent reporter has collected its notes, and the caller finds them in the output
    if isinstance(reporter, SilentReporter):
        output = replace(output, notes=tuple(reporter.notes))
    return output


@list_keywords(RecipeKeywords, TargetKeywords, RunKeywords)
def plan(
    model: object, recipe: Recipe | StrPath | None = None, **keywords: Unpack[ApplyKeywords]
) -> Plan:
    """Plan an output and write nothing. `apply` accepts what this returns.

    Parameters and errors are those of `apply`.
    """
    return apply(model, recipe, dry_run=True, **keywords)


@list_keywords(RecipeKeywords)
def patch(
    model: Any, recipe: Recipe | StrPath | Plan | None = None, **keywords: Unpack[RecipeKeywords]
) -> Undo:
    """Make a loaded model of transformers compute a method: `undo = patch(model, yarn=4)`.

    Args:
        model: From `from_pretrained`.
        recipe: A `Recipe`, the path of one, or a plan, in place of a method among the keywords.
        keywords: A method, its settings and modifiers, as in `apply`. They are listed below.

    Returns:
        A function without parameters that undoes it.

    Raises:
        UsageError: For keywords that do not exist.
        RopeconvError: As `bake.apply.patch` does.
    """
    if not is_loaded(model):
        raise UsageError(
            f"patch() needs a loaded model, and got {describe_argument(model)}; load it with"
            " AutoModelForCausalLM.from_pretrained, or pass a path to apply()"
        )
    checked = check_keywords("patch", keywords, RecipeKeywords)
    if isinstance(recipe, Plan):
        refuse_options_of_plan("patch", checked, "plan")
        return baking.patch(model, recipe)
    return baking.patch(model, recipe_of("patch", recipe, checked))


def recipe_of(verb: str, recipe: object, values: dict[str, Any]) -> Recipe:
    """Return the recipe that a function of the package, such as `apply`, was called with.

    Args:
        verb: The function that was called, for messages.
        recipe: The argument in place of a method: a Recipe, its path, or None.
        values: The keywords of a recipe.

    Raises:
        UsageError: Unless there is one method.
        RecipeError: For a value that it cannot have.
    """
    if isinstance(recipe, Recipe):
        if values:
            name = next(iter(values))
            raise UsageError(
                f"{verb}() got a recipe and {name}; give it to the recipe, or leave one out"
            )
        return recipe

    if recipe is not None and not isinstance(recipe, str | os.PathLike):
        raise UsageError(
            f"{verb}() needs a Recipe or the path of one, and got {describe_argument(recipe)}; or"
            " pass yarn=4"
        )
    # apply(model, context="128k") is complete: the method is then chosen by the length
    reaches_length = verb == "apply" and "context" in values
    if recipe is None and not chosen_methods(values) and not reaches_length:
        raise UsageError(
            f"{verb}() needs a method, such as yarn=4 (`ropeconv list methods` lists them)"
        )

    texts = as_texts(values)
    if recipe is not None:
        texts["recipe"] = os.fspath(recipe)
    return build_recipe(texts)


def _plan_model(
    model: object, recipe: object, given: dict[str, Any], dry_run: bool, reporter: Reporter
) -> Batch:
    """Plan the output of a model, and the output of its draft model if the caller names one.

    Args:
        model: A path, an id on the Hub, a loaded model or a source.
        recipe: A recipe or the path of a recipe file; None if a keyword names the method.
        given: The checked keywords of `apply`, such as {"yarn": 4, "out": "long", "force": True}.
        dry_run: Whether nothing will be written.
        reporter: Receives notes and progress for the user.

    Returns:
        The planned outputs, which `Batch.write` writes.
    """
    # keywords of the recipe: `yarn`
    recipe_keywords = RecipeKeywords.__annotations__
    recipe_values = {name: value for name, value in given.items() if name in recipe_keywords}
    chosen_recipe = recipe_of("apply", recipe, recipe_values)
    # apply(model, context="128k") names no method, and `recipe_of` chooses one for the length
    method_is_chosen_by_length = recipe is None and not chosen_methods(recipe_values)

    # keywords of the whole call: `force`, `push`
    request = _make_request(given)
    request = replace(request, dry_run=dry_run, by_length=method_is_chosen_by_length)

    # keywords of a single output: `out`, `to`
    output_options = _output_options(given)
    reference = reference_of("apply", model, given.get("family", ""))
    unit = OutputUnit(source=reference, given=output_options, folder=None, label=reference)
    batch = _make_batch(unit, request, reporter)  # adds the draft model, if there is one

    # a source that the caller has opened is not opened again
    opened: list[Source | GgufSource] = []
    if isinstance(model, Source | GgufSource) and not request.family:
        opened.append(model)
    batch.plan(chosen_recipe, opened)
    return batch


def _continue_plan(
    plan: Plan, recipe: object, given: dict[str, Any], dry_run: bool, reporter: Reporter
) -> Batch:
    """Prepare the writing of a plan that `plan()` returned, and plan its draft model.

    Args:
        plan: The plan.
        recipe: The recipe that the user passed to `apply()`; None if the user passed none.
        given: The keywords that the user passed to `apply()`, such as {"force": True}.
        dry_run: Whether nothing will be written.
        reporter: Receives notes and progress for the user.

    Returns:
        The output of the plan and its draft model, if `draft` names one. `Batch.write` writes them.

    Raises:
        UsageError: For a recipe, or a keyword that must be passed to `plan()`.
    """
    # the plan has a method, a target and a machine; only options of writing can act on it
    decided = {name: value for name, value in given.items() if name not in KEYWORDS_OF_WRITING}
    refuse_options_of_plan("apply", {**decided, "recipe": recipe}, "plan")

    # the options of the output, such as {"out": "long", "to": "gguf"}, with which the draft model
    # is planned
    output_options = {}
    for option in options(Target):
        output_options[option.parameter] = getattr(plan.target, option.name)
    reference = plan.source.reference
    unit = OutputUnit(source=reference, given=output_options, folder=None, label=reference)

    request = replace(_make_request(given), dry_run=dry_run)
    batch = _make_batch(unit, request, reporter)
    batch.take(plan)  # uses the plan for the first output, and plans the draft model
    return batch


def _make_batch(unit: OutputUnit, request: ApplyRequest, reporter: Reporter) -> Batch:
    """Return the batch of one output, and of its draft where there is one."""
    units = [unit]
    if request.draft:
        draft = OutputUnit(
            source=request.draft,
            given=unit.given,
            folder=None,
            label=request.draft,
            is_draft=True,
        )
        units.append(draft)
    check_request(units, request)
    return Batch(units, request, reporter)


def _make_request(given: dict[str, Any]) -> ApplyRequest:
    """Return the keywords of `apply` as the options of the command that are not about one output.

    {"fsync": False, "force": True} becomes ApplyRequest(no_fsync=True, force=True).

    Args:
        given: The keywords that were given, checked. Those of the recipe and of the target are
            ignored here.
    """
    known = {item.name for item in fields(ApplyRequest)}
    values = {name: value for name, value in given.items() if name in known}

    # The command line has --no-fsync and --no-check. It has texts where a keyword may be an opened
    # model (`adapter` and `draft`) or a number (`draft_original_context`).
    if "fsync" in given:
        values["no_fsync"] = not given["fsync"]
    if "check" in given:
        values["no_check"] = not given["check"]
    if "adapter" in given:
        values["adapter"] = reference_of("apply", given["adapter"])
    if given.get("draft") is not None:
        values["draft"] = reference_of("apply", given["draft"])
    if "draft_original_context" in given:
        values["draft_original_context"] = length_text(given["draft_original_context"])

    # with push="owner/name", the options of the publication
    request = ApplyRequest(**values)
    if not request.push:
        return request
    publication = PublishOptions(
        private=request.private, create_pr=request.create_pr, repo_id=repository(request.push)
    )
    return replace(request, publication=publication)


def _output_options(given: dict[str, Any]) -> dict[str, Any]:
    """Return a value for each option of an output, whether the caller passed it or not.

    {"out": "long", "runtime": "vllm"} becomes {"out": "long", "runtime": ["vllm"], "to": None,
    "replace": False, ...}: these are the values that the command line would pass.

    Args:
        given: The keywords of `apply`.
    """
    values = {}
    for option in options(OutputPlace, ConverterOptions, TargetOptions):
        value = given.get(option.parameter)
        may_be_repeated = option.many
        is_switch = option.kind is bool
        if may_be_repeated and isinstance(value, str):
            value = [value]
        elif may_be_repeated:
            value = list(value or ())
        elif is_switch and value is None:
            value = False
        values[option.parameter] = value
    return values
