"""Conversions in several files: their names, keys and bytes, and what reads them."""

import struct
from pathlib import Path

import numpy as np
import pytest

from ropeconv import environment
from ropeconv.bake import gguf
from ropeconv.engines.llamacpp import LlamaCppEngine
from ropeconv.errors import Disagreement, Interruption, UsageError
from ropeconv.formats.gguf.file import GgufFile, shard_names
from ropeconv.formats.gguf.split import parse_size, split_names, write_part
from ropeconv.inspection.receipts.storage import commands, read_receipt
from ropeconv.rope.errors import RopeconvError

from ...support.baking import YARN, apply, make_plan
from ...support.corruptions import verified
from ...support.gguf_files import contents
from ...support.in_process import command
from ...support.llama_tools import llama_tool
from ...support.llamacpp import bake, checkpoint, sequence

WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint("llama", tmp_path_factory.mktemp("split") / "wide", **WIDE)


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "whole.gguf"
    bake(source, YARN, path)
    return path


@pytest.mark.parametrize(
    ("text", "size"), [("2G", 2 * 10**9), ("500M", 5 * 10**8), ("10 kb", 10_000), ("1TB", 10**12)]
)
def test_sizes_are_in_powers_of_ten(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "2", "0G", "-1G", "2GiB", "G", "1e9"])
def test_other_texts_are_not_sizes(text: str) -> None:
    with pytest.raises(UsageError, match="not a size"):
        parse_size(text)


def test_a_file_ends_before_the_tensor_that_would_be_too_much() -> None:
    # 31 bytes take 32 with the padding behind them
    sizes = {"a": 31, "b": 32, "c": 64, "d": 1}
    assert split_names(sizes, 64) == [["a", "b"], ["c"], ["d"]]
    assert split_names(sizes, 96) == [["a", "b"], ["c", "d"]]
    assert split_names(sizes, 160) == [["a", "b", "c", "d"]]
    with pytest.raises(UsageError, match="c has"):
        split_names(sizes, 63)


