"""What llama.cpp's quantiser is asked: importance matrices, its types, and overrides of them."""

import ctypes
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ropeconv.bake.gguf import ExportPlan
from ropeconv.convert.to_gguf.imatrix import imatrix_file, read_imatrix
from ropeconv.convert.to_gguf.quantise import FTYPES, choose_quantisation
from ropeconv.errors import BadSource, Disagreement, UnsupportedBake, UsageError
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.gguf.header import TYPES, TensorInfo
from ropeconv.inspection.receipts.storage import commands, read_receipt
from ropeconv.options import TargetOptions

from ...support.baking import YARN, apply, make_plan
from ...support.corruptions import verified
from ...support.extent import sample
from ...support.gguf_files import contents
from ...support.llama_tools import llama_tool
from ...support.llamacpp import bake, checkpoint

pytest.importorskip("llama_cpp")

WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
"""Blocks of 256 need wider rows than the other tiny models have."""
BY_IMPORTANCE = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq2_m", "iq3_xxs", "q2_k_s")
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
LAYERS = 2


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint("llama", tmp_path_factory.mktemp("quantise") / "wide", **WIDE)


def squares(name: str) -> NDArray[np.float32]:
    """Sums of squares that differ by a factor of thousands between columns."""
    columns = 512 if "ffn_down" in name else 256
    numbers = np.random.default_rng(len(name)).lognormal(0, 3, columns)
    return numbers.astype(np.float32)


def weights() -> list[str]:
    return [f"blk.{layer}.{name}.weight" for layer in range(LAYERS) for name in MATRICES]


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("matrix") / "tiny.imatrix.gguf"
    names = weights()
    counts = dict.fromkeys(names, np.array([64], np.int64))
    sums = {name: squares(name) for name in names}
    path.write_bytes(imatrix_file(sums, counts, "text.txt", 1, 64))
    return path


def legacy(path: Path, pieces: int = 4) -> Path:
    """The same numbers as imatrix.dat (`save_imatrix_legacy` of llama.cpp's imatrix.cpp)."""
    names = weights()
    parts = [struct.pack("<i", len(names))]
    for name in names:
        means = squares(name) / np.float32(64) * np.float32(pieces)
        parts.append(struct.pack("<i", len(name)) + name.encode())
        parts.append(struct.pack("<ii", pieces, means.size) + means.astype("<f4").tobytes())
    parts.append(struct.pack("<ii", 1, 8) + b"text.txt")
    path.write_bytes(b"".join(parts))
    return path


# Importance matrices


def test_both_forms_give_the_same_numbers(matrix: Path, tmp_path: Path) -> None:
    new = read_imatrix(matrix)
    old = read_imatrix(legacy(tmp_path / "tiny.dat"))
    assert new.entries.keys() == old.entries.keys() == set(weights())
    for name, means in new.entries.items():
        np.testing.assert_array_equal(means, squares(name) / np.float32(64))
        np.testing.assert_array_equal(means, old.entries[name])
    assert (new.dataset, new.chunks) == (old.dataset, old.chunks) == ("text.txt", 1)


def test_an_expert_without_tokens_weighs_all_columns_alike(tmp_path: Path) -> None:
    path = tmp_path / "experts.gguf"
    sums = {"blk.0.ffn_up_exps.weight": np.array([[2, 4], [0, 0]], np.float32)}
    counts = {"blk.0.ffn_up_exps.weight": np.array([2, 0], np.int64)}
    path.write_bytes(imatrix_file(sums, counts, "text.txt", 1, 16))
    means = read_imatrix(path).entries["blk.0.ffn_up_exps.weight"]
    np.testing.assert_array_equal(means, [1, 2, 1, 1])


