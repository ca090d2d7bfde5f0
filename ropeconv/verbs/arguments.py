"""Arguments of the functions of Python: models in any form, and keywords of any type.

`check_keywords` checks those of a function against their TypedDict in `ropeconv/keywords.py`, which
type checkers read too. `source_of` and `reference_of` accept a model in any form.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cache, wraps
from typing import Any, TypeVar, cast, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ..bake.output import Output
from ..bake.plan import FilePlan
from ..errors import UnknownModelType, UsageError
from ..inspection.inspection import Inspection
from ..models.config import detect
from ..models.gguf import GgufSource
from ..models.open import open_source
from ..models.reference import names_gguf
from ..models.source import Source
from ..rope.errors import shown
from ..runtimes.read_config import read_spec
from ..runtimes.verdict import difference

Verb = TypeVar("Verb", bound=Callable[..., Any])

HINTS = dict.fromkeys(
    ("method", "methods", "factor"), "a method is a keyword with its value, such as yarn=4"
)
"""Keywords that people try, with what to write in their place."""
KINDS = {
    "float_type": "a number",
    "int_type": "a whole number",
    "string_type": "a text",
    "bool_type": "True or False",
    "callable_type": "a function",
    "list_type": "a list",
    "iterable_type": "a list",
    "dict_type": "a dictionary",
}
"""Errors of pydantic in our words; the others say what they expect themselves."""
CLASSES = {
    "PathLike": "a path",
    "Sequence": "a list",
    "Mapping": "a dictionary",
    "SupportsArray": "an array",
}
"""Classes in our words; others have their names."""


def list_keywords(*groups: type) -> Callable[[Verb], Verb]:
    """Decorate a verb: add the sentences on its keywords to its docstring, which `help` shows.

    Args:
        groups: Classes of ropeconv/keywords.py, whose docstrings have a line for each keyword.
    """

    def add(verb: Verb) -> Verb:
        """Add a section `Keywords:` to the docstring of a verb, from those of the classes."""
        sections = []
        for group in groups:
            _, _, section = (group.__doc__ or "").partition("Attributes:\n")
            sections.append(section.rstrip())
        docstring = (verb.__doc__ or "").rstrip()
        verb.__doc__ = f"{docstring}\n\n    Keywords:\n" + "\n".join(sections) + "\n"
        return verb

    return add


def check_arguments(verb: Verb) -> Verb:
    """Decorate a verb: refuse arguments whose type is not that of their parameter.

    None stands for the default of a parameter that has one. Parameters of the type object, which
    accept models in any form, are left to the function. The verb raises UsageError for the others.
    """
    signature = inspect.signature(verb)

    @wraps(verb)
    def check_and_call(*arguments: Any, **keywords: Any) -> Any:
        given = signature.bind(*arguments, **keywords)
        hints = _hints(verb)  # read at the first call, when all modules are imported
        for name, value in given.arguments.items():
            default = signature.parameters[name].default
            if value is None and default is not inspect.Parameter.empty:
                given.arguments[name] = default
            elif hints[name] is not object:
                given.arguments[name] = check_value(name, value, hints[name])
        return verb(*given.args, **given.kwargs)

    return cast(Verb, check_and_call)


def check_keywords(verb: str, keywords: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Return keywords without those that are None.

    Args:
        verb: The function that was called, for messages.
        keywords: The names and values that were passed.
        kind: The TypedDict that has them.

    Raises:
        UsageError: For a name that is not there, and a value of another type.
    """
    known = _hints(kind)
    checked = {}
    for name, value in keywords.items():
        if name not in known:
            raise _unknown_keyword(verb, name, known)
        if value is not None:
            checked[name] = check_value(name, value, known[name])
    return checked


def check_value(name: str, value: Any, hint: Any) -> Any:
    """Return the value of a keyword, with numbers and dtypes of numpy and torch as plain ones.

    Args:
        name: The name of the keyword, for the message.
        value: The value that the user passed.
        hint: Its type.

    Raises:
        UsageError: The value is of another type.
    """
    # np.float32(4) is 4.0, and torch.bfloat16 is "bfloat16"; neither library is imported for this
    kind = type(value)
    if kind.__module__ in ("numpy", "torch") and getattr(value, "ndim", 1) == 0:
        value = value.item()
    elif kind.__module__ == "torch" and kind.__name__ in ("dtype", "device"):
        value = str(value).removeprefix("torch.")

    # pydantic checks the type, also of the items of a list, and converts nothing
    try:
        _adapter(hint).validate_python(value)
    except ValidationError as problem:
        wanted = dict.fromkeys(_describe_expected(error) for error in problem.errors())
        words = " or ".join(wanted)
        raise UsageError(f"{name}={shown(value)} is not {words}") from None
    return value


def refuse_options_of_plan(verb: str, options: Mapping[str, Any], planner: str) -> None:
    """Refuse options that cannot act on a finished plan.

    Args:
        verb: The function that got the plan, for the message.
        options: Their names and values; None for those that were not given.
        planner: The function that made the plan, which accepts them.

    Raises:
        UsageError: One of them was given.
    """
    for name, value in options.items():
        if value is not None:
            raise UsageError(f"{verb}() of a plan does not accept {name}; pass it to {planner}()")


