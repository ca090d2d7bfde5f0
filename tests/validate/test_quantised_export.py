"""Exports in Q4_K_M of architectures in which llama.cpp divides no frequencies: a right file is not
refused for the rounding of its weights, and a wrong one does not pass by it.
"""

from pathlib import Path

import gguf
import pytest

from ropeconv.formats.gguf.edit import Edit, write_new
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.gguf.header import f32
from ropeconv.validate.comparison import Comparison, Settings
from ropeconv.validate.gguf import validate_gguf
from ropeconv.validate.validation import Validation

from ..support.baking import recipe_of
from ..support.llamacpp import bake, checkpoint

pytest.importorskip("llama_cpp")

FAMILIES = {"gemma3_text": "gemma3", "glm4": "glm4"}
"""The model type, and the architecture in GGUF."""
NO_ATTENTION_FACTOR = 1 / 1.138629436111989
"""The key that makes the factor of --yarn 4, 1 + 0.1 ln 4, one."""

Files = dict[str, tuple[Path, Path]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """By model type: a checkpoint, and its export with --yarn 4 in Q4_K_M."""
    made = {}
    for family in FAMILIES:
        folder = tmp_path_factory.mktemp(family)
        source = checkpoint(family, folder / "source")
        bake(source, recipe_of("yarn", 4.0), folder / "out.gguf", outtype="q4_k_m")
        made[family] = (source, folder / "out.gguf")
    return made


def validated(source: Path, out: Path) -> Validation:
    return validate_gguf(Comparison.open(out, str(source)), Settings())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_right_file_passes(family: str, files: Files) -> None:
    source, out = files[family]
    result = validated(source, out)
    assert result.agrees, result.sentence

    # the second half of the rows is beside the weights of the file, where the control is far away
    half = len(result.buckets) // 2
    beside_checkpoint = result.buckets[half - 1]
    beside_own_weights = result.buckets[-1]
    assert beside_own_weights.kl_mean < beside_checkpoint.kl_mean / 5
    assert beside_own_weights.control_kl > 10 * beside_own_weights.tolerance


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope.scaling.factor", 2.0),
        ("rope.scaling.factor", 3.0),
        ("rope.scaling.attn_factor", NO_ATTENTION_FACTOR),
        ("rope.freq_base", 2.0),
        ("rope.freq_base", 10.0),
        ("rope.freq_base_swa", 2.0),
    ],
)
def test_a_wrong_file_does_not_pass(
    key: str, value: float, family: str, files: Files, tmp_path: Path
) -> None:
    """A base is given as a multiple of the right one."""
    source, out = files[family]
    file = GgufFile.open(out)
    name = f"{FAMILIES[family]}.{key}"
    if "freq_base" in key:
        base = file.get(name)
        if base is None:
            pytest.skip("no layers with a window")
        value *= base
    wrong = tmp_path / "wrong.gguf"
    write_new(file, 0, Edit({name: f32(value)}), wrong)
    result = validated(source, wrong)
    assert not result.agrees
    assert result.sentence.startswith(("FAIL", "INCONCLUSIVE"))


@pytest.mark.parametrize("family", FAMILIES)
def test_other_weights_are_not_taken_for_rounded_ones(
    family: str, files: Files, tmp_path: Path
) -> None:
    source, out = files[family]
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(out.read_bytes())
    reader = gguf.GGUFReader(wrong, "r+")
    queries = next(one for one in reader.tensors if one.name == "blk.0.attn_q.weight")
    queries.data[0] = queries.data[5].copy()
    reader.data.flush()
    result = validated(source, wrong)
    assert not result.agrees
    assert "q_proj" in result.sentence
