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
from ropeconv.verify import Options, verify_output

from ..support.baking import apply, make_plan
from ..support.corruptions import Corruption, data, replaced
from ..support.extent import sample, tally
from ..support.gguf_files import plain_tensors, write

RECIPES = {"keys": Recipe(REGISTRY["yarn"](16.0)), "tensor": Recipe(REGISTRY["mixed"](4.0))}
EXTRA: dict[str, Any] = {
    "general.name": "A model", "general.file_type": 0, "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.sliding_window": 32, "ropeconv.note": "x", "general.sampling.sequence": "top_k;temp",
}  # fmt: skip


def number(key: str, value: Any) -> Corruption:
    """Sets a number of the header, by gguf-py."""

    def change(path: Path) -> None:
        field = gguf.GGUFReader(path, "r+").fields[key]
        before = field.parts[field.data[0]].copy()
        field.parts[field.data[0]][0] = value
        assert not np.array_equal(before, field.parts[field.data[0]]), f"{key} is {value} already"

    return change


def numbers(name: str, change: Callable[[np.ndarray], object]) -> Corruption:
    """Changes a tensor, by gguf-py."""

    def corrupt(path: Path) -> None:
        tensor = next(one for one in gguf.GGUFReader(path, "r+").tensors if one.name == name)
        before = np.array(tensor.data)
        change(tensor.data)
        assert not np.array_equal(before, tensor.data), "nothing was changed"

    return corrupt


def scaled(rows: Any, factor: float) -> Callable[[np.ndarray], None]:
    def change(found: np.ndarray) -> None:
        found[rows] = found[rows] * found.dtype.type(factor)

    return change


def entry(name: str, at: int, value: int) -> Corruption:
    """Sets 4 bytes of the entry of a tensor, `at` bytes after its name."""

    def change(found: bytearray) -> None:
        key = name.encode()
        place = found.index(len(key).to_bytes(8, "little") + key) + 8 + len(key) + at
        found[place : place + 4] = value.to_bytes(4, "little")

    return data(change)


def flipped(place: int, bits: int = 1) -> Corruption:
    return data(lambda found: found.__setitem__(place, found[place] ^ bits))


def grown(found: bytearray) -> None:
    found += bytes(32)


def grown_by_ones(found: bytearray) -> None:
    found += b"\1"


def cut(found: bytearray) -> None:
    del found[-8:]


def reserve(found: bytearray) -> None:
    """Something among the spaces that are kept for later keys."""
    place = found.index(b"ropeconv.reserved") + 60
    assert found[place : place + 8] == b" " * 8
    found[place : place + 8] = b"hidden !"


def receipt(old: str, new: str) -> Corruption:
    return data(replaced(old.encode(), new.encode()))


A, FFN, NORM = "token_embd.weight", "blk.0.attn_q.weight", "output_norm.weight"
TABLE: dict[str, tuple[str, Corruption]] = {
    "another base": ("keys", number("llama.rope.freq_base", 10001.0)),
    "another factor": ("keys", number("llama.rope.scaling.factor", 8.0)),
    "another context": ("keys", number("llama.context_length", 2048)),
    "another trained context": ("keys", number("llama.rope.scaling.original_context_length", 128)),
    "another width": ("keys", number("llama.rope.dimension_count", 32)),
    "another eps": ("keys", number("llama.attention.layer_norm_rms_epsilon", 1e-6)),
    "another window": ("keys", number("llama.attention.sliding_window", 64)),
    "other heads": ("keys", number("llama.attention.head_count_kv", 2)),
    "other layers": ("keys", number("llama.block_count", 1)),
    "another file type": ("keys", number("general.file_type", 1)),
    "a key has another name": ("keys", data(replaced(b"llama.rope.scaling.factor", b"llama.rope.scaling.factoR"))),
    "another kind of scaling": ("keys", data(replaced(b"\4\0\0\0\0\0\0\0yarn", b"\4\0\0\0\0\0\0\0none"))),
    "another architecture": ("keys", data(lambda it: it.__setitem__(slice(None), it.replace(b"llama", b"qwen2")))),
    "another token": ("keys", data(replaced(b"token 3", b"token X"))),
    "another name of the model": ("keys", data(replaced(b"A model", b"B model"))),
    "another note": ("keys", data(replaced(b"ropeconv.note", b"ropeconv.mote"))),
    "a row of the embeddings is zero": ("keys", numbers(A, scaled(3, 0))),
    "queries x 1.01": ("keys", numbers(FFN, scaled(slice(None), 1.01))),
    "one head of queries x 1.003": ("keys", numbers(FFN, scaled(slice(0, 64), 1.003))),
    "one number": ("keys", numbers(A, scaled((2, 2), 1.0001))),
    "the last bit": ("keys", flipped(-1)),
    "the divisors": ("tensor", numbers("rope_freqs.weight", scaled(3, 1.01))),
    "the divisors are ones": ("tensor", numbers("rope_freqs.weight", lambda it: it.fill(1.0))),
    "no divisors": ("tensor", data(replaced(b"rope_freqs.weight", b"rope_freqX.weight"))),
    "a number of a file with divisors": ("tensor", numbers(FFN, scaled((0, 0), 2.0))),
    "a tensor has another name": ("keys", data(replaced(b"blk.0.attn_q.weight", b"blk.9.attn_q.weight"))),
    "a tensor has another type": ("keys", entry(FFN, 4 + 16, 30)),
    "a tensor is transposed": ("keys", entry(A, 4, 2048)),
    "bytes after the tensors": ("keys", data(grown)),
    "one byte after the tensors": ("keys", data(grown_by_ones)),
    "fewer bytes": ("keys", data(cut)),
    "something among the spaces": ("keys", data(reserve)),
    "another version of GGUF": ("keys", flipped(4)),
    "another number of keys": ("keys", flipped(16)),
    "the recipe has another factor": ("keys", receipt('"factor": 16.0', '"factor": 18.0')),
    "the receipt has another encoding": ("keys", receipt('"encoding": "keys"', '"encoding": "keyz"')),
    "the receipt has another context": ("keys", receipt('"context": 1024', '"context": 1025')),
}  # fmt: skip


