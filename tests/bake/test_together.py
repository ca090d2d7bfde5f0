"""Several GGUF files of one model: their weights are read and dequantised once, and each file has the
bytes of a run for its type.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.bake.hidden import HiddenFolder
from ropeconv.convert.to_gguf import write
from ropeconv.models.stored.forms.awq import AwqWeight
from ropeconv.verbs import batch

from ..support.gguf_files import contents
from ..support.in_process import Done, command
from ..support.llamacpp import checkpoint
from ..support.quantised import CASES, SIZES, write_both

TYPES = ("f32", "bf16", "q8_0")
WITHOUT = ("--no-check", "--validate", "off", "--no-fsync")
"""Checks read weights too, which would be counted."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    _, pack, settings = CASES["AWQ"]
    stored, _ = write_both("llama", pack, settings, tmp_path, shards=False, **SIZES)
    return stored


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each computation of weights."""
    counted: list[int] = []
    compute = AwqWeight.rows

    def counting(weight: AwqWeight, stored: Any, first: int, end: int) -> np.ndarray[Any, Any]:
        counted.append(end - first)
        return compute(weight, stored, first, end)

    monkeypatch.setattr(AwqWeight, "rows", counting)
    return counted


def apply(folder: Path, model: Path, *types: str, code: int = 0, method: str = "--yarn") -> Done:
    folder.mkdir(exist_ok=True)
    words = [word for type in types for word in ("--outtype", type)]
    factor = () if method == "--as-is" else ("4",)
    return command(
        folder, "apply", model, method, *factor, "--to", "gguf", *words, *WITHOUT, code=code
    )


def files(folder: Path) -> dict[str, bytes]:
    """Each file by its name, with all its bytes; hidden ones too."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_weights_are_computed_once_and_files_are_those_of_single_runs(
    model: Path, rows: list[int], tmp_path: Path
) -> None:
    apply(tmp_path / "together", model, *TYPES)
    once = sum(rows)
    rows.clear()
    for type in TYPES:
        apply(tmp_path / "alone", model, type)
    assert sum(rows) == len(TYPES) * once
    together = files(tmp_path / "together")
    assert len(together) == len(TYPES)
    assert together == files(tmp_path / "alone")
    assert [path for path in (tmp_path / "together").iterdir() if path.name[0] == "."] == []


def test_a_type_of_llama_cpp_is_quantised_from_the_same_reading(
    model: Path, rows: list[int], tmp_path: Path
) -> None:
    pytest.importorskip("llama_cpp")
    apply(tmp_path / "together", model, "q8_0", "q4_0", "q5_1")
    once = sum(rows)
    rows.clear()
    apply(tmp_path / "alone", model, "q4_0")
    assert sum(rows) == once
    apply(tmp_path / "alone", model, "q8_0")
    apply(tmp_path / "alone", model, "q5_1")
    assert files(tmp_path / "together") == files(tmp_path / "alone")


def test_a_checkpoint_in_floats_gives_the_files_of_single_runs(tmp_path: Path) -> None:
    plain = checkpoint("llama", tmp_path / "model", **SIZES)
    apply(tmp_path / "together", plain, *TYPES, method="--as-is")
    for type in TYPES:
        apply(tmp_path / "alone", plain, type, method="--as-is")
    assert files(tmp_path / "together") == files(tmp_path / "alone")


def failing(*_: Any) -> None:
    raise OSError(5, "Input/output error")


def test_where_writing_together_fails_each_file_is_written_alone(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "write_together", failing)
    apply(tmp_path / "out", model, *TYPES)
    assert len(files(tmp_path / "out")) == len(TYPES)
    assert [path for path in (tmp_path / "out").iterdir() if path.is_dir()] == []


def test_without_room_for_all_they_are_written_one_after_the_other(
    model: Path, rows: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(tmp_path / "together", model, *TYPES)
    once = sum(rows)
    rows.clear()
    monkeypatch.setattr(batch, "free_bytes", lambda folder: 1000)
    apply(tmp_path / "out", model, *TYPES)
    assert sum(rows) == len(TYPES) * once
    assert files(tmp_path / "out") == files(tmp_path / "together")


def test_an_interrupted_run_is_continued_by_the_same_command(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert = write._convert
    calls = []

    def interrupted(*given: Any) -> int:
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return convert(*given)

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(write, "_convert", interrupted)
        apply(out, model, *TYPES, code=130)
    assert [name for name in files(out) if name.endswith(".gguf")] == []
    apply(out, model, *TYPES)
    apply(tmp_path / "alone", model, "q8_0")
    [alone] = (tmp_path / "alone").iterdir()
    assert contents(out / alone.name) == contents(alone)
    assert [path for path in out.iterdir() if path.name[0] == "."] == []


@pytest.mark.parametrize("place", ["file", "hidden"])
def test_an_output_whose_place_is_taken_is_not_written_ahead(
    place: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(tmp_path / "first", model, *TYPES)
    taken = next(path for path in (tmp_path / "first").iterdir() if "Q8_0" in path.name)
    out = tmp_path / "out"
    out.mkdir()
    if place == "file":
        (out / taken.name).write_bytes(b"mine")
    else:
        HiddenFolder(out / taken.name).root.mkdir()

    together: list[int] = []
    write_together: Callable[..., None] = batch.write_together

    def counting(plans: Sequence[Any], *given: Any) -> None:
        together.append(len(plans))
        write_together(plans, *given)

    monkeypatch.setattr(batch, "write_together", counting)
    apply(out, model, *TYPES, code=1 if place == "file" else 0)
    assert together == [len(TYPES) - 1]
    if place == "file":
        assert (out / taken.name).read_bytes() == b"mine"
