"""What is read back from a written GGUF file, and files that were damaged while they were
written.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import ropeconv
from ropeconv.bake import gguf as planning
from ropeconv.errors import Disagreement
from ropeconv.formats.gguf import inplace
from ropeconv.rope.errors import RopeconvError

from ..support.baking import MIXED, YARN, make_plan
from ..support.gguf_files import plain_tensors, write
from ..support.in_process import command


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "model.gguf")


def at_key(path: Path, key: str) -> int:
    """The place of the number under a key, which gguf-py finds in the file."""
    field = gguf.GGUFReader(path).fields[key]
    return field.offset + sum(part.nbytes for part in field.parts[:-1])


def at_tensor(path: Path, name: str) -> int:
    """The place of the data of a tensor, which gguf-py finds in the file."""
    return next(
        int(tensor.data_offset) for tensor in gguf.GGUFReader(path).tensors if tensor.name == name
    )


def overwritten(path: Path, place: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(data)


def other_factor(path: Path) -> None:
    overwritten(path, at_key(path, "llama.rope.scaling.factor"), np.float32(5).tobytes())


def other_context(path: Path) -> None:
    overwritten(path, at_key(path, "llama.context_length"), np.uint32(512).tobytes())


def other_size(path: Path) -> None:
    overwritten(path, at_key(path, "llama.embedding_length"), np.uint32(128 + 64).tobytes())


def other_weights(path: Path) -> None:
    overwritten(path, at_tensor(path, next(iter(plain_tensors()))), b"\x01\x02\x03\x04")


def cut_off(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def other_magic(path: Path) -> None:
    overwritten(path, 0, b"XXXX")


def writing(damage: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Damages every GGUF file right after it was written, at the size that it has."""
    write_new = planning.write_new

    def broken(
        file: Any, shard: int, edit: Any, target: Path, advance: Any = lambda done: None
    ) -> None:
        write_new(file, shard, edit, target, advance)
        damage(target)

    monkeypatch.setattr(planning, "write_new", broken)


def test_a_patched_file_is_compared_with_its_schedule_and_its_source(
    source: Path, tmp_path: Path
) -> None:
    done = ropeconv.apply(source, yarn=4, out=tmp_path / "out.gguf")
    check = done.check
    assert check is not None
    assert check.max_ulp <= 1
    assert check.attention_factor == pytest.approx(1 + 0.1 * np.log(4), rel=1e-6)
    assert (check.tensors, check.compared) == (len(plain_tensors()),) * 2
    assert "begin and end" in done.summary()["check"]


@pytest.mark.parametrize(
    "damage", [other_factor, other_context, other_size, other_weights, other_magic]
)
def test_a_file_that_was_damaged_while_it_was_written_gets_no_name(
    source: Path, damage: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing(damage, monkeypatch)
    with pytest.raises(Disagreement, match="nothing was kept"):
        ropeconv.apply(source, yarn=4, out=tmp_path / "out.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_a_file_that_was_cut_off_while_it_was_written_gets_no_name(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing(cut_off, monkeypatch)
    with pytest.raises(RopeconvError):
        ropeconv.apply(source, yarn=4, out=tmp_path / "out.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_divisors_are_read_back(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(source, MIXED, tmp_path / "out.gguf")
    assert ropeconv.apply(plan).check is not None

    def other_divisor(path: Path) -> None:
        overwritten(path, at_tensor(path, "rope_freqs.weight") + 4, np.float32(9).tobytes())

    writing(other_divisor, monkeypatch)
    with pytest.raises(Disagreement, match="other frequencies"):
        ropeconv.apply(make_plan(source, MIXED, tmp_path / "other.gguf"))
    assert not (tmp_path / "other.gguf").exists()


def test_reordered_rows_are_compared(tmp_path: Path) -> None:
    rows = {
        f"blk.{layer}.attn_q.weight": np.arange(128 * 128, dtype=np.float16).reshape(128, 128)
        for layer in (0, 1)
    }
    source = write(tmp_path / "model.gguf", "qwen2", None, {**plain_tensors(), **rows})
    plan = make_plan(source, MIXED, tmp_path / "out.gguf", carrier="llama")
    check = ropeconv.apply(plan).check
    assert check is not None
    assert check.compared == len({*plain_tensors(), *rows})


def test_a_change_in_place_is_read_back_and_undone_where_it_is_wrong(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = source.read_bytes()
    write_at = inplace.write_at

    def broken(file: int, data: bytes, place: int) -> int:
        """Writes a new header with another number in it."""
        is_new = data.startswith(b"GGUF") and b"rope.scaling.factor" in data
        changed = data.replace(np.float32(4).tobytes(), np.float32(5).tobytes()) if is_new else data
        return write_at(file, changed, place)

    monkeypatch.setattr(inplace, "write_at", broken)
    with pytest.raises(RopeconvError, match="has not changed"):
        ropeconv.apply(source, yarn=4, in_place=True)
    monkeypatch.undo()
    assert source.read_bytes() == before
    check = ropeconv.apply(source, yarn=4, in_place=True).check
    assert check is not None
    assert check.max_ulp <= 1


def test_shards_are_read_back(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", split=2)
    first = next(tmp_path.glob("model-00001-of-*.gguf"))
    check = ropeconv.apply(make_plan(first, YARN, tmp_path / "out.gguf")).check
    assert check is not None
    assert check.compared == len(plain_tensors())


def test_the_screen_and_json_say_what_was_checked(source: Path, tmp_path: Path) -> None:
    told = command(tmp_path, "apply", source, "--yarn", 4, "-o", "out.gguf", code=0)
    assert "Checked: by llama.cpp's rules" in " ".join(told.stdout.split())
    printed = command(
        tmp_path, "apply", source, "--yarn", 4, "-o", "json.gguf", "--json", code=0
    ).stdout
    found = json.loads(printed)["check"]
    assert found["max_ulp"] <= 1
    assert found["compared"] == found["tensors"] == len(plain_tensors())