def test_the_parts_are_those_of_llama_gguf_split(whole: Path, tmp_path: Path) -> None:
    done = llama_tool("llama-gguf-split", "--split-max-size", "2M", whole, "theirs", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    header = GgufFile.open(whole).header
    sizes = {name: info.size for name, info in header.tensors.items()}
    groups = split_names(sizes, parse_size("2M"))
    theirs = sorted(tmp_path.glob("theirs*"))
    assert [path.name for path in theirs] == shard_names("theirs.gguf", len(groups))
    for number, path in enumerate(theirs):
        ours = tmp_path / f"ours{number}"
        write_part(whole, groups, number, ours, lambda done: None)
        assert ours.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("outtype", ["f32", "q8_0", "q4_k_m"])
def test_a_conversion_in_parts_is_the_same_model(
    source: Path, tmp_path: Path, outtype: str
) -> None:
    pytest.importorskip("llama_cpp")
    alone = tmp_path / "alone" / "model.gguf"
    alone.parent.mkdir()
    bake(source, YARN, alone, outtype=outtype)
    largest = max(info.size for info in GgufFile.open(alone).tensors.values())
    limit = f"{largest // 1000 + 1}K"
    folder = tmp_path / "parts"
    folder.mkdir()
    plan = bake(source, YARN, folder / "model.gguf", outtype=outtype, split_max_size=limit)

    # names, keys and sizes
    names = [file.name for file in plan.files]
    assert len(names) > 1
    assert names == shard_names("model.gguf", len(names))
    paths = sorted(folder.glob("*.gguf"))
    assert [path.name for path in paths] == names
    file = GgufFile.open(paths[0])
    for number, header in enumerate(file.headers):
        assert header.get("split.no") == number
        assert header.get("split.count") == len(names)
        assert header.get("split.tensors.count") == len(file.tensors)
        assert header.data_size <= parse_size(limit)
        assert struct.pack("<H", number) == header.values["split.no"].raw
    assert all("general.architecture" not in header.values for header in file.headers[1:])

    # the model: its tensors, its receipt, and what llama.cpp computes
    assert {name: file.read(name) for name in file.tensors} == contents(alone)
    [command] = commands(read_receipt(paths[0]))
    assert f"--split-max-size {limit}" in command
    tokens = sequence(40)
    positions = list(range(40))
    np.testing.assert_array_equal(
        LlamaCppEngine(paths[0]).logits(tokens, positions),
        LlamaCppEngine(alone).logits(tokens, positions),
    )
    assert verified(paths[0], source).files == len(names)

    # a part that was changed is found
    changed = bytearray(paths[1].read_bytes())
    changed[-40] ^= 1
    paths[1].write_bytes(changed)
    with pytest.raises(Disagreement):
        verified(paths[0], source)


def test_what_fits_into_one_file_is_one(source: Path, tmp_path: Path) -> None:
    bake(source, YARN, tmp_path / "model.gguf", split_max_size="1G")
    assert (tmp_path / "model.gguf").exists()
    assert GgufFile.open(tmp_path / "model.gguf").get("split.count") is None


def test_no_modelfile_names_one_file_of_several(source: Path, tmp_path: Path) -> None:
    """`FROM ./out-00001-of-00006.gguf` gives Ollama a part of the tensors."""
    line = ("apply", source, "--yarn", 4, "--to", "gguf", "--outtype", "q8_0", "--ollama")
    out = ("-o", tmp_path / "out.gguf", "--dry-run")
    done = command(tmp_path, *line, "--split-max-size", "200K", *out, code=2)
    assert "leave --split-max-size out" in done.stderr
    done = command(tmp_path, *line, "--split-max-size", "1G", *out, code=0)
    assert "out.Modelfile" in done.stdout


def test_a_limit_below_a_tensor_and_a_source_in_gguf_are_refused(
    source: Path, whole: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="less than"):
        make_plan(source, YARN, tmp_path / "out.gguf", to="gguf", split_max_size="10K")
    with pytest.raises(UsageError, match="llama-gguf-split"):
        make_plan(whole, YARN, tmp_path / "out.gguf", replace=True, split_max_size="1G")
    assert list(tmp_path.iterdir()) == []


def test_parts_of_quantised_weights_need_llama_cpp_when_they_are_planned(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "installed", lambda package: package != "llama_cpp")
    monkeypatch.setattr(gguf, "installed", lambda package: package != "llama_cpp")
    options = {"to": "gguf", "outtype": "q4_0"}
    plan = make_plan(source, YARN, **options)
    assert plan.tensor_types == {}
    assert plan.files[0].estimated
    with pytest.raises(RopeconvError, match="llama_cpp, which is not installed"):
        make_plan(source, YARN, **options, split_max_size="1M")


def test_parts_that_a_killed_run_left_are_continued(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second part fails as the disk of a machine that loses its power does."""
    out = tmp_path / "model.gguf"
    options = {"to": "gguf", "outtype": "f32", "split_max_size": "2M"}
    written = []

    def fail(number: int) -> None:
        if number == 1:
            raise KeyboardInterrupt

    def part(self: object, number: int, target: Path, advance: object) -> None:
        fail(number)
        written.append(number)
        real(self, number, target, advance)

    from ropeconv.bake.gguf import PartWriter

    real = PartWriter.write
    monkeypatch.setattr(PartWriter, "write", part)
    with pytest.raises(Interruption):
        apply(make_plan(source, YARN, out, **options))
    assert list(tmp_path.glob("*.gguf")) == []

    monkeypatch.setattr(PartWriter, "write", real)
    apply(make_plan(source, YARN, out, **options))
    names = [path.name for path in sorted(tmp_path.glob("*.gguf"))]
    assert names == shard_names("model.gguf", 3)
    assert written == [0]
    assert not list(tmp_path.glob(".*model*"))
