"""A real model as GGUF is patched, and llama.cpp computes the method: what of the real model the
default run has.
"""

from pathlib import Path

import numpy as np
import pytest

import ropeconv
from ropeconv.engines.llamacpp import LlamaCppEngine
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.validate.validation import Validation

from ..support.baking import apply, make_plan
from .conftest import tensors_of


def patched(published: Path, method: str, folder: Path) -> Path:
    """As if the model had been trained with 128 tokens, since 8,192 and four times that take
    minutes.
    """
    recipe = Recipe(REGISTRY[method](4.0), original_context=128, context=512)
    return apply(make_plan(published, recipe, folder / f"{method}.gguf"))


def validated(baked: Path, published: Path) -> Validation:
    comparison = ropeconv.Comparison.open(baked, str(published))
    return ropeconv.validate_gguf(comparison, ropeconv.Settings(tokens=256))


def test_a_patched_gguf_differs_from_its_source_in_the_header_only(
    published: Path, tmp_path: Path
) -> None:
    before = tensors_of(published)
    after = tensors_of(patched(published, "mixed", tmp_path))
    assert set(after) - set(before) == {"rope_freqs.weight"}
    assert all(np.array_equal(after[name].data, tensor.data) for name, tensor in before.items())


def test_llama_cpp_runs_it_and_positions_other_than_the_first_are_rotated_otherwise(
    published: Path, tmp_path: Path
) -> None:
    pytest.importorskip("llama_cpp")
    files = (published, patched(published, "mixed", tmp_path))
    reference, other = (
        LlamaCppEngine(path).logits(list(range(100, 148)), [0, 47]) for path in files
    )
    np.testing.assert_allclose(reference[0], other[0], rtol=0, atol=1e-3)
    assert np.abs(reference[1] - other[1]).max() > 0.1


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["mixed", "yarn"])
def test_a_patched_gguf_is_what_llama_cpp_computes(
    method: str, published: Path, tmp_path: Path
) -> None:
    pytest.importorskip("llama_cpp")
    result = validated(patched(published, method, tmp_path), published)
    assert result.agrees, result.sentence


@pytest.mark.nightly
def test_wrong_frequencies_are_seen_through_the_noise_of_the_weights(
    published: Path, tmp_path: Path
) -> None:
    pytest.importorskip("llama_cpp")
    baked = patched(published, "mixed", tmp_path)
    divisors = tensors_of(baked)["rope_freqs.weight"]
    stored = np.memmap(
        baked, "<f4", "r+", int(divisors.data_offset), tuple(int(n) for n in divisors.shape)
    )
    stored[4:12] *= 1.2
    stored.flush()
    assert not validated(baked, published).agrees
