"""The forms of the pages, and what becomes of them: a model, a recipe, a target, a command.

The fields of a form are the names of components of its page, and of parameters in its address.
`fill_form` and `from_address` make a form.
"""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_args
from urllib.parse import unquote, urlencode

from ropeconv.bake.plan import Plan
from ropeconv.convert.target import Target
from ropeconv.errors import UsageError
from ropeconv.formats.files import expand_home
from ropeconv.formats.kind import is_gguf, kind_of
from ropeconv.hub.options import PushOptions
from ropeconv.inspection.receipts.storage import apply_words, read_recipe
from ropeconv.models.gguf import GgufSource
from ropeconv.models.open import HUB_FILE, HUB_ID, open_source
from ropeconv.models.reference import PAGE
from ropeconv.models.source import Source
from ropeconv.options import Format, MachineOptions, TargetOptions, copied, options
from ropeconv.rope.errors import shown
from ropeconv.rope.lengths import is_length
from ropeconv.rope.methods.method import REGISTRY, Value
from ropeconv.rope.recipe import MODIFIERS, Recipe
from ropeconv.runtimes.gguf_readers import reader_names
from ropeconv.verbs.rows import parse_rows

MOST_CHARACTERS = 2000
"""Characters of a field."""
UPLOADS = ("upload", "measured", "recipe")
"""Fields that are dropped files, by their path on this machine; addresses do not keep them."""
FIRST_PAGE = ""
"""The name of the page that plans an output."""
F = TypeVar("F", bound="PageForm")


@dataclass(frozen=True, kw_only=True)
class PageForm:
    """The values of a page."""


@dataclass(frozen=True, kw_only=True)
class ModelForm(PageForm):
    """A page about a model."""

    source: str = ""
    """The model, as for `open_source`."""

    upload: str = ""
    """A dropped config.json, GGUF file or result."""


@dataclass(frozen=True, kw_only=True)
class CompareForm(ModelForm):
    """The methods side by side."""

    context: str = ""
    """A length, or a factor on the trained one."""

    measured: str = ""
    """A result of `eval`."""


@dataclass(frozen=True, kw_only=True)
class RuntimesForm(PageForm):
    """The table of runtimes."""

    family: str = ""
    """The family that is shown; empty for all."""

    runtime: str = ""
    """The runtime that is shown; empty for all."""

    writing: str = "yarn"
    """How RoPE is written, a key of `WRITINGS`."""


@dataclass(frozen=True, kw_only=True)
class BakeForm(TargetOptions, MachineOptions, PushOptions, ModelForm):
    """An output and the machine that it is to fit, with the options of `apply` and `push`."""

    context: str = "128k"
    """The length to reach, or a factor."""

    method: str = "yarn"

    value: str = ""
    """The value of a method that takes no length."""

    settings: str = ""
    """Settings of the method, and modifiers, as `name=value` with commas."""

    recipe: str = ""
    """A saved recipe, in place of the method."""

    out: str = ""
    """The folder or GGUF file."""

    repo_id: str = ""
    """The repository of a publication."""


HUB_PATTERNS = tuple(map(re.compile, (HUB_ID, HUB_FILE, PAGE.pattern)))


def open_model(form: ModelForm) -> Source | GgufSource:
    """Open the model of a form: the dropped file, else what is named.

    Raises:
        UsageError: Nothing is named, or there is no such file.
        RopeconvError: As `open_source` does.
    """
    if form.upload:
        return open_dropped(Path(form.upload))
    reference = form.source
    if not reference:
        raise UsageError(
            "no model is given; write owner/name as on the Hub, or drop a config.json or GGUF file"
        )

    # The message names the whole path, since users of a page do not know in which folder it was
    # started.
    names_other_store = ":" in reference  # such as ollama:NAME
    is_path = not is_on_hub(reference) and not names_other_store
    if is_path:
        path = expand_home(reference)
        if not path.exists():
            place = shown(str(path.absolute()))
            raise UsageError(
                f"no such file or folder: {place}; write its full path, or owner/name as on the Hub"
            )
    return open_source(reference)


