"""One identity of a model for eval, tune, run and a resumed apply: the weights decide, never times
alone.
"""

import json
import os
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from ropeconv.errors import BadSource
from ropeconv.models.open import open_source

from ..support.run_plans import models

LARGE = 1 << 26
"""Bytes of a tensor of zeros, which takes no room on the disk."""


def copied(path: Path, name: str) -> Path:
    subprocess.run(["cp", "-rp", str(path), str(path.with_name(name))], check=True)
    return path.with_name(name)


def changed(path: Path, place: int, size: int = 1) -> None:
    """Changes bytes of a file, and leaves its time as it was."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(place)
        old = file.read(size)
        file.seek(place)
        file.write(bytes(byte ^ 1 for byte in old))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def identity(path: Path) -> str:
    return open_source(str(path)).identity


def test_a_model_with_other_weights_is_another_one_to_eval_and_to_run(tmp_path: Path) -> None:
    """Config, names, sizes and times are the same; the last weights have other signs."""
    from ropeconv.features.evaluation.evaluation import Sizes, evaluate_model
    from ropeconv.features.run.jobs import named_sources

    original = models(tmp_path, "a") / "models" / "a"
    other = copied(original, "b")
    changed(other / "model.safetensors", (other / "model.safetensors").stat().st_size - 200, 200)

    def evaluated(model: Path) -> list[float]:
        sizes = Sizes(lengths="1T", windows=1, targets=8)
        text = tmp_path / "text.txt"
        result = evaluate_model(
            model, "base", [text], sizes, tmp_path / "journal.jsonl", dtype="float32"
        )
        return [cell.value for cell in result.cells]

    first = evaluated(original)
    with pytest.raises(BadSource, match="another model"):
        evaluated(other)
    assert evaluated(copied(original, "c")) == first, "the same model under another name"
    named = named_sources([str(original), str(other)], tmp_path)
    assert [(model.problem, model.identity) for model in named] == [
        ("", identity(original)),
        ("", identity(other)),
    ]
    assert identity(original) != identity(other)


@pytest.fixture
def sparse(tmp_path: Path) -> tuple[Path, list[tuple[int, int]]]:
    """A checkpoint of three tensors of zeros, of which the middle one is small; where each begins
    and ends.
    """
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    ends = (0, LARGE, LARGE + 2048, 2 * LARGE)
    header = {
        name: {"dtype": "U8", "shape": [stop - start], "data_offsets": [start, stop]}
        for name, (start, stop) in zip("abc", pairwise(ends), strict=True)
    }
    text = json.dumps(header).encode()
    with (model / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + 2 * LARGE)
    return model, [(8 + len(text) + start, 8 + len(text) + stop) for start, stop in pairwise(ends)]


def test_one_changed_tensor_of_a_large_file_is_another_model(
    sparse: tuple[Path, list[tuple[int, int]]],
) -> None:
    model, places = sparse
    identities = [identity(model)]
    assert identity(copied(model, "copy")) == identities[0]
    for start, stop in places:
        changed(model / "model.safetensors", start, min(stop - start, LARGE // 32))
        identities.append(identity(model))
    (model / "README.md").write_text("a card")
    assert identity(model) == identities[-1]
    (model / "tokenizer.json").write_text("{}")
    assert len({*identities, identity(model)}) == 5
