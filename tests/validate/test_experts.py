"""GGUF files of mixtures of experts in float32: rounding decides between experts of almost the same
score, which is no fault of the file, and a wrong factor is.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from ropeconv.validate import gguf
from ropeconv.validate.comparison import Comparison, Settings
from ropeconv.validate.validation import Validation

from ..support.baking import recipe_of
from ..support.llamacpp import bake, checkpoint
from .test_gguf_against_gguf import with_keys

pytest.importorskip("llama_cpp")

YARN = recipe_of("yarn", 4.0)


def with_equal_scores(folder: Path) -> Path:
    """Give three experts of each router scores that only rounding tells apart; two of them run.

    They compute almost the same, so a choice changes logits by a KL of about 1e-3.
    """
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    generator = torch.Generator().manual_seed(0)
    for name, tensor in tensors.items():
        expert = re.search(r"experts\.([12])\.", name)
        if name.endswith("mlp.gate.weight"):
            first = tensor[0]
            rows = [first, first * (1 + 2.0**-22), first * (1 - 2.0**-22), -first]
            tensors[name] = torch.stack(rows).contiguous()
        elif expert:
            same = tensors[name.replace(expert[0], "experts.0.")]
            noise = torch.randn(same.shape, generator=generator)
            tensors[name] = (same * (1 + 0.02 * noise)).contiguous()
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint with such routers, and its extended file."""
    folder = tmp_path_factory.mktemp("experts")
    source = with_equal_scores(checkpoint("qwen3_moe", folder / "source"))
    bake(source, YARN, folder / "out.gguf", outtype="f32")
    return source, folder / "out.gguf"


def validated(source: Path, out: Path) -> Validation:
    return gguf.validate_gguf(Comparison.open(out, str(source)), Settings())


def test_choices_of_routers_by_rounding_are_no_fault(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = validated(*files)
    assert result.agrees, result.sentence
    assert "routers" in result.sentence

    # without the measurement of what rounding does, the same file fails
    monkeypatch.setattr(gguf, "_has_experts", lambda file: False)
    blind = validated(*files)
    assert blind.sentence.startswith("FAIL")


@pytest.mark.parametrize(
    ("key", "value"), [("scaling.factor", 3.0), ("freq_base", 12000.0), ("scaling.factor", 3.8)]
)
def test_a_wrong_file_fails_all_the_same(
    key: str, value: Any, files: tuple[Path, Path], tmp_path: Path
) -> None:
    source, out = files
    with_keys(out, tmp_path / "wrong.gguf", key, value)
    result = validated(source, tmp_path / "wrong.gguf")
    assert result.sentence.startswith("FAIL"), result.sentence
