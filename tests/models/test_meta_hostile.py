"""Meta's layout from strangers: zips that inflate, pickles, params.json and tokenizers of other
types.
"""

import io
import json
import resource
import shutil
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ropeconv.errors import BadSource
from ropeconv.models import meta
from ropeconv.models.meta import peek_dtype
from ropeconv.models.open import open_source

from ..support.baking import AS_IS, apply, make_plan
from .test_meta import PARAMS, release


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("meta") / "model"
    release(folder, dtype="bfloat16")
    return folder


@pytest.fixture
def folder(converted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(converted, tmp_path / "model"))


@pytest.fixture
def pth(folder: Path) -> Path:
    return folder / "consolidated.00.pth"


def repacked(path: Path, kind: int = zipfile.ZIP_STORED, **more: bytes) -> None:
    """Writes a zip again. kind: of compression. more: entries to add, `pickle` in place of the one
    that is there.
    """
    old = zipfile.ZipFile(io.BytesIO(path.read_bytes()))
    with zipfile.ZipFile(path, "w", kind) as new:
        for entry in old.infolist():
            pickled = entry.filename.endswith("data.pkl")
            new.writestr(
                entry.filename,
                more.get("pickle", b"") if pickled and "pickle" in more else old.read(entry),
            )
        for name in more.keys() - {"pickle"}:
            new.writestr(name, more[name])


def test_a_zip_that_inflates_is_refused_unread(pth: Path) -> None:
    repacked(pth, zipfile.ZIP_DEFLATED, zeros=bytes(200_000_000))
    assert pth.stat().st_size < 3_000_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    with pytest.raises(BadSource, match="compressed"):
        peek_dtype(pth)
    assert time.process_time() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000
    repacked(pth, zipfile.ZIP_STORED)
    with zipfile.ZipFile(pth) as archive:
        assert "zeros" in archive.namelist()
    assert peek_dtype(pth) == "bfloat16"  # stored, it is as large as it says


def test_entries_that_share_bytes_are_refused(pth: Path) -> None:
    with zipfile.ZipFile(pth, "a") as archive:
        largest = max(archive.infolist(), key=lambda entry: entry.file_size)
        for number in range(20):
            twin = zipfile.ZipInfo(f"archive/data/{1000 + number}")
            twin.header_offset = largest.header_offset
            twin.CRC = largest.CRC
            twin.file_size = twin.compress_size = largest.file_size
            archive.filelist.append(twin)
            archive.NameToInfo[twin.filename] = twin
        archive._didModify = True  # type: ignore[attr-defined]
    with pytest.raises(BadSource, match="entries that overlap"):
        peek_dtype(pth)


@pytest.mark.parametrize(
    ("pickle", "words"),
    [
        (b"\x80\x02" + b"]" * meta.MOST_PICKLE + b".", "too many for a model"),
        (b"", "torch.save wrote"),
        (b"I" + b"9" * 5000 + b"\n.", "torch.save wrote|contains no tensor"),
        (b"\x80\x04\x8d" + b"\xff" * 8, "torch.save wrote|contains no tensor"),
    ],
    ids=["large", "empty", "a long number", "bytes without end"],
)
def test_pickles_that_no_model_has(pth: Path, pickle: bytes, words: str) -> None:
    repacked(pth, pickle=pickle)
    with pytest.raises(BadSource, match=words):
        peek_dtype(pth)


ODD_PARAMS = [
    ("dim", '"128"'),
    ("dim", "0"),
    ("n_layers", "300000000"),
    ("n_heads", "null"),
    ("n_kv_heads", "3"),
    ("ffn_dim_multiplier", "1e300"),
    ("rope_theta", "0"),
    ("rope_theta", "1" + "0" * 400),
    ("rope_theta", "NaN"),
    ("use_scaled_rope", "1"),
    ("vocab_size", "1000000000000"),
    ("rope_scaling_factor", "-8"),
]


@pytest.mark.parametrize(("key", "text"), ODD_PARAMS)
def test_params_of_other_types(folder: Path, key: str, text: str) -> None:
    params = json.dumps({name: value for name, value in PARAMS.items() if name != key})
    (folder / "params.json").write_text(f'{params[:-1]}, "{key}": {text}}}')
    with pytest.raises(BadSource, match="params.json"):
        open_source(str(folder)).config()  # type: ignore[union-attr]


ODD_TENSORS: dict[str, Callable[[Any], Any]] = {
    "none": lambda old: None,
    "ints": lambda old: old.long(),
    "list": lambda old: [old],
    "shape": lambda old: old[:1],
    "sparse": lambda old: old.to_sparse(),
    "meta": lambda old: old.to("meta"),
    "scalar": lambda old: old[0, 0],
    "expanded": lambda old: old.reshape(-1)[:1].expand(1 << 40),
}


@pytest.mark.parametrize("odd", ODD_TENSORS)
def test_entries_that_are_no_such_tensors(
    folder: Path, pth: Path, tmp_path: Path, odd: str
) -> None:
    import torch

    tensors = torch.load(pth, weights_only=True)
    name = "layers.1.attention.wq.weight"
    torch.save(tensors | {name: ODD_TENSORS[odd](tensors[name])}, pth)
    with pytest.raises(BadSource, match=f"{name} (has shape|is not a tensor)|mixes dtypes"):
        apply(make_plan(folder, AS_IS, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_part_in_the_format_of_old_torch_says_how_to_write_it_anew(pth: Path) -> None:
    torch.save({"a": torch.ones(2)}, pth, _use_new_zipfile_serialization=False)
    with pytest.raises(BadSource, match="torch before 1.6.*torch.save"):
        peek_dtype(pth)
    torch.save(torch.load(pth, weights_only=True), pth)  # as it says
    assert peek_dtype(pth) == "float32"
