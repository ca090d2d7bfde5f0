"""Tensors written by several threads: the same bytes as by one, in constant memory, and nobody left after a failure."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest

from ropeconv.errors import BadSource
from ropeconv.export import write
from ropeconv.export.rows import OutTensor, Rows, Weights
from ropeconv.export.write import write_tensors
from ropeconv.formats.gguf.header import TensorInfo
from ropeconv.formats.gguf.types import BF16, F16, F32, Q8_0
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.sources.folder import FolderSource

from ..support.baking import apply, make_plan
from ..support.llamacpp import checkpoint

WIDTH = 64
HEAD = b"the header"
AS_IS = Recipe(REGISTRY["as-is"]())


@pytest.fixture(params=[1, 2, 7])
def workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(write, "threads", lambda: request.param)
    return request.param


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of four rows, and copies of a thousand bytes."""
    monkeypatch.setattr(write, "PIECE", 4 * WIDTH)
    monkeypatch.setattr(write, "COPY", 1000)


def stored(path: Path, heights: list[int]) -> list[Rows]:
    """Matrices of bfloat16 in one file, one behind the other."""
    numbers = np.random.default_rng(0).standard_normal((sum(heights), WIDTH), np.float32)
    path.write_bytes((numbers.view(np.uint32) >> 16).astype("<u2").tobytes())
    starts = np.cumsum([0, *heights[:-1]]) * WIDTH * 2
    return [
        Rows(Weights(FolderSource(path.parent), path.name), "BF16", int(at), rows, WIDTH, WIDTH)
        for at, rows in zip(starts, heights, strict=True)
    ]


def planned(matrices: list[Rows], types: list[int]) -> tuple[list[OutTensor], dict[str, TensorInfo]]:
    """Tensors of these types, one behind the other, and where they lie."""
    tensors = [
        OutTensor(f"t{number}", (WIDTH, rows.rows), kind, (rows,))
        for number, (rows, kind) in enumerate(zip(matrices, types, strict=True))
    ]
    places = np.cumsum([0, *(tensor.size for tensor in tensors)])
    return tensors, {
        tensor.name: TensorInfo(tensor.name, tensor.shape, tensor.type, int(at), tensor.size)
        for tensor, at in zip(tensors, places, strict=False)
    }


def written(target: Path, matrices: list[Rows], types: list[int], advance: Callable[[int], None]) -> bytes:
    write_all(target, matrices, types, advance)
    return target.read_bytes()


def write_all(target: Path, matrices: list[Rows], types: list[int], advance: Callable[[int], None]) -> None:
    target.write_bytes(HEAD)
    write_tensors(target, len(HEAD), *planned(matrices, types), advance)


def quantised(rows: Rows, kind: int) -> bytes:
    """What gguf-py makes of a matrix."""
    raw = np.frombuffer(rows.file.path.read_bytes(), "<u2", rows.rows * WIDTH, rows.start)
    values = (raw.astype(np.uint32) << 16).view(np.float32).reshape(rows.rows, WIDTH)
    return gguf.quants.quantize(values, gguf.GGMLQuantizationType(kind)).tobytes()


@pytest.mark.usefixtures("small_pieces")
def test_the_bytes_are_the_same_whoever_is_ready_first(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrices, types = stored(tmp_path / "in", [21, 64, 5, 33]), [Q8_0, BF16, F32, F16]
    pauses, read = np.random.default_rng(workers), write._read

    def late(rows: Rows) -> np.ndarray:
        time.sleep(float(pauses.uniform(0, 0.004)))
        return read(rows)

    monkeypatch.setattr(write, "_read", late)
    expected = b"".join(quantised(rows, kind) for rows, kind in zip(matrices, types, strict=True))
    assert written(tmp_path / "out", matrices, types, lambda done: None) == HEAD + expected


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("type", [BF16, Q8_0])
def test_a_tensor_of_several_parts(tmp_path: Path, workers: int, type: int) -> None:
    parts = stored(tmp_path / "in", [21, 5, 33])
    tensor = OutTensor("joined", (WIDTH, 59), type, tuple(reversed(parts)))
    (tmp_path / "out").write_bytes(HEAD)
    place = {"joined": TensorInfo("joined", tensor.shape, type, 0, tensor.size)}
    write_tensors(tmp_path / "out", len(HEAD), [tensor], place, lambda done: None)
    expected = b"".join(quantised(rows, type) for rows in reversed(parts))
    assert (tmp_path / "out").read_bytes() == HEAD + expected


@pytest.mark.usefixtures("small_pieces")
def test_progress_is_of_this_thread_and_adds_up(tmp_path: Path, workers: int) -> None:
    matrices, types = stored(tmp_path / "in", [21, 64, 33]), [Q8_0, BF16, F16]
    steps: list[int] = []

    def advance(done: int) -> None:
        assert threading.current_thread() is threading.main_thread()
        steps.append(done)

    made = written(tmp_path / "out", matrices, types, advance)
    assert sum(steps) == len(made) - len(HEAD)
    assert 0 < min(steps) <= max(steps) <= 1000


@pytest.mark.parametrize("type", [BF16, Q8_0])
def test_two_threads_work_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type: int) -> None:
    """Copies by the kernel, and conversions: neither passes the barrier alone."""
    monkeypatch.setattr(write, "threads", lambda: 2)
    meeting = threading.Barrier(2, timeout=20)
    for name in ("copy_part", "_read"):
        monkeypatch.setattr(write, name, _after(meeting, getattr(write, name)))
    matrices = stored(tmp_path / "in", [8, 8])
    made = written(tmp_path / "out", matrices, [type, type], lambda done: None)
    assert made == HEAD + b"".join(quantised(rows, type) for rows in matrices)


