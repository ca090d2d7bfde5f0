"""The verbs of the library: the commands of the same names, with their flags as keywords."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, get_type_hints, overload

from .bake import advice
from .bake import apply as baking
from .bake import restore as restoring
from .bake.advice import Advice
from .bake.apply import AppliedPlan
from .bake.companions import draft_plan, paired
from .bake.plan import FilePlan, Plan
from .cli.execution import recovered, run_validation
from .cli.options import (
    LENGTHS,
    build_recipe,
    build_target,
    chosen_methods,
    method_settings,
    variable,
)
from .cli.screen import Screen
from .cli.units import refuse_untrained
from .environment import require
from .errors import UsageError
from .evaluate.evaluation import Sizes, evaluate_model
from .evaluate.result import Result
from .evaluate.runners.runner import RunnerRequest
from .formats.files import expanded
from .hub.card import with_card
from .inspection.inspection import Inspection, inspect_source
from .inspection.receipts.places import find_source, why_not_found
from .inspection.side_by_side import RopeDifference, side_by_side
from .keywords import ApplyKeywords, RecipeKeywords, RunKeywords, StrPath, TargetKeywords
from .models.gguf import GgufSource
from .models.open import open_source
from .models.reference import names_gguf
from .models.source import Source
from .options import OutputPlace, TargetOptions, options
from .rope.lengths import parse_tokens
from .rope.methods.method import REGISTRY, Value
from .rope.recipe import MODIFIERS, SWITCHES, Recipe
from .validate.comparison import Comparison, Settings
from .validate.validation import Validation

if TYPE_CHECKING:
    from .engines.transformers.patch import Undo


@dataclass(frozen=True)
class Keyword:
    """The values of a keyword. kind: their type. words: the same for messages. many: one of them,
    or several.
    """

    kind: Any
    words: str = ""
    many: bool = False


SWITCH = Keyword(bool, "True or False")
NUMBER = Keyword(Real, "a number")
WHOLE = Keyword(int, "a whole number")
TEXT = Keyword(str, "a text")
TEXTS = Keyword(str, "a text, or a list of these", many=True)
OF_ONE = Keyword(str, "a text; call apply() once for each")
PATH = Keyword(str | os.PathLike, "a path")
OF_TEXTS = Keyword(str | os.PathLike, "the path of a text", many=True)
EITHER = Keyword(str | Real | os.PathLike, "a number or a text")
ANYTHING = Keyword(object)
OF_LENGTHS = Keyword(str | int, "a number or a text, or a list of these", many=True)
RUN = dict.fromkeys(
    ("link", "force", "checksum", "staged", "fsync", "check", "remember"), SWITCH
) | {
    "advance": Keyword(Callable, "a function of the bytes done"),
    "probe": ANYTHING,
}
"""Keywords of `bake.apply.apply`."""
HINTS = dict.fromkeys(
    ("method", "methods", "factor"), "a method is a keyword with its value, such as yarn=4"
)
HINTS["push"] = "pass the output to `ropeconv push`"
"""Keywords that people try, with what to write in their place."""


@dataclass(frozen=True)
class Output(AppliedPlan):
    """An output that `apply` or `restore` has written. It can be passed wherever a path is
    expected.

    path, check, reason: as in `AppliedPlan`. plan: what was written. against: the source, for
    `validate`. draft: the output with its draft model, None without one.
    """

    plan: FilePlan | None = None
    against: str = ""
    draft: Output | None = None

    def summary(self) -> dict[str, str]:
        """Return what is shown, by name."""
        checked = self.check.sentence if self.check else self.reason
        planned = self.plan.summary() if self.plan else {}
        return {
            "path": str(self.path),
            **{k: v for k, v in planned.items() if k != "out"},
            "check": checked,
        }


Verb = TypeVar("Verb", bound=Callable[..., Any])


def list_keywords(*groups: type) -> Callable[[Verb], Verb]:
    """Decorator: add the sentences on the keywords of a verb to its docstring, so that `help` shows
    them.

    groups: classes of ropeconv/keywords.py, whose docstrings have a line for each keyword.
    """

    def add(verb: Verb) -> Verb:
        sections = [
            (group.__doc__ or "").partition("Attributes:\n")[2].rstrip() for group in groups
        ]
        verb.__doc__ = (
            f"{(verb.__doc__ or '').rstrip()}\n\n    Keywords:\n" + "\n".join(sections) + "\n"
        )
        return verb

    return add


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
    """Bakes a context extension into a checkpoint, as `ropeconv apply` does:
    `apply("Qwen/Qwen3-8B", yarn=4)`.

    Args:
        model: A path, an id on the Hub, a loaded model, a source, or a plan of `plan` or
            `make_plan`.
        recipe: A `Recipe` or the path of one, in place of a method among the keywords.
        dry_run: Return the plan, with `draft` that of the target, and write nothing.
        keywords: The flags of the command with underscores. They are listed below.

    Raises:
        UsageError: For keywords that do not exist or do not go together.
        RopeconvError: As `make_plan` and `bake.apply.apply` do.
    """
    given: dict[str, Any] = {
        "runtime" if name == "runtimes" else name: value for name, value in keywords.items()
    }
    others = {"family": TEXT, "draft": ANYTHING, "draft_original_context": ANYTHING}
    given = _checked("apply", given, _of_recipe() | _of_target() | RUN | others)
    run = {name: given.pop(name) for name in RUN if name in given}
    draft = given.pop("draft", None)
    length = given.pop("draft_original_context", None)
    if length is not None and draft is None:
        raise UsageError(
            "draft_original_context is of the model of draft; name that, or leave it out"
        )
    trained = None if length is None else parse_tokens(str(length))
    if isinstance(model, Plan):
        plan = model
        if given or recipe is not None:
            name = "recipe" if recipe is not None else next(iter(given))
            raise UsageError(f"apply() of a plan does not accept {name}; pass it to make_plan")
    else:
        plan = _plan(model, recipe, given, dry_run)
    plan = plan if draft is None else paired(plan)
    second = None if draft is None else draft_plan(_reference("apply", draft), plan, trained)
    if dry_run:
        return plan
    output = _written(plan, run)
    return output if second is None else replace(output, draft=_written(second, run))


@list_keywords(RecipeKeywords, TargetKeywords, RunKeywords)
def plan(
    model: object, recipe: Recipe | StrPath | None = None, **keywords: Unpack[ApplyKeywords]
) -> Plan:
    """Plans an output and writes nothing, as `ropeconv apply --dry-run` does. `apply` accepts what
    it returns.

    Parameters and errors are those of `apply`.
    """
    return apply(model, recipe, dry_run=True, **keywords)


def _plan(model: object, recipe: object, given: dict[str, Any], dry_run: bool) -> Plan:
    """Return the plan of a model that is not a plan yet. Parameters and errors are those of
    `apply`.
    """
    names = _of_recipe()
    of_recipe = {name: value for name, value in given.items() if name in names}
    chosen = _recipe("apply", recipe, of_recipe)
    target = build_target(given)
    if target.in_place and not dry_run:
        recovered(_reference("apply", model), Screen(as_json=True))
    plan = baking.make_plan(_source("apply", model, given.get("family", "")), chosen, target)
    if recipe is None and not chosen_methods(of_recipe):
        refuse_untrained(plan, plan.source.reference)
    plan.check_packages()
    return plan


def _written(plan: Plan, run: dict[str, Any]) -> Output:
    """Write the output of a plan. run: keywords of `bake.apply.apply`."""
    done = baking.apply(with_card(plan), **run)
    return Output(done.path, done.check, done.reason, done.uncomputed, plan, plan.source.reference)


def validate(output: object, against: object = None, **keywords: Any) -> Validation:
    """Proves on logits that the stock runtime computes the method, and records it, as
    `ropeconv validate` does.

    Args:
        output: The result of `apply`, or the path of a folder or GGUF file that it wrote.
        against: The source; not needed for what `apply` returned, and for a source on the Hub or
            beside the output.
        keywords: The flags of the command: `length`, `text`, `tokens`, `device`, `dtype`, `server`,
            `quick`, ...

    Raises:
        UsageError: For keywords that do not exist, and where the receipt does not say where the
            source is.
        RopeconvError: Where the output or its source cannot be read or run.
    """
    from .bake.findings import Options

    require("torch", "validating")
    require("transformers", "validating")
    of_settings = _of_fields(Settings) | {"length": EITHER, "text": PATH}
    others = {"server": TEXT, "model": TEXT, "quick": SWITCH, "ignore_receipt": SWITCH}
    given = _checked("validate", keywords, of_settings | others)
    given |= {"length": parse_tokens(f"{given['length']}")} if given.get("length") else {}
    given |= {"text": Path(given["text"])} if given.get("text") else {}
    baked = Path(_reference("validate", output))
    comparison = Comparison.open(baked, _against(output, baked, against))
    settings = Settings(**{name: value for name, value in given.items() if name in of_settings})
    checked = Options(
        given.get("quick", False), given.get("ignore_receipt", False), settings.trust_remote_code
    )
    server = given.get("server", "")
    named = given.get("model", "")
    return run_validation(comparison, settings, server, named, checked, Screen(as_json=True))[0]


def inspect(model: object, family: str = "") -> Inspection:
    """Inspect the RoPE of a checkpoint, its runtime support and its problems, as `ropeconv inspect`
    does.

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
    """Compare the RoPE of two models, as `ropeconv compare` does. first, second, family: as in
    `inspect`.
    """
    return side_by_side(inspect(first, family), inspect(second, family))