@pytest.fixture(scope="module")
def baked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            source = write(folder / "source.gguf", extra=EXTRA)
            apply(make_plan(source, RECIPES[name], folder / "out.gguf"))
            found = verify_output(ropeconv.Comparison.open(folder / "out.gguf", str(source)))
            assert (found.files, found.notes, found.unverified) == (1, (), ())
            made[name] = folder
        return made[name]

    return get


def refused(out: Path, source: Path) -> bool:
    try:
        verify_output(ropeconv.Comparison.open(out, str(source)))
    except (BadSource, Disagreement):
        return True
    return False


def test_what_is_wrong_is_refused(baked: Callable[[str], Path], tmp_path: Path) -> None:
    passed, names = [], sample(list(TABLE), 20)
    for name in names:
        bake, corrupt = TABLE[name]
        shutil.copy(baked(bake) / "out.gguf", tmp_path / "out.gguf")
        corrupt(tmp_path / "out.gguf")
        if not refused(tmp_path / "out.gguf", baked(bake) / "source.gguf"):
            passed.append(name)
    tally("wrong output", "GGUF files", len(names), len(passed))
    assert passed == []


def test_a_description_is_a_note_where_edits_are_accepted(baked: Callable[[str], Path], tmp_path: Path) -> None:
    folder = baked("keys")
    shutil.copy(folder / "out.gguf", tmp_path / "out.gguf")
    TABLE["another name of the model"][1](tmp_path / "out.gguf")
    opened = ropeconv.Comparison.open(tmp_path / "out.gguf", str(folder / "source.gguf"))
    found = verify_output(opened, Options(edited=True))
    assert found.notes == ("it has general.name = 'B model', where 'A model' belongs",)


def test_defaults_of_sampling_are_no_description(baked: Callable[[str], Path], tmp_path: Path) -> None:
    folder = baked("keys")
    shutil.copy(folder / "out.gguf", tmp_path / "out.gguf")
    data(replaced(b"top_k;temp", b"temp;top_k"))(tmp_path / "out.gguf")
    opened = ropeconv.Comparison.open(tmp_path / "out.gguf", str(folder / "source.gguf"))
    with pytest.raises(Disagreement, match="general.sampling.sequence = 'temp;top_k', where 'top_k;temp' belongs"):
        verify_output(opened, Options(edited=True))


def test_a_wrong_second_shard_is_named(tmp_path: Path) -> None:
    write(tmp_path / "source.gguf", tensors=plain_tensors(), split=1)
    source = sorted(tmp_path.glob("source-*.gguf"))[0]
    out = apply(make_plan(source, RECIPES["keys"], tmp_path / "out.gguf"))
    assert not refused(out, source)
    second = sorted(tmp_path.glob("out-*.gguf"))[1]
    flipped(-1)(second)
    with pytest.raises(Disagreement, match=second.name):
        verify_output(ropeconv.Comparison.open(out, str(source)))
    quick = verify_output(ropeconv.Comparison.open(out, str(source)), Options(quick=True))
    assert quick.bytes == 0


def test_a_receipt_without_a_target_is_compared_all_the_same(tmp_path: Path) -> None:
    """As earlier versions wrote it: the target is inferred, and the spaces after the receipt stay valid JSON."""
    source = write(tmp_path / "source.gguf")
    out = apply(make_plan(source, RECIPES["tensor"], tmp_path / "out.gguf"))
    text = json.dumps(json.loads(gguf.GGUFReader(out).fields["ropeconv.json"].contents())["target"])

    def without(found: bytearray) -> None:
        old = f', "target": {text}'.encode()
        place = found.index(old)
        found[place : place + len(old)] = b" " * len(old)

    data(without)(out)
    assert ropeconv.read_receipt(out).target is None
    assert verify_output(ropeconv.Comparison.open(out, str(source))).unverified == ()
    numbers("rope_freqs.weight", scaled(1, 1.01))(out)
    assert refused(out, source)
