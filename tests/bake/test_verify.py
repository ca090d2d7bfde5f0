"""`ropeconv validate` compares the files of an output before anything runs, of folders, GGUF files
and servers.
"""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.bake.file_checks import is_document
from ropeconv.bake.findings import (
    BLOCK,
    CopiedRange,
    GeneratedRange,
    Range,
    StreamedRange,
    first_difference,
)
from ropeconv.errors import Disagreement
from ropeconv.formats.gguf.edit import Edit, write_new
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.gguf.header import f32, string

from ..support.baking import MIXED, YARN, YARN_16, apply, make_plan, recipe_of
from ..support.corruptions import data, renew, scale, tensor, verified
from ..support.gguf_files import write
from ..support.hub_server import serving, talk_to
from ..support.in_process import command
from ..support.llamacpp import bake, checkpoint
from ..support.models import make

VALIDATE = ("validate", "out", "--against", "model")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return apply(
        make_plan(
            make("llama", tmp_path / "model", initializer_range=0.15), YARN_16, tmp_path / "out"
        )
    )


def test_wrong_weights_disagree_and_quick_leaves_them_out(out: Path) -> None:
    """Logits do not show a row of embeddings that the text has not."""
    pytest.importorskip("torch")
    tensor("model.embed_tokens.weight", scale(319, 0.0))(out)
    done = command(out.parent, *VALIDATE, "--tokens", 16, code=3)
    assert "model.embed_tokens.weight of model.safetensors differs" in done.stderr
    quick = command(out.parent, *VALIDATE, "--tokens", 16, "--quick")
    assert "(--quick)." in quick.stdout
    assert "--quick left out" in quick.stderr
    report = command(out.parent, *VALIDATE, "--tokens", 16, "--quick", "--json")
    files = json.loads(report.stdout)["files"]
    assert files == {"files": 4, "bytes": 0, "quick": True, "notes": [], "unverified": []}
    assert json.loads((out / "ropeconv.json").read_text())["validation"]["files"] == files


def test_files_are_compared_before_a_server_is_asked(out: Path) -> None:
    nowhere = ("--server", "http://127.0.0.1:9")
    command(out.parent, *VALIDATE, *nowhere, code=1)
    tensor("model.norm.weight", scale(0, 2.0))(out)
    assert "model.norm.weight" in command(out.parent, *VALIDATE, *nowhere, code=3).stderr


def test_an_output_stays_right_where_the_table_of_runtimes_changes(out: Path) -> None:
    receipt = json.loads((out / "ropeconv.json").read_text())
    (out / "ropeconv.json").write_text(json.dumps(receipt | {"runtimes": receipt["runtimes"][1:]}))
    verified(out, out.with_name("model"))
    (out / "ropeconv.json").write_text(json.dumps(receipt | {"family": "mistral"}))
    with pytest.raises(Disagreement, match="another family"):
        verified(out, out.with_name("model"))


def test_gguf_files_are_compared(tmp_path: Path) -> None:
    out = apply(make_plan(write(tmp_path / "model.gguf"), YARN_16, tmp_path / "out.gguf"))
    data(lambda content: content.__setitem__(-1, content[-1] ^ 1))(out)
    given = ("validate", "out.gguf", "--against", "model.gguf")
    assert "out.gguf differs" in command(tmp_path, *given, code=3).stderr
    assert "brings no code" in command(tmp_path, *given, "--trust-remote-code", code=2).stderr


