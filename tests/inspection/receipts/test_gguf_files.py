"""A GGUF file of ropeconv as its first source was: what is recorded, and what is brought back."""

import base64
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.errors import BadSource
from ropeconv.formats.gguf.edit import Change, Edit, write_new
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.gguf.header import f32, string, u32
from ropeconv.inspection.receipts.gguf import (
    layout_of,
    original_of,
    record_of_file,
    valid_gguf_receipt,
)
from ropeconv.inspection.receipts.receipt import (
    GgufRecord,
    OriginalRecord,
    Receipt,
    ScheduleRecord,
    SourceRecord,
    TargetRecord,
    ValueRecord,
)
from ropeconv.inspection.receipts.storage import embedded
from ropeconv.rope.forms import InterpolatedForm
from ropeconv.rope.spec import RopeSpec

from ...support.gguf_files import contents, write
from .test_folders import receipt as receipt_of_folder

NORM = "output_norm.weight"
ROPE = "rope_freqs.weight"
ONES = np.ones(32, "<f4").tobytes()


@pytest.fixture
def file(tmp_path: Path) -> GgufFile:
    return GgufFile.open(write(tmp_path / "model.gguf"))


def raw(data: bytes) -> str:
    return base64.b64encode(data).decode()


def receipt(record: GgufRecord | None, **fields: Any) -> Receipt:
    original = OriginalRecord(SourceRecord("first", "gguf"), None, record)
    kwargs = {"source": SourceRecord("model", "gguf"), "encoding": "keys", "original": original}
    return receipt_of_folder(target=TargetRecord("gguf"), **kwargs, **fields)


def bake(file: GgufFile, edit: Edit) -> GgufFile:
    out = file.path.with_name("out.gguf")
    write_new(file, 0, edit, out)
    return GgufFile.open(out)


def back(file: GgufFile, record: GgufRecord) -> bytes:
    """The bytes of the first source of a file, as a new file."""
    edit = original_of(file, receipt(record)).edit
    edit = replace(edit, layout=layout_of(record, file.header, edit))
    out = file.path.with_name("back.gguf")
    write_new(file, 0, edit, out)
    return out.read_bytes()


# What is recorded


def test_a_record_has_what_the_output_lacks(file: GgufFile) -> None:
    edit = Edit(
        {"llama.context_length": u32(256), "llama.new": u32(1)},
        frozenset({"llama.rope.freq_base"}),
        changes={NORM: Change(520, lambda old: bytes(len(old)))},
        added={ROPE: ONES},
    )
    record = record_of_file(file, edit)
    head = file.path.read_bytes()[: file.header.data_start]
    assert record == GgufRecord(
        keys=tuple(file.header.values),
        values={
            "llama.context_length": ValueRecord(4, raw(u32(64).raw)),
            "llama.rope.freq_base": ValueRecord(6, raw(f32(10000).raw)),
        },
        written={
            "llama.context_length": ValueRecord(4, raw(u32(256).raw)),
            "llama.new": ValueRecord(4, raw(u32(1).raw)),
        },
        added=(ROPE,),
        contents={NORM: raw(contents(file.path)[NORM])},
        version=3,
        data_start=len(head),
        tail=file.header.size - file.header.data_start - file.header.data_size,
        sha256=hashlib.sha256(head).hexdigest(),
    )
    assert back(bake(file, edit), record) == file.path.read_bytes()


# What is brought back


KEYS = ("general.architecture",)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (GgufRecord(KEYS, changed=(NORM,)), f"{NORM} of model.gguf was multiplied and rounded"),
        (None, "does not say what its source had; take the source again, the local file 'model'"),
        (
            GgufRecord((*KEYS, "gone"), data_start=64),
            "has no gone any more; take the source again, the local file 'first'",
        ),
        (GgufRecord(KEYS, contents={"gone": ""}), "gone of model.gguf is not as ropeconv wrote it"),
        (
            GgufRecord(KEYS, contents={NORM: raw(bytes(519))}),
            f"{NORM} of model.gguf is not as ropeconv wrote it",
        ),
        (GgufRecord(KEYS, interleaved=("gone",), head_dim=2), "has no gone any more"),
        (GgufRecord(KEYS, version=9), "says GGUF version 9"),
    ],
)
def test_what_cannot_be_brought_back(file: GgufFile, record: GgufRecord | None, words: str) -> None:
    with pytest.raises(BadSource, match=words):
        original_of(file, receipt(record), whole=True)


# Whether a receipt is of the file as it is


def linear(factor: float = 4.0, context: int = 256) -> RopeSpec:
    return RopeSpec(64, 64, InterpolatedForm(10000.0, factor), 64, context)


def stated(file: GgufFile, spec: RopeSpec, content: Receipt | str) -> Receipt | None:
    text = content if isinstance(content, str) else embedded(content)
    return valid_gguf_receipt(bake(file, Edit({"ropeconv.json": string(text)})), spec)


SCHEDULE = ScheduleRecord(
    digest="d",
    inv_freq=tuple(linear().form.inv_freq(64).tolist()),
    attention_factor=1.0,
    context=256,
    original_context=64,
)


@pytest.mark.parametrize(
    ("spec", "counts"),
    [
        (linear(), True),
        (linear(4.0 * (1 + 5e-6)), True),
        (linear(4.0 * (1 + 2e-5)), False),
        (linear(context=255), False),
        (replace(linear(), rotary_dim=32), False),
    ],
)
def test_a_receipt_counts_while_the_rope_is_what_it_says(
    file: GgufFile, spec: RopeSpec, counts: bool
) -> None:
    expected = receipt(None, schedule=SCHEDULE)
    assert stated(file, spec, expected) == (expected if counts else None)
    assert stated(file, spec, "{}") is valid_gguf_receipt(file, spec) is None
