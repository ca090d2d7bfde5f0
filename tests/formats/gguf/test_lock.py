"""One writer at a time: what is changed in place is locked, and is still the file that was planned."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from pathlib import Path

import pytest

import ropeconv
from ropeconv.errors import BadSource, RopeconvError
from ropeconv.formats.gguf import Edit, GgufFile, read_header, u32
from ropeconv.formats.gguf.inplace import journal_of, phases, recover
from ropeconv.formats.gguf.write import write_new

from ...support.gguf_files import write

EDIT = Edit({"llama.context_length": u32(4096)})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a reserve, which any filesystem changes in place."""
    write_new(GgufFile.open(write(tmp_path / "plain.gguf")), 0, Edit(), tmp_path / "model.gguf")
    (tmp_path / "plain.gguf").unlink()
    return tmp_path / "model.gguf"


def change(file: GgufFile, hard_links: bool = False) -> None:
    assert list(phases(file, EDIT, hard_links))[-1] == "done"


def test_while_a_file_is_changed_nobody_else_changes_undoes_or_reads_it(path: Path) -> None:
    other = GgufFile.open(path)
    walk = phases(GgufFile.open(path), EDIT)
    assert next(walk) == "journal"
    for attempt in (lambda: change(other), lambda: recover(path), lambda: ropeconv.open_source(str(path)).file):  # type: ignore[union-attr]
        with pytest.raises(RopeconvError, match="another ropeconv is changing .*; run again when that has ended"):
            attempt()
    assert list(walk)[-1] == "done"
    assert read_header(path).get("llama.context_length") == 4096
    assert recover(path) is False


def test_an_interrupted_change_is_said_to_be_one(path: Path) -> None:
    walk = phases(GgufFile.open(path), EDIT)
    next(walk)
    walk.close()  # type: ignore[attr-defined]
    with pytest.raises(BadSource, match="was interrupted; run that command again, which undoes it first"):
        assert ropeconv.open_source(str(path)).file  # type: ignore[union-attr]
    with pytest.raises(BadSource, match="was interrupted"):
        change(GgufFile.open(path))
    assert recover(path)
    change(GgufFile.open(path))


def test_a_file_that_was_changed_since_it_was_planned_is_refused(path: Path) -> None:
    planned = GgufFile.open(path)
    change(GgufFile.open(path))
    now = path.read_bytes()
    with pytest.raises(BadSource, match="changed while it was read"):
        change(planned)
    assert path.read_bytes() == now


def test_the_header_counts_even_where_the_time_of_the_change_is_the_same(path: Path) -> None:
    planned, status = GgufFile.open(path), path.stat()
    data = bytearray(path.read_bytes())
    at = data.index(b"llama.context_length") + len("llama.context_length") + 4
    data[at] += 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    planned.refuse_changed()  # which sees nothing
    with pytest.raises(RopeconvError, match="was changed since it was read; run again"):
        change(planned)
    assert path.read_bytes() == data


def test_a_file_that_was_replaced_is_refused(path: Path) -> None:
    planned = GgufFile.open(path)
    shutil.copy2(path, path.with_name("copy.gguf"))
    path.with_name("copy.gguf").replace(path)
    with pytest.raises(BadSource, match="changed while it was read"):
        change(planned)


