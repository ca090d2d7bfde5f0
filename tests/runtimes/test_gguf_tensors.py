"""GGUF files by their tensors: files that are no language model, and rope tensors that llama.cpp
would abort on.
"""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ropeconv.errors import BadSource
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.rope.forms import Plain
from ropeconv.runtimes.llamacpp.archs import other_kind
from ropeconv.runtimes.llamacpp.read_header import arch_of, read_file, rope_tensors

from ..support.gguf_files import plain_tensors, write

FREQS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"


def with_tensor(folder: Path, name: str, values: np.ndarray) -> GgufFile:
    return GgufFile.open(write(folder / "model.gguf", tensors={**plain_tensors(), name: values}))


@pytest.mark.parametrize("name", [FREQS, LONG, SHORT])
def test_divisors_are_read_as_they_are(tmp_path: Path, name: str) -> None:
    values = np.linspace(1, 8, 32, dtype=np.float32)
    tensors = rope_tensors(with_tensor(tmp_path, name, values))
    assert tensors.keys() == {name}
    assert tensors[name].dtype == np.float64
    np.testing.assert_array_equal(tensors[name], values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            np.ones(32, np.float16),
            "is F16, on which llama.cpp aborts, and not F32; fetch the file again",
        ),
        (np.ones((2, 16), np.float32), "needs one number per pair"),
        (
            np.ones((1 << 14) + 1, np.float32),
            r"has the shape \(16385,\), but needs one number per pair",
        ),
        (np.array([1.0, 0.0], np.float32), "has divisors that are not positive"),
        (np.array([1.0, -1.0], np.float32), "has divisors that are not positive"),
        (np.array([1.0, np.nan], np.float32), "has divisors that are not positive"),
    ],
)
def test_what_is_no_rope_tensor(tmp_path: Path, values: np.ndarray, words: str) -> None:
    with pytest.raises(BadSource, match=words):
        rope_tensors(with_tensor(tmp_path, FREQS, values))


def test_a_file_without_an_architecture_is_no_language_model(tmp_path: Path) -> None:
    plain = GgufFile.open(write(tmp_path / "model.gguf"))
    assert (arch_of(plain).name, read_file(plain).spec.form, rope_tensors(plain)) == (
        "llama",
        Plain(10000.0),
        {},
    )
    data = (tmp_path / "model.gguf").read_bytes()
    (tmp_path / "odd.gguf").write_bytes(
        data.replace(gguf.Keys.General.ARCHITECTURE.encode(), b"general.architectura")
    )
    with pytest.raises(BadSource, match="odd.gguf has no general.architecture"):
        arch_of(GgufFile.open(tmp_path / "odd.gguf"))


NEXT = {name.replace("blk.0.", "blk.1."): value for name, value in plain_tensors().items()}
SUMS = {
    "blk.0.attn_q.weight.in_sum2": np.ones(32, np.float32),
    "blk.0.attn_q.weight.counts": np.ones(1, np.float32),
}
"""As llama-imatrix writes them, see tools/imatrix/imatrix.cpp of llama.cpp."""


@pytest.mark.parametrize(
    ("arch", "keys", "tensors", "words"),
    [
        ("llama", {}, plain_tensors(), ""),
        ("llama", {"general.type": "model"}, plain_tensors(), ""),
        ("llama", {"general.type": "adapter"}, plain_tensors(), "is a LoRA adapter"),
        ("llama", {"adapter.type": "lora"}, plain_tensors(), "is a LoRA adapter"),
        ("llama", {"general.type": "mmproj"}, plain_tensors(), "is a multimodal projector"),
        ("clip", {}, plain_tensors(), "is a multimodal projector"),
        ("controlvector", {}, {"direction.1": np.ones(32, np.float32)}, "is a control vector"),
        ("llama", {"general.type": "imatrix"}, plain_tensors(), "is an importance matrix"),
        ("llama", {}, SUMS, "is an importance matrix"),
        (
            "llama",
            {"nextn_predict_layers": 1},
            NEXT,
            (
                "holds only layers that predict further tokens (MTP), a draft for another file;"
                " extend that file, and leave the draft unchanged"
            ),
        ),
        ("llama", {"nextn_predict_layers": 1}, plain_tensors(), ""),
        ("llama", {}, NEXT, ""),
        ("llama", {"nextn_predict_layers": 0}, NEXT, ""),
        ("llama", {"nextn_predict_layers": "1"}, NEXT, ""),
        ("llama", {}, {}, "contains only a vocabulary and no weights"),
    ],
)
def test_what_a_file_is_instead_of_a_model(
    tmp_path: Path, arch: str, keys: dict[str, Any], tensors: dict[str, Any], words: str
) -> None:
    kind = other_kind(GgufFile.open(write(tmp_path / "model.gguf", arch, keys, tensors)))
    assert kind.startswith(words)
    assert bool(kind) is bool(words)
