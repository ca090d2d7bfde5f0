"""The options of a recipe, one per method, setting and modifier, and the Recipe that they make.

The options follow from the registry of methods and from the fields of Recipe, so that a new method
has its flag, its keyword in Python and its line in the help at once. Read `build_recipe` first.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..options import EXPERT, LENGTH, METHOD, LogNKind, Option, option_of
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
LENGTH_MODIFIERS = tuple(name for name, (kind, _, _) in MODIFIER_OPTIONS.items() if kind is str)
"""Modifiers that are a number of tokens, such as `context`."""
COMMON = ("context", "original_context", "on_top", "keep_short")
"""Modifiers that the short help shows."""
METAVARS = {Value.FACTOR: "S", Value.TOKENS: "TOKENS", Value.FILE: "FILE", Value.TEXT: "TEXT"}
"""The word for the value of a method in the help; a number has the first letter of its field."""


def variable(name: str) -> str:
    """Return the name of a flag as a Python identifier: `theta-for` as `theta_for`."""
    return name.replace("-", "_")


def _method_options() -> list[Option]:
    """Return one option for each method, and --recipe."""
    options = [_method_option(method) for method in REGISTRY.values()]
    recipe_file = Option(
        name="recipe",
        kind=str,
        default=None,
        many=False,
        help="A saved recipe (JSON).",
        group=METHOD,
        flag="--recipe",
        metavar="FILE",
    )
    return [*options, recipe_file]


def _method_option(method: type[Method]) -> Option:
    """Return the option of a method, such as `--yarn S`."""
    kind: type = bool
    metavar = None
    if method.value is not Value.SWITCH:
        # the value of the flag is the first field of the method; a factor is a text, since it may
        # be a length too, as in `--yarn 128k`
        kind = float if method.value is Value.NUMBER else str
        first_field = dataclasses.fields(method)[0].name
        metavar = METAVARS.get(method.value, first_field[:1].upper())
    return Option(
        name=method.name,
        kind=kind,
        default=None,
        many=False,
        help=sentence(method.summary),
        group=METHOD,
        flag=method.flag(),
        metavar=metavar,
    )


def method_settings() -> dict[str, list[tuple[type[Method], dataclasses.Field[Any]]]]:
    """Return the settings of methods, such as beta_fast, each with the methods that have it.

    Lists of numbers are left out, since they come from files.
    """
    settings: dict[str, list[tuple[type[Method], dataclasses.Field[Any]]]] = {}
    for method in REGISTRY.values():
        # the first field is the value of the method itself, as in --yarn 4
        for item in dataclasses.fields(method)[1:]:
            is_list = "tuple" in str(item.type)
            if not is_list:
                settings.setdefault(item.name, []).append((method, item))
    return settings


def _setting_options() -> list[Option]:
    """Return a command-line option for each setting of a method, such as `--beta-fast` of YaRN."""
    setting_options = []
    for name, methods_and_fields in method_settings().items():
        # Methods may share a setting. It has the same meaning and type in all of them, which are
        # read from the first method.
        first_method, field = methods_and_fields[0]
        flags_of_methods = [method.flag() for method, _field in methods_and_fields]

        # "...; with --yarn (default: 32)"
        help_text = f"{field.metadata['help']}; with {' or '.join(flags_of_methods)}"
        if field.default is not None:
            help_text += f" (default: {plain(field.default)})"
        details: dict[str, Any] = {"help": sentence(help_text), "group": EXPERT}

        # a switch has two flags: --truncate/--no-truncate
        value_type = typing.get_type_hints(first_method)[name]
        is_switch = value_type in (bool, bool | None)
        spelling = name.replace("_", "-")
        details["flag"] = f"--{spelling}"
        if is_switch:
            details["flag"] = f"--{spelling}/--no-{spelling}"

        # A number of tokens may be written as 128k, so its option is a text. Fields with numbers of
        # tokens are checked by the function `tokens`.
        is_number_of_tokens = field.metadata["check"] is tokens
        if is_number_of_tokens:
            value_type = str
            details["metavar"] = "TOKENS"
        setting_options.append(option_of(name, value_type, None, details))
    return setting_options


def plain(value: Any) -> str:
    """Return a default as text for the help."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _modifier_options() -> list[Option]:
    """Return one option for each modifier of a recipe."""
    modifiers = []
    for name in MODIFIERS:
        kind, metavar, words = MODIFIER_OPTIONS[name]
        details = {
            "help": sentence(words),
            "group": LENGTH if name in COMMON else EXPERT,
            "metavar": metavar,
        }
        modifiers.append(option_of(name, kind, None, details))
    return modifiers


def recipe_options() -> list[Option]:
    """Return the options of a recipe: one for each method, setting and modifier."""
    return [*_method_options(), *_setting_options(), *_modifier_options()]


def chosen_methods(values: Values) -> list[str]:
    """Return the options that name a method, such as `yarn`, and `recipe` for a saved one."""
    names = (*map(variable, REGISTRY), "recipe")
    return [name for name in names if _is_given(values.get(name))]


def _is_given(value: Any) -> bool:
    """Whether an option was given. 0 is a value, which a method or modifier may refuse."""
    return value is not None and value is not False


