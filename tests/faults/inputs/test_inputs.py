"""No input ends in an unplanned error, takes too much time or memory, or leaves something behind
when it is refused.
"""

import math
from pathlib import Path
from typing import Any

import gguf
import pytest

from ropeconv.errors import BadSource
from ropeconv.formats.gguf.file import GgufFile

from ...support.extent import few, tally
from .kinds import FORMATS, write_input
from .worker import run_inputs

INPUTS = 10_000
"""Inputs per format with `python -m scripts.faults --all`."""


@pytest.mark.parametrize("name", few(list(FORMATS), 2))
def test_every_input_is_taken_or_refused_in_a_sentence(name: str) -> None:
    numbers = few(range(INPUTS), 15)
    failed = [outcome for outcome in run_inputs(name, numbers) if outcome.problem]
    tally("input", name, len(numbers), len({outcome.number for outcome in failed}))
    shown = [
        f"{run.number} {run.problem} {' '.join(run.command)[:200]}: {run.message[-300:]}"
        for run in failed[:10]
    ]
    assert not failed, "\n".join(shown)


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
    values = [
        bytes(part).decode("utf-8", "replace") if kinds[-1] == 8 else part.tolist()[0]
        for part in parts
    ]
    values = [bool(item) for item in values] if kinds[-1] == 7 else values
    return values if kinds[0] == 9 else values[0]


def test_gguf_py_reads_the_same(tmp_path: Path) -> None:
    """What is accepted as GGUF: the same keys with the same values, the same tensors and bytes."""
    accepted = 0
    numbers = few(range(INPUTS), 60)
    for number in numbers:
        path = tmp_path / str(number) / "m.gguf"
        write_input("gguf", number, path.parent)
        try:
            file = GgufFile.open(path)
        except BadSource:
            continue
        accepted += 1
        reader = gguf.GGUFReader(path)
        keys = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
        assert set(keys) == set(file.header.values), number
        assert all(same(file.get(key), value_of(field)) for key, field in keys.items()), number
        ours = {
            tensor.name: (tensor.shape, tensor.type, file.read(tensor.name))
            for tensor in file.tensors.values()
        }
        assert ours == {
            ref.name: (tuple(map(int, ref.shape)), int(ref.tensor_type), ref.data.tobytes())
            for ref in reader.tensors
        }, number
    tally("second reader", "gguf", len(numbers))
    assert accepted > len(numbers) / 30
