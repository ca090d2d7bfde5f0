"""Metadata keys whose numbers are tensors of a checkpoint, one of each layer."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from ..errors import BadSource
from ..families.gguf import Gguf
from ..formats.floats import STORED, widened
from ..formats.gguf import Value, f32_array
from ..formats.safetensors import Header
from .rows import Weights

LAYER = re.compile(r"\blayers\.(\d+)\.")


def scalars(headers: Iterable[tuple[Weights, Header]], rules: Gguf, layers: int) -> dict[str, Value]:
    """The metadata keys of single numbers.

    headers: of the checkpoint's files, with these. rules: of the family. layers: their number. Raises BadSource
    where a layer has none.
    """
    found = {}
    for key, ending in rules.scalars.items():
        numbers: dict[int, float] = {}
        for file, header in headers:
            for name, tensor in header.tensors.items():
                layer = LAYER.search(name)
                if layer and name.endswith(ending) and tensor.dtype in STORED:
                    start = header.data_start + tensor.start
                    dtype = np.dtype(STORED[tensor.dtype])
                    stored = np.frombuffer(file.read(start, start + dtype.itemsize), dtype)
                    numbers[int(layer[1])] = float(widened(stored, tensor.dtype)[0])
        if sorted(numbers) != list(range(layers)):
            raise BadSource(
                f"{ending} is not there for every one of the {layers} layers; download the checkpoint again"
            )
        found[key] = f32_array([numbers[layer] for layer in range(layers)])
    return found
