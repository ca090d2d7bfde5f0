"""Options that several commands share, with those of the methods in the registry, and what is made
of them.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..environment import require
from ..errors import UsageError
from ..formats.disk import obstacle
from ..formats.files import expand_home
from ..options import (
    Option,
    OutputPlace,
    TargetOptions,
    described,
    from_command_line,
    option,
    options,
)
from ..rope.lengths import SMALLEST_LENGTH, format_tokens, parse_tokens
from ..rope.methods.method import REGISTRY, Method, Value, tokens
from ..rope.recipe import MODIFIERS, Recipe
from ..views.sheet import sentence
from .command import EXPERT, GENERAL, LENGTH, METHOD, OUTPUT, RUNNING, LogNKind, OptionGroup, refuse
from .completion import family_names

if TYPE_CHECKING:
    from ..convert.target import Target

ExplainOption = Annotated[
    bool,
    typer.Option(
        "--explain", "-v", help="Show all numbers and all runtimes.", rich_help_panel=GENERAL
    ),
]
DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", help="Print the plan and write nothing.", rich_help_panel=OUTPUT),
]


@dataclasses.dataclass(frozen=True)
class WriteOptions:
    """How `apply` and `restore` write an output."""

    dry_run: bool = option(False, "Print the plan and write nothing.", OUTPUT)
    force: bool = option(False, "Replace an earlier output of ropeconv.", OUTPUT)
    no_fsync: bool = option(
        False,
        "Do not wait for the disk: faster, and a loss of power soon after may damage the output.",
        OUTPUT,
    )


SOURCE = (
    "A folder, a GGUF file, a config.json, Ollama's NAME:TAG, or owner/name@revision(/FILE.gguf) on"
    " the Hub."
)
OR_GRAPH = SOURCE.replace("a GGUF file", "a GGUF file, a graph (.onnx, .xml)")
SourceArgument = Annotated[str, typer.Argument(metavar="SOURCE", help=SOURCE)]

FAMILY = (
    "Treat the model as one of this family, whatever its model_type (`ropeconv list families`)."
)
FamilyOption = Annotated[
    str,
    typer.Option(
        "--family",
        help=FAMILY,
        rich_help_panel=GENERAL,
        metavar="NAME",
        autocompletion=family_names,
    ),
]

DeviceMapOption = Annotated[
    str,
    typer.Option(
        "--device-map",
        help="auto spreads the model over several devices.",
        rich_help_panel=RUNNING,
        metavar="MAP",
    ),
]
ReportOption = Annotated[
    Path | None,
    typer.Option(
        "--report",
        help="Write a page with plots and all numbers (HTML).",
        rich_help_panel=OUTPUT,
        metavar="FILE",
        parser=expand_home,
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Run code of the models that ropeconv has not written, and load pickled weights.",
        rich_help_panel=GENERAL,
    ),
]
PlotOption = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        help="Write the plots (.png or .svg).",
        rich_help_panel=OUTPUT,
        metavar="FILE",
        parser=expand_home,
    ),
]

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


RecipeValues = Annotated[dict[str, Any], OptionGroup(recipe_options)]
"""The values of the options of a recipe, by name, in the place of a parameter of a command."""


def build_recipe(values: dict[str, Any]) -> Recipe:
    """The recipe of a command line. values: of options, by name. Raises UsageError or
    RecipeError.
    """
    flags = {variable(name): method for name, method in REGISTRY.items()}
    chosen = chosen_methods(values)
    if not chosen and values.get("context"):
        length = parse_tokens(values["context"])
        if length < SMALLEST_LENGTH:
            raise UsageError(
                f"--context {length} without a method starts at {SMALLEST_LENGTH:,} tokens; add one"
                f" with its factor, as in --yarn 4 --context {length}"
            )
        values = values | {"yarn": format_tokens(length), "context": None}
        chosen = ["yarn"]
    spelled = ["--recipe" if name == "recipe" else flags[name].flag() for name in chosen]
    refuse(
        (len(chosen) > 1, f"{' and '.join(spelled)} are two methods; choose one"),
        (
            not chosen,
            (
                "give a method, such as --yarn 4, or a length, such as --context 128k (methods:"
                " `ropeconv list methods`)"
            ),
        ),
    )
    modifiers = {name: values[name] for name in MODIFIERS if values.get(name) not in (None, False)}
    modifiers |= {name: parse_tokens(modifiers[name]) for name in LENGTHS if name in modifiers}
    extras = {name: values[name] for name in method_settings() if values.get(name) is not None}
    if chosen[0] == "recipe":
        from ..inspection.receipts.storage import read_recipe

        if extras:
            raise UsageError(
                f"--{next(iter(extras)).replace('_', '-')} cannot be added to --recipe; write it"
                " into the file"
            )
        return dataclasses.replace(read_recipe(Path(values["recipe"])), **modifiers)
    method = flags[chosen[0]]
    known = {item.name for item in dataclasses.fields(method)[1:]}
    for name in extras:
        if name not in known:
            raise _unused_setting(name, method.flag())
    settings = {
        name: parse_tokens(value) if isinstance(value, str) else value
        for name, value in extras.items()
    }
    return Recipe(_method(method, values[chosen[0]], settings), **modifiers)


def _unused_setting(name: str, chosen: str) -> UsageError:
    takers = " or ".join(kind.flag() for kind, _ in method_settings()[name])
    return UsageError(f"--{name.replace('_', '-')} goes with {takers}, not with {chosen}")


def chosen_methods(values: dict[str, Any]) -> list[str]:
    """The options that name a method. values: of options, by name."""
    flags = (*map(variable, REGISTRY), "recipe")
    return [name for name in flags if values.get(name) is not None and values[name] is not False]


def build_recipes(values: dict[str, Any]) -> list[Recipe]:
    """A recipe per method on the command line; modifiers go to all, settings to the methods that
    have them.

    Raises UsageError for settings and modifiers without a method.
    """
    flags = {variable(name): method for name, method in REGISTRY.items()}
    chosen = chosen_methods(values)
    typed = [name for name, value in values.items() if value is not None]
    if typed and not chosen:
        raise UsageError(
            f"--{typed[0].replace('_', '-')} goes with a method, such as --yarn 4; add one"
        )
    for name, uses in method_settings().items():
        if (
            name in typed
            and "recipe" not in chosen
            and not {variable(kind.name) for kind, _ in uses} & {*chosen}
        ):
            raise _unused_setting(name, " and ".join(flags[method].flag() for method in chosen))
    recipes = []
    for name in chosen:
        others = {other for other in chosen if other != name}
        if len(chosen) > 1 and name in flags:
            others |= method_settings().keys() - {
                item.name for item in dataclasses.fields(flags[name])
            }
        recipes.append(
            build_recipe({key: value for key, value in values.items() if key not in others})
        )
    return recipes


def _method(method: type[Method], value: Any, extras: dict[str, Any]) -> Method:
    if method.value is Value.SWITCH:
        return method()
    if method.value is Value.FILE:
        from ..models.vectors import read_lists
        from ..rope.methods.vectors import from_file

        return from_file(method, read_lists(Path(value)))
    return method(**{dataclasses.fields(method)[0].name: method.parse(value)}, **extras)


def split(values: dict[str, Any], from_gguf: bool) -> list[dict[str, Any]]:
    """The options of each output of one source: one per --to, and per --outtype where that has an
    effect.

    With several formats, options that only one of them has go only to that one.
    """
    formats = ["gguf" if to == "ollama" else to for to in values["to"]] or [None]
    outputs = []
    for to in formats:
        to_gguf = to == "gguf" or (from_gguf and to is None)
        output = values | {"to": to}
        if len(set(formats)) > 1:
            other = "folder" if to_gguf else "gguf"
            output |= {
                option.name: None for option in options(TargetOptions) if option.only == other
            }
            output["runtime"] = _runtimes(values["runtime"], to_gguf)
        converts = to_gguf != from_gguf
        outtypes = values["outtype"] if converts or len(set(formats)) == 1 else None
        outputs += [output | {"outtype": outtype} for outtype in outtypes or [None]]
    return outputs


def _runtimes(names: Iterable[str], to_gguf: bool) -> list[str]:
    """The runtimes that read GGUF files, or those that do not. names: with or without a version."""
    from ..runtimes.gguf_readers import reader_names
    from ..runtimes.runtime import LLAMA_CPP, canonical

    known = (LLAMA_CPP, *reader_names())
    return [name for name in names if (canonical(name).partition("@")[0] in known) == to_gguf]


def names_ollama(values: dict[str, Any]) -> bool:
    """Whether the options of a target name Ollama, which needs a Modelfile. values: of options, by
    name.
    """
    from ..runtimes.runtime import canonical

    runtimes = (canonical(name).partition("@")[0] for name in values["runtime"])
    return "ollama" in runtimes or "ollama" in values["to"]


def build_target(values: dict[str, Any], owner: str | None = None) -> Target:
    """The Target of one output.

    owner: of the repository that it is published in, who is named in a conversion that quantises.
    """
    from ..convert.target import Target

    return from_command_line(Target, values).published_by(owner or "")


TargetValues = Annotated[dict[str, Any], OptionGroup(lambda: options(OutputPlace, TargetOptions))]
"""The values of the options of an output, by name, for `build_target`.

