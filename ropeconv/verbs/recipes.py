"""The options of a recipe, one per method, setting and modifier, and the Recipe that they make.

The options follow from the registry of methods and from the fields of Recipe, so that a new method
has its flag, its keyword in Python and its line in the help at once. Read `build_recipe` first.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..options import EXPERT, LENGTH, METHOD, LogNKind, Option, described
from ..rope.lengths import SMALLEST_LENGTH, format_tokens, parse_tokens
from ..rope.methods.method import REGISTRY, Method, Value, tokens
from ..rope.recipe import MODIFIERS, Recipe, explicit_defaults
from ..views.sheet import sentence

Values = Mapping[str, Any]
"""Values of options, by their names as Python identifiers; None for those that were not given."""

MODIFIER_OPTIONS: dict[str, tuple[Any, str | None, str]] = {
    "context": (
        str,
        "TOKENS",
        "the context length to reach (128k = 131072); without a method, YaRN up to 4 times",
    ),
    "original_context": (
        str,
        "TOKENS",
        "the trained context length, where the config declares another",
    ),
    "on_top": (bool, None, "keep the scaling that the model has, and extend it further"),
    "keep_short": (
        bool,
        None,
        "leave prompts within the trained context unchanged, in runtimes that can switch",
    ),
    "attention_factor": (float, "NUMBER", "factor on cos and sin, instead of the method's own"),
    "temperature_slope": (float, "NUMBER", "slope a in sqrt(1/t) = a ln s + b (default: 0.1)"),
    "temperature_intercept": (
        float,
        "NUMBER",
        "intercept b in sqrt(1/t) = a ln s + b (default: 1)",
    ),
    "log_n": (LogNKind, None, "scale queries by log(position): clamped at 1, or full"),
    "log_n_length": (
        str,
        "TOKENS",
        "length at which the log-n scale is 1 (default: the trained context)",
    ),
}
"""The type, the name of the value and the help of each modifier."""
LENGTHS = tuple(name for name, (kind, _, _) in MODIFIER_OPTIONS.items() if kind is str)
COMMON = ("context", "original_context", "on_top", "keep_short")
"""Modifiers that the short help shows."""
METAVARS = {Value.FACTOR: "S", Value.TOKENS: "TOKENS", Value.FILE: "FILE", Value.TEXT: "TEXT"}


def variable(name: str) -> str:
    """The name of a flag as a Python identifier: `theta-for` as `theta_for`."""
    return name.replace("-", "_")


def _method_options() -> list[Option]:
    """Return one option for each method, and --recipe."""
    flags = []
    for method in REGISTRY.values():
        kind = {Value.SWITCH: bool, Value.NUMBER: float}.get(method.value, str)
        metavar = (
            METAVARS.get(method.value, dataclasses.fields(method)[0].name.upper()[:1])
            if kind is not bool
            else None
        )
        words = sentence(method.summary)
        flags.append(
            Option(method.name, kind, None, False, words, METHOD, method.flag(), metavar=metavar)
        )
    recipe = Option(
        "recipe", str, None, False, "A saved recipe (JSON).", METHOD, "--recipe", metavar="FILE"
    )
    return [*flags, recipe]


def method_settings() -> dict[str, list[tuple[type[Method], dataclasses.Field[Any]]]]:
    """The options of single methods by name, with the methods that have them; without lists, which
    come from files.
    """
    settings: dict[str, list[tuple[type[Method], dataclasses.Field[Any]]]] = {}
    for method in REGISTRY.values():
        for item in dataclasses.fields(method)[1:]:
            if "tuple" not in str(item.type):
                settings.setdefault(item.name, []).append((method, item))
    return settings


def _setting_options() -> list[Option]:
    """Return one option for each setting of a method."""
    settings = []
    for name, uses in method_settings().items():
        method, item = uses[0]
        flags = " or ".join(kind.flag() for kind, _ in uses)
        default = "" if item.default is None else f" (default: {plain(item.default)})"
        words = sentence(f"{item.metadata['help']}; with {flags}{default}")
        hint = typing.get_type_hints(method)[name]
        spelling = f"--{name.replace('_', '-')}"
        details: dict[str, Any] = {"help": words, "group": EXPERT, "flag": spelling}
        if hint in (bool, bool | None):
            details["flag"] = f"{spelling}/--no-{name.replace('_', '-')}"
        if item.metadata["check"] is tokens:
            hint, details["metavar"] = str, "TOKENS"
        settings.append(described(name, hint, None, details))
    return settings


def plain(value: Any) -> str:
    """A default as text for the help."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _modifier_options() -> list[Option]:
    """Return one option for each modifier of a recipe."""
    flags = []
    for name in MODIFIERS:
        kind, metavar, words = MODIFIER_OPTIONS[name]
        details = {
            "help": sentence(words),
            "group": LENGTH if name in COMMON else EXPERT,
            "metavar": metavar,
        }
        flags.append(described(name, kind, None, details))
    return flags


def recipe_options() -> list[Option]:
    """The options of a recipe: one per method, setting and modifier. A class in the registry brings
    its own.
    """
    return [*_method_options(), *_setting_options(), *_modifier_options()]


