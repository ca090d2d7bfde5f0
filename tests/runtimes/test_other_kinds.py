"""GGUF files that are no language model, by their keys and tensors alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.formats.gguf.file import GgufFile
from ropeconv.runtimes.llamacpp.archs import other_kind

from ..support.gguf_files import plain_tensors, write

NEXT = {name.replace("blk.0.", "blk.1."): value for name, value in plain_tensors().items()}
SUMS = {"blk.0.attn_q.weight.in_sum2": np.ones(32, np.float32), "blk.0.attn_q.weight.counts": np.ones(1, np.float32)}
"""As llama-imatrix writes them, see tools/imatrix/imatrix.cpp of llama.cpp."""


@pytest.mark.parametrize(
    ("arch", "keys", "tensors", "words"),
    [
        ("llama", {}, plain_tensors(), ""), ("llama", {"general.type": "model"}, plain_tensors(), ""),
        ("llama", {"general.type": "adapter"}, plain_tensors(), "is a LoRA adapter"),
        ("llama", {"adapter.type": "lora"}, plain_tensors(), "is a LoRA adapter"),
        ("llama", {"general.type": "mmproj"}, plain_tensors(), "is a multimodal projector"),
        ("clip", {}, plain_tensors(), "is a multimodal projector"),
        ("llama", {"general.type": "imatrix"}, plain_tensors(), "is an importance matrix"),
        ("llama", {}, SUMS, "is an importance matrix"),
        ("llama", {"nextn_predict_layers": 1}, NEXT, "holds only layers that predict further tokens"),
        ("llama", {"nextn_predict_layers": 1}, plain_tensors(), ""), ("llama", {}, NEXT, ""),
        ("llama", {"nextn_predict_layers": 0}, NEXT, ""), ("llama", {"nextn_predict_layers": "1"}, NEXT, ""),
        ("llama", {}, {}, "contains only a vocabulary and no weights"),
    ],
)  # fmt: skip
def test_what_a_file_is_instead_of_a_model(
    tmp_path: Path, arch: str, keys: dict[str, Any], tensors: dict[str, Any], words: str
) -> None:
    found = other_kind(GgufFile.open(write(tmp_path / "model.gguf", arch, keys, tensors)))
    assert found.startswith(words)
    assert bool(found) is bool(words)
