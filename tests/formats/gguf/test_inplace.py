"""Changes in place: what is refused, what a journal keeps, and that nothing is lost whatever stops
a change.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import struct
import subprocess
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ropeconv.errors import BadSource, Interruption
from ropeconv.formats.files import journal_of
from ropeconv.formats.gguf import inplace
from ropeconv.formats.gguf.edit import PAGE, RESERVED, Change, Edit, Layout, write_new
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.gguf.header import f32, read_header, string, u32
from ropeconv.formats.gguf.inplace import (
    BODY,
    Neighbour,
    can_insert,
    change_by_phases,
    move_data,
    recover,
)
from ropeconv.rope.errors import RopeconvError

from ...support.gguf_files import contents, write
from ..conftest import EDIT, fails, stopped

NEW = np.arange(32, dtype=np.float32).tobytes()
LONG = string("x" * 5000)
"""A value that fits no header without a reserve."""


def edit() -> Edit:
    """Something of every kind: a key, a longer key, a changed tensor, a new one."""
    half = Change(64, lambda old: (np.frombuffer(old, np.float32) / 2).tobytes())
    return Edit(
        {
            "llama.context_length": u32(4096),
            "llama.note": string("x" * 500),
            "llama.factor": f32(4),
        },
        changes={"output_norm.weight": half},
        added={"rope_freqs.weight": NEW},
    )


def inserting(path: Path) -> Path:
    """The file, on a filesystem that makes room at its front."""
    if not can_insert(path):
        pytest.skip("this filesystem inserts no ranges")
    return path


@pytest.fixture(params=["reserve", "inserted"])
def path(
    request: pytest.FixtureRequest, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A file whose header has room for a change, and one that gets it; journals are read in pieces
    of 1,000 bytes.
    """
    monkeypatch.setattr("ropeconv.formats.disk.BLOCK", 1000)
    return model if request.param == "reserve" else inserting(tmp_path / "plain.gguf")


def test_the_result_is_that_of_a_new_file(path: Path, tmp_path: Path) -> None:
    write_new(GgufFile.open(path), 0, edit(), tmp_path / "new.gguf")
    assert list(change_by_phases(GgufFile.open(path), edit()))[-1] == "done"
    assert not journal_of(path).exists()
    ours = read_header(path)
    new = read_header(tmp_path / "new.gguf")
    unequal = {
        key
        for key in ours.values.keys() | new.values.keys()
        if ours.values.get(key) != new.values.get(key)
    }
    assert unequal <= {RESERVED}
    assert contents(path) == contents(tmp_path / "new.gguf")


def test_a_header_that_fits_moves_no_data(model: Path) -> None:
    before = read_header(model)
    list(
        change_by_phases(
            GgufFile.open(model),
            Edit({"llama.note": string("x" * (len(before.get(RESERVED)) - 100))}),
        )
    )
    assert read_header(model).data_start == before.data_start


