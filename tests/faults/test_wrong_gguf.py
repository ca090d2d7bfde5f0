"""GGUF files of which one thing is wrong: keys, tensors, places. All are refused without running llama.cpp."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import ropeconv
from ropeconv.errors import BadSource, Disagreement
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.verify import Options, Verified, verify_output

from ..support.baking import apply, make_plan
from ..support.corruptions import Corruption, data, grown, last_bit, replaced, scale
from ..support.extent import sample, tally
from ..support.gguf_files import write

RECIPES = {"keys": Recipe(REGISTRY["yarn"](16.0)), "tensor": Recipe(REGISTRY["mixed"](4.0))}
EXTRA: dict[str, Any] = {
    "general.name": "A model", "general.file_type": 0, "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.sliding_window": 32, "ropeconv.note": "x", "general.sampling.sequence": "top_k;temp",
}  # fmt: skip


def number(key: str, value: Any) -> Corruption:
    """Sets a number of the header, by gguf-py."""

    def change(path: Path) -> None:
        field = gguf.GGUFReader(path, "r+").fields[key]
        assert field.contents() != value
        field.parts[field.data[0]][0] = value

    return change


def numbers(name: str, change: Callable[[np.ndarray], object]) -> Corruption:
    """Changes a tensor, by gguf-py."""

    def corrupt(path: Path) -> None:
        tensor = next(one for one in gguf.GGUFReader(path, "r+").tensors if one.name == name)
        before = np.array(tensor.data)
        change(tensor.data)
        assert not np.array_equal(before, tensor.data), "nothing was changed"

    return corrupt


def entry(name: bytes, at: int, value: int) -> Corruption:
    """Sets 4 bytes of the entry of a tensor, `at` bytes after its name."""

    def change(found: bytearray) -> None:
        place = found.index(len(name).to_bytes(8, "little") + name) + 8 + len(name) + at
        found[place : place + 4] = value.to_bytes(4, "little")

    return data(change)


def flipped(place: int) -> Corruption:
    return data(lambda found: found.__setitem__(place, found[place] ^ 1))


def reserve(found: bytearray) -> None:
    """Something among the spaces that are kept for later keys."""
    place = found.index(b"ropeconv.reserved") + 60
    assert found[place : place + 8] == b" " * 8
    found[place : place + 8] = b"hidden !"


A, Q, FREQS = "token_embd.weight", "blk.0.attn_q.weight", "rope_freqs.weight"
NUMBERS = {
    "llama.rope.freq_base": 10001.0, "llama.rope.scaling.factor": 8.0, "llama.context_length": 2048,
    "llama.rope.scaling.original_context_length": 128, "llama.rope.dimension_count": 32,
    "llama.attention.layer_norm_rms_epsilon": 1e-6, "llama.attention.sliding_window": 64,
    "llama.attention.head_count_kv": 2, "llama.block_count": 1, "general.file_type": 1,
}  # fmt: skip
TEXTS = {
    b"llama.rope.scaling.factor": b"llama.rope.scaling.factoR", b"\4\0\0\0\0\0\0\0yarn": b"\4\0\0\0\0\0\0\0none",
    b"token 3": b"token X", b"A model": b"B model", b"ropeconv.note": b"ropeconv.mote",
    Q.encode(): b"blk.9.attn_q.weight", b'"factor": 16.0': b'"factor": 18.0',
    b'"encoding": "keys"': b'"encoding": "keyz"', b'"context": 1024': b'"context": 1025',
}  # fmt: skip
TABLE: dict[str, tuple[str, Corruption]] = {
    **{f"{key} = {value}": ("keys", number(key, value)) for key, value in NUMBERS.items()},
    **{f"{old!r} is {new!r}": ("keys", data(replaced(old, new))) for old, new in TEXTS.items()},
    "another architecture": ("keys", data(lambda it: it.__setitem__(slice(None), it.replace(b"llama", b"qwen2")))),
    "a row of the embeddings is zero": ("keys", numbers(A, scale(3, 0))),
    "queries x 1.01": ("keys", numbers(Q, scale(slice(None), 1.01))),
    "one head of queries x 1.003": ("keys", numbers(Q, scale(slice(0, 64), 1.003))),
    "one number": ("keys", numbers(A, scale((2, 2), 1.0001))),
    "the last bit": ("keys", data(last_bit)),
    "the divisors": ("tensor", numbers(FREQS, scale(3, 1.01))),
    "the divisors are ones": ("tensor", numbers(FREQS, lambda it: it.fill(1.0))),
    "no divisors": ("tensor", data(replaced(FREQS.encode(), b"rope_freqX.weight"))),
    "a number of a file with divisors": ("tensor", numbers(Q, scale((0, 0), 2.0))),
    "a tensor has another type": ("keys", entry(Q.encode(), 4 + 16, 30)),
    "a tensor is transposed": ("keys", entry(A.encode(), 4, 2048)),
    "bytes after the tensors": ("keys", data(grown)),
    "one byte after the tensors": ("keys", data(lambda it: it.append(1))),
    "fewer bytes": ("keys", data(lambda it: it.__delitem__(slice(-8, None)))),
    "something among the spaces": ("keys", data(reserve)),
    "another version of GGUF": ("keys", flipped(4)),
    "another number of keys": ("keys", flipped(16)),
}


def verified(out: Path, source: Path, **options: Any) -> Verified:
    return verify_output(ropeconv.Comparison.open(out, str(source)), Options(**options))


def refused(out: Path, source: Path) -> bool:
    try:
        verified(out, source)
    except (BadSource, Disagreement):
        return True
    return False


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


def test_what_is_wrong_is_refused(baked: Baked) -> None:
    passed, names = [], sample(list(TABLE), 15)
    for name in names:
        bake, corrupt = TABLE[name]
        out, source = baked(bake)
        corrupt(out)
        passed += [] if refused(out, source) else [name]
    tally("wrong output", "GGUF files", len(names), len(passed))
    assert passed == []


def test_a_description_is_a_note_where_edits_are_accepted(baked: Baked) -> None:
    out, source = baked("keys")
    data(replaced(b"A model", b"B model"))(out)
    assert verified(out, source, edited=True).notes == ("it has general.name = 'B model', where 'A model' belongs",)
    data(replaced(b"top_k;temp", b"temp;top_k"))(out)  # defaults of sampling are no description
    with pytest.raises(Disagreement, match="general.sampling.sequence = 'temp;top_k', where 'top_k;temp' belongs"):
        verified(out, source, edited=True)


def test_a_wrong_second_shard_is_named(tmp_path: Path) -> None:
    write(tmp_path / "source.gguf", split=1)
    source = sorted(tmp_path.glob("source-*.gguf"))[0]
    out = apply(make_plan(source, RECIPES["keys"], tmp_path / "out.gguf"))
    assert not refused(out, source)
    second = sorted(tmp_path.glob("out-*.gguf"))[1]
    flipped(-1)(second)
    with pytest.raises(Disagreement, match=second.name):
        verified(out, source)
    assert verified(out, source, quick=True).bytes == 0


def test_a_receipt_without_a_target_is_compared_all_the_same(baked: Baked) -> None:
    """As earlier versions wrote it: the target is inferred, and the spaces after the receipt stay valid JSON."""
    out, source = baked("tensor")
    target = json.loads(gguf.GGUFReader(out).fields["ropeconv.json"].contents())["target"]
    text = f', "target": {json.dumps(target)}'.encode()
    data(replaced(text, b" " * len(text)))(out)
    assert ropeconv.read_receipt(out).target is None
    assert verified(out, source).unverified == ()
    numbers(FREQS, scale(1, 1.01))(out)
    assert refused(out, source)
