"""The verbs of the library: the commands of the same names, with their flags as keywords."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_origin, get_type_hints, overload

from .bake import apply as baking
from .bake import restore as restoring
from .bake.apply import AppliedPlan
from .bake.draft import draft_plan, paired
from .bake.plan import FilePlan, Plan
from .convert.target import Target
from .errors import UsageError
from .evaluate.evaluation import Sizes, evaluate_model
from .evaluate.result import Result
from .evaluate.runners.runner import RunnerRequest
from .hub.upload_set import with_card
from .inspection.inspection import Inspection, inspect_source
from .inspection.receipts.reader import read_receipt
from .inspection.side_by_side import RopeDifference, side_by_side
from .models.gguf import GgufSource
from .models.open import open_source
from .models.source import Source
from .options import OutputPlace, TargetOptions, options
from .rope.lengths import parse_tokens
from .rope.methods.method import REGISTRY, Value
from .rope.recipe import MODIFIERS, SWITCHES, Recipe
from .validate.comparison import Comparison, Settings
from .validate.validation import Validation

if TYPE_CHECKING:
    from .cli.output import Output as Screen
    from .engines.transformers.patch import Undo

RUN = ("link", "force", "checksum", "staged", "fsync", "check", "advance", "probe")
"""Keywords of `bake.apply.apply`."""


@dataclass(frozen=True)
class Output(AppliedPlan):
    """An output that `apply` or `restore` has written. It can be passed wherever a path is expected.

    path, check, reason: as in `AppliedPlan`. plan: what was written. against: the source, for `validate`. draft: the
    output with its draft model, None without one.
    """

    plan: FilePlan | None = None
    against: str = ""
    draft: Output | None = None

    def summary(self) -> dict[str, str]:
        """Return what is shown, by name."""
        checked = "transformers computes the schedule" if self.check else self.reason
        planned = self.plan.summary() if self.plan else {}
        return {"path": str(self.path), **{k: v for k, v in planned.items() if k != "out"}, "check": checked}


@overload
def apply(model: object, recipe: object = None, *, dry_run: Literal[True], **keywords: Any) -> Plan: ...
@overload
def apply(model: object, recipe: object = None, *, dry_run: Literal[False] = False, **keywords: Any) -> Output: ...
def apply(model: object, recipe: object = None, *, dry_run: bool = False, **keywords: Any) -> Output | Plan:
    """Bakes a context extension into a checkpoint, as `ropeconv apply` does: `apply("Qwen/Qwen3-8B", yarn=4)`.

    Args:
        model: A path, an id on the Hub, a loaded model, a source, or a plan of `make_plan`.
        recipe: A `Recipe` or the path of one, in place of a method among the keywords.
        dry_run: Return the plan, with `draft` that of the target, and write nothing.
        draft: Path or Hub id of its draft model, which is extended for the same context beside it, as OUT-draft.
        keywords: The flags of the command with underscores: a method with its settings and modifiers (`yarn=4`,
            `beta_fast=16`, `context="128k"`), those of the output (`out`, `to`, `outtype`, `runtime`, `encoding`, ...),
            `family`, and `link`, `force`, `checksum`, `fsync`, `check`, `advance`.

    Raises:
        UsageError: For keywords that do not exist or do not go together.
        RopeconvError: As `make_plan` and `bake.apply.apply` do.
    """
    run, draft = _run_keywords(keywords), keywords.pop("draft", None)
    if isinstance(model, Plan):
        plan = model
        if keywords or recipe is not None:
            name = "recipe" if recipe is not None else next(iter(keywords))
            raise UsageError(f"apply() of a plan does not accept {name}; pass it to make_plan")
    else:
        plan = _plan(model, recipe, keywords, dry_run)
    plan = plan if draft is None else paired(plan)
    second = None if draft is None else draft_plan(_reference("apply", draft), plan)
    if dry_run:
        return plan
    output = _written(plan, run)
    return output if second is None else replace(output, draft=_written(second, run))


def _run_keywords(keywords: dict[str, Any]) -> dict[str, Any]:
    """Take the keywords of `bake.apply.apply` out of those of the verb. Raises UsageError for a wrong type."""
    run = {name: keywords.pop(name) for name in RUN if name in keywords}
    for name, value in run.items():
        if not isinstance(value, bool) and name not in ("advance", "probe"):
            raise UsageError(f"{name}={value!r} is not True or False")
    if not callable(run.get("advance", print)):
        raise UsageError(f"advance={run['advance']!r} is not a function of the bytes done")
    return run


def _plan(model: object, recipe: object, keywords: dict[str, Any], dry_run: bool) -> Plan:
    """Return the plan of a model that is not a plan yet. Parameters and errors are those of `apply`."""
    names = [option.parameter for option in options(OutputPlace, TargetOptions)]
    keywords |= {"runtime": keywords.pop("runtimes")} if "runtimes" in keywords else {}
    _known("apply", keywords, [*_recipe_names(), *names, "family", *RUN, "dry_run", "draft"])
    chosen = _recipe("apply", recipe, {k: v for k, v in keywords.items() if k in _recipe_names()})
    target = _target({name: keywords[name] for name in names if keywords.get(name) is not None})
    if target.in_place and not dry_run:
        from .cli.execution import recovered

        recovered(_reference("apply", model), _screen())
    return baking.make_plan(_source("apply", model, keywords.get("family", "")), chosen, target)


def _written(plan: Plan, run: dict[str, Any]) -> Output:
    """Write the output of a plan. run: keywords of `bake.apply.apply`."""
    done = baking.apply(with_card(plan), **run)
    return Output(done.path, done.check, done.reason, plan, plan.source.reference)


def validate(output: object, against: object = None, **keywords: Any) -> Validation:
    """Proves on logits that the stock runtime computes the method, and records it, as `ropeconv validate` does.

    Args:
        output: The result of `apply`, or the path of a folder or GGUF file that it wrote.
        against: The source; not needed for what `apply` returned, and for a source on the Hub or beside the output.
        keywords: The flags of the command: `length`, `text`, `tokens`, `device`, `dtype`, `server`, `quick`, ...

    Raises:
        UsageError: For keywords that do not exist, and where the receipt does not say where the source is.
        RopeconvError: Where the output or its source cannot be read or run.
    """
    from .bake.findings import Options
    from .cli.execution import run_validation
    from .environment import require

    require("torch", "validating", "validate")
    require("transformers", "validating", "validate")
    own = {item.name for item in fields(Settings)}
    _known("validate", keywords, [*own, "server", "model", "quick", "ignore_receipt"])
    keywords |= {"length": parse_tokens(f"{keywords['length']}")} if keywords.get("length") else {}
    keywords |= {"text": Path(_reference("validate", keywords["text"]))} if keywords.get("text") else {}
    settings = _values(Settings, keywords)
    baked = Path(_reference("validate", output))
    comparison = Comparison.open(baked, _against(output, baked, against))
    checked = Options(
        keywords.get("quick", False), keywords.get("ignore_receipt", False), settings.get("trust_remote_code", False)
    )
    server, named = keywords.get("server", ""), keywords.get("model", "")
    return run_validation(comparison, Settings(**settings), server, named, checked, _screen())[0]


def inspect(model: object, family: str = "") -> Inspection:
    """Inspect the RoPE of a checkpoint, its runtime support and its problems, as `ropeconv inspect` does.

    Args:
        model: A path, an id on the Hub, a loaded model, or a source.
        family: The family to treat it as, in place of that of its model_type.
    """
    if isinstance(model, Inspection):
        return model
    source = _source("inspect", model, family)
    source.as_draft = True
    return inspect_source(source)


def compare(first: object, second: object, family: str = "") -> RopeDifference:
    """Compare the RoPE of two models, as `ropeconv compare` does. first, second, family: as in `inspect`."""
    return side_by_side(inspect(first, family), inspect(second, family))


def patch(model: Any, recipe: object = None, **keywords: Any) -> Undo:
    """Makes a loaded model of transformers compute a method: `undo = patch(model, yarn=4)`.

    model: from `from_pretrained`. recipe: a `Recipe`, the path of one, or a plan, in place of a method among the
    keywords. keywords: a method, its settings and modifiers, as in `apply`. Calling what is returned undoes it.
    Raises UsageError for keywords that do not exist, RopeconvError as `bake.apply.patch` does.
    """
    if not _is_loaded(model):
        raise UsageError(
            f"patch() needs a loaded model, and got {_described(model)}; load it with "
            "AutoModelForCausalLM.from_pretrained, or pass a path to apply()"
        )
    if isinstance(recipe, Plan) and not keywords:
        return baking.patch(model, recipe)
    _known("patch", keywords, _recipe_names())
    return baking.patch(model, _recipe("patch", recipe, keywords))


def evaluate(model: object, methods: str | Iterable[str] = "", text: object = (), **keywords: Any) -> Result:
    """Measures what methods do to a model, before anything is written, as `ropeconv eval` does.

    model: as in `inspect`. methods: the rows, such as "base,yarn:4,mixed:4" or a list of them. text: a file or pattern,
    or several. keywords: the flags of the command: `measure`, `lengths`, `windows`, `targets`, `depths`, `seed`,
    `generate`, `journal`, `against`, `server`, `device`, `dtype`, `chunk`, ... Raises UsageError for keywords
    that do not exist, RopeconvError where a model or a text cannot be read.
    """
    keywords = {{"measure": "measures", "server": "servers"}.get(name, name): v for name, v in keywords.items()}
    sizes = {item.name for item in fields(Sizes)}
    rows = {item.name for item in fields(RunnerRequest)} - {"model", "rows"}
    _known("evaluate", keywords, [*sizes, *rows, "journal", "progress"])
    texts = [text] if isinstance(text, str | os.PathLike) else text
    if not isinstance(texts, Iterable) or not all(isinstance(one, str | os.PathLike) for one in texts):
        raise UsageError(f"text={text!r} is not the path of a text, or a list of these")
    if isinstance(keywords.get("servers"), str | list):
        keywords["servers"] = tuple(_names("server", keywords["servers"]))
    if "against" in keywords:
        keywords["against"] = _reference("evaluate", keywords["against"])
    for name in ("measures", "lengths"):
        value = keywords.get(name, "")
        keywords |= {name: ",".join(map(str, value if isinstance(value, list | tuple) else [value]))} if value else {}
    _values(RunnerRequest, keywords)
    return evaluate_model(
        _reference("evaluate", model),
        ",".join(_names("methods", methods)),
        list(texts),
        Sizes(**_values(Sizes, keywords)),
        **{name: value for name, value in keywords.items() if name not in sizes},
    )


def restore(
    output: object,
    out: str | os.PathLike[str] | None = None,
    *,
    in_place: bool = False,
    allow_hard_links: bool = False,
    force: bool = False,
    fsync: bool = True,
) -> Output:
    """Brings the source of an output back, as `ropeconv restore` does.

    output: what `apply` returned, its path or its name on the Hub, or a plan of `restore_plan`. out: where to, by
    default `./NAME-restored`. in_place, allow_hard_links, force, fsync: as the flags. Raises RopeconvError where the
    receipt does not say what the source had.
    """
    if not isinstance(out, str | os.PathLike | None):
        raise UsageError(f"out={out!r} is not a path")
    if isinstance(output, restoring.RestorePlan):
        plan = output
    else:
        if in_place:
            from .cli.execution import recovered

            recovered(_reference("restore", output), _screen())
        plan = restoring.restore_plan(_source("restore", output), None if out is None else Path(out), in_place)
    path = restoring.restore(plan, force=force, fsync=fsync, allow_hard_links=allow_hard_links)
    return Output(path, plan=plan, against=plan.source.reference)


def _screen() -> Screen:
    """Return the output for progress: stderr, if that is a terminal."""
    from .cli.output import Output as Screen

    return Screen(as_json=True)


def _recipe_names() -> list[str]:
    """Return the keywords of a recipe: methods, their settings, and modifiers."""
    from .cli.options import method_settings, variable

    return [*map(variable, REGISTRY), *method_settings(), *MODIFIERS]


def _known(verb: str, keywords: Iterable[str], names: Iterable[str]) -> None:
    """Raise UsageError for a keyword that is not in `names`."""
    names = sorted(names)
    for name in keywords:
        if name not in names:
            near = get_close_matches(name, names, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else f"help(ropeconv.{verb}) lists them"
            hint = "pass the output to `ropeconv push`" if name == "push" else hint
            raise UsageError(f"{verb}() has no keyword {name}; {hint}")


def _recipe(verb: str, recipe: object, keywords: dict[str, Any]) -> Recipe:
    """Return the recipe of a verb. Raises UsageError unless there is one method, RecipeError for wrong values."""
    from .cli.options import build_recipe, chosen_methods

    values = {name: value for name, value in keywords.items() if value is not None}
    if isinstance(recipe, Recipe):
        if values:
            raise UsageError(f"{verb}() got a recipe and {next(iter(values))}; give it to the recipe, or leave one out")
        return recipe
    if recipe is not None and not isinstance(recipe, str | os.PathLike):
        raise UsageError(f"{verb}() needs a Recipe or the path of one, and got {_described(recipe)}; or pass yarn=4")
    if recipe is None and not chosen_methods(values):
        raise UsageError(f"{verb}() needs a method, such as yarn=4 (`ropeconv list methods` lists them)")
    values = {name: _recipe_value(name, value) for name, value in values.items()}
    return build_recipe(values | ({} if recipe is None else {"recipe": os.fspath(recipe)}))


def _recipe_value(name: str, value: Any) -> Any:
    """Return the value of a keyword as the command line has it. Raises UsageError for a wrong type."""
    from .cli.options import LENGTHS, variable

    kinds = {variable(method): kind.value for method, kind in REGISTRY.items()} | dict.fromkeys(SWITCHES, Value.SWITCH)
    kind = kinds.get(name)
    types: dict[Value | None, tuple[Any, str]] = {
        Value.SWITCH: (bool, "True or False"), Value.NUMBER: (Real | os.PathLike, "a number"),
    }  # fmt: skip
    allowed, words = types.get(kind, (str | Real | os.PathLike, "a number or a text"))
    if not isinstance(value, allowed):
        raise UsageError(f"{name}={value!r} is not {words}")
    is_text = kind not in (None, Value.SWITCH, Value.NUMBER) or name in LENGTHS
    return f"{value}" if is_text else value


def _values(kind: type, keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords that are fields of a dataclass. Raises UsageError for a wrong type."""
    hints = get_type_hints(kind)
    values = {name: value for name, value in keywords.items() if name in hints}
    for name, value in values.items():
        if get_origin(hints[name]) is not tuple and not isinstance(value, hints[name]):
            words = {bool: "True or False", str: "a text"}.get(hints[name], "a whole number")
            raise UsageError(f"{name}={value!r} is not {words}")
    return values


