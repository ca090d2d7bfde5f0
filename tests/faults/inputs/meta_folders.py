"""Seeds: a folder as Meta distributes it, of one layer, and its tokenizer."""

from __future__ import annotations

import io
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.sources.test_meta import VOCABULARY, sentencepiece_model, weights

PARAMS: dict[str, Any] = {
    "dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_heads": 1, "multiple_of": 16, "norm_eps": 1e-5, "vocab_size": -1,
    "ffn_dim_multiplier": 1.0, "rope_theta": 10000.0, "use_scaled_rope": False,
}  # fmt: skip


@cache
def tensors() -> dict[str, Any]:
    """The tensors of a release."""
    import torch

    return weights(PARAMS, VOCABULARY, torch.bfloat16)


@cache
def sentencepiece() -> bytes:
    """A small tokenizer.model."""
    with tempfile.TemporaryDirectory() as folder:
        sentencepiece_model(Path(folder))
        return Path(folder, "tokenizer.model").read_bytes()


@cache
def pth() -> bytes:
    """consolidated.00.pth."""
    return saved(tensors())


def saved(found: Any) -> bytes:
    """What torch.save writes."""
    import torch

    file = io.BytesIO()
    torch.save(found, file)
    return file.getvalue()


def write_release(folder: Path) -> Path:
    """A folder as Meta distributes it."""
    folder.mkdir()
    (folder / "params.json").write_text(json.dumps(PARAMS))
    (folder / "consolidated.00.pth").write_bytes(pth())
    (folder / "tokenizer.model").write_bytes(sentencepiece())
    return folder
