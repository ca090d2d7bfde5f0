"""What visitors type: a form per page, whose fields are the names of its components and of what an address keeps."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args
from urllib.parse import urlencode

import msgspec

from ..bake.plan import Plan
from ..convert.target import Target
from ..errors import UsageError
from ..evaluate.row import parse_rows
from ..formats.files import expanded
from ..inspection.receipts.reader import read_recipe
from ..inspection.receipts.writer import apply_words
from ..options import Format
from ..rope.errors import shown
from ..rope.methods.method import REGISTRY, Method, Value
from ..rope.recipe import Recipe

MOST = 2000
"""Characters of a field."""
UPLOADS = ("upload", "measured", "recipe")
"""Fields that are dropped files, by their path on this machine; addresses do not keep them."""
F = TypeVar("F", bound="PageForm")


class PageForm(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed on a page."""


class ModelForm(PageForm, frozen=True, kw_only=True):
    """A page about a model. source: as for `open_source`. upload: a dropped config.json, GGUF file or result."""

    source: str = ""
    upload: str = ""


class InspectForm(ModelForm, frozen=True, kw_only=True):
    """What a model is."""


class CompareForm(ModelForm, frozen=True, kw_only=True):
    """The methods side by side. context: a length, or a factor on the trained one. measured: a result of `eval`."""

    context: str = ""
    measured: str = ""


class RuntimesForm(PageForm, frozen=True, kw_only=True):
    """The matrix. family, runtime: what is shown of it, empty for all."""

    family: str = ""
    runtime: str = ""


class BakeForm(ModelForm, frozen=True, kw_only=True):
    """A bake.

    method, value: such as "yarn" and "4". settings: of the method, and modifiers, as `name=value` with commas. recipe:
    a saved one, in place of the method. to, outtype, encoding, runtimes, replace: as in `Target`. out: the folder or
    GGUF file. repo_id, private, exist_ok: of a publication.
    """

    method: str = ""
    value: str = ""
    settings: str = ""
    recipe: str = ""
    to: str = ""
    outtype: str = ""
    encoding: str = ""
    runtimes: tuple[str, ...] = ()
    replace: bool = False
    out: str = ""
    repo_id: str = ""
    private: bool = False
    exist_ok: bool = False


class ResultsForm(ModelForm, frozen=True, kw_only=True):
    """What is known of an output: its receipt, validations and evaluations."""


def names(kind: type[PageForm]) -> tuple[str, ...]:
    """The fields of a form, in their order."""
    return kind.__struct_fields__


def kept(kind: type[PageForm]) -> tuple[str, ...]:
    """The fields that an address keeps."""
    return tuple(name for name in names(kind) if name not in UPLOADS)


def filled(kind: type[F], values: Mapping[str, Any]) -> F:
    """A form with values of its components by name. None, and what has another type, is as if nothing was typed."""
    fresh, found = kind(), {}
    for name in names(kind):
        value = values.get(name)
        if isinstance(value, str):
            value = value.strip()[: MOST + 1]  # which `refuse_long` refuses
        if isinstance(getattr(fresh, name), tuple) and isinstance(value, (list, tuple)):
            value = tuple(dict.fromkeys(one[:MOST] for one in value if isinstance(one, str)))
        if type(value) is type(getattr(fresh, name)):
            found[name] = value
    return msgspec.structs.replace(fresh, **found)


def refuse_long(form: PageForm) -> None:
    """Raises UsageError for a form with a field that is too long."""
    for name in names(type(form)):
        value = getattr(form, name)
        if isinstance(value, str) and len(value) > MOST:
            raise UsageError(f"{name} has more than {MOST:,} characters; shorten it")


def from_address(kind: type[F], query: Mapping[str, str]) -> F:
    """The form that an address keeps. query: its parameters; unknown ones are left alone."""
    fresh, found = kind(), {}
    for name in kept(kind):
        text, empty = query.get(name, ""), getattr(fresh, name)
        found[name] = text == "1" if empty is False else text.split(",") if empty == () else text
    return filled(kind, {name: [] if value == [""] else value for name, value in found.items()})