def build_recipe(values: Values) -> Recipe:
    """Return the recipe that options describe: a method with its settings, and modifiers.

    A length without a method, as in `--context 128k`, is `--yarn 128k`: most runtimes support YaRN,
    and it works without training.

    Args:
        values: The options by name, such as {"yarn": "4", "beta_fast": 16, "context": None}.

    Raises:
        UsageError: For two methods, none, and settings of another method.
        RecipeError: For a value that the method or a modifier cannot have.
    """
    # --context 128k without a method: the same as --yarn 128k
    has_length_only = bool(values.get("context")) and not chosen_methods(values)
    if has_length_only:
        length = _check_context(values["context"])
        values = {**values, "yarn": length, "context": None}

    chosen = _single_method(values)

    # modifiers are options that all methods have: --attention-factor
    modifiers = {name: values[name] for name in MODIFIERS if _is_given(values.get(name))}
    for name in LENGTH_MODIFIERS:
        if name in modifiers:
            modifiers[name] = parse_tokens(modifiers[name])

    # settings are options that some methods have: --beta-fast
    settings = {name: values[name] for name in method_settings() if values.get(name) is not None}

    # --recipe FILE: the method is in the file
    if chosen == "recipe":
        return _load_recipe(values["recipe"], modifiers, settings)

    # --yarn 4
    method_class = _method_classes()[chosen]
    _refuse_other_settings(method_class, settings)
    for setting, value in settings.items():
        if isinstance(value, str):  # a length such as "128k"
            settings[setting] = parse_tokens(value)
    method = _make_method(method_class, values[chosen], settings)

    # Some models have a scaling already, whose settings are used for settings that the user left
    # out. A default value that the user passed (--beta-fast 32) must be kept, and is listed here.
    explicit = explicit_defaults(method, settings)
    return Recipe(method, explicit=explicit, **modifiers)


def _method_classes() -> dict[str, type[Method]]:
    """Return the class of each method, by the name of its option: `theta_for`, `yarn`."""
    return {variable(name): method for name, method in REGISTRY.items()}


def _single_method(values: Values) -> str:
    """Return the one option that names a method, such as "yarn", or "recipe" for a saved one.

    Raises:
        UsageError: There is none, or there are two.
    """
    chosen = chosen_methods(values)
    if not chosen:
        raise UsageError(
            "give a method, such as --yarn 4, or a length, such as --context 128k (methods:"
            " `ropeconv list methods`)"
        )
    if len(chosen) > 1:
        methods = _method_classes()
        flags = ["--recipe" if name == "recipe" else methods[name].flag() for name in chosen]
        raise UsageError(f"{' and '.join(flags)} are two methods; choose one")
    return chosen[0]


def build_recipes(values: Values) -> list[Recipe]:
    """Return one recipe for each method that was given: `--yarn 4 --ntk 4 --beta-fast 16` are two.

    Modifiers, such as `--attention-factor`, go to all of them. Settings, such as `--beta-fast` of
    YaRN, go to the methods that have them.

    Raises:
        UsageError: For settings and modifiers without a method.
        RecipeError: As `build_recipe` does.
    """
    chosen = chosen_methods(values)
    given = [name for name, value in values.items() if value is not None]
    if given and not chosen:
        flag = given[0].replace("_", "-")
        raise UsageError(f"--{flag} goes with a method, such as --yarn 4; add one")
    if "recipe" not in chosen:  # the method of a --recipe file is not known here
        _refuse_unused_settings(given, chosen)

    # each recipe is built from the options without the other methods, and without the settings that
    # only these have
    methods = _method_classes()
    recipes = []
    for name in chosen:
        left_out = {other for other in chosen if other != name}
        # a single method, and a --recipe file, get all settings; `build_recipe` refuses those that
        # they do not have
        if len(chosen) > 1 and name in methods:
            own_settings = {item.name for item in dataclasses.fields(methods[name])}
            left_out |= method_settings().keys() - own_settings
        own_values = {key: value for key, value in values.items() if key not in left_out}
        recipes.append(build_recipe(own_values))
    return recipes


def _refuse_unused_settings(given: Sequence[str], chosen: Sequence[str]) -> None:
    """Raise UsageError for a setting that none of the chosen methods has.

    Args:
        given: The names of all options that were given.
        chosen: Those of them that are methods.
    """
    methods = _method_classes()
    for setting, uses in method_settings().items():
        methods_with_setting = {variable(method.name) for method, _ in uses}
        if setting in given and methods_with_setting.isdisjoint(chosen):
            flags = [methods[method].flag() for method in chosen]
            raise _unused_setting(setting, " and ".join(flags))


def length_text(value: float | str) -> str:
    """Return a length or factor as a command line has it: 131072.0 as `131072`."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def as_texts(values: Values) -> dict[str, Any]:
    """Return the values of a recipe as a command line has them: factors and lengths as texts."""
    names = list(LENGTH_MODIFIERS)
    for name, method in REGISTRY.items():
        if method.value not in (Value.SWITCH, Value.NUMBER, Value.FILE):
            names.append(variable(name))
    texts = dict(values)
    for name in names:
        if name in texts:
            texts[name] = length_text(texts[name])
    return texts


def _check_context(text: str) -> str:
    """Return the length of --context without a method. Raises UsageError if it is too short."""
    length = parse_tokens(text)
    if length < SMALLEST_LENGTH:
        raise UsageError(
            f"--context {length} without a method starts at {SMALLEST_LENGTH:,} tokens; add one"
            f" with its factor, as in --yarn 4 --context {length}"
        )
    return format_tokens(length)


def _load_recipe(place: str, modifiers: dict[str, Any], settings: dict[str, Any]) -> Recipe:
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
    """Return the error for a setting that the chosen methods do not have."""
    owners = " or ".join(method.flag() for method, _ in method_settings()[name])
    flag = name.replace("_", "-")
    return UsageError(f"--{flag} goes with {owners}, not with {chosen}")


def _make_method(method: type[Method], value: Any, settings: dict[str, Any]) -> Method:
    """Return a method with its value, the first of its fields, and its settings, the others."""
    if method.value is Value.SWITCH:
        return method()
    if method.value is Value.FILE:
        from ..models.vectors import vector_method

        return vector_method(method, value)
    name = dataclasses.fields(method)[0].name
    return method(**{name: method.parse(value)}, **settings)