def advise(
    model: object, context: int | str, family: str = ""
) -> tuple[list[Advice], dict[str, str]]:
    """Compares the methods that reach a context, as `ropeconv advise` does: a tuple of
    `bake.advice.advise`.

    model, family: as in `inspect`. context: a number of tokens, or "128k". Raises UsageError for
    one that is too short.
    """
    return advice.advise(_source("advise", model, family), parse_tokens(f"{context}"))


@list_keywords(RecipeKeywords)
def patch(
    model: Any, recipe: Recipe | StrPath | Plan | None = None, **keywords: Unpack[RecipeKeywords]
) -> Undo:
    """Makes a loaded model of transformers compute a method: `undo = patch(model, yarn=4)`.

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
    if not _is_loaded(model):
        raise UsageError(
            f"patch() needs a loaded model, and got {_described(model)}; load it with "
            "AutoModelForCausalLM.from_pretrained, or pass a path to apply()"
        )
    if isinstance(recipe, Plan) and not keywords:
        return baking.patch(model, recipe)
    checked = _checked("patch", dict(keywords), _of_recipe())
    return baking.patch(model, _recipe("patch", recipe, checked))


def evaluate(
    model: object, methods: str | Iterable[str] = "", text: object = (), **keywords: Any
) -> Result:
    """Measures what methods do to a model, before anything is written, as `ropeconv eval` does.

    model: as in `inspect`. methods: the rows, such as "base,yarn:4,mixed:4" or a list of them.
    text: a file or pattern, or several. keywords: the flags of the command: `measure`, `lengths`,
    `windows`, `targets`, `depths`, `seed`, `generate`, `journal`, `against`, `server`, `device`,
    `dtype`, `chunk`, ... Raises UsageError for keywords that do not exist, RopeconvError where a
    model or a text cannot be read.
    """
    given = {
        {"measure": "measures", "server": "servers"}.get(name, name): value
        for name, value in keywords.items()
    }
    sizes = _of_fields(Sizes)
    rows = {
        name: kind
        for name, kind in _of_fields(RunnerRequest).items()
        if name not in ("model", "rows")
    }
    others = {
        "journal": ANYTHING,
        "progress": ANYTHING,
        "against": ANYTHING,
        "measures": TEXTS,
        "lengths": OF_LENGTHS,
    }
    given = _checked("evaluate", given, sizes | rows | others)
    given |= {
        name: ",".join(map(str, given[name])) for name in ("measures", "lengths") if name in given
    }
    given |= {"servers": tuple(given["servers"])} if "servers" in given else {}
    given |= {"against": _reference("evaluate", given["against"])} if "against" in given else {}
    return evaluate_model(
        _reference("evaluate", model),
        ",".join(_value("methods", methods, TEXTS)),
        _value("text", text, OF_TEXTS),
        Sizes(**{name: value for name, value in given.items() if name in sizes}),
        **{name: value for name, value in given.items() if name not in sizes},
    )


def restore(
    output: object,
    out: str | os.PathLike[str] | None = None,
    *,
    in_place: bool = False,
    force: bool = False,
    fsync: bool = True,
) -> Output:
    """Brings the source of an output back, as `ropeconv restore` does.

    output: what `apply` returned, its path or its name on the Hub, or a plan of `restore_plan`.
    out: where to, by default `./NAME-restored`. in_place, force, fsync: as the flags. Raises
    RopeconvError where the receipt does not say what the source had.
    """
    if out is not None:
        _value("out", out, PATH)
    if isinstance(output, restoring.RestorePlan):
        plan = output
    else:
        if in_place:
            recovered(_reference("restore", output), Screen(as_json=True))
        plan = restoring.restore_plan(
            _source("restore", output), None if out is None else expanded(out), in_place
        )
    path = restoring.restore(plan, force=force, fsync=fsync)
    return Output(path, plan=plan, against=plan.source.reference)


def _of_recipe() -> dict[str, Keyword]:
    """Return the keywords of a recipe: methods, their settings, and modifiers."""
    kinds = {Value.SWITCH: SWITCH, Value.NUMBER: NUMBER, Value.FILE: PATH}
    methods = {variable(name): kinds.get(method.value, EITHER) for name, method in REGISTRY.items()}
    return (
        methods
        | dict.fromkeys([*method_settings(), *MODIFIERS], EITHER)
        | dict.fromkeys(SWITCHES, SWITCH)
    )


def _of_target() -> dict[str, Keyword]:
    """Return the keywords of an output."""
    kinds = {bool: SWITCH, Path: PATH}
    return {
        option.parameter: (
            TEXTS if option.many else OF_ONE if option.repeatable else kinds.get(option.kind, TEXT)
        )
        for option in options(OutputPlace, TargetOptions)
    }


def _of_fields(kind: type) -> dict[str, Keyword]:
    """Return the keywords that are the fields of a dataclass."""
    kinds = {bool: SWITCH, str: TEXT, tuple[str, ...]: TEXTS}
    return {name: kinds.get(hint, WHOLE) for name, hint in get_type_hints(kind).items()}


def _checked(verb: str, keywords: dict[str, Any], known: dict[str, Keyword]) -> dict[str, Any]:
    """Return keywords without those that are None. Raises UsageError for unknown ones, and for a
    wrong type.
    """
    for name in keywords:
        if name not in known:
            near = get_close_matches(name, sorted(known), 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else f"help(ropeconv.{verb}) lists them"
            raise UsageError(f"{verb}() has no keyword {name}; {HINTS.get(name, hint)}")
    return {
        name: _value(name, value, known[name])
        for name, value in keywords.items()
        if value is not None
    }


def _value(name: str, value: Any, keyword: Keyword) -> Any:
    """Return the value of a keyword, several as a list. Raises UsageError for a wrong type."""
    if keyword.kind is str and type(value).__module__ == "torch":  # a dtype or a device
        value = f"{value}".removeprefix("torch.")
    values = value if keyword.many and not isinstance(value, keyword.kind) else [value]
    if not isinstance(values, Iterable) or not all(
        isinstance(item, keyword.kind) for item in values
    ):
        raise UsageError(f"{name}={value!r} is not {keyword.words}")
    return list(values) if keyword.many else value


def _recipe(verb: str, recipe: object, keywords: dict[str, Any]) -> Recipe:
    """Return the recipe of a verb. Raises UsageError unless there is one method, RecipeError for
    wrong values.
    """
    texts = {
        variable(name)
        for name, kind in REGISTRY.items()
        if kind.value not in (Value.SWITCH, Value.NUMBER)
    }
    values = {
        name: f"{value}" if name in (*texts, *LENGTHS) else value
        for name, value in keywords.items()
    }
    if isinstance(recipe, Recipe):
        if values:
            raise UsageError(
                f"{verb}() got a recipe and {next(iter(values))}; give it to the recipe, or leave"
                " one out"
            )
        return recipe
    if recipe is not None and not isinstance(recipe, str | os.PathLike):
        raise UsageError(
            f"{verb}() needs a Recipe or the path of one, and got {_described(recipe)}; or pass"
            " yarn=4"
        )
    if (
        recipe is None
        and not chosen_methods(values)
        and not (verb == "apply" and "context" in values)
    ):
        raise UsageError(
            f"{verb}() needs a method, such as yarn=4 (`ropeconv list methods` lists them)"
        )
    return build_recipe(values | ({} if recipe is None else {"recipe": os.fspath(recipe)}))


def _is_loaded(model: Any) -> bool:
    """Whether an object is a model of transformers."""
    return hasattr(getattr(model, "config", None), "to_dict") and hasattr(model, "named_modules")


def _described(argument: object) -> str:
    """Describe a wrong argument, for a message."""
    return (
        repr(argument)
        if isinstance(argument, str | int | float) or argument is None
        else f"a {type(argument).__name__}"
    )


def _reference(verb: str, model: Any) -> str:
    """Return the reference of an argument for `open_source`. Raises UsageError if it is not a
    model.
    """
    if isinstance(model, Inspection):
        model = model.source
    if isinstance(model, Source | GgufSource):
        return model.reference
    if isinstance(model, FilePlan):
        raise UsageError(
            f"{verb}() needs a model, and got a plan, which is not written yet; apply() it first"
        )
    if _is_loaded(model):
        if not model.config._name_or_path:
            raise UsageError(
                f"the model does not say what it was loaded from; pass its path to {verb}()"
            )
        return str(model.config._name_or_path)
    if (
        isinstance(model, str | os.PathLike)
        and isinstance(os.fspath(model), str)
        and os.fspath(model)
    ):
        return str(os.fspath(model))
    raise UsageError(
        f"{verb}() needs a path, an id on the Hub, a loaded model or a source, and got"
        f" {_described(model)}"
    )


def _source(verb: str, model: Any, family: str = "") -> Source | GgufSource:
    """Return the source of an argument. Raises UsageError if it is not a model."""
    if not isinstance(family, str):
        raise UsageError(f"family={family!r} is not a text")
    if isinstance(model, Source | GgufSource) and not family:
        return model
    reference = _reference(verb, model)
    return open_source(reference, "" if verb == "inspect" and names_gguf(reference) else family)


def _against(output: object, baked: Path, against: object) -> str:
    """Return the source of an output: the given one, else that of `apply` or of the receipt."""
    if against is not None:
        return _reference("validate", against)
    if isinstance(output, Output) and output.against:
        return output.against
    if reference := find_source(baked):
        return reference
    raise UsageError(why_not_found(baked).replace("add --against SOURCE", "pass against='PATH'"))
