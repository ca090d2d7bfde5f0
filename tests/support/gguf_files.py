"""GGUF files made by gguf-py, so that our reader and theirs never share a writer."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np

HEAD_DIM, LAYERS, TRAINED = 64, 2, 64
WHOLE = ("general.", "adapter.", "split.", "ropeconv.")
"""Beginnings of keys that have no architecture before them."""


def write(
    path: Path,
    arch: str = "llama",
    extra: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray[Any, Any]] | None = None,
    vocabulary: int = 16,
    split: int = 0,
) -> Path:
    """Write a file with the keys that every language model has.

    Args:
        path: The file.
        arch: The architecture.
        extra: Further keys, which are written by the types of their values.
        tensors: The tensors by name; None for `plain_tensors`.
        vocabulary: The number of tokens.
        split: The most tensors of a shard; 0 for one file.
    """
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=split)
    writer.add_context_length(TRAINED)
    writer.add_embedding_length(2 * HEAD_DIM)
    writer.add_block_count(LAYERS)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(10000.0)
    writer.add_token_list([f"token {index}" for index in range(vocabulary)])
    writer.add_token_scores([float(-index) for index in range(vocabulary)])
    for key, value in (extra or {}).items():
        name = key if key.startswith(WHOLE) else f"{arch}.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, list):
            writer.add_array(name, value)
        else:
            writer.add_string(name, value)
    if tensors is None:
        tensors = plain_tensors()
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    close(writer)
    return path


def close(writer: gguf.GGUFWriter) -> None:
    """Write a file whose keys and tensors are known."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def plain_tensors() -> dict[str, np.ndarray[Any, Any]]:
    """A few tensors of different shapes and types."""
    generator = np.random.default_rng(0)
    return {
        "token_embd.weight": generator.standard_normal((16, 2 * HEAD_DIM), dtype=np.float32),
        "blk.0.attn_q.weight": generator.standard_normal((128, 128)).astype(np.float16),
        "blk.0.attn_norm.weight": generator.standard_normal(128, dtype=np.float32),
        "output_norm.weight": generator.standard_normal(130, dtype=np.float32),
    }


def contents(path: Path) -> dict[str, bytes]:
    return {tensor.name: tensor.data.tobytes() for tensor in gguf.GGUFReader(path).tensors}
