"""GGUF as a source: hostile values in well-formed headers get a sentence, like damaged headers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ropeconv.errors import BadSource, RopeconvError
from ropeconv.formats.gguf import Edit, GgufFile, Value, boolean, f32, f32_array, string, u32
from ropeconv.formats.gguf.values import array
from ropeconv.formats.gguf.write import write_new
from ropeconv.inspection import inspect_source
from ropeconv.rope.errors import RecipeError
from ropeconv.rope.methods import REGISTRY as METHODS
from ropeconv.rope.proportional import Proportional
from ropeconv.rope.recipe import Recipe
from ropeconv.sources import open_source

from ..support.baking import make_plan
from ..support.gguf_files import plain_tensors, write

KEYS = (
    "context_length", "embedding_length", "block_count", "attention.head_count", "attention.head_count_kv",
    "attention.key_length", "rope.dimension_count", "rope.freq_base", "rope.freq_base_swa", "rope.scaling.type",
    "rope.scaling.factor", "rope.scale_linear", "rope.scaling.attn_factor", "rope.scaling.original_context_length",
    "rope.scaling.yarn_log_multiplier", "attention.sliding_window", "attention.sliding_window_pattern",
    "attention.temperature_scale",
)  # fmt: skip
VALUES = st.one_of(
    st.integers(0, 2**32 - 1).map(u32),
    st.sampled_from([0, 1, 2, 63, 64, 65, 2**31]).map(u32),
    st.floats(width=32).map(f32),
    st.sampled_from(["yarn", "linear", "longrope", "none", "", "x" * 100]).map(string),
    st.booleans().map(boolean),
    st.lists(st.floats(width=32), max_size=5).map(f32_array),
    st.lists(st.booleans(), max_size=5).map(lambda flags: array(7, flags)),
)
PLAIN: dict[str, Path] = {}


def _plain(factory: pytest.TempPathFactory, arch: str) -> Path:
    if arch not in PLAIN:
        tensors = {"token_embd.weight": np.zeros((16, 128), np.float32)}
        PLAIN[arch] = write(factory.mktemp("plain") / f"{arch}.gguf", arch, tensors=tensors)
    return PLAIN[arch]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(arch="llama", values={"context_length": u32(1 << 31)})
@given(
    arch=st.sampled_from(["llama", "gemma3", "mistral3", "deepseek2", "phi3", "step35"]),
    values=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=4),
)
def test_hostile_values(tmp_path_factory: pytest.TempPathFactory, arch: str, values: dict[str, Value]) -> None:
    path = tmp_path_factory.getbasetemp() / "hostile.gguf"
    edit = Edit({f"{arch}.{key}": value for key, value in values.items()})
    write_new(GgufFile.open(_plain(tmp_path_factory, arch)), 0, edit, path)
    try:
        seen = inspect_source(open_source(str(path))).to_dict()
        assert seen["context"] >= 0
        make_plan(open_source(str(path)), Recipe(METHODS["yarn"](4.0)), path.with_name("out.gguf"), replace=True)
    except (RopeconvError, RecipeError) as refusal:
        if "Traceback" in str(refusal):
            raise


@pytest.mark.parametrize("name", [u32(3), f32_array([1.0]), boolean(True), string("")])
def test_an_architecture_that_is_none(tmp_path: Path, name: Value) -> None:
    out = tmp_path / "out.gguf"
    write_new(GgufFile.open(write(tmp_path / "model.gguf")), 0, Edit({"general.architecture": name}), out)
    with pytest.raises(BadSource, match="architecture"):
        inspect_source(open_source(str(out)))


@pytest.mark.parametrize("divisor", [1e30, np.inf, 1e29])
def test_a_huge_divisor_is_a_pair_that_does_not_rotate(tmp_path: Path, divisor: float) -> None:
    """1e30 is what llama.cpp's converter writes for Gemma 4; inf divides to 0 as well."""
    divisors = np.ones(32, np.float32)
    divisors[[3, 30]] = divisor
    path = write(tmp_path / "model.gguf", tensors={**plain_tensors(), "rope_freqs.weight": divisors})
    seen = inspect_source(open_source(str(path)))
    found = seen.spec.current().inv_freq
    assert np.flatnonzero(found == 0).tolist() == [3, 30]
    np.testing.assert_allclose(found[4:30], [1e4 ** (-i / 32) for i in range(4, 30)])
    json.dumps(seen.to_dict(), allow_nan=False)
    divisors[3:] = divisor
    path = write(tmp_path / "first.gguf", tensors={**plain_tensors(), "rope_freqs.weight": divisors})
    assert inspect_source(open_source(str(path))).spec.form == Proportional(1e4, 1.0, 3 / 32)


def test_a_large_divisor_is_still_a_rotation(tmp_path: Path) -> None:
    divisors = np.full(32, 1e28, np.float32)
    path = write(tmp_path / "model.gguf", tensors={**plain_tensors(), "rope_freqs.weight": divisors})
    assert (inspect_source(open_source(str(path))).spec.current().inv_freq > 0).all()