def open_dropped(path: Path) -> Source | GgufSource:
    """Open the model in a dropped file, by its own name and not by its place on this machine.

    Raises:
        UsageError: It is neither JSON nor a GGUF file.
    """
    is_json = kind_of(path) == "json" or path.suffix == ".json"
    if not is_json and not is_gguf(path):
        raise UsageError(f"{shown(path.name)} is not a config.json or GGUF file; drop one of these")
    source = open_source(str(path))
    source.reference = path.name
    if not isinstance(source, GgufSource):
        source.name = path.stem  # its folder is named by a hash
    return source


def is_on_hub(reference: str) -> bool:
    """Return whether a reference has the form of a name on the Hub, and none of a path."""
    parts = unquote(reference).split("/")
    if ".." in parts:
        return False
    return any(pattern.fullmatch(reference) for pattern in HUB_PATTERNS)


def field_names(kind: type[PageForm]) -> tuple[str, ...]:
    """Return the fields of a form, in their order."""
    return tuple(item.name for item in fields(kind))


def address_fields(kind: type[PageForm]) -> tuple[str, ...]:
    """Return the fields that an address keeps."""
    return tuple(name for name in field_names(kind) if name not in UPLOADS)


def fill_form(kind: type[F], values: Mapping[str, Any]) -> F:
    """Return a form with the values of components.

    Args:
        kind: The class of the form.
        values: The values by name. A value of another type is as if nothing was typed.
    """
    parsed = {}
    for item in fields(kind):
        parsed[item.name] = _parse_value(item.default, values.get(item.name))
    return kind(**parsed)


def _parse_value(default: object, value: object) -> object:
    """Convert a value from the browser to the type of a field.

    For a field with the default "", the value " yarn " becomes "yarn". A browser may send anything;
    a value of another type becomes the default.

    Args:
        default: The default of the field, which shows its type: a tuple for several choices, None
            for a text that may be left out.
        value: The value.
    """
    if isinstance(default, tuple):
        return _parse_choices(value)

    if isinstance(value, str):
        value = value.strip()[
            : MOST_CHARACTERS + 1
        ]  # one more than allowed, which `refuse_long` refuses
    if default is None:
        return value if isinstance(value, str) and value else None
    if type(value) is not type(default):
        return default
    return value


def _parse_choices(value: object) -> tuple[str, ...]:
    """Return several choices, each once, from a list or a text: ("vllm", "ollama")."""
    choices: list[object] = []
    if isinstance(value, str):  # with commas between the choices
        text = value.strip()[: MOST_CHARACTERS + 1]
        choices += [part.strip() for part in text.split(",") if part.strip()]
    elif isinstance(value, (list, tuple)):
        choices += value
    texts = [choice[:MOST_CHARACTERS] for choice in choices if isinstance(choice, str)]
    return tuple(dict.fromkeys(texts))


def refuse_long(form: PageForm) -> None:
    """Refuse a form with a field that is too long.

    Raises:
        UsageError: A field is longer than MOST_CHARACTERS characters.
    """
    for name in field_names(type(form)):
        value = getattr(form, name)
        if isinstance(value, str) and len(value) > MOST_CHARACTERS:
            raise UsageError(f"{name} has more than {MOST_CHARACTERS:,} characters; shorten it")


def from_address(kind: type[F], query: Mapping[str, str]) -> F:
    """Return the form that the parameters of an address describe.

    For "?source=Qwen%2FQwen3-8B&replace=1" it is BakeForm(source="Qwen/Qwen3-8B", replace=True).

    Args:
        kind: The class of the form.
        query: The parameters of the address; unknown ones are left alone.
    """
    # an address is typed or followed by anyone: it must not name a dropped file
    values: dict[str, object] = {}
    for item in fields(kind):
        if item.name not in query or item.name in UPLOADS:
            continue
        text = query[item.name]
        if item.default is False:
            values[item.name] = text == "1"
        elif isinstance(item.default, tuple):
            values[item.name] = text.split(",")
        else:
            values[item.name] = text
    return fill_form(kind, values)


