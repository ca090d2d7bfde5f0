"""Families: their files name the tensors of transformers, and the default run covers every key of
their schema.
"""

import functools
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from ropeconv.formats.safetensors import read_header
from ropeconv.models.layers import layer_prefixes
from ropeconv.models.registry import by_model_type, families, package_families

from ..support.families import REPRESENTATIVES, SINGLES, some
from ..support.models import FAMILIES, TINY, make

DESCRIPTIONS = {"name", "display_name", "model_types", "source", "since"}
NOT_MADE = {
    "layers.backward",
    "refuse",
    "gguf_only",
    "converter_keys",
    "gguf.convert.unless_columns",
}
"""Keys of families that have no tiny checkpoint; Qwen 3 VL MoE is made in `support/vision.py`."""
hints_of = functools.cache(typing.get_type_hints)


def keys(facts: msgspec.Struct, prefix: str = "") -> Iterator[str]:
    """The dotted keys that a family gives another value than the default; with the value where a
    key names a case.
    """
    hints = hints_of(type(facts))
    for field in msgspec.structs.fields(facts):
        value = getattr(facts, field.name)
        name = prefix + field.name
        factory = field.default_factory
        default = field.default if factory is msgspec.NODEFAULT else factory()
        if value == default or name in DESCRIPTIONS:
            continue
        yield (
            f"{name} = {value}" if typing.get_origin(hints[field.name]) is typing.Literal else name
        )
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, msgspec.Struct):
                yield from keys(part, f"{name}.")


OF_FAMILY = {family.name: frozenset(keys(family)) for family in package_families()}


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


@pytest.mark.parametrize("model_type", some())
def test_projections_and_norms_are_where_the_file_says(
    model_type: str, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    norms = TINY[model_type].norms
    folder = make(model_type, tmp_path / "m", **norms) if norms else tiny(model_type)
    names = set(read_header(folder / "model.safetensors").tensors)
    family = by_model_type()[model_type]
    weights = family.weights
    assert bool(weights.fused) != bool(weights.q)
    parts = [weights.fused] if weights.fused else [weights.q, weights.k]
    parts += [part for part in (weights.q_norm, weights.k_norm) if part]
    further = [norm.name for norm in weights.further_norms]
    parts += further
    for part in parts:
        places = [prefix + part for layer in range(4) for prefix in layer_prefixes(layer, family)]
        part_names = [
            name for name in names if name.startswith(tuple(f"{place}." for place in places))
        ]
        assert [name for name in part_names if name.endswith("weight")], part
        assert (
            weights.bias
            or part in further
            or not [name for name in part_names if name.endswith("bias")]
        ), part


def test_every_family_has_a_source_and_a_place_for_its_projections() -> None:
    for family in families():
        assert family.source
        assert family.refuse or family.weights.q or family.weights.fused
