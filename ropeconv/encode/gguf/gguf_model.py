"""GgufModel: what the encodings need of a GGUF model, before and after an edit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...formats.gguf import Edit, Header, rewrite
from ...formats.gguf.header import TensorInfo
from ...rope.forms import Vector
from ...runtimes.llamacpp import arch_of_header
from ...runtimes.llamacpp.read_header import ROPE_TENSORS, Reading, read


@dataclass(frozen=True)
class GgufModel:
    """A GGUF model that is on disk or only planned.

    header: of the first shard, with the keys. tensors: of all shards, by name. vectors: the rope tensors, float64
    [rotary_dim / 2], by name.
    """

    header: Header
    tensors: Mapping[str, TensorInfo]
    vectors: Mapping[str, Vector]

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key by its full name, decoded; `default` where it is absent."""
        return self.header.get(key, default)

    def reading(self) -> Reading:
        """The RoPE that llama.cpp computes from the model. Raises BadSource where it would refuse it."""
        return read(self, self.vectors, arch_of_header(self))

    def after(self, edit: Edit) -> GgufModel:
        """The model after an edit, without writing anything."""
        made = rewrite(self.header, edit)
        header = Header(3, made.values, made.tensors, made.alignment, 0, 0)
        vectors = {name: vector for name, vector in self.vectors.items() if name not in edit.removed}
        for name in ROPE_TENSORS:
            if name in edit.changes and name in vectors:
                vectors[name] = _floats(edit.changes[name].apply(vectors[name].astype("<f4").tobytes()))
        vectors |= {item.name: _floats(item.data) for item in edit.added if item.name in ROPE_TENSORS}
        kept = {name: info for name, info in self.tensors.items() if name not in edit.removed}
        return GgufModel(header, {**kept, **made.tensors}, vectors)


def _floats(data: bytes) -> Vector:
    return np.frombuffer(data, "<f4").astype(np.float64)