def _after(meeting: threading.Barrier, work: Callable[..., object]) -> Callable[..., object]:
    def together(*given: object) -> object:
        meeting.wait()
        return work(*given)

    return together


@pytest.mark.parametrize("type", [F32, F16, Q8_0])
def test_memory_does_not_grow_with_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type: int) -> None:
    """While the writer is slow, readers would get ahead of it without a bound."""
    monkeypatch.setattr(write, "threads", lambda: 4)
    monkeypatch.setattr(write, "PIECE", 1 << 14)
    pwrite = write.write_at

    def slow(*given: object) -> int:
        time.sleep(0.002)
        return pwrite(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(write, "write_at", slow)
    matrices = stored(tmp_path / "in", [1 << 15, 1 << 15])
    tracemalloc.start()
    try:
        write_all(tmp_path / "out", matrices, [type, type], lambda done: None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    piece = 4 * (1 << 14)  # bytes in 32-bit floats
    assert peak < 4 * 8 * piece < 2 * (2 << 15) * WIDTH  # bytes of the model


@pytest.mark.usefixtures("small_pieces")
def test_few_pieces_are_prepared_ahead(tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, ahead, pieces_of = 0, list[int](), write._pieces

    def counted(tensor: OutTensor, place: int) -> Iterator[write.Piece]:
        nonlocal prepared
        for piece in pieces_of(tensor, place):
            prepared += 1
            ahead.append(prepared - done)
            yield piece

    done = 0

    def advance(size: int) -> None:
        nonlocal done
        done += 1

    monkeypatch.setattr(write, "_pieces", counted)
    write_all(tmp_path / "out", stored(tmp_path / "in", [2000, 2000]), [F16, Q8_0], advance)
    assert prepared == done == 1000
    assert workers <= max(ahead) <= 2 * workers + 1


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Rows]]:
    """The pieces that are read, with the certainty that no thread is left in the end."""
    read, seen = write._read, list[Rows]()
    before = threading.active_count()

    def counted(rows: Rows) -> np.ndarray:
        seen.append(rows)
        return read(rows)

    monkeypatch.setattr(write, "_read", counted)
    yield seen
    assert threading.active_count() == before


@pytest.mark.usefixtures("small_pieces")
def test_a_file_that_is_cut_off_meanwhile_ends_the_work(tmp_path: Path, workers: int, pieces: list[Rows]) -> None:
    first, second = stored(tmp_path / "a", [64]), stored(tmp_path / "b", [4000])
    with (tmp_path / "a").open("r+b") as file:
        file.truncate(100 * WIDTH)
    with pytest.raises(BadSource, match="^a was cut off while it was read; run again$"):
        written(tmp_path / "out", first + second, [Q8_0, Q8_0], lambda done: None)
    assert len(pieces) < 16 + 8 * workers  # of 1,016


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("problem", [KeyboardInterrupt, OSError])
def test_an_interruption_ends_the_work(
    tmp_path: Path, workers: int, pieces: list[Rows], problem: type[BaseException]
) -> None:
    def stop(done: int) -> None:
        raise problem

    with pytest.raises(problem):
        written(tmp_path / "out", stored(tmp_path / "in", [4000]), [F16], stop)
    assert len(pieces) < 8 * workers  # of 1,000


def test_a_failure_leaves_nothing_under_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint("llama", tmp_path / "model")
    monkeypatch.setattr(write, "PIECE", 1 << 10)
    plan = make_plan(folder, AS_IS, tmp_path / "out.gguf", to="gguf", outtype="q8_0")
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    threads = threading.active_count()
    with pytest.raises(BadSource, match="was cut off while it was read|changed"):
        apply(plan)
    assert threading.active_count() == threads
    assert not (tmp_path / "out.gguf").exists()
    weights.write_bytes(whole)
    again = make_plan(folder, AS_IS, tmp_path / "out.gguf", to="gguf", outtype="q8_0")
    assert apply(again).stat().st_size == again.files[0].size
