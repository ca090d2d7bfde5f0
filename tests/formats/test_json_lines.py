"""A file of JSON lines: what a run wrote is there for the next one, and other files stay as they are."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ropeconv.errors import BadSource
from ropeconv.formats.json_lines import JsonLines, Refusals


class Head(msgspec.Struct, frozen=True):
    format: int
    of: str


class Number(msgspec.Struct, frozen=True):
    value: int


def opened(path: Path, of: str = "a", fresh: bool = False) -> JsonLines[Head, Number]:
    def check(head: Head) -> str:
        return "" if head.of == of else "is of another one"

    return JsonLines(path, Head(1, of), Number, check, Refusals("busy: {path}", "foreign: {path}"), fresh)


def test_lines_are_there_again_without_one_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.jsonl"
    file = opened(path)
    file.append(Number(1))
    file.append(Number(2))
    file.close()
    with path.open("ab") as raw:
        raw.write(b'{"value":')
    file = opened(path)
    assert file.lines == [Number(1), Number(2)]
    file.append(Number(3))
    file.close()
    assert path.read_bytes() == b'{"format":1,"of":"a"}\n{"value":1}\n{"value":2}\n{"value":3}\n'
    file = opened(path, fresh=True)
    assert file.lines == []
    file.close()


@pytest.mark.parametrize("content", [b"text", b'{"value":1}\n', b'{"format":1,"of":"a"}\n{"value":"b"}\n'])
def test_a_foreign_file_stays(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(BadSource, match=f"^foreign: {path}$"):
        opened(path)
    assert path.read_bytes() == content


def test_another_head_and_another_writer_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    file = opened(path)
    with pytest.raises(BadSource, match=f"^busy: {path}$"):
        opened(path)
    file.close()
    with pytest.raises(BadSource, match=f"^{path} is of another one$"):
        opened(path, of="b")
