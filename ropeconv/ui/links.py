"""Addresses of pages that are filled in."""

from __future__ import annotations

import dataclasses
from urllib.parse import urlencode

from ..rope.methods import Method, Value
from .forms import BakeForm, Form, kept


def to_page(page: str, form: Form) -> str:
    """The address of a page with a form, relative to the other pages. page: its name in lower case."""
    values = {name: getattr(form, name) for name in kept(type(form))}
    texts = {name: ",".join(value) if isinstance(value, tuple) else value for name, value in values.items() if value}
    return f"{page}?{urlencode({name: '1' if value is True else value for name, value in texts.items()})}"


def to_bake(source: str, method: Method, context: int | None = None, replace: bool = False) -> str:
    """The address of the plan of a method. source: the model. context, replace: as `Advice` has them."""
    first, *others = dataclasses.fields(method)
    value = "" if method.value is Value.SWITCH else _text(getattr(method, first.name))
    settings = {item.name: getattr(method, item.name) for item in others}
    changed = [f"{item.name}={settings[item.name]}" for item in others if settings[item.name] != item.default]
    changed += [] if context is None else [f"context={context}"]
    form = BakeForm(source=source, method=method.name, value=value, settings=", ".join(changed), replace=replace)
    return to_page("bake", form)


def _text(value: object) -> str:
    return format(value, ".12g") if isinstance(value, float) else str(value)
