"""Check the types of decoded JSON and TOML, read data files of the package, render templates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
import tomli

from ..errors import BadSource, DamagedPackage

if TYPE_CHECKING:
    from jinja2 import Environment

PACKAGE = Path(__file__).parent.parent
T = TypeVar("T")


def as_type(data: object, kind: type[T], name: str) -> T:
    """Return decoded data as a type that msgspec knows, without converting strings or numbers.

    Args:
        data: Decoded JSON or TOML.
        kind: The type.
        name: The name of the file, for the message.

    Raises:
        BadSource: Where the data has other types.
    """
    # RecursionError: lists within lists, deeper than Python recurses; UnicodeError: half of a
    # character, which JSON can escape (as \ud83d) and UTF-8 cannot write
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, RecursionError, UnicodeError) as problem:
        raise BadSource(
            f"{name} has the wrong form ({problem}); correct it or download it again"
        ) from None


def package_files(folder: str, suffix: str) -> list[Path]:
    """Return the files in a folder of the package whose names end in `suffix`, sorted by name."""
    return sorted((PACKAGE / folder).glob(f"*{suffix}"))


def package_data(place: str | Path, kind: type[T]) -> T:
    """Return the content of a TOML or JSON file of the package, such as models/refused.toml.

    Raises:
        DamagedPackage: With the file and the field.
    """
    path = PACKAGE / place
    with package_errors(path):
        data = path.read_bytes()
        if path.suffix == ".toml":
            return msgspec.convert(tomli.loads(data.decode()), kind)
        return msgspec.json.decode(data, type=kind)


@contextmanager
def package_errors(entry: Path) -> Iterator[None]:
    """Turn errors about a data file of the package into DamagedPackage, with file and field."""
    try:
        yield
    except (OSError, ValueError, KeyError) as problem:
        reason = f"it has no {problem}" if isinstance(problem, KeyError) else problem
        raise DamagedPackage(
            f"{entry} belongs to ropeconv and is damaged ({reason}); install ropeconv again, or"
            " correct it"
        ) from None


def render(name: str, **values: object) -> str:
    """Return the text of a template. Raises jinja2.UndefinedError for a value that is not given."""
    return _environment().get_template(name).render(**values)


@cache
def _environment() -> Environment:
    """The environment of the templates; a value that is not given is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    places = [PACKAGE / "templates", PACKAGE.parent / "templates"]  # in the wheel, in a checkout
    return Environment(
        loader=FileSystemLoader(places),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
