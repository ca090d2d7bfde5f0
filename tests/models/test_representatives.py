"""The families of the default run use every key of the family schema, so that each of its branches is tested daily."""

from __future__ import annotations

import functools
import typing
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec
import pytest

from ropeconv.models.registry import by_model_type, packaged

from ..support.families import REPRESENTATIVES, SINGLES
from ..support.models import FAMILIES

DESCRIPTIONS = {"name", "display_name", "model_types", "source", "since"}
NOT_MADE = {"layers.backward", "refuse"}
"""Keys of families that have no tiny checkpoint."""
hints_of = functools.cache(typing.get_type_hints)


def keys(facts: msgspec.Struct, prefix: str = "") -> Iterator[str]:
    """The dotted keys that a family gives another value than the default; with the value where a key names a case."""
    hints = hints_of(type(facts))
    for field in msgspec.structs.fields(facts):
        value, name = getattr(facts, field.name), prefix + field.name
        factory = field.default_factory
        default = field.default if factory is msgspec.NODEFAULT else factory()
        if value == default or name in DESCRIPTIONS:
            continue
        yield f"{name} = {value}" if typing.get_origin(hints[field.name]) is typing.Literal else name
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, msgspec.Struct):
                yield from keys(part, f"{name}.")


OF_FAMILY = {family.name: frozenset(keys(family)) for family in packaged()}


def covered(model_types: Iterable[str]) -> set[str]:
    return set().union(*(OF_FAMILY[by_model_type()[name].name] for name in model_types))


def uncovered(model_types: Iterable[str]) -> set[str]:
    """The keys of any family of the package that none of these has."""
    return set().union(*OF_FAMILY.values()) - covered(model_types) - NOT_MADE


def test_every_key_of_the_schema_is_covered() -> None:
    assert uncovered([*REPRESENTATIVES, *SINGLES]) == set()


def test_representatives_cover_every_key_of_more_than_three_families() -> None:
    families = {by_model_type()[name].name: name for name in FAMILIES}.values()
    used = Counter(key for name in families for key in covered([name]))
    assert {key for key, count in used.items() if count > 3} <= covered(REPRESENTATIVES)


@pytest.mark.parametrize("model_type", SINGLES)
def test_without_a_single_family_a_key_would_be_left_out(model_type: str) -> None:
    """The negative control, which also shows that no such family is superfluous."""
    assert uncovered({*REPRESENTATIVES, *SINGLES} - {model_type})


def test_keys_that_no_tiny_checkpoint_has_are_still_those() -> None:
    assert not NOT_MADE & covered(FAMILIES)