METHODS = tuple(name for name, kind in REGISTRY.items() if kind.value is not Value.FILE)
"""The methods that a form can name; those of a file come as a recipe."""


def recipe_of(form: BakeForm) -> Recipe:
    """The recipe of a form: the dropped one, else the method with its value and settings.

    Raises UsageError and RecipeError for what is no recipe.
    """
    if form.recipe:
        if form.method or form.value or form.settings:
            raise UsageError("a recipe and a method are given; take one of them away")
        return read_recipe(Path(form.recipe))
    if not form.method:
        raise UsageError("no method is chosen; choose one, such as yarn with the value 4")
    if form.method not in METHODS:
        raise UsageError(f"{shown(form.method)} is no method; choose one of {', '.join(METHODS)}")
    settings = [re.sub(r"\s*=\s*", "=", one.strip()) for one in form.settings.split(",") if one.strip()]
    wrong = next((one for one in (form.value, *settings) if "," in one or "\n" in one), None)
    wrong = wrong or next((one for one in settings if "=" not in one), None)
    if wrong is not None:
        raise UsageError(f"{shown(wrong)} is no setting; write name=value, with commas between several")
    words = [form.method, *([form.value.replace(" ", "")] if form.value else []), *settings]
    (row,) = parse_rows(":".join(words))
    assert row.recipe is not None
    return row.recipe


def target_of(form: BakeForm, out: Path | None = None) -> Target:
    """The target of a form. out: the folder or GGUF file, None for the default. Raises UsageError for other formats."""
    if form.to not in ("", *get_args(Format)):
        raise UsageError(f"{shown(form.to)} is no format; choose {' or '.join(get_args(Format))}")
    made = Target(
        to=form.to or None,  # type: ignore[arg-type]
        out=out,
        encoding=form.encoding or "auto",
        runtimes=form.runtimes,
        outtype=form.outtype or None,
        replace=form.replace,
    )
    return made.published_by(form.repo_id.partition("/")[0])


def command_of(plan: Plan, form: BakeForm, publishing: bool) -> str:
    """The command line that does the same, in the place of the plan where the form names one.

    publishing: whether that is a publication, and not a file or folder.
    """
    words = apply_words(plan.source.reference, plan.receipt().steps[-1], plan.source.kind == "gguf")
    if form.recipe and "--recipe" in words:  # one with lists, which no option can be
        words[words.index("--recipe") + 1] = Path(form.recipe).name
    if publishing:
        words += ["--push", form.repo_id, *(["--private"] if form.private else [])]
        words += ["--exist-ok"] if form.exist_ok else []
    elif plan.target.out is not None:
        words += ["-o", str(plan.target.out)]
    return shlex.join(words)


def place_of(form: BakeForm) -> Path | None:
    """Where the output is to be; None for the default."""
    return expanded(form.out) if form.out else None


def to_page(page: str, form: PageForm) -> str:
    """The address of a page with a form, relative to the other pages. page: its name in lower case."""
    values = {name: getattr(form, name) for name in kept(type(form))}
    texts = {name: ",".join(value) if isinstance(value, tuple) else value for name, value in values.items() if value}
    return f"{page}?{urlencode({name: '1' if value is True else value for name, value in texts.items()})}"


def to_bake(source: str, method: Method, context: int | None = None, replace: bool = False) -> str:
    """The address of the plan of a method. source: the model. context, replace: as `Advice` has them."""
    value = "" if method.value is Value.SWITCH else method.command.partition(" ")[2]
    settings = {item: getattr(method, item.name) for item in dataclasses.fields(method)[1:]}
    changed = [f"{item.name}={json.dumps(given)}" for item, given in settings.items() if given != item.default]
    changed += [] if context is None else [f"context={context}"]
    form = BakeForm(source=source, method=method.name, value=value, settings=", ".join(changed), replace=replace)
    return to_page("bake", form)