def test_only_the_first_shard_is_changed(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", split=2)
    first, second = sorted(tmp_path.glob("model-*.gguf"))
    untouched = second.read_bytes()
    with pytest.raises(RopeconvError, match="another shard"):
        list(change_by_phases(GgufFile.open(first), edit()))
    write_new(GgufFile.open(first), 0, Edit(), tmp_path / "roomy.gguf")
    (tmp_path / "roomy.gguf").replace(first)
    list(
        change_by_phases(
            GgufFile.open(first), Edit({"llama.context_length": u32(4096)}, added=edit().added)
        )
    )
    assert second.read_bytes() == untouched
    header = read_header(first)
    assert (header.get("llama.context_length"), header.get("split.tensors.count")) == (4096, 5)


def test_memory_does_not_grow_with_what_changes(tmp_path: Path) -> None:
    """Journal and change go through memory in pieces; before, a change of 32 MB took 96 MB."""
    size = 32 << 20
    write(
        tmp_path / "plain.gguf",
        tensors={"token_embd.weight": np.zeros((size // 1024, 256), np.float32)},
    )
    write_new(GgufFile.open(tmp_path / "plain.gguf"), 0, Edit(), tmp_path / "model.gguf")
    ones = Change(1 << 20, lambda old: b"\1" * len(old))
    tracemalloc.start()
    list(
        change_by_phases(
            GgufFile.open(tmp_path / "model.gguf"), Edit(changes={"token_embd.weight": ones})
        )
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert contents(tmp_path / "model.gguf") == {"token_embd.weight": b"\1" * size}
    assert peak < 20 << 20


# Kills


def back_at_every_step(path: Path, edit: Edit, before: bytes) -> list[str]:
    """Stops a change after each of its steps: the file comes back, also where the recovery is
    killed.
    """
    walked = list(change_by_phases(GgufFile.open(path), edit))
    for step in walked[:-1]:
        path.write_bytes(before)
        stopped(path, edit, step)
        kept = journal_of(path).read_bytes()
        for _ in range(2):
            journal_of(path).write_bytes(kept)  # as after a kill of the recovery
            assert recover(path)
            assert path.read_bytes() == before, step
    return walked


def test_a_change_and_the_way_back_are_undone_after_any_step(path: Path) -> None:
    original = path.read_bytes()
    header = read_header(path)
    tail = header.size - header.data_start - header.data_size
    assert back_at_every_step(path, edit(), original)[-2:] == ["durable", "done"]
    list(change_by_phases(GgufFile.open(path), edit()))
    changed = path.read_bytes()
    double = Change(64, lambda old: (np.frombuffer(old, np.float32) * 2).tobytes())
    layout = Layout(header.version, header.data_start, tail)
    removed = frozenset({"rope_freqs.weight"})
    back = Edit(
        base=header.values, changes={"output_norm.weight": double}, removed=removed, layout=layout
    )
    walked = back_at_every_step(path, back, changed)
    list(change_by_phases(GgufFile.open(path), back))
    assert path.read_bytes() == original
    assert (tail > 0, "room" in walked) == (path.name == "plain.gguf",) * 2


def shrinking(added: dict[str, bytes]) -> Edit:
    """Removes the last tensor of `two_tensors` and makes room at the front."""
    return Edit({"llama.note": LONG}, removed=frozenset({"b.weight"}), added=added)


def two_tensors(path: Path, last: int) -> Path:
    stays = np.arange(1 << 16, dtype=np.float32)
    return inserting(
        write(path, tensors={"a.weight": stays, "b.weight": np.zeros(last // 4, np.float32) + 3})
    )


@pytest.mark.parametrize(
    "added", [{}, {"rope_freqs.weight": NEW}], ids=["removed", "removed and added"]
)
def test_a_file_that_moves_and_loses_a_tensor_comes_back(
    added: dict[str, bytes], tmp_path: Path
) -> None:
    path = two_tensors(tmp_path / "model.gguf", 1 << 17)
    original = path.read_bytes()
    assert "room" in back_at_every_step(path, shrinking(added), original)
    list(change_by_phases(GgufFile.open(path), shrinking(added)))
    assert contents(path)["a.weight"] == np.arange(1 << 16, dtype=np.float32).tobytes()
    assert path.stat().st_size < len(original) + PAGE


# A text beside the model that changes with it

BESIDE = Neighbour("model.Modelfile", "FROM ./model.gguf\nPARAMETER num_ctx 4096\n")
EARLIER = "FROM ./model.gguf\nPARAMETER num_ctx 1024\n"


@pytest.mark.parametrize("earlier", [None, EARLIER], ids=["new", "replaced"])
def test_a_text_beside_a_model_changes_with_it_or_comes_back(
    model: Path, earlier: str | None
) -> None:
    place = model.with_name(BESIDE.name)
    original = model.read_bytes()

    def start() -> None:
        model.write_bytes(original)
        if earlier is None:
            place.unlink(missing_ok=True)
        else:
            place.write_text(earlier)

    start()
    walked = list(change_by_phases(GgufFile.open(model), EDIT, BESIDE))
    assert walked[-3:] == ["durable", "neighbour", "done"]
    assert place.read_text() == BESIDE.text
    for step in walked[:-1]:
        start()
        stopped(model, EDIT, step, BESIDE)
        assert recover(model), step
        assert model.read_bytes() == original, step
        assert (place.read_text() if place.exists() else None) == earlier, step
        assert not journal_of(model).exists()


def test_a_text_that_is_there_already_is_not_written_again(model: Path) -> None:
    place = model.with_name(BESIDE.name)
    place.write_text(BESIDE.text)
    inode = place.stat().st_ino
    assert "neighbour" not in list(change_by_phases(GgufFile.open(model), EDIT, BESIDE))
    assert place.stat().st_ino == inode


def test_a_text_that_was_edited_after_a_kill_is_kept(model: Path) -> None:
    stopped(model, EDIT, "neighbour", BESIDE)
    place = model.with_name(BESIDE.name)
    place.write_text("of the user")
    assert recover(model)
    assert place.read_text() == "of the user"


def test_a_text_that_cannot_be_written_leaves_the_model_as_it_was(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = model.read_bytes()
    monkeypatch.setattr(inplace, "write_file", fails(errno.ENOSPC))
    with pytest.raises(RopeconvError, match="the disk is full"):
        list(change_by_phases(GgufFile.open(model), EDIT, BESIDE))
    assert model.read_bytes() == before
    assert list(model.parent.iterdir()) == [model]


@pytest.mark.parametrize("name", ["../other", "/etc/other", ".hidden", "model.gguf", "", "a\0b"])
def test_a_journal_names_nothing_outside_of_the_folder(model: Path, name: str) -> None:
    outside = model.parent.parent / "other"
    outside.write_text("b")
    stopped(model, EDIT, "neighbour", BESIDE)
    content = journal_of(model).read_bytes()
    at = content.rindex(b'{"name"')
    forged = content[BODY:at] + msgspec.json.encode({"name": name, "before": "a", "after": "b"})
    journal_of(model).write_bytes(MAGIC + hashlib.sha256(forged).digest() + forged)
    with pytest.raises(BadSource, match="damaged"):
        recover(model)
    assert outside.read_text() == "b"


def test_a_text_that_is_too_long_is_refused(model: Path) -> None:
    before = model.read_bytes()
    model.with_name(BESIDE.name).write_text("x" * (1 << 20))
    with pytest.raises(RopeconvError, match="too long"):
        list(change_by_phases(GgufFile.open(model), EDIT, BESIDE))
    assert model.read_bytes() == before
    assert not journal_of(model).exists()


# The disk

NAME = ".model.gguf.ropeconv-journal"
CHANGE = [
    f"sync {NAME}.part",
    f"name {NAME}",
    "sync folder",
    "sync model.gguf",
    f"remove {NAME}",
    "sync folder",
]


class Disk:
    """What is asked of the system, in order; some calls of fsync may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = list[str]()
        self.failing = range(0)
        self.number = 0
        fsync = os.fsync
        replace = os.replace
        unlink = os.unlink

        def synced(handle: int) -> None:
            self.calls.append(f"sync {Path(os.readlink(f'/proc/self/fd/{handle}')).name}")
            if len([call for call in self.calls if call.startswith("sync")]) in self.failing:
                raise OSError(self.number, os.strerror(self.number))
            fsync(handle)

        def named(source: Path, target: Path) -> None:
            self.calls.append(f"name {Path(target).name}")
            replace(source, target)

        def removed(name: Path) -> None:
            unlink(name)
            self.calls.append(f"remove {Path(name).name}")

        for name, call in {"fsync": synced, "replace": named, "unlink": removed}.items():
            monkeypatch.setattr(os, name, call)


@pytest.fixture
def disk(model: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_a_change_begins_after_its_journal_is_on_the_disk_which_goes_after_the_change(
    model: Path, disk: Disk
) -> None:
    before = model.read_bytes()
    walk = change_by_phases(GgufFile.open(model), EDIT)
    assert next(walk) == "journal"
    assert disk.calls == CHANGE[:3]
    assert model.read_bytes() == before
    assert list(walk) == ["header", "tensors", "added", "durable", "done"]
    assert disk.calls == CHANGE


@pytest.mark.parametrize(
    ("failing", "number", "words"),
    [
        (
            range(1, 2),
            errno.ENOSPC,
            r"place \(the disk is full\) and has not changed; write a new file with -o",
        ),
        (range(3, 4), errno.ENOSPC, r"place \(the disk is full\) and has not changed"),
        (
            range(3, 99),
            errno.EIO,
            "nor restored .*; do not use it before the same command has run again",
        ),
        (range(4, 5), errno.EIO, "is changed in place, but a loss of power may undo that"),
    ],
)
def test_a_change_that_a_disk_fails_is_undone(
    model: Path, disk: Disk, failing: range, number: int, words: str
) -> None:
    """The calls of fsync are for the journal, its folder, the file, and the folder without the
    journal.
    """
    before = model.read_bytes()
    disk.failing, disk.number = failing, number
    with pytest.raises(RopeconvError, match=words):
        list(change_by_phases(GgufFile.open(model), EDIT))
    if "nor restored" in words:
        with pytest.raises(RopeconvError, match=r"undone \(Input/output error\)"):
            recover(model)
        disk.failing = range(0)
        assert recover(model)
    assert (model.read_bytes() == before) is ("is changed" not in words)
    assert list(model.parent.iterdir()) == [model]


def test_an_interrupt_whose_change_cannot_be_undone_is_said(model: Path, disk: Disk) -> None:
    def stops(old: bytes) -> bytes:
        raise KeyboardInterrupt

    disk.failing = range(3, 99)
    disk.number = errno.EIO
    with pytest.raises(RopeconvError, match=r"\(stopped\), .*\(Input/output error\)"):
        list(
            change_by_phases(
                GgufFile.open(model), Edit(changes={"blk.0.attn_norm.weight": Change(512, stops)})
            )
        )


@pytest.mark.parametrize("late", [False, True], ids=["in unlink", "in the last sync"])
def test_an_interrupt_after_the_journal_is_gone_says_that_the_file_has_changed(
    model: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    before = model.read_bytes()
    unlink = os.unlink
    sync = inplace.sync_folder
    gone = list[bool]()

    def removed(path: Path, **more: object) -> None:
        unlink(path)
        gone.append(True)
        if not late:
            raise KeyboardInterrupt

    def synced(path: Path) -> None:
        if gone:
            raise KeyboardInterrupt
        sync(path)

    monkeypatch.setattr(os, "unlink", removed)
    monkeypatch.setattr(inplace, "sync_folder", synced)
    with pytest.raises(Interruption, match="is changed in place"):
        list(change_by_phases(GgufFile.open(model), EDIT))
    assert model.read_bytes() != before
    assert list(model.parent.iterdir()) == [model]


@pytest.mark.parametrize(
    ("problem", "expected", "words"),
    [
        (
            BadSource("the tensor was cut off"),
            RopeconvError,
            r"place \(the tensor was cut off\) and has not changed",
        ),
        (KeyboardInterrupt(), Interruption, "has not changed"),
    ],
)
def test_a_change_is_undone(
    model: Path, problem: BaseException, expected: type[BaseException], words: str
) -> None:
    def stops(old: bytes) -> bytes:
        raise problem

    before = model.read_bytes()
    with pytest.raises(expected, match=words):
        list(
            change_by_phases(
                GgufFile.open(model),
                Edit(EDIT.values, changes={"blk.0.attn_norm.weight": Change(512, stops)}),
            )
        )
    assert model.read_bytes() == before
    assert list(model.parent.iterdir()) == [model]


# What is refused


def test_room_is_inserted_and_taken_away_where_the_fallocate_command_can(tmp_path: Path) -> None:
    probe = tmp_path / "probe"
    path = tmp_path / "file"
    data = os.urandom(3 * PAGE)
    probe.write_bytes(bytes(2 * PAGE))
    command = ["fallocate", "--insert-range", "--offset", "0", "--length", str(PAGE), str(probe)]
    able = (
        shutil.which("fallocate") is not None
        and subprocess.run(command, check=False).returncode == 0
    )
    assert can_insert(path) == able
    assert list(tmp_path.iterdir()) == [probe]
    assert can_insert(tmp_path / "none" / "model.gguf") is False
    path.write_bytes(data)
    with inserting(path).open("r+b") as file:
        move_data(file.fileno(), PAGE)
        assert path.read_bytes() == bytes(PAGE) + data
        move_data(file.fileno(), -PAGE)
        assert path.read_bytes() == data
        with pytest.raises(OSError) as problem:
            move_data(file.fileno(), 7)
    assert problem.value.errno == errno.EINVAL
    assert path.read_bytes() == data


def test_nothing_changes_on_a_filesystem_that_cannot_insert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "model.gguf")
    original = path.read_bytes()
    monkeypatch.setattr(inplace, "move_data", fails(errno.EOPNOTSUPP))
    with pytest.raises(RopeconvError, match="cannot insert.* -o"):
        list(change_by_phases(GgufFile.open(path), edit()))
    assert path.read_bytes() == original
    assert list(tmp_path.iterdir()) == [path]


def test_only_so_much_is_kept_in_a_journal(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = model.read_bytes()
    file = GgufFile.open(model)
    same = Edit(changes={"blk.0.attn_norm.weight": Change(512, lambda old: old)})
    kept = file.header.data_start + file.header.tensors["blk.0.attn_norm.weight"].size
    monkeypatch.setattr(inplace, "MAX_KEPT", kept - 1)
    with pytest.raises(RopeconvError, match=r"too much of model\.gguf"):
        list(change_by_phases(file, same))
    assert model.read_bytes() == before
    monkeypatch.setattr(inplace, "MAX_KEPT", kept)
    assert list(change_by_phases(file, same))[-1] == "done"


def test_a_tensor_that_would_leave_a_gap_is_not_removed_in_place(model: Path) -> None:
    before = model.read_bytes()
    file = GgufFile.open(model)
    names = list(file.header.tensors)
    with pytest.raises(
        RopeconvError,
        match="before others in model.gguf",
    ):
        list(change_by_phases(file, Edit(removed=frozenset(names[:1]))))
    assert model.read_bytes() == before
    assert list(change_by_phases(file, Edit(removed=frozenset(names[-1:]))))[-1] == "done"
    assert list(GgufFile.open(model).header.tensors) == names[:-1]


# Journals

MAGIC = b"ropeconv journal 3\n"
Entries = list[tuple[int, bytes]]


def parts(journal: bytes) -> tuple[list[int], Entries]:
    """Inode, size, shift and count, and the entries."""
    body = journal[len(MAGIC) + 32 :]
    fixed = list(struct.unpack_from("<QQqQ", body))
    at = 32
    entries = []
    while at < len(body):
        place, length = struct.unpack_from("<QQ", body, at)
        entries.append((place, body[at + 16 : at + 16 + length]))
        at += 16 + length
    return fixed, entries


def journal(fixed: list[int], entries: Entries) -> bytes:
    """A journal with a digest that is right."""
    body = struct.pack("<QQqQ", *fixed) + b"".join(
        struct.pack("<QQ", p, len(b)) + b for p, b in entries
    )
    return MAGIC + hashlib.sha256(body).digest() + body


Forge = Callable[[list[int], Entries], bytes]


def forged(number: int, value: int) -> Forge:
    return lambda fixed, entries: journal([*fixed[:number], value, *fixed[number + 1 :]], entries)


HOSTILE: dict[str, Forge] = {
    "nothing": lambda fixed, entries: b"",
    "no more than a digest": lambda fixed, entries: MAGIC + hashlib.sha256().digest(),
    "a wrong digest": lambda fixed, entries: journal(fixed, entries)[:-1] + b"\1",
    "too many entries": forged(3, 1 << 62),
    "a shift of a petabyte": forged(2, 1 << 50),
    "a shift of no page": forged(2, PAGE + 1),
    "a place behind the end": lambda fixed, entries: journal(
        fixed, [(fixed[1] - 1, b"ab"), *entries[1:]]
    ),
    "another file's": forged(0, 1),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_journal_that_no_change_has_written_is_refused(model: Path, name: str) -> None:
    stopped(model, EDIT, "added")
    now = model.read_bytes()
    true = journal_of(model).read_bytes()
    journal_of(model).write_bytes(HOSTILE[name](*parts(true)))
    with pytest.raises(
        BadSource, match="of another file than" if name == "another file's" else "is damaged"
    ):
        recover(model)
    assert model.read_bytes() == now
    journal_of(model).write_bytes(true)
    assert recover(model)


def test_a_journal_of_terabytes_is_not_read(model: Path) -> None:
    with journal_of(model).open("wb") as file:
        file.truncate(1 << 40)
    begin = time.monotonic()
    with pytest.raises(BadSource, match="is damaged"):
        recover(model)
    assert time.monotonic() - begin < 5


def test_a_journal_is_no_link(model: Path) -> None:
    model.with_name("elsewhere").write_bytes(b"mine")
    journal_of(model).symlink_to("elsewhere")
    with pytest.raises(BadSource, match="journal is a link"):
        recover(model)
    assert (journal_of(model).is_symlink(), model.with_name("elsewhere").read_bytes()) == (
        True,
        b"mine",
    )


def test_a_draft_that_a_kill_left_is_removed_and_that_of_another_process_is_not(
    model: Path,
) -> None:
    draft = model.with_name(".model.gguf.ropeconv-journal.part")
    draft.write_bytes(b"half")
    assert recover(model) is False
    assert list(model.parent.iterdir()) == [model]
    draft.write_bytes(b"half")
    with draft.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(RopeconvError, match="another ropeconv"):
            list(change_by_phases(GgufFile.open(model), EDIT))
    assert list(change_by_phases(GgufFile.open(model), EDIT))[-1] == "done"
    assert list(model.parent.iterdir()) == [model]
