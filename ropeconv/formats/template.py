"""Renders the Jinja templates of the package."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


def render(name: str, **values: Any) -> str:
    """The text of a template with its values. Raises jinja2.UndefinedError for a value that is not given."""
    return _environment().get_template(name).render(**values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    package = Path(__file__).parent.parent
    places = [package / "templates", package.parent / "templates"]  # in the wheel, in a checkout
    return Environment(
        loader=FileSystemLoader(places),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
