"""GGUF files that are no language model with RoPE, each with its sentence, and unknown ones that
are taken by keys.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import ropeconv
from ropeconv.convert.target import Target
from ropeconv.errors import BadSource
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.inspection.inspection import Inspection
from ropeconv.models.open import open_source
from ropeconv.rope.forms import Yarn
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.spec import Proportional

from ..support.baking import YARN, apply, inspected, make_plan
from ..support.gguf_files import plain_tensors, write

KINDS: dict[str, tuple[str, str]] = {
    "video": (
        "wan",
        "has the architecture wan; image and video models compute their RoPE from the size",
    ),
    "assistant": ("gemma4-assistant", r"draft model \(Gemma 4 assistant\)"),
    "learned": ("gpt2", "gpt2 uses learned positions instead of RoPE, so it cannot be extended"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_file_is_instead_of_a_model(kind: str, tmp_path: Path) -> None:
    arch, words = KINDS[kind]
    path = write(tmp_path / f"{kind}.gguf", arch)
    for attempt in (lambda: inspected(path), lambda: make_plan(path, YARN, tmp_path / "o.gguf")):
        with pytest.raises(BadSource, match=words):
            attempt()


def planned(path: Path, out: Path, encoding: str = "auto", recipe: Recipe = YARN) -> Any:
    target = Target(out=out, encoding=encoding, assume_arch_keys=True)
    return ropeconv.make_plan(open_source(str(path)), recipe, target)


def test_an_unknown_architecture_is_taken_by_its_keys_where_that_is_asked_for(
    tmp_path: Path,
) -> None:
    source = write(tmp_path / "new.gguf", "llama9")
    out = tmp_path / "out.gguf"
    with pytest.raises(BadSource, match=r"'llama9' .*llama\w*\); --assume-arch-keys"):
        make_plan(source, YARN, out)
    plan = planned(source, out)
    assert any("not in the table" in words for words in plan.warnings)
    assert [
        row.status for row in plan.result.verdicts if row.runtime.startswith("llama-cpp-gguf")
    ] == ["unknown"]
    apply(plan)
    written = gguf.GGUFReader(out)
    scaling = {
        key: written.fields[f"llama9.rope.scaling.{key}"].contents() for key in ("type", "factor")
    }
    assert scaling == {"type": "yarn", "factor": 4.0}
    receipt = json.loads(GgufFile.open(out).get("ropeconv.json"))
    assert receipt["target"]["assume_arch_keys"] is True
    assert receipt["runtimes"][0]["status"] == "unknown"
    again = inspected(out)
    assert isinstance(again.spec.form, Yarn)
    assert any("not in the table" in words for words in again.spec.notes)


def divided(folder: Path, divisors: np.ndarray) -> Inspection:
    path = write(
        folder / "model.gguf",
        tensors={**plain_tensors(), "rope_freqs.weight": divisors.astype(np.float32)},
    )
    return inspected(path)


@pytest.mark.parametrize("divisor", [1e30, np.inf, 1e29])
def test_a_huge_divisor_is_a_pair_that_does_not_rotate(tmp_path: Path, divisor: float) -> None:
    """1e30 is what llama.cpp's converter writes for Gemma 4; inf divides to 0 as well."""
    numbers = np.arange(32)
    inspection = divided(tmp_path, np.where((numbers == 3) | (numbers == 30), divisor, 1))
    inv_freq = inspection.spec.current().inv_freq
    assert np.flatnonzero(inv_freq == 0).tolist() == [3, 30]
    np.testing.assert_allclose(inv_freq[4:30], [1e4 ** (-i / 32) for i in range(4, 30)])
    json.dumps(inspection.to_dict(), allow_nan=False)
    assert divided(tmp_path, np.where(numbers >= 3, divisor, 1)).spec.form == Proportional(
        1e4, 1.0, 3 / 32
    )
