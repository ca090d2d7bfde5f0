"""Exports in Q4_K_M of architectures in which llama.cpp divides no frequencies: a right file is not
refused for the rounding of its weights, and a wrong one does not pass by it.
"""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest

from ropeconv.convert.to_gguf import write
from ropeconv.formats.gguf.edit import Edit, write_new
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.gguf.header import TYPES, f32
from ropeconv.validate import gguf as validation_of_gguf
from ropeconv.validate.comparison import Comparison, Settings
from ropeconv.validate.gguf import validate_gguf
from ropeconv.validate.validation import Validation

from ..support.baking import YARN, apply, make_plan, recipe_of
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


@pytest.mark.parametrize("family", ["cohere2", "phi3"])
def test_rounding_that_hides_a_fault_is_left_out(family: str, tmp_path: Path) -> None:
    """With quantised weights llama.cpp rounds activations too, which hides the attention factor in
    these models; with the same weights in float32 it does not.
    """
    source = checkpoint(family, tmp_path / "source")
    out = tmp_path / "out.gguf"
    apply(make_plan(source, YARN, out, to="gguf", outtype="q4_k_m"), validate="off")
    right = validated(source, out)
    assert right.agrees, right.sentence
    assert "dequantised weights in llama.cpp too" in right.sentence
    assert right.buckets[-1].control_kl > 1000 * right.buckets[-1].tolerance

    wrong = tmp_path / "wrong.gguf"
    key = f"{family}.rope.scaling.attn_factor"
    write_new(GgufFile.open(out), 0, Edit({key: f32(NO_ATTENTION_FACTOR)}), wrong)
    result = validated(source, wrong)
    assert not result.agrees
    assert result.sentence.startswith("FAIL")


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


def loaded_weights(
    source: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Validation, list[str], list[Path]]:
    """The result, the checkpoints that transformers has loaded, and the files of llama.cpp."""
    checkpoints: list[str] = []
    files_run: list[Path] = []
    load = validation_of_gguf.load_checkpoint
    run = validation_of_gguf.run_logits

    def load_and_count(comparison: Comparison, checkpoint: Any, *rest: Any) -> Any:
        checkpoints.append(type(checkpoint).__name__)
        return load(comparison, checkpoint, *rest)

    def run_and_count(engine: Any, *rest: Any) -> Any:
        files_run.append(Path(engine.path))
        return run(engine, *rest)

    monkeypatch.setattr(validation_of_gguf, "load_checkpoint", load_and_count)
    monkeypatch.setattr(validation_of_gguf, "run_logits", run_and_count)
    return validated(source, out), checkpoints, files_run


def test_nothing_is_loaded_or_run_twice(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = files["glm4"]
    result, checkpoints, files_run = loaded_weights(source, out, monkeypatch)
    assert result.agrees
    assert sorted(checkpoints) == ["FolderSource", "OutputWeights"]
    # with the scaling, and without it
    assert files_run == [out, out]
    rows = [bucket.name for bucket in result.buckets]
    assert rows[: len(rows) // 2] == rows[len(rows) // 2 :]


@pytest.mark.parametrize(
    ("family", "outtype"), [("llama", "q4_k_m"), ("llama", "q2_k"), ("mistral", "q4_k_m")]
)
def test_rows_in_another_place_are_noticed_where_llama_cpp_divides_frequencies(
    family: str, outtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake of the converter, which converting again does not show."""
    wide = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4}
    source = checkpoint(family, tmp_path / "source", **wide)
    right = tmp_path / "right.gguf"
    options = {"to": "gguf", "outtype": outtype}
    apply(make_plan(source, YARN, right, **options), validate="off")
    result = validated(source, right)
    assert result.agrees, result.sentence

    in_place = write._reorder

    def swap_two_rows(tensor: Any, stored: Any) -> Any:
        rows = np.array(in_place(tensor, stored))
        if len(rows) == 256:
            rows[[0, 5]] = rows[[5, 0]]
        return rows

    monkeypatch.setattr(write, "_reorder", swap_two_rows)
    wrong = tmp_path / "wrong.gguf"
    apply(make_plan(source, YARN, wrong, **options), validate="off")
    assert wrong.read_bytes() != right.read_bytes()
    result = validated(source, wrong)
    assert not result.agrees
    assert "does not explain" in result.sentence


def test_how_far_a_row_may_be_off_by_its_type(tmp_path: Path) -> None:
    """Signs keep all but 1 - 2/pi of the squares of normal numbers."""
    limits = {}
    for number, kind in TYPES.items():
        file = SimpleNamespace(usual_type=number)
        limits[kind.name] = validation_of_gguf.rounding_limit(file)  # type: ignore[arg-type]
    by_signs = math.sqrt(1 - 2 / math.pi)
    another_row = math.sqrt(2)
    assert limits["Q4_K"] < by_signs < limits["IQ1_S"] < another_row
    assert limits["TQ1_0"] == math.inf