def _target(keywords: dict[str, Any]) -> Target:
    """Return the target of an output. Raises UsageError for a wrong type."""
    from .cli.output_options import build_target

    for option in options(OutputPlace, TargetOptions):
        value = keywords.get(option.parameter)
        if value is None:
            continue
        if option.many:
            keywords[option.parameter] = _names(option.parameter, value)
        elif not isinstance(value, str | os.PathLike if option.kind is Path else option.kind):
            again = "; call apply() once for each" if option.repeatable and isinstance(value, list | tuple) else ""
            kind = "True or False" if option.kind is bool else "a path" if option.kind is Path else "a text"
            raise UsageError(f"{option.parameter}={value!r} is not {kind}{again}")
    return build_target(keywords)


def _names(name: str, value: object) -> list[str]:
    """Return one or several texts as a list. name: of the keyword, for the message."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Iterable) or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"{name}={value!r} is not a text, or a list of these")
    return list(texts)


def _is_loaded(model: Any) -> bool:
    """Whether an object is a model of transformers."""
    return hasattr(getattr(model, "config", None), "to_dict") and hasattr(model, "named_modules")


def _described(thing: object) -> str:
    """Describe a wrong argument, for a message."""
    return repr(thing) if isinstance(thing, str | int | float) or thing is None else f"a {type(thing).__name__}"


def _reference(verb: str, model: Any) -> str:
    """Return the reference of an argument for `open_source`. Raises UsageError if it is not a model."""
    if isinstance(model, Inspection):
        model = model.source
    if isinstance(model, Source | GgufSource):
        return model.reference
    if isinstance(model, FilePlan):
        raise UsageError(f"{verb}() needs a model, and got a plan, which is not written yet; apply() it first")
    if _is_loaded(model):
        if not model.config._name_or_path:
            raise UsageError(f"the model does not say what it was loaded from; pass its path to {verb}()")
        return str(model.config._name_or_path)
    if isinstance(model, str | os.PathLike) and isinstance(os.fspath(model), str) and os.fspath(model):
        return str(os.fspath(model))
    raise UsageError(
        f"{verb}() needs a path, an id on the Hub, a loaded model or a source, and got {_described(model)}"
    )


def _source(verb: str, model: Any, family: str = "") -> Source | GgufSource:
    """Return the source of an argument. Raises UsageError if it is not a model."""
    if not isinstance(family, str):
        raise UsageError(f"family={family!r} is not a text")
    if isinstance(model, Source | GgufSource) and not family:
        return model
    reference = _reference(verb, model)
    return open_source(reference, "" if verb == "inspect" and reference.endswith(".gguf") else family)


def _against(output: object, baked: Path, against: object) -> str:
    """Return the source of an output: the given one, else that of `apply` or of the receipt.

    Raises UsageError if the receipt does not say where it is.
    """
    if against is not None:
        return _reference("validate", against)
    if isinstance(output, Output) and output.against:
        return output.against
    from .cli.execution import source_of

    if reference := source_of(baked):
        return reference
    name = read_receipt(baked).source.name
    raise UsageError(f"the receipt of {baked} names {name}, a local model that is not beside it; pass against='PATH'")
