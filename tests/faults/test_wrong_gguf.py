"""GGUF files of which one thing is wrong: keys, tensors, places. All are refused without running llama.cpp."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ropeconv.errors import Disagreement
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..support.baking import apply, make_plan
from ..support.corruptions import Corruption, data, grown, last_bit, refused, replaced, verified
from ..support.extent import few, tally
from ..support.gguf_files import write

RECIPES = {"keys": Recipe(REGISTRY["yarn"](16.0)), "tensor": Recipe(REGISTRY["mixed"](4.0))}
EXTRA: dict[str, Any] = {
    "general.name": "A model", "general.file_type": 0, "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.sliding_window": 32, "ropeconv.note": "x", "general.sampling.sequence": "top_k;temp",
}  # fmt: skip


TEXTS = {
    b"\4\0\0\0\0\0\0\0yarn": b"\4\0\0\0\0\0\0\0none", b"token 3": b"token X",
    b"rope_freqs.weight": b"rope_freqX.weight", b'"factor": 16.0': b'"factor": 18.0',
    b'"encoding": "keys"': b'"encoding": "keyz"', b'"context": 1024': b'"context": 1025',
}  # fmt: skip
CHANGES: dict[str, Corruption] = {
    "another architecture": data(lambda it: it.__setitem__(slice(None), it.replace(b"llama", b"qwen2"))),
    "bytes after the tensors": data(grown),
    "one byte after the tensors": data(lambda it: it.append(1)),
    "fewer bytes": data(lambda it: it.__delitem__(slice(-8, None))),
}


def parts(path: Path) -> dict[str, list[np.ndarray]]:
    """The numbers and letters of the header and of the tensors, which gguf-py writes where they are changed."""
    reader = gguf.GGUFReader(path, "r+")
    arrays = {name: field.parts for name, field in reader.fields.items()}
    arrays |= {f"entry {tensor.name}": tensor.field.parts for tensor in reader.tensors}
    return arrays | {f"tensor {tensor.name}": [tensor.data] for tensor in reader.tensors}


def change(path: Path, name: str, place: int) -> None:
    """Changes a bit in the last byte of a part, which is small in text and a sign in numbers."""
    flat = parts(path)[name][place].reshape(-1).view(np.uint8)
    flat[-1] ^= 1


def everything(path: Path) -> dict[str, Corruption]:
    """The changes of the tables that this file can have, and one of every part."""
    content = path.read_bytes()
    corruptions = CHANGES | {f"{new!r}": data(replaced(old, new)) for old, new in TEXTS.items() if old in content}
    for name, places in parts(path).items():
        corruptions |= {f"{name}, {place}": partial(change, name=name, place=place) for place in range(len(places))}
    return corruptions


@pytest.mark.parametrize("bake", RECIPES)
def test_what_is_wrong_is_refused(bake: str, tmp_path: Path) -> None:
    source, out = write(tmp_path / "source.gguf", extra=EXTRA), tmp_path / "out.gguf"
    right = apply(make_plan(source, RECIPES[bake], tmp_path / "right.gguf"))
    verification = verified(right, source)
    assert (verification.files, verification.notes, verification.unverified) == (1, (), ())
    every = everything(right)
    passed, names = [], few(list(every), 6)
    for name in names:
        shutil.copy(right, out)
        every[name](out)
        passed += [] if refused(out, source) else [name]
    tally("wrong output", "GGUF files", len(names), len(passed))
    assert passed == []


def test_a_wrong_second_shard_is_named(tmp_path: Path) -> None:
    write(tmp_path / "source.gguf", split=1)
    source = sorted(tmp_path.glob("source-*.gguf"))[0]
    out = apply(make_plan(source, RECIPES["keys"], tmp_path / "out.gguf"))
    assert not refused(out, source)
    second = sorted(tmp_path.glob("out-*.gguf"))[1]
    data(last_bit)(second)
    with pytest.raises(Disagreement, match=second.name):
        verified(out, source)
    assert verified(out, source, quick=True).bytes == 0
