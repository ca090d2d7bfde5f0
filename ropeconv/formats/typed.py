"""Checks the types of decoded JSON and TOML, so that nothing else in the package meets a wrong one."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from ..errors import BadSource

T = TypeVar("T")


def typed(data: Any, kind: type[T], name: str) -> T:
    """Decoded data as a typed value, without any conversion between strings, numbers and bools.

    data: lists, dicts, strings, numbers. kind: a Struct or another type that msgspec knows. name: of the file, for the
    message. Raises BadSource where the data has other types.
    """
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, RecursionError, UnicodeError) as problem:
        raise BadSource(f"{name} is not as it has to be ({problem}); correct it or download it again") from None