@dataclass(frozen=True)
class Preset:
    """A machine that a model is for: the words on its button, and what it fills in."""

    label: str
    memory: str
    """The memory that such a machine has today, which the user can change."""

    runtimes: tuple[str, ...]
    to: Format
    outtype: str = ""

    def values(self, source: str) -> tuple[str, list[str], str, str]:
        """Return the memory, the runtimes, the format, and the type of the weights.

        Args:
            source: The model that is typed. A GGUF file keeps the type that it has.
        """
        is_gguf_file = source.lower().endswith(".gguf")
        outtype = "" if is_gguf_file else self.outtype
        return self.memory, list(self.runtimes), self.to, outtype


PRESETS = {
    "pc": Preset("PC, 16 GB: llama.cpp, Ollama", "16GB", ("ollama",), "gguf", "q4_k_m"),
    "mac": Preset("Mac, 24 GB: mlx-lm", "24GB", ("mlx-lm",), "safetensors"),
    "server": Preset("GPU server, 80 GB: vLLM", "80GB", ("vllm",), "safetensors"),
}
"""Machines by the names of their buttons."""
METHODS = tuple(name for name, kind in REGISTRY.items() if kind.value is not Value.FILE)
"""The methods that a form can name; those of a file come as a recipe."""
KINDS_WITH_LENGTH = (Value.FACTOR, Value.TOKENS)
"""Kinds of methods whose value is a length."""


def recipe_of(form: BakeForm) -> Recipe:
    """Return the recipe of a form: the dropped one, else the method with its value and settings.

    Raises:
        UsageError: The form states none, or a setting is not understood.
        RecipeError: A value is wrong.
    """
    if form.recipe:
        if form.value or form.settings:
            raise UsageError("a recipe and settings of a method are given; remove one of them")
        return read_recipe(Path(form.recipe))
    if form.method not in METHODS:
        raise UsageError(
            f"{shown(form.method)} is not a method; choose one of {', '.join(METHODS)}"
        )

    # the form becomes a row as `ropeconv eval --methods` reads it, such as yarn:4:beta_fast=16, in
    # which a comma or a line break would begin another row
    value, settings = _value_and_settings(form)
    not_understood = [text for text in (value, *settings) if "," in text or "\n" in text]
    not_understood += [setting for setting in settings if "=" not in setting]
    if not_understood:
        first = not_understood[0]
        raise UsageError(
            f"{shown(first)} is not a setting; write name=value, with commas between several"
        )
    parts = [form.method]
    if value:
        parts.append(value)
    parts += settings
    (row,) = parse_rows(":".join(parts))
    assert row.recipe is not None
    return row.recipe


def _value_and_settings(form: BakeForm) -> tuple[str, list[str]]:
    """Return the value of the method in a form, and its settings such as ["beta_fast=16"].

    The form has a field for the value of a method, and a field for the length to reach.
    """
    # users type "beta_fast = 16, beta_slow=2"
    settings = []
    for part in form.settings.split(","):
        setting = part.strip()
        if setting:
            settings.append(re.sub(r"\s*=\s*", "=", setting))

    value_kind = REGISTRY[form.method].value
    value = form.value.replace(" ", "")
    length = form.context.replace(" ", "")

    # YaRN: the value is a length or a factor. Without a value, the length to reach is the value:
    # yarn:128k
    if value_kind in KINDS_WITH_LENGTH and not value:
        if not length:
            raise UsageError("no length is given; write one such as 128k, or a factor such as 4")
        return length, settings

    # theta: the value is a base, and the length to reach is a setting: theta:1e6:context=128k
    has_context_setting = any(setting.startswith("context=") for setting in settings)
    if value_kind is Value.NUMBER and is_length(length) and not has_context_setting:
        settings.append(f"context={length}")

    # all other methods, such as one with a text as its value
    return value, settings


def target_of(form: BakeForm) -> Target:
    """Return the options of the output that a form asks for: its format, runtimes and path.

    Raises:
        UsageError: The format is not known.
    """
    formats = get_args(Format)
    if form.to not in (None, *formats):
        raise UsageError(f"{shown(form.to)} is not a format; choose {' or '.join(formats)}")

    # a runtime that reads only GGUF, such as Ollama, makes GGUF the default format
    to = form.to
    names_of_gguf_readers = reader_names()
    names_gguf_reader = any(name in names_of_gguf_readers for name in form.runtimes)
    if not to and names_gguf_reader:
        to = "gguf"

    # the other options of the output have the same names in the form
    target = copied(Target, form, out=form.out or None, to=to or None)

    # a quantised GGUF file names the owner of its repository (general.quantized_by)
    owner, _, _ = form.repo_id.partition("/")
    return target.published_by(owner)


