"""Tokenizers of GGUF files as tokenizer.json, in the tokenizers library, against those that they were made from.

Published vocabularies are in vocabularies.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from ropeconv.errors import UnsupportedBake
from ropeconv.export.checkpoint.tokenizer import tokenizer_config, tokenizer_text
from ropeconv.export.tokenizer import tokenizer_keys
from ropeconv.export.tokenizer.pre import pre_table
from ropeconv.families import families
from ropeconv.formats.gguf import Edit, GgufFile, boolean, string, u32
from ropeconv.formats.gguf.write import write_new

from ..support.gguf_files import write
from .test_tokenizer import TEXTS, VOCABULARY, as_pre_tokenizer, byte_level, train_pieces

LLAMA = next(family for family in families() if family.name == "llama")


def file_with(keys: dict[str, Any], folder: Path) -> GgufFile:
    """A GGUF file with the keys of a tokenizer."""
    plain = write(folder / "plain.gguf", vocabulary=1)
    dropped = frozenset({"tokenizer.ggml.scores"} - keys.keys())
    write_new(GgufFile.open(plain), 0, Edit(keys, dropped), folder / "model.gguf")
    return GgufFile.open(folder / "model.gguf")


def back(keys: dict[str, Any], folder: Path) -> Tokenizer:
    return Tokenizer.from_str(tokenizer_text(file_with(keys, folder), LLAMA))


@pytest.mark.parametrize("pre", pre_table().pre, ids=lambda pre: pre.name)
def test_byte_level_tokenizers_give_the_same_tokens(pre: Any, tmp_path: Path) -> None:
    first = byte_level(as_pre_tokenizer(pre.steps), pre.ignore_merges)
    first.save(str(tmp_path / "tokenizer.json"))
    second = back(tokenizer_keys(tmp_path, VOCABULARY, {}), tmp_path)
    for text in [*TEXTS, "<s>special</s> tokens"]:
        assert second.encode(text).ids == first.encode(text).ids
        assert second.decode(second.encode(text).ids) == first.decode(first.encode(text).ids)


def test_another_pre_tokenizer_gives_other_tokens(tmp_path: Path) -> None:
    """The test above can fail."""
    first = byte_level(as_pre_tokenizer(("gpt2",)), False)
    first.save(str(tmp_path / "tokenizer.json"))
    keys = tokenizer_keys(tmp_path, VOCABULARY, {}) | {"tokenizer.ggml.pre": string("qwen2")}
    assert [back(keys, tmp_path).encode(text).ids for text in TEXTS] != [first.encode(text).ids for text in TEXTS]


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_vocabularies_give_the_same_tokens(tmp_path: Path, prefix: bool) -> None:
    processor = train_pieces(tmp_path, add_dummy_prefix=prefix)
    second = back(tokenizer_keys(tmp_path, VOCABULARY, {}), tmp_path)
    for text in TEXTS:
        assert second.encode(text, add_special_tokens=False).ids == processor.EncodeAsIds(text)
        assert second.decode(processor.EncodeAsIds(text)) == text


def test_special_tokens_and_the_chat_template_come_back(tmp_path: Path) -> None:
    byte_level(as_pre_tokenizer(("gpt2",)), False).save(str(tmp_path / "tokenizer.json"))
    keys = tokenizer_keys(tmp_path, VOCABULARY, {}) | {
        "tokenizer.ggml.bos_token_id": u32(0),
        "tokenizer.ggml.eos_token_id": u32(1),
        "tokenizer.ggml.add_bos_token": boolean(True),
        "tokenizer.chat_template": string("{{ messages }}"),
    }
    file = file_with(keys, tmp_path)
    tokenizer = Tokenizer.from_str(tokenizer_text(file, LLAMA))
    assert tokenizer.encode("a").ids[0] == 0
    assert tokenizer.encode("a", add_special_tokens=False).ids == tokenizer.encode("a").ids[1:]
    assert tokenizer_config(file, 64) == {
        "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, "model_max_length": 64,
        "add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "eos_token": "</s>",
        "chat_template": "{{ messages }}",
    }  # fmt: skip


def test_tokenizers_of_other_kinds_are_refused(tmp_path: Path) -> None:
    byte_level(as_pre_tokenizer(("gpt2",)), False).save(str(tmp_path / "tokenizer.json"))
    keys = tokenizer_keys(tmp_path, VOCABULARY, {}) | {"tokenizer.ggml.model": string("t5")}
    with pytest.raises(UnsupportedBake, match="only llama and gpt2 are converted back"):
        back(keys, tmp_path)
