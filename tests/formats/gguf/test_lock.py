"""One writer at a time: what is changed in place is locked, and is still the file that was
planned.
"""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import ropeconv
from ropeconv.errors import BadSource
from ropeconv.formats.files import journal_of
from ropeconv.formats.gguf.edit import Edit
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.gguf.header import read_header, u32
from ropeconv.formats.gguf.inplace import change_by_phases, recover
from ropeconv.rope.errors import RopeconvError

from ..conftest import stopped

EDIT = Edit({"llama.context_length": u32(4096)})


def change(file: GgufFile) -> None:
    assert list(change_by_phases(file, EDIT))[-1] == "done"


def test_while_a_file_is_changed_nobody_else_changes_undoes_or_reads_it(model: Path) -> None:
    other = GgufFile.open(model)
    walk = change_by_phases(GgufFile.open(model), EDIT)
    assert next(walk) == "journal"
    for attempt in (
        lambda: change(other),
        lambda: recover(model),
        lambda: ropeconv.open_source(str(model)).file,
    ):
        with pytest.raises(RopeconvError, match="another ropeconv"):
            attempt()
    assert list(walk)[-1] == "done"
    assert read_header(model).get("llama.context_length") == 4096
    assert recover(model) is False


def test_an_interrupted_change_is_said_to_be_one(model: Path) -> None:
    stopped(model, EDIT, "journal")
    with pytest.raises(BadSource, match="interrupted"):
        assert ropeconv.open_source(str(model)).file  # type: ignore[union-attr]
    with pytest.raises(BadSource, match="was interrupted"):
        change(GgufFile.open(model))
    assert recover(model)
    change(GgufFile.open(model))


def replace(model: Path) -> None:
    shutil.copy2(model, model.with_name("copy.gguf"))
    model.with_name("copy.gguf").replace(model)


def change_at_the_same_time(model: Path) -> None:
    status = model.stat()
    data = bytearray(model.read_bytes())
    data[data.index(b"llama.context_length") + len("llama.context_length") + 4] += 1
    model.write_bytes(data)
    os.utime(model, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    ("meanwhile", "words"),
    [
        (lambda model: change(GgufFile.open(model)), "changed while it was read"),
        (replace, "changed while it was read"),
        (change_at_the_same_time, "was changed since it was read; run again"),
    ],
)
def test_a_file_that_is_not_what_was_planned(
    model: Path, meanwhile: Callable[[Path], None], words: str
) -> None:
    planned = GgufFile.open(model)
    meanwhile(model)
    now = model.read_bytes()
    with pytest.raises(RopeconvError, match=words):
        change(planned)
    assert model.read_bytes() == now


def test_a_file_that_is_replaced_while_it_is_locked_is_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the change would go into a file that has no name any more."""
    planned = GgufFile.open(model)
    real = fcntl.flock
    monkeypatch.setattr(
        fcntl, "flock", lambda file, operation: (replace(model), real(file, operation))
    )
    with pytest.raises(RopeconvError, match="replaced by another"):
        change(planned)


def test_a_link_is_neither_changed_nor_undone(model: Path) -> None:
    """A journal beside a link would write wherever the link leads."""
    stopped(model, EDIT, "journal")
    link = model.with_name("link.gguf")
    link.symlink_to(model.name)
    journal_of(model).rename(journal_of(link))
    change(GgufFile.open(model))
    now = model.read_bytes()
    for attempt in (lambda: recover(link), lambda: change(GgufFile.open(link))):
        with pytest.raises(RopeconvError, match="is a link"):
            attempt()
    assert model.read_bytes() == now
