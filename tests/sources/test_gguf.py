"""Values in GGUF files: architectures that are none, and divisors of frequencies without a bound.

Other hostile values are tried in tests/faults/inputs/kinds/gguf.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ropeconv.errors import BadSource
from ropeconv.formats.gguf import Edit, GgufFile, Value, boolean, f32_array, string, u32
from ropeconv.formats.gguf.write import write_new
from ropeconv.inspection import inspect_source
from ropeconv.inspection.inspect import Inspection
from ropeconv.rope.proportional import Proportional
from ropeconv.sources import open_source

from ..support.gguf_files import plain_tensors, write


@pytest.mark.parametrize("name", [u32(3), f32_array([1.0]), boolean(True), string("")])
def test_an_architecture_that_is_none(tmp_path: Path, name: Value) -> None:
    out = tmp_path / "out.gguf"
    write_new(GgufFile.open(write(tmp_path / "model.gguf")), 0, Edit({"general.architecture": name}), out)
    with pytest.raises(BadSource, match="architecture"):
        inspect_source(open_source(str(out)))


def divided(folder: Path, divisors: np.ndarray) -> Inspection:
    path = write(folder / "model.gguf", tensors={**plain_tensors(), "rope_freqs.weight": divisors.astype(np.float32)})
    return inspect_source(open_source(str(path)))


@pytest.mark.parametrize("divisor", [1e30, np.inf, 1e29])
def test_a_huge_divisor_is_a_pair_that_does_not_rotate(tmp_path: Path, divisor: float) -> None:
    """1e30 is what llama.cpp's converter writes for Gemma 4; inf divides to 0 as well."""
    numbers = np.arange(32)
    seen = divided(tmp_path, np.where((numbers == 3) | (numbers == 30), divisor, 1))
    found = seen.spec.current().inv_freq
    assert np.flatnonzero(found == 0).tolist() == [3, 30]
    np.testing.assert_allclose(found[4:30], [1e4 ** (-i / 32) for i in range(4, 30)])
    json.dumps(seen.to_dict(), allow_nan=False)
    assert divided(tmp_path, np.where(numbers >= 3, divisor, 1)).spec.form == Proportional(1e4, 1.0, 3 / 32)


def test_a_large_divisor_is_still_a_rotation(tmp_path: Path) -> None:
    assert (divided(tmp_path, np.full(32, 1e28)).spec.current().inv_freq > 0).all()
