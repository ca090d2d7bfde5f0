"""The names in a family's [weights] are those that transformers gives the tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ropeconv.formats.safetensors import read_header
from ropeconv.models.layers import layer_prefixes
from ropeconv.models.registry import by_model_type, families

from ..support.families import some
from ..support.models import TINY, make


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
        found = [name for name in names if name.startswith(tuple(f"{place}." for place in places))]
        assert [name for name in found if name.endswith("weight")], part
        assert weights.bias or part in further or not [name for name in found if name.endswith("bias")], part


def test_every_family_has_a_source_and_a_place_for_its_projections() -> None:
    for family in families():
        assert family.source
        assert family.refuse or family.weights.q or family.weights.fused
