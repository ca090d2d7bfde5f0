"""Texts as people pass them in Python: a path, or the text itself. `text_or_path` tells which."""

import os
import re
from pathlib import Path

from ..errors import UsageError
from ..rope.errors import shown
from .files import expand_home

TextLike = str | os.PathLike[str]
"""A path, or a text with spaces or line breaks."""
LONGEST_NAME = 255
"""Bytes of a file name on all common filesystems."""
LONGEST_PATH = 4096
"""Bytes of a path on Linux."""
BEGINNING = re.compile(r"~|\.{0,2}[/\\]")
"""How a path begins that is not just a name: `~`, `/`, `./` or `../`."""
ENDING = re.compile(r"\.[A-Za-z0-9]{1,5}\Z|[/\\]\*")
"""How the name of a file ends, such as `book.txt`, or a pattern in a folder."""
LINE_BREAK = re.compile(r"[\n\r\0]")
HINT = "give a text file; a text itself needs a line break, at least at its end"


def text_or_path(value: object) -> str | Path:
    """Return a value that stands for a text as what it is: a path, or the text itself.

    Args:
        value: A path of any kind, whose file need not be there; or a `str`. A `str` is a path where
            a file of that name exists, where it is one word, and where it is a single line that
            begins or ends like a path (`my essays/one.txt`). Any other is the text itself.

    Returns:
        A `Path` for a path, with `~` expanded, and a `str` for a text.

    Raises:
        UsageError: For an empty text, and for a value that is neither.
    """
    if isinstance(value, str):
        if not value.strip():
            raise UsageError(f"text={shown(value)} is empty; {HINT}")
        return value if is_text(value) else expand_home(value)
    if isinstance(value, os.PathLike):
        path = os.fspath(value)
        if isinstance(path, str):
            return expand_home(path)
    raise UsageError(f"text={shown(value)} is not the path of a text, or a text; {HINT}")


def is_text(value: str) -> bool:
    """Return whether a string is a text itself, and not the path of one."""
    # a file that is there comes first: any text may be its name
    if _exists(value):
        return False
    if LINE_BREAK.search(value):
        return True
    if _looks_like_path(value):
        return False
    has_words = len(value.split()) > 1
    return has_words or _size(value) > LONGEST_NAME


def _looks_like_path(value: str) -> bool:
    """Whether a line begins or ends like a path, and is not too long for one."""
    if _size(value) > LONGEST_PATH:
        return False
    if any(_size(name) > LONGEST_NAME for name in re.split(r"[/\\]", value)):
        return False
    return bool(BEGINNING.match(value) or ENDING.search(value))


def _size(value: str) -> int:
    return len(value.encode("utf-8", "surrogatepass"))


def _exists(value: str) -> bool:
    try:
        return os.path.exists(value)
    except ValueError:  # a null byte
        return False