def test_a_file_that_is_none_or_is_damaged_is_refused(matrix: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("not a matrix")
    short = legacy(tmp_path / "short.dat")
    short.write_bytes(short.read_bytes()[:200])
    endless = tmp_path / "endless.gguf"
    names = ["blk.0.attn_q.weight"]
    sums = {names[0]: np.full(256, np.inf, np.float32)}
    counts = {names[0]: np.array([1], np.int64)}
    endless.write_bytes(imatrix_file(sums, counts, "text.txt", 1, 16))
    for path in (text, tmp_path / "missing", short, endless):
        with pytest.raises(BadSource):
            read_imatrix(path)


# Its types


@pytest.mark.parametrize("outtype", BY_IMPORTANCE)
def test_a_type_that_needs_a_matrix_is_refused_without_one_and_nothing_is_written(
    source: Path, tmp_path: Path, outtype: str
) -> None:
    with pytest.raises(UnsupportedBake, match="--imatrix"):
        make_plan(source, YARN, tmp_path / "out.gguf", to="gguf", outtype=outtype)
    assert list(tmp_path.iterdir()) == []


def test_a_matrix_of_another_model_is_refused(source: Path, tmp_path: Path) -> None:
    cases = {
        "other names": {"model.layers.0.weight": np.ones(256, np.float32)},
        "other width": {"blk.0.attn_q.weight": np.ones(128, np.float32)},
    }
    for name, sums in cases.items():
        path = tmp_path / f"{name}.gguf"
        counts = {weight: np.array([1], np.int64) for weight in sums}
        path.write_bytes(imatrix_file(sums, counts, "", 1, 16))
        with pytest.raises(UnsupportedBake, match="of this model"):
            make_plan(source, YARN, to="gguf", outtype="q4_k_m", imatrix=path)


def test_a_matrix_without_one_entry_that_is_needed_is_refused(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "one.gguf"
    name = "blk.0.attn_q.weight"
    counts = {name: np.array([1], np.int64)}
    path.write_bytes(imatrix_file({name: squares(name)}, counts, "", 1, 16))
    with pytest.raises(UnsupportedBake, match="no entry"):
        make_plan(source, YARN, to="gguf", outtype="iq2_xs", imatrix=path)
    plan = make_plan(source, YARN, to="gguf", outtype="q4_k_m", imatrix=path)
    assert set(plan.tensor_types.values()) == {"Q4_K", "Q6_K", "F32"}


@pytest.mark.parametrize("outtype", sample(sorted(FTYPES), 4))
def test_the_plan_has_the_types_and_the_size_of_the_file(
    source: Path, matrix: Path, tmp_path: Path, outtype: str
) -> None:
    out = tmp_path / "out.gguf"
    plan = bake(source, YARN, out, outtype=outtype, imatrix=matrix)
    file = GgufFile.open(out)
    types = {name: TYPES[info.type].name for name, info in file.tensors.items()}
    assert list(types.items()) == list(plan.tensor_types.items())
    # the keys about the matrix are not in the planned header
    assert 0 <= out.stat().st_size - plan.bytes <= 512
    assert file.get("general.file_type") == FTYPES[outtype][0] == plan.file_type
    assert file.get("quantize.imatrix.file") == matrix.name
    assert file.get("quantize.imatrix.dataset") == "text.txt"
    assert file.get("quantize.imatrix.entries_count") == len(weights())
    assert sorted(path.name for path in tmp_path.iterdir())[0] == "out.gguf"


def test_weights_that_are_quantised_already_are_refused_and_kept_ones_are_not() -> None:
    """gpt-oss has its experts in MXFP4, and mxfp4_moe keeps them."""
    quantisation = choose_quantisation(TargetOptions(outtype="q4_k_m"))
    assert quantisation is not None
    name = "blk.0.ffn_up_exps.weight"
    numbers = {kind.name: number for number, kind in TYPES.items()}
    stored = {name: TensorInfo(name, (256, 2), numbers["MXFP4"], 0, 272)}
    quantisation._check_tensors(stored, {name: numbers["MXFP4"]})
    with pytest.raises(UnsupportedBake, match="mxfp4_moe"):
        quantisation._check_tensors(stored, {name: numbers["Q4_K"]})


def by_ggml(floats: NDArray[np.float32], type: int, means: NDArray[np.float32] | None) -> bytes:
    """Rows in another type, by the function of ggml itself."""
    from llama_cpp._ggml import libggml

    libggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    libggml.ggml_quantize_chunk.argtypes = [
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_void_p,
    ]
    rows, columns = floats.shape
    out = np.empty(TYPES[type].bytes((columns, rows)), np.uint8)
    pointer = None if means is None else means.ctypes.data
    libggml.ggml_quantize_chunk(
        type, floats.ctypes.data, out.ctypes.data, 0, rows, columns, pointer
    )
    return out.tobytes()


def test_the_bytes_are_those_of_ggml_with_the_matrix(
    source: Path, matrix: Path, tmp_path: Path
) -> None:
    bake(source, YARN, tmp_path / "floats.gguf")
    bake(source, YARN, tmp_path / "out.gguf", outtype="iq3_s", imatrix=matrix)
    name = "blk.1.ffn_up.weight"
    floats = np.frombuffer(contents(tmp_path / "floats.gguf")[name], "<f4").reshape(512, 256)
    out = GgufFile.open(tmp_path / "out.gguf")
    kind = out.tensors[name].type
    means = read_imatrix(matrix).entries[name]
    assert out.read(name) == by_ggml(floats, kind, means)
    assert out.read(name) != by_ggml(floats, kind, None)


def test_types_of_single_tensors(source: Path, tmp_path: Path) -> None:
    overrides = {
        "tensor_type": ("ATTN_v=q8_0", r"blk\.1\.attn=q6_k"),
        "output_tensor_type": "q5_K",
        "token_embedding_type": "bf16",
    }
    out = tmp_path / "out.gguf"
    bake(source, YARN, out, outtype="q4_0", **overrides)
    types = {name: TYPES[info.type].name for name, info in GgufFile.open(out).tensors.items()}
    assert types["blk.0.attn_v.weight"] == types["blk.1.attn_v.weight"] == "Q8_0"
    assert types["blk.1.attn_k.weight"] == "Q6_K"
    assert types["blk.0.attn_k.weight"] == "Q4_0"
    assert types["token_embd.weight"] == "BF16"
    assert types["output.weight"] == "Q5_K"
    [command] = commands(read_receipt(out))
    assert "--tensor-type ATTN_v=q8_0" in command
    assert verified(out, source).files == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"outtype": "bf16", "tensor_type": ("attn_v=q8_0",)}, "--tensor-type"),
        ({"outtype": "q4_0", "tensor_type": ("attn_v",)}, "attn_v=q8_0"),
        ({"outtype": "q4_0", "tensor_type": ("(=q8_0",)}, "pattern"),
        ({"outtype": "q4_0", "tensor_type": ("attn_v=q9",)}, "q9"),
        ({"outtype": "q4_0", "output_tensor_type": "i32"}, "i32"),
    ],
)
def test_an_override_without_effect_or_sense_is_refused(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        choose_quantisation(TargetOptions(**options))


def test_a_pattern_that_fits_no_tensor_is_refused(source: Path, tmp_path: Path) -> None:
    """llama-quantize ignores it, so that a typing error would have no effect."""
    out = tmp_path / "out.gguf"
    with pytest.raises(UsageError, match="--tensor-type atn_v=q8_0"):
        make_plan(
            source, YARN, out, to="gguf", outtype="q4_0", tensor_type=("attn_k=q8_0", "atn_v=q8_0")
        )
    assert make_plan(
        source, YARN, out, to="gguf", outtype="q4_0", tensor_type=(r"\.[01]\.attn_v=q8_0",)
    )


def test_the_receipt_has_the_digest_and_verify_finds_the_matrix_again(
    source: Path, matrix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    out = tmp_path / "out.gguf"
    copied = tmp_path / "copy.gguf"
    copied.write_bytes(matrix.read_bytes())
    bake(source, YARN, out, outtype="q4_k_m", imatrix=copied)
    receipt = read_receipt(out)
    assert receipt.imatrix is not None
    assert receipt.imatrix.sha256 == read_imatrix(matrix).sha256
    assert commands(receipt)[0].endswith("--imatrix copy.gguf")
    assert str(tmp_path) not in GgufFile.open(out).get("ropeconv.json")
    assert verified(out, source).files == 1

    # another matrix of that name is not taken for it
    names = weights()
    counts = dict.fromkeys(names, np.array([1], np.int64))
    flat = {name: np.ones_like(squares(name)) for name in names}
    copied.write_bytes(imatrix_file(flat, counts, "", 1, 16))
    with pytest.raises((BadSource, Disagreement), match="importance matrix"):
        verified(out, source)


# The program of llama.cpp


@pytest.mark.parametrize("outtype", sample([*FTYPES, "q8_0"], 3))
@pytest.mark.parametrize("form", ["none", "gguf", "dat"])
def test_the_file_is_that_of_llama_quantize(
    source: Path, matrix: Path, tmp_path: Path, outtype: str, form: str
) -> None:
    floats = tmp_path / "floats.gguf"
    bake(source, YARN, floats)
    arguments: list[str] = []
    given = None
    if form == "gguf":
        (tmp_path / matrix.name).write_bytes(matrix.read_bytes())
        arguments = ["--imatrix", matrix.name]
        given = read_imatrix(matrix)
    if form == "dat":
        given = read_imatrix(legacy(tmp_path / "old.dat"))
        arguments = ["--imatrix", "old.dat"]
    overrides = TargetOptions(outtype=outtype, tensor_type=("attn_v=q8_0",))
    done = llama_tool(
        "llama-quantize",
        *arguments,
        "--tensor-type",
        "attn_v=q8_0",
        "floats.gguf",
        "theirs.gguf",
        outtype,
        cwd=tmp_path,
    )
    quantisation = choose_quantisation(overrides, given)
    assert quantisation is not None
    if done.returncode != 0:
        assert outtype in (*BY_IMPORTANCE, "iq3_xs")
        with pytest.raises(Exception, match="quantise"):
            quantisation.run(floats, tmp_path / "ours.gguf")
        return
    quantisation.run(floats, tmp_path / "ours.gguf")
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "theirs.gguf").read_bytes()


def test_a_plan_of_a_quantised_conversion_as_json(source: Path) -> None:
    plan = make_plan(source, YARN, to="gguf", outtype="q4_k_m")
    assert isinstance(plan, ExportPlan)
    document = json.loads(json.dumps(plan.to_dict()))
    assert document["tensor_types"]["token_embd.weight"] == "Q4_K"
    assert document["imatrix"] is None


def test_a_changed_plan_does_not_continue_from_another_matrix(
    source: Path, matrix: Path, tmp_path: Path
) -> None:
    place = tmp_path / "matrix.gguf"
    place.write_bytes(matrix.read_bytes())
    options = {"to": "gguf", "outtype": "q4_0", "imatrix": place}
    first = make_plan(source, YARN, tmp_path / "out.gguf", **options)
    names = weights()
    counts = dict.fromkeys(names, np.array([1], np.int64))
    place.write_bytes(imatrix_file({name: squares(name) for name in names}, counts, "", 1, 16))
    second = make_plan(source, YARN, tmp_path / "out.gguf", **options)
    assert first.resume_key != second.resume_key
    apply(second)
