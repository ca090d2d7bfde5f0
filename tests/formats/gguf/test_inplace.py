"""Changes in place: whatever moment a kill comes at, nothing is lost."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from ropeconv.errors import BadSource, RopeconvError
from ropeconv.formats.gguf import Added, Change, Edit, GgufFile, f32, read_header, room, string, u32
from ropeconv.formats.gguf.edit import RESERVED, Layout
from ropeconv.formats.gguf.inplace import journal_of, phases, recover
from ropeconv.formats.gguf.write import write_new

from ...support.gguf_files import contents, write

NEW = np.arange(32, dtype=np.float32).tobytes()
ROOMY = "reserve"
SHIFTED = "inserted"


def edit() -> Edit:
    """Something of every kind: a key, a longer key, a changed tensor, a new one."""
    half = Change(64, lambda old: (np.frombuffer(old, np.float32) / 2).tobytes())
    return Edit(
        {"llama.context_length": u32(4096), "llama.note": string("x" * 500), "llama.factor": f32(4)},
        changes={"output_norm.weight": half},
        added=(Added.f32("rope_freqs.weight", NEW),),
    )


@pytest.fixture(params=[ROOMY, SHIFTED])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    plain = write(tmp_path / "plain.gguf")
    if request.param == SHIFTED:
        if not room.can_insert(plain):
            pytest.skip("this filesystem inserts no ranges")
        return plain
    write_new(GgufFile.open(plain), 0, Edit(), tmp_path / "model.gguf")
    return tmp_path / "model.gguf"


def test_the_result_is_that_of_a_new_file(path: Path, tmp_path: Path) -> None:
    write_new(GgufFile.open(path), 0, edit(), tmp_path / "new.gguf")
    assert list(phases(GgufFile.open(path), edit()))[-1] == "done"
    assert not journal_of(path).exists()
    ours, new = read_header(path), read_header(tmp_path / "new.gguf")
    unequal = {key for key in ours.values.keys() | new.values.keys() if ours.values.get(key) != new.values.get(key)}
    assert unequal <= {RESERVED}
    assert contents(path) == contents(tmp_path / "new.gguf")


def test_a_new_tensor_may_come_in_pieces(path: Path, tmp_path: Path) -> None:
    """Of any sizes, one behind the other."""
    pieces = (NEW[:12], NEW[12:16], NEW[16:])
    added = Added("rope_freqs.weight", (32,), 0, lambda: iter(pieces))
    assert list(phases(GgufFile.open(path), Edit(added=(added,))))[-1] == "done"
    assert GgufFile.open(path).read("rope_freqs.weight") == NEW


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.formats.gguf.test_inplace import edit
from ropeconv.formats.gguf import GgufFile
from ropeconv.formats.gguf.edit import RESERVED
from ropeconv.formats.gguf.inplace import phases
for step in phases(GgufFile.open(Path(sys.argv[1])), edit()):
    if step == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_after_any_step_is_undone(path: Path, tmp_path: Path) -> None:
    original, walked = path.read_bytes(), list(phases(GgufFile.open(path), edit()))
    assert walked[0] == "journal"
    assert walked[-2:] == ["durable", "done"]
    for step in walked:
        path.write_bytes(original)
        command = [sys.executable, "-c", KILLED, str(path), step]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert recover(path) is (step != "done")
        assert (path.read_bytes() == original) is (step != "done")
        assert not recover(path)
        if step != "done":
            assert list(phases(GgufFile.open(path), edit()))[-1] == "done"
        assert contents(path)["rope_freqs.weight"] == NEW


def test_a_kill_during_the_recovery_is_undone_too(path: Path) -> None:
    original = path.read_bytes()
    walk = phases(GgufFile.open(path), edit())
    while next(walk) != "added":
        pass
    journal = journal_of(path).read_bytes()
    walk.close()  # type: ignore[attr-defined]
    assert recover(path)
    # as if the kill came before the journal was removed: it is still there, and the file is whole again
    journal_of(path).write_bytes(journal)
    assert recover(path)
    assert path.read_bytes() == original


def test_a_filesystem_that_cannot_insert_is_said_so_and_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "model.gguf")
    original = path.read_bytes()
    monkeypatch.setattr(room, "can_insert", lambda path: False)
    with pytest.raises(RopeconvError, match="cannot insert them; write a new file with -o"):
        list(phases(GgufFile.open(path), edit()))
    assert path.read_bytes() == original
    assert list(tmp_path.iterdir()) == [path]


def test_a_damaged_journal_is_not_believed(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf")
    original = path.read_bytes()
    journal_of(path).write_bytes(b"ropeconv journal 1\n" + bytes(100))
    with pytest.raises(BadSource, match="damaged"):
        recover(path)
    assert path.read_bytes() == original


def test_only_the_first_shard_is_changed(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", split=2)
    first, second = sorted(tmp_path.glob("model-*.gguf"))
    untouched = second.read_bytes()
    with pytest.raises(RopeconvError, match="is in another shard"):
        list(phases(GgufFile.open(first), edit()))
    write_new(GgufFile.open(first), 0, Edit(), tmp_path / "roomy.gguf")
    (tmp_path / "roomy.gguf").replace(first)
    list(phases(GgufFile.open(first), Edit({"llama.context_length": u32(4096)}, added=edit().added)))
    assert second.read_bytes() == untouched
    header = read_header(first)
    assert header.get("llama.context_length") == 4096
    assert header.get("split.tensors.count") == 5


def back(first: GgufFile, tail: int) -> Edit:
    """What brings the first file back after `edit`. tail: bytes after its last tensor."""
    header, double = first.header, Change(64, lambda old: (np.frombuffer(old, np.float32) * 2).tobytes())
    layout = Layout(header.version, header.data_start, tail)
    removed = frozenset({"rope_freqs.weight"})
    return Edit(base=header.values, changes={"output_norm.weight": double}, removed=removed, layout=layout)


def test_the_first_file_comes_back_byte_for_byte_after_a_kill_at_any_step(path: Path) -> None:
    original, first = path.read_bytes(), GgufFile.open(path)
    tail = first.header.size - first.header.data_start - first.header.data_size
    list(phases(first, edit()))
    changed = path.read_bytes()
    walked = list(phases(GgufFile.open(path), back(first, tail)))
    assert path.read_bytes() == original
    assert (tail > 0, "room" in walked) == (not path.name.startswith("model"),) * 2
    for step in walked[:-1]:
        path.write_bytes(changed)
        walk = phases(GgufFile.open(path), back(first, tail))
        while next(walk) != step:
            pass
        walk.close()  # type: ignore[attr-defined]
        assert recover(path)
        assert path.read_bytes() == changed, step


def test_memory_does_not_grow_with_what_changes(tmp_path: Path) -> None:
    """Journal and change go through memory in pieces; before, a change of 32 MB took 96 MB."""
    size = 32 << 20
    write(tmp_path / "plain.gguf", tensors={"token_embd.weight": np.zeros((size // 1024, 256), np.float32)})
    write_new(GgufFile.open(tmp_path / "plain.gguf"), 0, Edit(), tmp_path / "model.gguf")
    ones = Change(1 << 20, lambda old: b"\1" * len(old))
    tracemalloc.start()
    list(phases(GgufFile.open(tmp_path / "model.gguf"), Edit(changes={"token_embd.weight": ones})))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert contents(tmp_path / "model.gguf") == {"token_embd.weight": b"\1" * size}
    assert peak < 20 << 20


LONG, TRAINED_BYTES = 5000, 256 << 10
"""Bytes of a key that fits no header without a reserve, and of the tensor that stays."""


def shrinking(added: tuple[Added, ...] = ()) -> Edit:
    """Removes the last tensor of `two_tensors` and makes room at the front."""
    return Edit({"llama.note": string("x" * LONG)}, removed=frozenset({"b.weight"}), added=added)


def two_tensors(path: Path, last: int) -> Path:
    zeros = np.zeros(last // 4, np.float32)
    return write(path, tensors={"a.weight": np.arange(TRAINED_BYTES // 4, dtype=np.float32), "b.weight": zeros + 3})


def stopped(path: Path, made: Edit, step: str) -> None:
    walk = phases(GgufFile.open(path), made)
    while next(walk) != step:
        pass
    walk.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("last", [256, 1 << 17])
@pytest.mark.parametrize("added", [(), (Added.f32("rope_freqs.weight", NEW),)], ids=["removed", "removed and added"])
def test_a_file_that_moves_and_loses_a_tensor_comes_back_after_a_kill_at_any_step(
    last: int, added: tuple[Added, ...], tmp_path: Path
) -> None:
    """The file ends up shorter than its data was moved to, and with 128 KiB less even shorter than before."""
    path = two_tensors(tmp_path / "model.gguf", last)
    if not room.can_insert(path):
        pytest.skip("this filesystem inserts no ranges")
    original = path.read_bytes()
    walked = list(phases(GgufFile.open(path), shrinking(added)))
    assert "room" in walked
    assert contents(path)["a.weight"] == np.arange(TRAINED_BYTES // 4, dtype=np.float32).tobytes()
    assert path.stat().st_size < len(original) + 65536
    for step in walked[:-1]:
        path.write_bytes(original)
        stopped(path, shrinking(added), step)
        kept = journal_of(path).read_bytes()
        assert recover(path)
        assert path.read_bytes() == original, step
        journal_of(path).write_bytes(kept)
        assert recover(path), "as after a kill of the recovery"
        assert path.read_bytes() == original, step


def test_a_disk_that_fails_at_the_end_leaves_a_file_that_moved_and_shrank_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = two_tensors(tmp_path / "model.gguf", 256)
    if not room.can_insert(path):
        pytest.skip("this filesystem inserts no ranges")
    original, walk = path.read_bytes(), phases(GgufFile.open(path), shrinking())
    while next(walk) != "added":
        pass
    failing = iter([OSError(errno.EIO, "Input/output error")])

    def fsync(file: int) -> None:
        for problem in failing:
            raise problem

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(RopeconvError, match="is as it was"):
        next(walk)
    assert path.read_bytes() == original


def test_an_edit_after_which_the_size_would_not_tell_whether_the_data_moved_is_refused(tmp_path: Path) -> None:
    path = two_tensors(tmp_path / "model.gguf", 65536)
    if not room.can_insert(path):
        pytest.skip("this filesystem inserts no ranges")
    original = path.read_bytes()
    with pytest.raises(RopeconvError, match="the size of before.*write a new file with -o"):
        list(phases(GgufFile.open(path), shrinking()))
    assert path.read_bytes() == original
    assert list(tmp_path.iterdir()) == [path]


def test_a_longer_tail_comes_back_with_less_room_after_a_kill_at_any_step(tmp_path: Path) -> None:
    """Without its tail the file is longer than the data was moved to, and shorter than before."""
    path = write(tmp_path / "model.gguf")
    if not room.can_insert(path):
        pytest.skip("this filesystem inserts no ranges")
    path.write_bytes(path.read_bytes() + bytes(64))
    first = GgufFile.open(path)
    tail = first.header.size - first.header.data_start - first.header.data_size
    original = path.read_bytes()
    list(phases(first, Edit({"llama.note": string("x" * LONG)})))
    os.truncate(path, path.stat().st_size - tail)  # as -o writes it
    changed = path.read_bytes()
    layout = Layout(first.header.version, first.header.data_start, tail)
    edit_back = Edit(base=first.header.values, layout=layout)
    walked = list(phases(GgufFile.open(path), edit_back))
    assert "room" in walked
    assert path.read_bytes() == original
    for step in walked[:-1]:
        path.write_bytes(changed)
        stopped(path, edit_back, step)
        assert recover(path)
        assert path.read_bytes() == changed, step
