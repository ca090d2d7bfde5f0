"""Changes in place that are refused before anything is written, and what an error in the middle leaves."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ropeconv.errors import RopeconvError
from ropeconv.formats.gguf import Change, Edit, GgufFile, inplace, room
from ropeconv.formats.gguf.inplace import phases, recover
from ropeconv.formats.gguf.room import refuse_no_room, refuse_same_size
from ropeconv.formats.gguf.values import u32

from ..conftest import fails

PAGE = 65536


def test_when_there_is_no_room_in_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, asked = tmp_path / "m.gguf", []
    monkeypatch.setattr(room, "can_insert", lambda given: asked.append(given) or True)
    for shift in (0, PAGE, 3 * PAGE, -PAGE):
        refuse_no_room(path, shift)
    assert asked == [path] * 3
    for shift, words in (
        (PAGE + 1, "needs 65537 bytes more"),
        (4096, "needs 4096 bytes"),
        (-7, "has 7 bytes too many"),
    ):
        with pytest.raises(RopeconvError, match=words):
            refuse_no_room(path, shift)
    monkeypatch.setattr(room, "can_insert", lambda given: False)
    refuse_no_room(path, 0)
    with pytest.raises(RopeconvError, match="m.gguf needs 65536 bytes more than there are, and this filesystem cannot"):
        refuse_no_room(path, PAGE)
    with pytest.raises(RopeconvError, match="65536 bytes too many, which cannot be taken away on this filesystem"):
        refuse_no_room(path, -PAGE)


@pytest.mark.parametrize(
    ("shift", "final", "grows", "passes"),
    [
        (0, 100, False, True), (0, 100, True, True), (0, 90, True, True), (PAGE, 101, True, True),
        (PAGE, 100, False, False), (PAGE, 100, True, False), (-PAGE, 90, False, True), (-PAGE, 90, True, False),
        (-PAGE, 100, False, False), (1, 99, True, True),
    ],
)  # fmt: skip
def test_a_size_that_would_not_tell_whether_data_has_moved(shift: int, final: int, grows: bool, passes: bool) -> None:
    if passes:
        refuse_same_size(Path("m.gguf"), 100, shift, final, grows)
        return
    with pytest.raises(RopeconvError, match="m.gguf would have moved data and the size of before"):
        refuse_same_size(Path("m.gguf"), 100, shift, final, grows)


def test_a_filesystem_that_cannot_make_room_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "move_data", fails(errno.EOPNOTSUPP))
    assert room.can_insert(tmp_path / "a") is False


def test_only_so_much_is_kept_in_a_journal(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, file = model.read_bytes(), GgufFile.open(model)
    edit = Edit(changes={"blk.0.attn_norm.weight": Change(512, lambda old: old)})
    kept = file.header.data_start + file.header.tensors["blk.0.attn_norm.weight"].size
    assert inplace.MAX_KEPT == 1 << 30
    monkeypatch.setattr(inplace, "MAX_KEPT", kept - 1)
    with pytest.raises(RopeconvError, match=r"too much of model\.gguf changes for doing it in place"):
        list(phases(file, edit))
    assert model.read_bytes() == before
    monkeypatch.setattr(inplace, "MAX_KEPT", kept)
    assert list(phases(file, edit))[-1] == "done"


def test_a_tensor_that_would_leave_a_gap_is_not_removed_in_place(model: Path) -> None:
    before, file = model.read_bytes(), GgufFile.open(model)
    names = list(file.header.tensors)
    with pytest.raises(RopeconvError, match="before others in model.gguf, which would have to move; write a new file"):
        list(phases(file, Edit(removed=frozenset(names[:1]))))
    assert model.read_bytes() == before
    assert list(phases(file, Edit(removed=frozenset(names[-1:]))))[-1] == "done"
    assert list(GgufFile.open(model).header.tensors) == names[:-1]


def test_undoing_that_fails_says_what_to_do_and_can_be_repeated(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, walk = model.read_bytes(), phases(GgufFile.open(model), Edit({"llama.context_length": u32(4096)}))
    while next(walk) != "tensors":
        pass
    walk.close()  # type: ignore[attr-defined]
    monkeypatch.setattr(os, "fsync", fails(errno.EIO))
    with pytest.raises(
        RopeconvError, match=r"could not be undone \(Input/output error\); do not use it before the same"
    ):
        recover(model)
    monkeypatch.undo()
    assert recover(model)
    assert model.read_bytes() == before


def test_an_error_that_nobody_expected_is_passed_on_after_undoing(model: Path) -> None:
    before, file = model.read_bytes(), GgufFile.open(model)

    def broken(old: bytes) -> bytes:
        raise ZeroDivisionError("a change that cannot be made")

    with pytest.raises(ZeroDivisionError, match="a change that cannot be made"):
        list(phases(file, Edit(changes={"blk.0.attn_norm.weight": Change(512, broken)})))
    assert model.read_bytes() == before
    assert sorted(path.name for path in model.parent.iterdir()) == ["model.gguf", "plain.gguf"]