def test_weights_on_the_hub_are_compared_by_the_hubs_own_hashes(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but texts and the header of the weights is fetched."""
    with serving() as hub:
        hub.repos["me/tiny"] = llama
        talk_to(hub, tmp_path / "home" / "hub", monkeypatch)
        out = apply(make_plan("me/tiny", YARN, tmp_path / "out"))
        hub.sent.clear()
        talk_to(hub, tmp_path / "fresh" / "hub", monkeypatch)
        assert verified(out, "me/tiny").files == 4
        assert hub.sent.get("model.safetensors", 0) < (llama / "model.safetensors").stat().st_size
        assert not list((tmp_path / "fresh").rglob("model.safetensors"))
        tensor("model.norm.weight", scale(0, 2.0))(out)
        renew(out)
        with pytest.raises(Disagreement, match="model.safetensors has other contents"):
            verified(out, "me/tiny")


WIDE = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_attention_heads": 4,
}  # as the quantiser needs it
LISTS = ("rope_factors_long.weight", "rope_factors_short.weight")
CASES: dict[str, tuple[str, dict[str, Any], str, tuple[str, ...], str]] = {
    "edited": ("", {}, "", ("rope_freqs.weight",), "token_embd.weight"),
    "converted": ("llama", {}, "f32", ("rope_freqs.weight",), "blk.0.attn_norm.weight"),
    "lists": ("phi3", {}, "f32", LISTS, "token_embd.weight"),
    "quantised": ("llama", WIDE, "q4_k_m", ("rope_freqs.weight",), "blk.0.attn_norm.weight"),
}
"""The family of the checkpoint, none for a GGUF file, its sizes, the type of the weights, the
tensors of the schedule, and one of the weights.
"""


def flip(path: Path, tensor: str) -> None:
    """Changes the last byte but one of a tensor of 32-bit floats."""
    header = GgufFile.open(path).header
    info = header.tensors[tensor]
    at = header.data_start + info.offset + info.size - 2
    data(lambda content: content.__setitem__(at, content[at] ^ 1))(path)


@pytest.mark.parametrize("name", CASES)
def test_keys_and_the_tensors_of_the_schedule_are_compared(name: str, tmp_path: Path) -> None:
    family, sizes, outtype, schedule, weights = CASES[name]
    if name == "quantised":
        pytest.importorskip("llama_cpp")
    source = (
        checkpoint(family, tmp_path / "source", **sizes)
        if family
        else write(tmp_path / "model.gguf")
    )
    out = tmp_path / "out.gguf"
    bake(source, MIXED, out, **({"outtype": outtype} if outtype else {}))
    good = out.read_bytes()
    verification = verified(out, source, quick=True)
    assert (verification.quick, verification.bytes, verification.files) == (True, 0, 1)
    unverified = ["to compare the types of tensors"] if name == "quantised" else []
    assert [line.split(",")[0] for line in verification.unverified] == unverified
    flip(out, weights)
    assert verified(out, source, quick=True) == verification
    for changed in schedule:
        out.write_bytes(good)
        flip(out, changed)
        with pytest.raises(Disagreement, match=f"{changed} of out.gguf differs"):
            verified(out, source, quick=True)
    out.write_bytes(good)
    arch = GgufFile.open(out).get("general.architecture")
    for edit, message in (
        (Edit({f"{arch}.rope.freq_base": f32(9999.0)}), "rope.freq_base = 9999.0, where"),
        (Edit({f"{arch}.made": string("x")}), "made = 'x', which is not there"),
    ):
        out.write_bytes(good)
        write_new(GgufFile.open(out), 0, edit, tmp_path / "other.gguf")
        (tmp_path / "other.gguf").rename(out)
        with pytest.raises(Disagreement, match=message):
            verified(out, source, quick=True)


def test_tensors_of_another_name_or_shape_are_named(tmp_path: Path) -> None:
    source = write(tmp_path / "model.gguf")
    apply(make_plan(source, YARN_16, tmp_path / "right.gguf"))
    columns, rows = GgufFile.open(source).header.tensors["token_embd.weight"].shape
    for old, new, message in (
        (b"output_norm.weight", b"output_nurm.weight", "it has no tensor output_norm.weight"),
        (
            struct.pack("<IQQ", 2, columns, rows),
            struct.pack("<IQQ", 2, rows, columns),
            "has another shape, type or pl",
        ),
    ):
        (tmp_path / "out.gguf").write_bytes(
            (tmp_path / "right.gguf").read_bytes().replace(old, new, 1)
        )
        with pytest.raises(Disagreement, match=message):
            verified(tmp_path / "out.gguf", source)


def test_stored_frequencies_of_a_folder_are_compared_too(tmp_path: Path) -> None:
    source = make("llama", tmp_path / "source")
    out = tmp_path / "out"
    apply(make_plan(source, MIXED, out, encoding="buffers"))
    verification = verified(out, source, quick=True)
    assert (verification.quick, verification.bytes) == (True, 0)
    data(lambda content: content.__setitem__(-3, content[-3] ^ 1), "model-rope.safetensors")(out)
    with pytest.raises(Disagreement, match="inv_freq of model-rope.safetensors differs"):
        verified(out, source, quick=True)


def test_tensors_that_a_fold_changes_are_compared_and_others_are_not(tmp_path: Path) -> None:
    source = make("llama", tmp_path / "source")
    out = tmp_path / "out"
    apply(make_plan(source, recipe_of("yarn", 4.0), out, encoding="weights"))
    plain = verified(out, source, quick=True)
    tensor("model.layers.0.mlp.up_proj.weight", scale(0, 2.0))(out)
    assert verified(out, source, quick=True) == plain
    tensor("model.layers.0.self_attn.k_proj.weight", scale(0, 2.0))(out)
    with pytest.raises(
        Disagreement, match=r"model.layers.0.self_attn.k_proj.weight of model.safetensors differs"
    ):
        verified(out, source, quick=True)


SIZE = 2 * BLOCK + 1000
HOLE = BLOCK + 37
DATA = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8).tobytes()


def files(tmp_path: Path, data: bytes = DATA) -> tuple[Path, Path]:
    """A file with bytes, and another with DATA 5 places later."""
    (tmp_path / "one").write_bytes(data)
    (tmp_path / "other").write_bytes(b"12345" + DATA)
    return tmp_path / "one", tmp_path / "other"


def ranges(kind: str, other: Path) -> list[Range]:
    return {
        "copied": [CopiedRange(0, SIZE, other, 5)],
        "made": [GeneratedRange(0, SIZE, lambda at, size: DATA[at : at + size])],
        "streamed": [StreamedRange(0, SIZE, lambda: iter((DATA[:7], memoryview(DATA)[7:])))],
        "mixed": [
            CopiedRange(0, HOLE, other, 5),
            GeneratedRange(HOLE, SIZE, lambda at, size: DATA[HOLE + at : HOLE + at + size], 8),
        ],
    }[kind]


@pytest.mark.parametrize("kind", ["copied", "made", "streamed", "mixed"])
def test_a_single_other_byte_is_found(kind: str, tmp_path: Path) -> None:
    path, other = files(tmp_path)
    counted: list[int] = []
    assert first_difference(path, ranges(kind, other), counted.append) is None
    assert sum(counted) == SIZE
    with path.open("r+b") as file:
        for place in (0, HOLE - 1, HOLE, BLOCK - 1, BLOCK, 2 * BLOCK, SIZE - 1):
            for byte in (DATA[place] ^ 4, DATA[place]):
                file.seek(place)
                file.write(bytes([byte]))
                file.flush()
                expected = None if byte == DATA[place] else place
                assert first_difference(path, ranges(kind, other)) == expected


@pytest.mark.parametrize("kind", ["copied", "made", "streamed"])
def test_other_lengths_are_found(kind: str, tmp_path: Path) -> None:
    for content, place in ((DATA[:-3], SIZE - 3), (DATA + b"\1", SIZE)):
        path, other = files(tmp_path, content)
        assert first_difference(path, ranges(kind, other)) == place


def test_what_no_range_covers_is_zero(tmp_path: Path) -> None:
    path = tmp_path / "one"
    origin = tmp_path / "other"
    origin.write_bytes(b"abc")
    for place in (None, 0, 6):
        data = bytearray(b"\0\0abc\0\0")
        if place is not None:
            data[place] = 1
        path.write_bytes(data)
        assert first_difference(path, [CopiedRange(2, 5, origin, 0)]) == place


LOADED = (
    "LICENSE.safetensors",
    "NOTICE.bin",
    "USE_POLICY.gguf",
    "LICENSE.jinja",
    "LICENSE.py",
    "LICENSE.so",
    "NOTICE.json",
    "merges.txt",
    "tokenizer",
    "sub/LICENSE.pth",
    "Modelfile",
    "model.onnx.data",
    "LICENSE.onnx.data",
    "bpe.codes",
    "libllama.so.1",
    "model.engine",
    "model.plan",
    "weights.params",
    "tekken",
    "sub/folder/file",
    "notes.txt",
    "LICENSE.bin.1",
    "license-.gguf",
    "model.md.safetensors",
)
FOR_PEOPLE = (
    "LICENSE",
    "LICENSE.txt",
    "LICENSE-MODEL.txt",
    "NOTICE-2.0",
    "USE_POLICY.md",
    "sub/USE_POLICY",
    "README.md",
    "requirements.txt",
    "figure.png",
    "COPYING",
    "README",
    "License_2.0.txt",
    "docs/paper.pdf",
    "CITATION.cff",
)


@pytest.mark.parametrize(
    ("name", "loaded"),
    [*((name, True) for name in LOADED), *((name, False) for name in FOR_PEOPLE)],
)
def test_a_short_list_of_names_is_for_people_and_a_runtime_may_load_all_others(
    name: str, loaded: bool
) -> None:
    assert is_document(name) is not loaded
