"""Addresses of pages that are filled in."""

from __future__ import annotations

import dataclasses
import json
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
    value = "" if method.value is Value.SWITCH else method.command.partition(" ")[2]
    settings = {item: getattr(method, item.name) for item in dataclasses.fields(method)[1:]}
    changed = [f"{item.name}={json.dumps(given)}" for item, given in settings.items() if given != item.default]
    changed += [] if context is None else [f"context={context}"]
    form = BakeForm(source=source, method=method.name, value=value, settings=", ".join(changed), replace=replace)
    return to_page("bake", form)
