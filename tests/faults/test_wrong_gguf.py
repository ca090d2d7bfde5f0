"""GGUF files of which one thing is wrong: keys, tensors, places. All are refused without running llama.cpp."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ropeconv.errors import Disagreement
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..support.baking import apply, make_plan
from ..support.corruptions import Corruption, data, grown, last_bit, refused, replaced, verified
from ..support.extent import sample, tally
from ..support.gguf_files import write

RECIPES = {"keys": Recipe(REGISTRY["yarn"](16.0)), "tensor": Recipe(REGISTRY["mixed"](4.0))}
EXTRA: dict[str, Any] = {
    "general.name": "A model", "general.file_type": 0, "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.sliding_window": 32, "ropeconv.note": "x", "general.sampling.sequence": "top_k;temp",
}  # fmt: skip


A, Q, FREQS = "token_embd.weight", "blk.0.attn_q.weight", "rope_freqs.weight"
TEXTS = {
    b"\4\0\0\0\0\0\0\0yarn": b"\4\0\0\0\0\0\0\0none", b"token 3": b"token X", FREQS.encode(): b"rope_freqX.weight",
    b'"factor": 16.0': b'"factor": 18.0', b'"encoding": "keys"': b'"encoding": "keyz"',
    b'"context": 1024': b'"context": 1025',
}  # fmt: skip
CHANGES: dict[str, Corruption] = {
    **{f"{new!r} for {old!r}": data(replaced(old, new)) for old, new in TEXTS.items()},
    "another architecture": data(lambda it: it.__setitem__(slice(None), it.replace(b"llama", b"qwen2"))),
    "bytes after the tensors": data(grown),
    "one byte after the tensors": data(lambda it: it.append(1)),
    "fewer bytes": data(lambda it: it.__delitem__(slice(-8, None))),
}


def parts(path: Path) -> dict[str, list[np.ndarray]]:
    """The numbers and letters of the header and of the tensors, which gguf-py writes where they are changed."""
    reader = gguf.GGUFReader(path, "r+")
    found = {name: field.parts for name, field in reader.fields.items()}
    found |= {f"entry {one.name}": one.field.parts for one in reader.tensors}
    return found | {f"tensor {one.name}": [one.data] for one in reader.tensors}


def change(path: Path, name: str, place: int) -> None:
    """Changes a bit in the last byte of a part, which is small in text and a sign in numbers."""
    flat = parts(path)[name][place].reshape(-1).view(np.uint8)
    flat[-1] ^= 1


def everything(path: Path) -> dict[str, Corruption]:
    """The changes of the table that this file can have, and one of every part."""
    found = {name: it for name, it in CHANGES.items() if not name.endswith(tuple(f"{old!r}" for old in TEXTS))}
    content = path.read_bytes()
    found |= {f"{new!r} for {old!r}": data(replaced(old, new)) for old, new in TEXTS.items() if old in content}
    for name, places in parts(path).items():
        found |= {f"{name}, {place}": partial(change, name=name, place=place) for place in range(len(places))}
    return found


Baked = Callable[[str], tuple[Path, Path]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders with the source and the output of each recipe, which is accepted."""
    folders = {name: tmp_path_factory.mktemp(name) for name in RECIPES}
    for name, folder in folders.items():
        out = apply(make_plan(write(folder / "source.gguf", extra=EXTRA), RECIPES[name], folder / "out.gguf"))
        found = verified(out, folder / "source.gguf")
        assert (found.files, found.notes, found.unverified) == (1, (), ())
    return folders


@pytest.fixture
def baked(made: dict[str, Path], tmp_path: Path) -> Baked:
    """A copy of the output of a recipe, and its source."""

    def get(name: str) -> tuple[Path, Path]:
        return Path(shutil.copy(made[name] / "out.gguf", tmp_path / "out.gguf")), made[name] / "source.gguf"

    return get


@pytest.mark.parametrize("bake", RECIPES)
def test_what_is_wrong_is_refused(bake: str, baked: Baked) -> None:
    every = everything(baked(bake)[0])
    passed, names = [], sample(list(every), 12)
    for name in names:
        out, source = baked(bake)
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
