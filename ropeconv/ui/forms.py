"""What visitors type: a form per page, whose fields are the names of its components and of what an address keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from ..errors import UsageError

MOST = 2000
"""Characters of a field."""
UPLOADS = ("upload", "measured", "recipe")
"""Fields that are dropped files, by their path on this machine; addresses do not keep them."""
F = TypeVar("F", bound="Form")


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed on a page."""


class ModelForm(Form, frozen=True, kw_only=True):
    """A page about a model. source: as for `open_source`. upload: a dropped config.json, GGUF file or result."""

    source: str = ""
    upload: str = ""


class InspectForm(ModelForm, frozen=True, kw_only=True):
    """What a model is."""


class CompareForm(ModelForm, frozen=True, kw_only=True):
    """The methods side by side. context: a length, or a factor on the trained one. measured: a result of `eval`."""

    context: str = ""
    measured: str = ""


class RuntimesForm(Form, frozen=True, kw_only=True):
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


def names(kind: type[Form]) -> tuple[str, ...]:
    """The fields of a form, in their order."""
    return kind.__struct_fields__


def kept(kind: type[Form]) -> tuple[str, ...]:
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


def refuse_long(form: Form) -> None:
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
