"""Weights written by several threads: the bytes of one, in constant memory, and no thread left
over.
"""

import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest

from ropeconv.convert.to_gguf import write
from ropeconv.convert.to_gguf.rows import Rows, ShardWeights, StoredRows
from ropeconv.convert.to_gguf.write import TensorFile, write_tensors
from ropeconv.errors import BadSource
from ropeconv.formats.gguf.header import BF16, F16, F32, Q8_0, TensorInfo
from ropeconv.models.folder import FolderSource

WIDTH = 64
HEAD = b"the header"

Matrix = tuple[tuple[Rows, ...], int]
"""The parts of a tensor, and its type."""


@pytest.fixture(params=[1, 7])
def workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(write, "threads", lambda: request.param)
    return request.param


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pieces of four rows at a time, and copies of a thousand bytes."""
    monkeypatch.setattr(write, "PIECE", 4 * WIDTH)
    monkeypatch.setattr(write, "PIECES", 2)
    monkeypatch.setattr(write, "COPY", 1000)


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Rows]]:
    """The pieces that are read, each after a pause, with the certainty that no thread is left in
    the end.
    """
    read_piece = write._checkpoint_rows
    pieces_read = list[Rows]()
    pauses = np.random.default_rng(0)
    before = threading.active_count()

    def counted(rows: Rows) -> np.ndarray:
        pieces_read.append(rows)
        time.sleep(float(pauses.uniform(0, 0.002)))
        return read_piece(rows)

    monkeypatch.setattr(write, "_checkpoint_rows", counted)
    yield pieces_read
    assert threading.active_count() == before


def stored(path: Path, heights: list[int]) -> list[Rows]:
    """Matrices of bfloat16 in one file, one behind the other."""
    numbers = np.random.default_rng(0).standard_normal((sum(heights), WIDTH), np.float32)
    path.write_bytes((numbers.view(np.uint32) >> 16).astype("<u2").tobytes())
    starts = np.cumsum([0, *heights[:-1]]) * WIDTH * 2
    return [
        Rows(
            ShardWeights(FolderSource(path.parent), path.name), "BF16", int(at), rows, WIDTH, WIDTH
        )
        for at, rows in zip(starts, heights, strict=True)
    ]


def written(
    target: Path, matrices: list[Matrix], advance: Callable[[int], None] = lambda done: None
) -> Path:
    """Writes tensors one behind the other, after HEAD."""
    tensors = list[StoredRows]()
    places = dict[str, TensorInfo]()
    at = 0
    for number, (parts, kind) in enumerate(matrices):
        tensors.append(
            StoredRows(f"t{number}", (sum(part.rows for part in parts), WIDTH), parts, type=kind)
        )
        places[f"t{number}"] = TensorInfo(
            f"t{number}", tensors[-1].gguf_shape, kind, at, tensors[-1].size
        )
        at += tensors[-1].size
    target.write_bytes(HEAD)
    write_tensors([TensorFile(target, len(HEAD), tensors, places)], advance)
    return target


def quantised(matrix: Matrix) -> bytes:
    parts, kind = matrix
    raw = [
        np.frombuffer(part.file.path.read_bytes(), "<u2", part.rows * WIDTH, part.start)
        for part in parts
    ]
    values = (np.concatenate(raw).astype(np.uint32) << 16).view(np.float32).reshape(-1, WIDTH)
    return gguf.quants.quantize(values, gguf.GGMLQuantizationType(kind)).tobytes()


@pytest.mark.usefixtures("small_pieces", "workers", "pieces")
def test_the_bytes_are_the_same_whoever_is_ready_first_and_progress_adds_up(tmp_path: Path) -> None:
    """Of whole tensors, and of tensors of several parts, in another order than they are stored
    in.
    """
    first, second, third, fourth = stored(tmp_path / "in", [21, 64, 5, 33])
    matrices: list[Matrix] = [
        ((first,), Q8_0),
        ((second,), BF16),
        ((third,), F32),
        ((fourth,), F16),
        ((fourth, third, first), BF16),
        ((fourth, third, first), Q8_0),
    ]
    steps: list[int] = []

    def advance(done: int) -> None:
        assert threading.current_thread() is threading.main_thread()
        steps.append(done)

    content = written(tmp_path / "out", matrices, advance).read_bytes()
    assert content == HEAD + b"".join(quantised(matrix) for matrix in matrices)
    assert sum(steps) == len(content) - len(HEAD)
    assert 0 < min(steps) <= max(steps) <= 2048


@pytest.mark.parametrize("kind", [F32, Q8_0])
def test_memory_does_not_grow_with_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    """While the writer is slow, readers would get ahead of it without a bound."""
    monkeypatch.setattr(write, "threads", lambda: 4)
    monkeypatch.setattr(write, "PIECE", 1 << 14)
    pwrite = write.write_at

    def slow(*given: object) -> int:
        time.sleep(0.002)
        return pwrite(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(write, "write_at", slow)
    matrices: list[Matrix] = [
        ((rows,), kind) for rows in stored(tmp_path / "in", [1 << 15, 1 << 15])
    ]
    tracemalloc.start()
    try:
        written(tmp_path / "out", matrices)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    piece = 4 * (1 << 14)  # bytes in 32-bit floats
    assert peak < 4 * 8 * piece < 2 * (2 << 15) * WIDTH  # bytes of the model


@pytest.mark.usefixtures("small_pieces")
def test_a_file_that_is_cut_off_meanwhile_ends_the_work(
    tmp_path: Path, workers: int, pieces: list[Rows]
) -> None:
    first = stored(tmp_path / "a", [64])
    second = stored(tmp_path / "b", [4000])
    with (tmp_path / "a").open("r+b") as file:
        file.truncate(100 * WIDTH)
    with pytest.raises(BadSource, match="^a was cut off"):
        written(tmp_path / "out", [((rows,), Q8_0) for rows in first + second])
    assert len(pieces) < 16 + 8 * workers  # of 1,016


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("problem", [KeyboardInterrupt, OSError])
def test_an_interruption_ends_the_work(
    tmp_path: Path, workers: int, pieces: list[Rows], problem: type[BaseException]
) -> None:
    def stop(done: int) -> None:
        raise problem

    with pytest.raises(problem):
        written(
            tmp_path / "out", [((rows,), F16) for rows in stored(tmp_path / "in", [4000])], stop
        )
    assert len(pieces) < 8 * workers  # of 1,000
