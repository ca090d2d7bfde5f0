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

INPUTS = 10_000 if ALL else 60


def same(ours: Any, theirs: Any) -> bool:
    """Whether two values are equal, where NaN equals itself."""
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    numbers = isinstance(ours, float) and isinstance(theirs, float)
    return bool(ours == theirs) or (numbers and math.isnan(ours) and math.isnan(theirs))


def value_of(field: Any) -> Any:
    """The value of a key; strings that are not UTF-8 as ours has them."""
    kinds = [int(kind) for kind in field.types]
    if kinds == [9] or not len(field.data):
        return []
    parts = [field.parts[index] for index in field.data]
    found = [bytes(part).decode("utf-8", "replace") if kinds[-1] == 8 else part.tolist()[0] for part in parts]
    found = [bool(item) for item in found] if kinds[-1] == 7 else found
    return found if kinds[0] == 9 else found[0]


@pytest.mark.parametrize("name", ["gguf", "gguf keys"])
def test_gguf_py_reads_the_same(name: str, tmp_path: Path) -> None:
    accepted = 0
    for number in range(INPUTS):
        folder = tmp_path / str(number)
        write_input(name, number, folder)
        try:
            file = GgufFile.open(folder / "m.gguf")
        except BadSource:
            continue
        accepted += 1
        reader = gguf.GGUFReader(folder / "m.gguf")
        keys = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
        assert set(keys) == set(file.header.values), number
        assert all(same(file.get(key), value_of(field)) for key, field in keys.items()), number
        ours = {one.name: (one.shape, one.type, file.read(one.name)) for one in file.tensors.values()}
        assert ours == {
            one.name: (tuple(map(int, one.shape)), int(one.tensor_type), one.data.tobytes()) for one in reader.tensors
        }, number
    tally("second reader", name, INPUTS)
    assert accepted > INPUTS / 20
