"""What is accepted as GGUF is what gguf-py reads: the same keys with the same values, the same tensors and bytes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import pytest

from ropeconv.errors import BadSource
from ropeconv.formats.gguf import GgufFile

from ...support.extent import ALL, tally
from .formats import write_input

INPUTS = 10_000 if ALL else 150


def same(ours: Any, theirs: Any) -> bool:
    """Whether two values are equal, where NaN equals itself."""
    if isinstance(ours, float) and isinstance(theirs, float) and math.isnan(ours):
        return math.isnan(theirs)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return bool(ours == theirs)


def by_gguf_py(path: Path) -> tuple[dict[str, Any], dict[str, tuple[tuple[int, ...], int, bytes]]]:
    """Keys and tensors as gguf-py reads them."""
    reader = gguf.GGUFReader(path)
    keys = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    tensors = {
        tensor.name: (tuple(map(int, tensor.shape)), int(tensor.tensor_type), tensor.data.tobytes())
        for tensor in reader.tensors
    }
    return keys, tensors


def value_of(field: Any) -> Any:
    """The value of a key; strings that are not UTF-8 as ours has them."""
    kinds = [int(kind) for kind in field.types]
    texts = [bytes(field.parts[index]).decode("utf-8", "replace") for index in field.data] if kinds[-1] == 8 else []
    if kinds[-1] == 8:
        return texts if kinds[0] == 9 else texts[0]
    found = [field.parts[index].tolist()[0] for index in field.data]
    found = [bool(item) for item in found] if kinds[-1] == 7 else found
    return found if kinds[0] == 9 else found[0]


@pytest.mark.parametrize("name", ["gguf", "gguf keys"])
def test_gguf_py_reads_the_same(name: str, tmp_path: Path) -> None:
    accepted = 0
    for number in range(INPUTS):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_input(name, number, folder)
        path = folder / "m.gguf"
        try:
            file = GgufFile.open(path)
        except BadSource:
            continue
        accepted += 1
        keys, tensors = by_gguf_py(path)
        assert set(keys) == set(file.header.values), number
        for key, field in keys.items():
            kinds = [int(kind) for kind in field.types]
            empty = kinds == [9] or (kinds[0] == 9 and not len(field.data))
            assert (file.get(key) == []) if empty else same(file.get(key), value_of(field)), (number, key)
        ours = {tensor.name: (tensor.shape, tensor.type, file.read(tensor.name)) for tensor in file.tensors.values()}
        assert ours == tensors, number
    tally("second reader", name, INPUTS)
    assert accepted > INPUTS / 20