def command_of(plan: Plan, form: BakeForm, publishing: bool) -> str:
    """Return the command line that does the same as the page.

    Args:
        plan: The plan of the output.
        form: The form, which names the place of the output.
        publishing: Whether the output is published.
    """
    is_gguf_source = plan.source.kind == "gguf"
    latest_step = plan.receipt().steps[-1]
    words = apply_words(plan.source.reference, latest_step, is_gguf_source)
    # A recipe with lists is not written as options, but as --recipe FILE. The user dropped that
    # file on the page, so only its name is known, and not its path on the user's disk.
    if form.recipe and "--recipe" in words:
        place_of_file = words.index("--recipe") + 1
        words[place_of_file] = Path(form.recipe).name
    for option in options(MachineOptions):
        value = getattr(form, option.name)
        if value:
            words = [*words, option.flag, value]

    if not publishing:
        if plan.target.out is not None:
            words = [*words, "-o", str(plan.target.out)]
        return shlex.join(words)

    # the options of publishing that were changed
    flags: list[str] = []
    for option in options(PushOptions):
        value = getattr(form, option.name)
        if value == option.default:
            continue
        flags.append(option.flag)
        if value is not True:
            flags.append(value)

    # `apply --push` publishes in one command, and has only these options of `push`
    if set(flags) <= {"--private", "--create-pr"}:
        return shlex.join([*words, "--push", form.repo_id, *flags])
    write = shlex.join([*words, "-o", plan.out.name])
    push = shlex.join(["ropeconv", "push", plan.out.name, form.repo_id, *flags])
    return f"{write}\n{push}"


def to_page(page: str, form: PageForm) -> str:
    """Return the address of a page with a form, such as "./compare?source=me%2Fllama".

    Args:
        page: The name of the page, such as "compare"; FIRST_PAGE, the empty name, for the first.
        form: The form. Its values become parameters of the address, without those that are the
            default, and without dropped files, which another browser does not have.
    """
    parameters = {}
    for item in fields(form):
        value = getattr(form, item.name)
        is_dropped_file = item.name in UPLOADS
        if is_dropped_file or value == item.default:
            continue
        if isinstance(value, tuple):
            parameters[item.name] = ",".join(value)
        elif value is True:
            parameters[item.name] = "1"
        else:
            parameters[item.name] = value
    return f"./{page}?{urlencode(parameters)}"


def address_of_plan(source: str, recipe: Recipe, replace: bool = False) -> str:
    """Return the address of the first page with its form filled in for a model and a recipe.

    For YaRN by 4 it is "./?source=Qwen%2FQwen3-8B&context=4".

    Args:
        source: The model.
        recipe: The method and its modifiers.
        replace: Whether to replace the present scaling of the model (`--replace`).
    """
    # the value on the command line: "4" of "--yarn 4"; empty for an option without a value
    method = recipe.method
    value = ""
    if method.value is not Value.SWITCH:
        _, _, value = method.command.partition(" ")

    # the form has two fields for values: "context" for a length or a factor, "value" for all others
    value_field = "context" if method.value in KINDS_WITH_LENGTH else "value"
    form = BakeForm(
        source=source,
        method=method.name,
        settings=", ".join(_changed_settings(recipe)),
        replace=replace,
    )
    values = {name: getattr(form, name) for name in field_names(BakeForm)}
    values[value_field] = value
    return to_page(FIRST_PAGE, fill_form(BakeForm, values))


def _changed_settings(recipe: Recipe) -> list[str]:
    """Return the settings that are not their defaults: "beta_fast=16", "attention_factor=1.1"."""
    changed = []
    for item in fields(recipe.method)[1:]:  # the first field is the value of the method
        setting = getattr(recipe.method, item.name)
        if setting != item.default or item.name in recipe.explicit:
            changed.append(f"{item.name}={json.dumps(setting)}")
    for name in MODIFIERS:
        setting = getattr(recipe, name)
        if setting not in (None, False):
            changed.append(f"{name}={json.dumps(setting)}")
    return changed
