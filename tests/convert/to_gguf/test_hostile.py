"""Tokenizers and model cards from strangers, in conversions to GGUF."""

import re
import time
from pathlib import Path
from typing import Any

import pytest

from ropeconv.convert.to_gguf.export import describe, metadata_keys
from ropeconv.convert.to_gguf.tokenizer import tokenizer_keys
from ropeconv.convert.to_gguf.vocabulary import TokenizerJson, decode_json
from ropeconv.errors import BadSource
from ropeconv.formats.files import LONGEST

from ...support.corruptions import at, edit
from .test_tokenizer import RULES, VOCABULARY, keys_of, known


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert keys_of(known("gpt-2"), tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("model", []),
        ("model", None),
        ("model.type", 3),
        ("model.vocab", ["a"]),
        ("model.vocab", {"a": "1"}),
        ("model.vocab", {"a": 1.5}),
        ("model.vocab", {"a": -1}),
        ("model.vocab", {"a": True}),
        ("model.merges", [1]),
        ("model.merges", {"a": 1}),
        ("model.merges", [["a"]]),
        ("model.byte_fallback", "yes"),
        ("model.ignore_merges", []),
        ("added_tokens", {"a": 1}),
        ("added_tokens", [3]),
        ("added_tokens", [{"id": "1", "content": "a"}]),
        ("added_tokens", [{"id": 1}]),
        ("added_tokens", [{"id": 1, "content": []}]),
        ("pre_tokenizer", []),
        ("normalizer", [1]),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": 3}),
        ("pre_tokenizer", {"type": "Split", "pattern": {"Regex": 3}}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_tokenizer_of_other_types(folder: Path, place: str, value: Any) -> None:
    def change(data: dict[str, Any]) -> None:
        part, name = at(data, place)
        part[name] = value

    edit(folder, "tokenizer.json", change)
    with pytest.raises(BadSource, match="tokenizer.json is not"):
        tokenizer_keys(folder, VOCABULARY, RULES)


def test_a_tokenizer_with_bytes_that_are_no_text(folder: Path) -> None:
    text = (folder / "tokenizer.json").read_bytes()
    (folder / "tokenizer.json").write_bytes(
        re.sub(rb'("vocab":\s*\{\s*")', b"\\1\x80", text, count=1)
    )
    with pytest.raises(
        BadSource, match="tokenizer.json is not as tokenizers writes it .*invalid start byte"
    ):
        tokenizer_keys(folder, VOCABULARY, RULES)


@pytest.mark.parametrize("index", [VOCABULARY, 10**9, (1 << 31) - 1])
def test_an_id_without_a_row_in_the_embeddings(folder: Path, index: int) -> None:
    edit(folder, "tokenizer.json", lambda data: data["model"]["vocab"].update(more=index))
    with pytest.raises(BadSource, match=f"token {index} .'more'., .* {VOCABULARY} rows"):
        tokenizer_keys(folder, VOCABULARY, RULES)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model"])
def test_files_of_hundreds_of_megabytes_are_not_read(folder: Path, name: str) -> None:
    with (folder / name).open("ab") as file:
        file.truncate(LONGEST * 5)
    start = time.process_time()
    with pytest.raises(BadSource, match="limit"):
        tokenizer_keys(folder, VOCABULARY, RULES)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (
                b'{"model": [' + entry * (45_000_000 // len(entry)) + b"0]}",
                "more entries than any tokenizer",
            )
            for entry in (b"[],", b'"",', b"{},", b"[[]],")
        ),
        (b'{"pre_tokenizer":{"pretokenizers":[' * 50_000, "not as tokenizers writes it"),
    ],
    ids=["lists", "texts", "objects", "nested lists", "nesting without end"],
)
def test_more_entries_than_any_tokenizer(text: bytes, message: str) -> None:
    assert len(text) < LONGEST
    start = time.process_time()
    with pytest.raises(BadSource, match=message):
        decode_json(text, TokenizerJson, "tokenizer.json")
    assert time.process_time() - start < 5


BOMB = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
USUAL = "license: apache-2.0\ntags: [a & b]"


@pytest.mark.parametrize(
    "front",
    [
        USUAL,
        "license: [1]",
        "base_model: 3",
        "tags: {a: b}",
        "- a",
        "{",
        "\x00",
        BOMB,
        "x: 1\n" * 30_000,
    ],
)
def test_a_usual_model_card_is_read_and_others_harm_nothing(
    tmp_path: Path, front: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "README.md").write_text(f"---\n{front}\n---\n# Q&A\n&nbsp;\n")
    start = time.process_time()
    keys = metadata_keys(describe(tmp_path, "model", None, "", 1000), "F16")
    assert time.process_time() - start < 5
    assert keys["general.file_type"].decode() == 1
    assert capfd.readouterr().err == ""
    if front == USUAL:
        assert keys["general.license"].decode() == "apache-2.0"
