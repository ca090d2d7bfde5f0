"""Tokenizers and model cards from strangers, in conversions to GGUF."""

from __future__ import annotations

import contextlib
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from ropeconv.errors import BadSource
from ropeconv.export.metadata import Parameters, describe, metadata_keys
from ropeconv.export.tokenizer import tokenizer_keys
from ropeconv.export.tokenizer.files import TokenizerJson, decoded
from ropeconv.formats.regular import LONGEST

from .test_tokenizer import VOCABULARY, as_pre_tokenizer, byte_level, train_pieces


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the tokenizer of a small model."""
    byte_level(as_pre_tokenizer(("gpt2",)), False).save(str(tmp_path / "tokenizer.json"))
    assert tokenizer_keys(tmp_path, VOCABULARY, {})
    return tmp_path


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("model",), []), (("model",), None), (("model", "type"), 3), (("model", "vocab"), ["a"]),
        (("model", "vocab"), {"a": "1"}), (("model", "vocab"), {"a": 1.5}), (("model", "vocab"), {"a": -1}),
        (("model", "vocab"), {"a": True}), (("model", "merges"), [1]), (("model", "merges"), {"a": 1}),
        (("model", "merges"), [["a"]]), (("model", "byte_fallback"), "yes"), (("model", "ignore_merges"), []),
        (("added_tokens",), {"a": 1}), (("added_tokens",), [3]), (("added_tokens",), [{"id": "1", "content": "a"}]),
        (("added_tokens",), [{"id": 1}]), (("added_tokens",), [{"id": 1, "content": []}]),
        (("pre_tokenizer",), []), (("pre_tokenizer",), {"type": "Sequence", "pretokenizers": 3}),
        (("pre_tokenizer",), {"type": "Split", "pattern": {"Regex": 3}}), (("normalizer",), [1]),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_a_tokenizer_of_other_types(folder: Path, place: tuple[str, ...], value: Any) -> None:
    data = json.loads((folder / "tokenizer.json").read_text())
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (folder / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(BadSource, match="tokenizer.json is not as tokenizers writes it"):
        tokenizer_keys(folder, VOCABULARY, {})


def test_a_tokenizer_with_bytes_that_are_no_text(folder: Path) -> None:
    text = (folder / "tokenizer.json").read_bytes()
    (folder / "tokenizer.json").write_bytes(re.sub(rb'("vocab":\s*\{\s*")', b"\\1\x80", text, count=1))
    with pytest.raises(BadSource, match="tokenizer.json is not as tokenizers writes it .*invalid start byte"):
        tokenizer_keys(folder, VOCABULARY, {})


@pytest.mark.parametrize("piece", [b"t", b"e"])
def test_a_piece_that_is_no_text(tmp_path: Path, piece: bytes) -> None:
    """Of pieces that are no UTF-8 the library lets some pass at loading, and reads them as something else."""
    train_pieces(tmp_path)
    path = tmp_path / "tokenizer.model"
    data = path.read_bytes()
    wrong = data.replace(b"\x0a\x01" + piece, b"\x0a\x01\xff", 1)
    assert wrong != data
    path.write_bytes(wrong)
    with pytest.raises(BadSource, match="tokenizer.model"):
        tokenizer_keys(tmp_path, VOCABULARY, {})


@pytest.mark.parametrize("index", [VOCABULARY, 10**9, (1 << 31) - 1])
def test_an_id_without_a_row_in_the_embeddings(folder: Path, index: int) -> None:
    data = json.loads((folder / "tokenizer.json").read_text())
    data["model"]["vocab"]["more"] = index
    (folder / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(BadSource, match=f"has a token {index} .'more'., and the embeddings have {VOCABULARY} rows"):
        tokenizer_keys(folder, VOCABULARY, {})


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model"])
def test_files_of_hundreds_of_megabytes_are_not_read(folder: Path, name: str) -> None:
    with (folder / name).open("ab") as file:
        file.truncate(LONGEST * 5)
    start = time.process_time()
    with pytest.raises(BadSource, match="which no such file is"):
        tokenizer_keys(folder, VOCABULARY, {})
    assert time.process_time() - start < 5


@pytest.mark.parametrize("text", [b"[],", b'"",', b"{},", b"[[]],"])
def test_more_entries_than_any_tokenizer(text: bytes) -> None:
    many = b'{"model": [' + text * (45_000_000 // len(text)) + b"0]}"
    assert len(many) < LONGEST
    start = time.process_time()
    with pytest.raises(BadSource, match="has more entries than any tokenizer"):
        decoded(many, TokenizerJson, "tokenizer.json")
    assert time.process_time() - start < 5


def test_nesting_without_end() -> None:
    with pytest.raises(BadSource, match="not as tokenizers writes it"):
        decoded(b'{"pre_tokenizer":{"pretokenizers":[' * 50_000, TokenizerJson, "tokenizer.json")


@pytest.mark.parametrize("settings", [{"bos_token": 3}, {"chat_template": {"a": 1}}, {"add_bos_token": []}])
def test_settings_that_gguf_py_does_not_expect(folder: Path, settings: dict[str, Any]) -> None:
    """Either it takes them, or a sentence says that it does not."""
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with contextlib.suppress(BadSource):
        assert tokenizer_keys(folder, VOCABULARY, {})


BOMB = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "front", ["license: [1]", "base_model: 3", "tags: {a: b}", "- a", "{", "\x00", BOMB, "x: 1\n" * 30_000]
)
def test_model_cards_that_are_none(tmp_path: Path, front: str, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "README.md").write_text(f"---\n{front}\n---\n")
    start = time.process_time()
    keys = metadata_keys(describe(tmp_path, "model", None, "", Parameters(1000)), "F16")
    assert time.process_time() - start < 5
    assert keys["general.file_type"].decode() == 1
    assert capfd.readouterr().err == ""


def test_a_usual_model_card_is_read(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\nlicense: apache-2.0\ntags: [a & b]\n---\n# A model\n")
    keys = metadata_keys(describe(tmp_path, "model", None, "", Parameters(1000)), "F16")
    assert keys["general.license"].decode() == "apache-2.0"