def chosen_methods(values: Values) -> list[str]:
    """Return the options that name a method, such as `yarn`, and `recipe` for a saved one."""
    names = (*map(variable, REGISTRY), "recipe")
    return [name for name in names if values.get(name) is not None and values[name] is not False]


def build_recipe(values: Values) -> Recipe:
    """Return the recipe that options describe; a length without a method is reached by YaRN.

    Raises:
        UsageError: For two methods, none, and settings of another method.
        RecipeError: For a value that the method or a modifier cannot have.
    """
    methods = {variable(name): method for name, method in REGISTRY.items()}
    chosen = chosen_methods(values)
    if not chosen and values.get("context"):
        values = {**values, "yarn": _length_to_reach(values["context"]), "context": None}
        chosen = ["yarn"]
    if len(chosen) > 1:
        flags = ["--recipe" if name == "recipe" else methods[name].flag() for name in chosen]
        raise UsageError(f"{' and '.join(flags)} are two methods; choose one")
    if not chosen:
        raise UsageError(
            "give a method, such as --yarn 4, or a length, such as --context 128k (methods:"
            " `ropeconv list methods`)"
        )

    modifiers = {name: values[name] for name in MODIFIERS if values.get(name) not in (None, False)}
    for name in LENGTHS:
        if name in modifiers:
            modifiers[name] = parse_tokens(modifiers[name])
    settings = {name: values[name] for name in method_settings() if values.get(name) is not None}

    if chosen[0] == "recipe":
        return _saved_recipe(values["recipe"], modifiers, settings)
    method = methods[chosen[0]]
    _refuse_other_settings(method, settings)
    for name, value in settings.items():
        if isinstance(value, str):
            settings[name] = parse_tokens(value)
    chosen_method = _method(method, values[chosen[0]], settings)
    explicit = explicit_defaults(chosen_method, settings)
    return Recipe(chosen_method, explicit=explicit, **modifiers)


def build_recipes(values: Values) -> list[Recipe]:
    """Return one recipe for each method that was given.

    Modifiers go to all of them, settings to the methods that have them. Raises UsageError for
    settings and modifiers without a method, and as `build_recipe` does.
    """
    methods = {variable(name): method for name, method in REGISTRY.items()}
    chosen = chosen_methods(values)
    given = [name for name, value in values.items() if value is not None]
    if given and not chosen:
        flag = given[0].replace("_", "-")
        raise UsageError(f"--{flag} goes with a method, such as --yarn 4; add one")
    for name, uses in method_settings().items():
        having = {variable(kind.name) for kind, _ in uses}
        if name in given and "recipe" not in chosen and not having & set(chosen):
            raise _unused_setting(name, " and ".join(methods[one].flag() for one in chosen))

    recipes = []
    for name in chosen:
        others = {other for other in chosen if other != name}
        if len(chosen) > 1 and name in methods:
            own = {item.name for item in dataclasses.fields(methods[name])}
            others |= method_settings().keys() - own
        kept = {key: value for key, value in values.items() if key not in others}
        recipes.append(build_recipe(kept))
    return recipes


def length_text(value: float | str) -> str:
    """Return a length or factor as a command line has it: 131072.0 as `131072`."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def as_texts(values: Values) -> dict[str, Any]:
    """Return the values of a recipe as a command line has them: factors and lengths as texts."""
    parsed = {
        variable(name)
        for name, method in REGISTRY.items()
        if method.value not in (Value.SWITCH, Value.NUMBER, Value.FILE)
    }
    texts = dict(values)
    for name in (*parsed, *LENGTHS):
        if name in texts:
            texts[name] = length_text(texts[name])
    return texts


def _length_to_reach(text: str) -> str:
    """Return the length of --context without a method. Raises UsageError for one that is short."""
    length = parse_tokens(text)
    if length < SMALLEST_LENGTH:
        raise UsageError(
            f"--context {length} without a method starts at {SMALLEST_LENGTH:,} tokens; add one"
            f" with its factor, as in --yarn 4 --context {length}"
        )
    return format_tokens(length)


def _saved_recipe(place: str, modifiers: dict[str, Any], settings: dict[str, Any]) -> Recipe:
    """Return a recipe from a file, with further modifiers."""
    from ..inspection.receipts.storage import read_recipe

    if settings:
        flag = next(iter(settings)).replace("_", "-")
        raise UsageError(f"--{flag} cannot be added to --recipe; write it into the file")
    return dataclasses.replace(read_recipe(Path(place)), **modifiers)


def _refuse_other_settings(method: type[Method], settings: Values) -> None:
    """Raise UsageError for a setting that a method does not have."""
    own = {item.name for item in dataclasses.fields(method)[1:]}
    for name in settings:
        if name not in own:
            raise _unused_setting(name, method.flag())


def _unused_setting(name: str, chosen: str) -> UsageError:
    takers = " or ".join(kind.flag() for kind, _ in method_settings()[name])
    return UsageError(f"--{name.replace('_', '-')} goes with {takers}, not with {chosen}")


def _method(method: type[Method], value: Any, settings: dict[str, Any]) -> Method:
    if method.value is Value.SWITCH:
        return method()
    if method.value is Value.FILE:
        from ..models.vectors import vector_method

        return vector_method(method, value)
    name = dataclasses.fields(method)[0].name
    return method(**{name: method.parse(value)}, **settings)