def reference_of(verb: str, model: Any, family: str = "") -> str:
    """Return the path or Hub id of a model, for `open_source`.

    Args:
        verb: The function that was called, for messages.
        model: A path, an id, a loaded model, a source, an inspection or an output.
        family: The family that the user has named, with which a loaded model is read; empty to use
            its `model_type`.

    Raises:
        UsageError: For something that is not a model, and a loaded model that differs from the
            files it was loaded from.
    """
    if isinstance(model, Inspection):
        model = model.source
    if isinstance(model, Source | GgufSource):
        return model.reference
    if isinstance(model, FilePlan):
        raise UsageError(
            f"{verb}() needs a model, and got a plan, which is not written yet; apply() it first"
        )
    if isinstance(model, Output):
        return os.fspath(model)
    if is_loaded(model):
        if not model.config._name_or_path:
            raise UsageError(
                f"the model does not say what it was loaded from; pass its path to {verb}()"
            )
        reference = str(model.config._name_or_path)
        _refuse_other_than_files(verb, model, reference, family)
        return reference
    if isinstance(model, str | os.PathLike):
        path = os.fspath(model)
        if isinstance(path, str) and path:
            return path
    raise UsageError(
        f"{verb}() needs a path, an id on the Hub, a loaded model or a source, and got"
        f" {describe_argument(model)}"
    )


def source_of(verb: str, model: Any, family: str = "") -> Source | GgufSource:
    """Return the source of a model. Raises UsageError for something that is not a model."""
    check_value("family", family, str)
    if isinstance(model, Source | GgufSource) and not family:
        return model
    reference = reference_of(verb, model, family)
    if verb == "inspect" and names_gguf(reference):  # the file itself names its architecture
        family = ""
    return open_source(reference, family)


def _refuse_other_than_files(verb: str, model: Any, reference: str, family: str) -> None:
    """Refuse a loaded model that differs from the files that its config names as its source.

    A function such as `apply` reads these files, and not the model in memory.

    Args:
        verb: The function that was called, for messages.
        model: A model of transformers.
        reference: The path or Hub id that its config names.
        family: The family that the user has named, or empty.

    Raises:
        UsageError: The model has an adapter, another revision, or other RoPE settings.
    """
    # a PeftModel has this attribute, and a model of transformers after `load_adapter`
    if hasattr(model, "peft_config"):
        raise UsageError(
            f"the loaded model has a PEFT adapter, which {verb}() would leave out; merge the"
            " adapter and save the model, or pass its base model by path, to apply() with adapter="
        )

    source = open_source(reference, family)
    if isinstance(source, GgufSource):
        return
    source.files()  # on the Hub, this fixes the commit
    loaded_commit = getattr(model.config, "_commit_hash", None)
    if source.commit and loaded_commit and source.commit != loaded_commit:
        raise UsageError(
            f"the model was loaded from commit {loaded_commit} of {reference}, and {verb}() would"
            f" read commit {source.commit}; pass {shown(f'{reference}@{loaded_commit}')}"
        )

    config = source.config()
    try:
        detected = detect(config, family)
    except UnknownModelType:  # the function itself says so, or derives the family from the class
        return
    of_files = read_spec(config, detected)
    loaded = read_spec(model.config.to_dict(), detected)
    other = difference(of_files.current(), of_files, loaded)
    if not other and loaded.context != of_files.context:
        other = f"it declares {loaded.context:,} tokens, not {of_files.context:,}"
    if other:
        raise UsageError(
            f"the loaded model has other RoPE settings than {reference}: {other}; pass the revision"
            f" it was loaded from to {verb}(), as owner/name@revision, or save it with"
            " save_pretrained and pass that folder"
        )


def is_loaded(model: Any) -> bool:
    """Whether an object is a model of transformers."""
    return hasattr(getattr(model, "config", None), "to_dict") and hasattr(model, "named_modules")


def describe_argument(argument: object) -> str:
    """Describe a wrong argument, for a message."""
    if isinstance(argument, str | int | float) or argument is None:
        return shown(argument)
    return f"a {type(argument).__name__}"


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the types of the keywords of a TypedDict, or of the parameters of a function."""
    return get_type_hints(kind)


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    """Return what checks a type without converting values."""
    return TypeAdapter(hint, config=ConfigDict(strict=True, arbitrary_types_allowed=True))


def _unknown_keyword(verb: str, name: str, known: Mapping[str, Any]) -> UsageError:
    """Return the error for a keyword that a function does not have."""
    near = get_close_matches(name, sorted(known), 1, 0.5)
    if name in HINTS:
        hint = HINTS[name]
    elif near:
        hint = f"did you mean {near[0]}?"
    else:
        hint = f"help(ropeconv.{verb}) lists them"
    return UsageError(f"{verb}() has no keyword {name}; {hint}")


def _describe_expected(error: Any) -> str:
    """Return what a keyword accepts, by an error of pydantic."""
    if error["type"] == "is_instance_of":
        name = error["ctx"]["class"]
        return CLASSES.get(name, f"a {name}")
    words: str = error["msg"].removeprefix("Input should be ")
    return KINDS.get(error["type"], words)