def test_a_file_that_is_replaced_while_it_is_locked_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the change would go into a file that has no name any more."""
    planned, real = GgufFile.open(path), fcntl.flock

    def replaced(file: int, how: int) -> None:
        shutil.copy2(path, path.with_name("copy.gguf"))
        path.with_name("copy.gguf").replace(path)
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", replaced)
    with pytest.raises(RopeconvError, match="was replaced by another file meanwhile; run again"):
        change(planned)


def test_the_journal_of_a_change_that_runs_is_not_used_on_a_file_that_came_meanwhile(path: Path) -> None:
    """It stands under the same name, and the new file has no lock."""
    walk = phases(GgufFile.open(path), EDIT)
    while next(walk) != "header":
        pass
    path.with_name("copy.gguf").write_bytes(b"GGUF" + bytes(10_000))
    path.with_name("copy.gguf").replace(path)
    now = path.read_bytes()
    with pytest.raises(RopeconvError, match="another ropeconv is at work with .*ropeconv-journal"):
        recover(path)
    walk.close()  # type: ignore[attr-defined]
    with pytest.raises(BadSource, match="is of another file than the model.gguf that is there now"):
        recover(path)
    assert path.read_bytes() == now


def test_a_file_with_other_names_is_only_changed_where_that_is_accepted(path: Path) -> None:
    other = path.with_name("other.gguf")
    other.hardlink_to(path)
    before = path.read_bytes()
    with pytest.raises(RopeconvError, match="1 other hard link.*accept that with --allow-hard-links"):
        change(GgufFile.open(path))
    assert other.read_bytes() == before
    change(GgufFile.open(path), hard_links=True)
    assert other.read_bytes() == path.read_bytes() != before


def test_an_interrupted_change_is_undone_whatever_names_came_meanwhile(path: Path) -> None:
    before = path.read_bytes()
    walk = phases(GgufFile.open(path), EDIT)
    while next(walk) != "header":
        pass
    walk.close()  # type: ignore[attr-defined]
    path.with_name("other.gguf").hardlink_to(path)
    assert path.read_bytes() != before
    assert recover(path)
    assert path.read_bytes() == before


def test_a_link_is_neither_changed_nor_undone(path: Path) -> None:
    """A journal beside a link would write wherever the link leads."""
    walk = phases(GgufFile.open(path), EDIT)
    next(walk)
    walk.close()  # type: ignore[attr-defined]
    link = path.with_name("link.gguf")
    link.symlink_to(path.name)
    journal_of(path).rename(journal_of(link))
    change(GgufFile.open(path))
    now = path.read_bytes()
    for attempt in (lambda: recover(link), lambda: change(GgufFile.open(link))):
        with pytest.raises(RopeconvError, match="is a link"):
            attempt()
    assert path.read_bytes() == now


def test_without_locks_nothing_is_changed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(file: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none)
    before = path.read_bytes()
    with pytest.raises(RopeconvError, match="only changed in place under a lock.*write a new one with -o"):
        change(GgufFile.open(path))
    assert path.read_bytes() == before


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.gguf")
    journal_of(tmp_path / "model.gguf").write_bytes(b"x")
    with pytest.raises(BadSource, match="is not a file"):
        recover(tmp_path / "model.gguf")


def both_names(path: Path) -> Path:
    other = path.with_name("other.gguf")
    os.link(path, other)
    return other


def test_other_hard_links_are_not_read_while_one_is_changed(path: Path) -> None:
    other = both_names(path)
    walk = phases(GgufFile.open(path), EDIT, hard_links=True)
    next(walk)
    with pytest.raises(BadSource, match=r"another ropeconv is changing other.gguf in place"):
        assert ropeconv.open_source(str(other)).file  # type: ignore[union-attr]
    assert list(walk)[-1] == "done"
    assert ropeconv.open_source(str(other)).file.get("llama.context_length") == 4096  # type: ignore[union-attr]


def test_other_hard_links_are_not_read_or_changed_after_a_kill(path: Path) -> None:
    """The journal has the name of the one that was changed; an attribute of the file leads to it."""
    try:
        os.setxattr(path, "user.test", b"1")
    except OSError:
        pytest.skip("this filesystem has no extended attributes")
    other, original = both_names(path), path.read_bytes()
    walk = phases(GgufFile.open(path), EDIT, hard_links=True)
    while next(walk) != "header":
        pass
    walk.close()  # type: ignore[attr-defined]
    journal = journal_of(path.resolve())
    for attempt in (
        lambda: ropeconv.open_source(str(other)).file,  # type: ignore[union-attr]
        lambda: change(GgufFile.open(other), hard_links=True),
    ):
        with pytest.raises(BadSource, match=f"under another of its names, and {journal} has what undoes it"):
            attempt()
    assert recover(path)
    assert other.read_bytes() == original
    assert os.listxattr(path) == ["user.test"], "nothing of the mark is left"
    change(GgufFile.open(other), hard_links=True)
    assert os.listxattr(path) == ["user.test"]


def test_a_mark_whose_journal_is_gone_stops_nobody(path: Path) -> None:
    """Between the removal of the journal and that of the mark a kill is possible, and the change is whole then."""
    try:
        os.setxattr(path, "user.ropeconv.journal", os.fsencode(journal_of(path)))
    except OSError:
        pytest.skip("this filesystem has no extended attributes")
    assert ropeconv.open_source(str(path)).file  # type: ignore[union-attr]
    change(GgufFile.open(path))