The Target is made later, since that imports numpy and the probe of transformers has to start
before.
"""


def check_places(report: Path | None, plot: Path | None, out: Path | None = None) -> None:
    """Raises UsageError for files that could not be written at the end."""
    from ..views.plot_style import checked

    if report is not None or plot is not None:
        require("matplotlib", "--report" if plot is None else "--plot")
    if plot is not None:
        checked(plot)
    if report is not None and report.suffix.lower() not in PAGES:
        raise UsageError(f"--report {report} is a page in HTML; name it like report.html")
    if out is not None and out.suffix.lower() in (*PAGES, *PICTURES, *TABLES):
        others = "; --report writes a page, --plot a picture"
        raise UsageError(f"-o {out} is JSON; name it like result.json{others}")
    for path in (report, plot, out):
        check_place(path)


PAGES = (".html", ".htm", ".xhtml")
PICTURES = (".svg", ".png", ".pdf", ".jpg")
TABLES = (".csv", ".tsv", ".md", ".txt")
"""Ends of the names of files that people expect to be of these kinds."""


def check_place(path: Path | None) -> None:
    """Raises UsageError for a file that could not be written at the end. Missing folders will be
    made.
    """
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file in it")
    problem = obstacle(path.parent)
    if problem:
        raise UsageError(
            f"{problem}, so {path.name} cannot be written there; choose another place for it"
        )
