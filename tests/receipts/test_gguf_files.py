"""A GGUF file of ropeconv as its first source was: what is recorded, and what is brought back."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.errors import BadSource
from ropeconv.formats.gguf import Added, Change, Edit, GgufFile, f32, rewrite, string, u32
from ropeconv.formats.gguf.edit import Layout
from ropeconv.formats.gguf.interleave import interleave
from ropeconv.formats.gguf.write import write_new
from ropeconv.receipts import Receipt
from ropeconv.receipts.gguf_original import (
    earlier,
    first_gguf,
    first_reading,
    gguf_stated,
    layout_of,
    refuse_other,
)
from ropeconv.receipts.gguf_record import QUANTISED, record_of_export, record_of_file, record_of_output
from ropeconv.receipts.original import GgufRecord, OriginalRecord, SourceRecord, ValueRecord
from ropeconv.receipts.receipt import ScheduleRecord
from ropeconv.receipts.write import embedded
from ropeconv.rope.forms import Interpolated, Plain
from ropeconv.rope.spec import RopeSpec

from ..support.gguf_files import contents, plain_tensors, write

NORM, QUERY = "output_norm.weight", "blk.0.attn_q.weight"
ROPE = "rope_freqs.weight"
ONES = np.ones(32, "<f4").tobytes()


@pytest.fixture
def file(tmp_path: Path) -> GgufFile:
    return GgufFile.open(write(tmp_path / "model.gguf"))


def zeros(size: int, **more: Any) -> Change:
    return Change(size, lambda old: bytes(len(old)), **more)


def raw(data: bytes) -> str:
    return base64.b64encode(data).decode()


def receipt(record: GgufRecord | None, **fields: Any) -> Receipt:
    given = {
        "ropeconv": "1", "source": SourceRecord("model", "gguf"), "recipe": {"method": "linear"}, "encoding": "keys",
        "schedule": ScheduleRecord("d"), "original": OriginalRecord(SourceRecord("first", "gguf"), None, record),
    }  # fmt: skip
    return Receipt(**{**given, **fields})


def bake(file: GgufFile, edit: Edit) -> GgufFile:
    out = file.path.with_name("out.gguf")
    write_new(file, 0, edit, out)
    return GgufFile.open(out)


def back(file: GgufFile, record: GgufRecord) -> bytes:
    """The bytes of the first source of a file, as a new file."""
    edit = earlier(file, receipt(record)).edit
    edit = replace(edit, layout=layout_of(record, file.header, edit))
    out = file.path.with_name("back.gguf")
    write_new(file, 0, edit, out)
    return out.read_bytes()


# What is recorded


def test_a_record_has_what_the_output_lacks(file: GgufFile) -> None:
    edit = Edit(
        {"llama.context_length": u32(256), "llama.new": u32(1)}, frozenset({"llama.rope.freq_base"}),
        changes={NORM: zeros(520)}, added=(Added.f32(ROPE, ONES),),
    )  # fmt: skip
    record = record_of_file(file, edit)
    head = file.path.read_bytes()[: file.header.data_start]
    assert record == GgufRecord(
        keys=tuple(file.header.values),
        values={
            "llama.context_length": ValueRecord(4, raw(u32(64).raw)),
            "llama.rope.freq_base": ValueRecord(6, raw(f32(10000).raw)),
        },
        added=(ROPE,),
        contents={NORM: raw(contents(file.path)[NORM])},
        version=3,
        data_start=len(head),
        tail=file.header.size - file.header.data_start - file.header.data_size,
        sha256=hashlib.sha256(head).hexdigest(),
    )
    assert back(bake(file, edit), record) == file.path.read_bytes()


def test_a_record_under_another_architecture_has_the_old_name_alone(file: GgufFile) -> None:
    edit = Edit({"mistral3.context_length": u32(256)}, arch="mistral3")
    record = record_of_file(file, edit)
    assert set(record.values) == {"general.architecture", "llama.context_length"}
    assert back(bake(file, edit), record) == file.path.read_bytes()


def test_large_changes_and_reordered_rows_are_named(file: GgufFile, monkeypatch: pytest.MonkeyPatch) -> None:
    change = {NORM: zeros(520), "token_embd.weight": zeros(8192), QUERY: interleave(file.tensors[QUERY], 64)}
    for room, small, other in (
        (8712, (NORM, "token_embd.weight"), ()), (8711, (NORM,), ("token_embd.weight",)),
        (520, (NORM,), ("token_embd.weight",)), (519, (), (NORM, "token_embd.weight")),
    ):  # fmt: skip
        monkeypatch.setattr("ropeconv.receipts.gguf_record.SMALL", room)
        record = record_of_file(file, Edit(changes=change))
        assert (tuple(record.contents), record.changed) == (small, other)
        assert (record.interleaved, record.head_dim) == ((QUERY,), 64)
    assert record_of_file(file, Edit()).head_dim == 0


def test_the_reserve_is_recorded_by_its_length(file: GgufFile) -> None:
    baked = bake(file, Edit())
    spaces = len(baked.header.get("ropeconv.reserved"))
    record = record_of_file(baked, Edit({"general.name": string("x")}))
    assert record.values["ropeconv.reserved"] == ValueRecord(8, spaces=spaces)
    once = bake(file, Edit({"general.name": string("")}))
    assert record_of_file(once, Edit({"general.name": string("x")})).values["general.name"] == ValueRecord(
        8, raw(bytes(8))
    )


@pytest.mark.parametrize(("tail", "known"), [(0, 0), (5, 5), (1 << 16, 1 << 16), ((1 << 16) + 1, 0)])
def test_zeros_after_the_last_tensor_are_counted(file: GgufFile, tail: int, known: int) -> None:
    end = file.header.data_start + file.header.data_size
    with file.path.open("r+b") as opened:
        opened.truncate(end + tail)
    assert record_of_file(GgufFile.open(file.path), Edit()).tail == known
    if tail:
        with file.path.open("r+b") as opened:
            opened.seek(end + tail - 1)
            opened.write(b"x")
        assert record_of_file(GgufFile.open(file.path), Edit()).tail == 0


def test_a_header_that_cannot_be_laid_out_again_has_no_digest(file: GgufFile) -> None:
    with file.path.open("r+b") as opened:
        opened.seek(file.header.data_start - 1)
        opened.write(b"x")  # in the padding
    record = record_of_file(GgufFile.open(file.path), Edit())
    assert record.sha256 == ""
    assert record.data_start == file.header.data_start


def test_a_conversion_is_recorded_as_one_without_scaling(file: GgufFile) -> None:
    plain = file.header
    named = replace(plain, values={**plain.values, "general.name": string("m-yarn4")})
    edit = Edit({"llama.context_length": u32(256)}, added=(Added.f32(ROPE, bytes(4)),), changes={NORM: zeros(520)})
    record = record_of_export(plain, named, file.read, edit, quantised=True)
    assert record.keys == (*plain.values, QUANTISED)
    assert record.values == {"llama.context_length": ValueRecord(4, raw(u32(64).raw))}
    assert (record.added, record.data_start, record.sha256) == ((ROPE,), 0, "")
    assert record.contents == {NORM: raw(contents(file.path)[NORM])}
    assert record_of_export(plain, named, file.read, edit, quantised=False).keys == tuple(plain.values)
    quantised = replace(plain, values={**plain.values, QUANTISED: u32(2)})
    assert record_of_export(quantised, quantised, file.read, edit, True).keys == tuple(quantised.values)


def test_a_second_bake_keeps_the_first_source(file: GgufFile) -> None:
    """Once from the output as it is, once from the first source again."""
    first = Edit({"llama.context_length": u32(256)}, changes={NORM: zeros(520)}, added=(Added.f32(ROPE, ONES),))
    record = record_of_file(file, first)
    once = bake(file, first)
    before = earlier(once, receipt(record))
    more = Edit(
        {"llama.rope.freq_base": f32(5.0)},
        changes={"token_embd.weight": zeros(8192), ROPE: Change(128, lambda old: ONES)},
    )
    again = record_of_output(once, record, before, more, replaced=False)
    assert set(again.values) == {"llama.context_length", "llama.rope.freq_base"}
    assert again.added == (ROPE,)
    assert set(again.contents) == {NORM, "token_embd.weight"}
    assert again.contents[NORM] == raw(contents(file.path)[NORM])
    assert (again.data_start, again.sha256, again.tail) == (record.data_start, record.sha256, record.tail)
    twice = once.path.with_name("twice.gguf")
    write_new(once, 0, more, twice)
    assert back(GgufFile.open(twice), again) == file.path.read_bytes()

    anew = before.edit.then(Edit({"llama.block_count": u32(3)}))
    replaced = record_of_output(once, record, before, anew, replaced=True)
    assert set(replaced.values) == {"llama.block_count"}
    assert (replaced.added, set(replaced.contents)) == ((), {NORM})


def test_rows_that_were_reordered_once_stay_named(file: GgufFile) -> None:
    first = Edit(changes={QUERY: interleave(file.tensors[QUERY], 64)})
    record = record_of_file(file, first)
    once = bake(file, first)
    before = earlier(once, receipt(record))
    same = record_of_output(once, record, before, Edit({"a": u32(1)}), replaced=False)
    assert (same.interleaved, same.head_dim, same.changed, same.contents) == ((QUERY,), 64, (), {})
    changed = record_of_output(once, record, before, Edit(changes={QUERY: zeros(64)}), replaced=False)
    assert (changed.interleaved, changed.changed, changed.contents) == ((QUERY,), (QUERY,), {})


# What is brought back


def test_the_keys_and_vectors_of_the_first_source(tmp_path: Path) -> None:
    divisors = np.linspace(1, 8, 32, dtype=np.float32)
    file = GgufFile.open(write(tmp_path / "model.gguf", tensors={**plain_tensors(), ROPE: divisors}))
    edit = Edit({"llama.context_length": u32(256)}, changes={ROPE: Change(128, lambda old: ONES)})
    record = record_of_file(file, edit)
    found = earlier(bake(file, edit), receipt(record))
    assert found.header.values == dict(file.header.values)
    assert (found.header.version, found.header.data_start) == (3, 0)
    np.testing.assert_array_equal(found.vectors[ROPE], divisors.astype(np.float64))
    assert found.vectors[ROPE].dtype == np.float64


def test_tensors_that_were_added_are_gone(file: GgufFile) -> None:
    edit = Edit(added=(Added.f32(ROPE, ONES),))
    found = earlier(bake(file, edit), receipt(record_of_file(file, edit)))
    assert (found.edit.removed, dict(found.vectors)) == (frozenset({ROPE}), {})
    assert ROPE not in found.header.tensors


def test_what_cannot_be_brought_back(file: GgufFile) -> None:
    keys = tuple(file.header.values)
    for record, words in (
        (GgufRecord(keys, changed=(NORM,)), f"{NORM} of model.gguf was multiplied and rounded"),
        (None, "was made before ropeconv kept what its source had; take the source again, the local file 'model'"),
        (
            GgufRecord((*keys, "gone"), data_start=64),
            "has no gone any more; take the source again, the local file 'first'",
        ),
        (GgufRecord(keys, contents={"gone": ""}), "gone of model.gguf is not as ropeconv wrote it"),
        (GgufRecord(keys, contents={NORM: raw(bytes(519))}), f"{NORM} of model.gguf is not as ropeconv wrote it"),
        (GgufRecord(keys, interleaved=("gone",), head_dim=2), "has no gone any more"),
        (GgufRecord(keys, version=9), "says GGUF version 9"),
    ):
        with pytest.raises(BadSource, match=words):
            earlier(file, receipt(record), whole=True)
    with pytest.raises(BadSource, match="was made before ropeconv kept what its source had"):
        earlier(file, receipt(None, original=None))
    assert earlier(file, receipt(GgufRecord(keys, changed=(NORM,)))).edit.changes == {}
    # a conversion was never anywhere, so a key that is missing was never written
    assert "gone" not in earlier(file, receipt(GgufRecord((*keys, "gone")))).header.values


def test_places_of_the_first_source(file: GgufFile) -> None:
    keys, header = tuple(file.header.values), file.header
    plain = len(rewrite(header, Edit()).plain())
    assert layout_of(GgufRecord(keys, version=2, data_start=plain, tail=7), header, Edit()) == Layout(2, plain, 7)
    assert layout_of(GgufRecord(keys, data_start=5), header, Edit()) == Layout(3, 5, 0)
    with pytest.raises(BadSource, match="another place for its data than its header can have"):
        layout_of(GgufRecord(keys, data_start=plain + 1), header, Edit())
    never = layout_of(GgufRecord(keys), header, Edit())
    assert never == Layout(3, len(rewrite(header, Edit()).plain()), -header.data_size % 32)
    assert (never.data_start + header.data_size + never.tail) % 32 == 0


def test_a_header_that_comes_out_otherwise_is_refused(file: GgufFile) -> None:
    head = b"header"
    good = GgufRecord((), sha256=hashlib.sha256(head).hexdigest())
    refuse_other(head, good, file, receipt(good))
    refuse_other(head, GgufRecord(()), file, receipt(None))
    with pytest.raises(BadSource, match="keys of model.gguf were changed.*the local file 'first'"):
        refuse_other(b"headers", good, file, receipt(good))


# Whether a receipt is of the file as it is


def linear(factor: float = 4.0, context: int = 256) -> RopeSpec:
    return RopeSpec(64, 64, Interpolated(10000.0, factor), 64, context)


def stated(file: GgufFile, spec: RopeSpec, one: Receipt | str) -> Receipt | None:
    text = one if isinstance(one, str) else embedded(one)
    return gguf_stated(bake(file, Edit({"ropeconv.json": string(text)})), spec)


def test_a_receipt_counts_while_the_rope_is_what_it_says(file: GgufFile) -> None:
    schedule = ScheduleRecord("d", tuple(linear().form.inv_freq(64).tolist()), 1.0, 256, 64)
    one = receipt(None, schedule=schedule)
    assert stated(file, linear(), one) == one
    assert stated(file, linear(4.0 * (1 + 5e-6)), one) == one
    assert stated(file, linear(4.0 * (1 + 2e-5)), one) is None
    assert stated(file, linear(context=255), one) is None
    assert stated(file, replace(linear(), rotary_dim=32), one) is None
    assert stated(file, linear(), "{}") is None
    assert gguf_stated(file, linear()) is None


def test_what_replace_starts_from(file: GgufFile) -> None:
    schedule = ScheduleRecord("d", tuple(linear().form.inv_freq(64).tolist()), 1.0, 256, 64)
    edit = Edit({"llama.context_length": u32(256)})
    record = record_of_file(file, edit)
    one = receipt(record, schedule=schedule)
    baked = bake(file, edit.merged(Edit({"ropeconv.json": string(embedded(one))})))
    found = first_gguf(baked, linear())
    assert found is not None
    assert found[0] == one
    assert found[1].header.get("llama.context_length") == 64
    reading = first_reading(baked, one)
    assert reading is not None
    assert (reading.context, reading.form) == (64, Plain(10000.0))
    assert first_reading(baked, receipt(None)) is None
    for original in (None, OriginalRecord(SourceRecord("first", "gguf"))):
        without = string(embedded(receipt(None, schedule=schedule, original=original)))
        assert first_gguf(bake(file, edit.merged(Edit({"ropeconv.json": without}))), linear()) is None
    assert first_gguf(file, linear()) is None
    rounded = receipt(GgufRecord(record.keys, record.values, changed=(NORM,)), schedule=schedule)
    with pytest.raises(BadSource, match="multiplied and rounded"):
        first_gguf(bake(file, edit.merged(Edit({"ropeconv.json": string(embedded(rounded))}))), linear())
