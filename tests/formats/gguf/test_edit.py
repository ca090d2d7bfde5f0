"""Edited files: other keys, the same tensors, read by gguf-py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from ropeconv.errors import RopeconvError
from ropeconv.formats.gguf import Added, Change, Edit, GgufFile, f32, read_header, rewrite, string, u32
from ropeconv.formats.gguf.edit import RESERVED
from ropeconv.formats.gguf.write import new_size, write_new

from ...support.gguf_files import contents, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "model.gguf")


def _written(path: Path, edit: Edit) -> Path:
    out = path.with_name("out.gguf")
    file = GgufFile.open(path)
    write_new(file, 0, edit, out)
    assert out.stat().st_size == new_size(file.header, edit)
    return out


def test_keys_are_set_and_dropped_and_no_tensor_changes(path: Path) -> None:
    edit = Edit({"llama.context_length": u32(4096), "llama.new": string("new")}, frozenset({"llama.rope.freq_base"}))
    out = _written(path, edit)
    fields = gguf.GGUFReader(out).fields
    assert fields["llama.context_length"].contents() == 4096
    assert fields["llama.new"].contents() == "new"
    assert "llama.rope.freq_base" not in fields
    assert (
        fields["tokenizer.ggml.tokens"].contents() == gguf.GGUFReader(path).fields["tokenizer.ggml.tokens"].contents()
    )
    assert contents(out) == contents(path)


def test_a_tensor_is_appended_and_another_rewritten(path: Path) -> None:
    new = np.arange(32, dtype=np.float32)
    double = Change(64, lambda old: (np.frombuffer(old, np.float32) * 2).tobytes())
    out = _written(
        path, Edit(changes={"output_norm.weight": double}, added=(Added.f32("rope_freqs.weight", new.tobytes()),))
    )
    before, after = contents(path), contents(out)
    assert after.pop("rope_freqs.weight") == new.tobytes()
    assert np.frombuffer(after["output_norm.weight"], np.float32) == pytest.approx(
        2 * np.frombuffer(before.pop("output_norm.weight"), np.float32)
    )
    del after["output_norm.weight"]
    assert after == before


def test_another_architecture_takes_its_keys_along(path: Path) -> None:
    out = read_header(_written(path, Edit(arch="mistral3")))
    assert out.get("general.architecture") == "mistral3"
    assert out.get("mistral3.block_count") == 2
    assert not [key for key in out.values if key.startswith("llama.")]


def test_every_written_header_has_a_reserve_that_the_next_one_uses(path: Path) -> None:
    out = _written(path, Edit({"llama.new": string("new")}))
    header = read_header(out)
    assert len(header.get(RESERVED)) > 4000
    assert (header.data_start - read_header(path).data_start) % 65536 == 0
    grown = rewrite(header, Edit({"llama.longer": string("x" * 1000)})).layout(header.data_start)
    assert grown is not None
    assert len(grown) == header.data_start
    assert rewrite(header, Edit({"llama.longer": string("x" * 70_000)})).layout(header.data_start) is None


def test_the_reserve_gives_way_byte_by_byte(path: Path) -> None:
    """Wherever a header ends, the data begins where it did, or the header says that it does not fit."""
    out = _written(path, Edit())
    header, data = read_header(out), out.read_bytes()
    full = len(header.get(RESERVED)) + 37 - 8 - len("llama.longer") - 12  # the reserve's own key gives way as well
    fitting = []
    for length in range(full - 80, full + 10):
        laid = rewrite(header, Edit({"llama.longer": string("x" * length)})).layout(header.data_start)
        if laid is None:
            continue
        fitting.append(length)
        out.write_bytes(laid + data[header.data_start :])
        assert read_header(out).data_start == header.data_start
        assert contents(out) == contents(path)
    assert fitting[-1] > full - 5
    assert len(fitting) > 70
    assert full + 9 not in fitting


def test_merged_edits_take_the_later_value() -> None:
    first = Edit({"a": f32(1), "b": f32(1)}, frozenset({"c"}))
    both = first.merged(Edit({"b": f32(2), "c": f32(3)}, frozenset({"a"})))
    assert both.values == {"b": f32(2), "c": f32(3)}
    assert both.dropped == {"a"}


@pytest.mark.parametrize("make", [lambda: u32(1 << 32), lambda: u32(-1), lambda: f32(1e39)])
def test_numbers_that_do_not_fit_are_refused_in_a_sentence(make: Callable[[], object]) -> None:
    with pytest.raises(RopeconvError, match="does not fit into the 32 bits"):
        make()
