"""Published vocabularies with the tokens that llama.cpp's own authors expect, from the source archive of its bindings.

`scripts/test --all` runs this after the lab. Each vocabulary is written as its publisher has it, as tokenizer.json or
tokenizer.model, converted, and cuts llama.cpp's test texts. `test_published_tokenizers.py` has whole published files.
"""

from __future__ import annotations

import tarfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto, NormalizerSpec, TrainerSpec
from tokenizers import Tokenizer, models

from ropeconv.errors import BadSource, UnsupportedBake
from ropeconv.export.checkpoint.tokenizer import tokenizer_text
from ropeconv.export.tokenizer import tokenizer_keys
from ropeconv.export.tokenizer.tokens import Kind
from ropeconv.families.registry import by_name
from ropeconv.formats.gguf import GgufFile
from scripts.laboratory.environment import ROOT, once, pip

from .test_tokenizer import PRE, Keys, as_pre_tokenizer, in_llama_cpp, vocabulary_file

PACKAGE = "llama_cpp_python"
BETWEEN = "\n__ggml_vocab_test__\n"
SAME = {"command-r": "starcoder", "mpt": "gpt-2", "refact": "starcoder"}
"""Vocabularies whose tokenizer.json cuts text as another one: the family decides what llama.cpp calls it."""
BYTE_LEVEL = (
    "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gpt-2", "llama-bpe", "mpt", "qwen2", "qwen35", "refact",
    "starcoder",
)  # fmt: skip
PIECES = ("llama-spm", "phi-3")

Vocabulary = tuple[GgufFile, list[str], list[list[int]]]


@pytest.fixture(scope="session")
def folder() -> Path:
    """The vocabularies of the installed version of llama.cpp's bindings."""

    def make(target: Path) -> None:
        pip("download", "--no-deps", "--no-binary=:all:", "-d", target, f"{PACKAGE}=={version(PACKAGE)}")
        (archive,) = target.glob("*.tar.gz")
        with tarfile.open(archive) as content:
            for member in content:
                path = Path(member.name)
                if member.isfile() and path.name.startswith("ggml-vocab-"):
                    (target / path.name).write_bytes(content.extractfile(member).read())  # type: ignore[union-attr]
        archive.unlink()

    return once(ROOT / f"vocabularies-{version(PACKAGE)}", make)


@pytest.fixture
def vocabulary(name: str, folder: Path) -> Vocabulary:
    """A file, texts, and the tokens that they have to become; the file of tokens may lack the last ones."""
    path = folder / f"ggml-vocab-{name}.gguf"
    tokens = [list(map(int, line.split())) for line in path.with_suffix(".gguf.out").read_text().splitlines()]
    assert len(tokens) > 40
    return GgufFile.open(path), path.with_suffix(".gguf.inp").read_text("utf-8").split(BETWEEN)[: len(tokens)], tokens


def columns(file: GgufFile, *names: str) -> Any:
    return zip(*(file.get(f"tokenizer.ggml.{name}") for name in names), strict=True)


def tokenizer_json(file: GgufFile, name: str) -> Tokenizer:
    """A byte-level vocabulary as its publisher has it."""
    pre = PRE[SAME.get(name, name)]
    vocabulary = {text: index for index, text in enumerate(file.get("tokenizer.ggml.tokens"))}
    merges = [tuple(merge.split(" ")) for merge in file.get("tokenizer.ggml.merges")]
    made = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre.ignore_merges))
    made.pre_tokenizer = as_pre_tokenizer(pre.steps)
    made.add_tokens([text for text, kind in columns(file, "tokens", "token_type") if kind == Kind.USER_DEFINED])
    return made


def by_llama_cpp(keys: Keys, given: list[str], place: Path) -> Any:
    vocabulary_file(keys, place / "vocab.gguf")
    return in_llama_cpp([place / "vocab.gguf"], given, special=False)[0]


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_byte_level_vocabularies(name: str, vocabulary: Vocabulary, tmp_path: Path) -> None:
    file, given, expected = vocabulary
    made = tokenizer_json(file, name)
    made.save(str(tmp_path / "tokenizer.json"))
    assert [made.encode(text).ids for text in given] == expected
    keys = tokenizer_keys(tmp_path, made.get_vocab_size(), {SAME.get(name, name): name})
    assert keys["tokenizer.ggml.pre"].decode() == name == file.get("tokenizer.ggml.pre")
    assert by_llama_cpp(keys, given, tmp_path) == expected
    other = tokenizer_keys(tmp_path, made.get_vocab_size(), {}, pre="jais-2" if name == "gpt-2" else "gpt-2")
    if SAME.get(name, name) != "gpt-2":
        assert by_llama_cpp(other, given, tmp_path) != expected


def tokenizer_model(file: GgufFile, kind: Any, rule: str = "identity") -> bytes:
    """A vocabulary of pieces as its publisher has it. kind: of model. rule: of normalization."""
    kinds = {Kind.UNKNOWN: Kind.UNUSED}  # llama.cpp's files have more than one
    pieces = [
        ModelProto.SentencePiece(piece=text or f"<unused {index}>", score=score, type=kinds.get(number, number))
        for index, (text, score, number) in enumerate(columns(file, "tokens", "scores", "token_type"))
    ]
    pieces[0].type = Kind.UNKNOWN
    trainer = TrainerSpec(model_type=kind, byte_fallback=True, vocab_size=len(pieces))
    rules = NormalizerSpec(name=rule, add_dummy_prefix=True, remove_extra_whitespaces=False)
    made: bytes = ModelProto(pieces=pieces, trainer_spec=trainer, normalizer_spec=rules).SerializeToString()
    return made


@pytest.mark.parametrize("name", PIECES)
def test_vocabularies_of_pieces(name: str, vocabulary: Vocabulary, tmp_path: Path) -> None:
    file, given, expected = vocabulary
    (tmp_path / "tokenizer.model").write_bytes(tokenizer_model(file, TrainerSpec.BPE))
    processor = sentencepiece.SentencePieceProcessor(str(tmp_path / "tokenizer.model"))
    assert [processor.EncodeAsIds(text) for text in given] == expected
    keys = tokenizer_keys(tmp_path, processor.vocab_size(), {})
    assert by_llama_cpp(keys, given, tmp_path) == expected
    assert by_llama_cpp(keys, [text.lower() for text in given], tmp_path) != expected
    (tmp_path / "tokenizer.model").write_bytes(tokenizer_model(file, TrainerSpec.UNIGRAM))
    with pytest.raises(BadSource, match="unigram"):
        tokenizer_keys(tmp_path, processor.vocab_size(), {})


@pytest.mark.parametrize("name", [*BYTE_LEVEL, *PIECES])
def test_the_way_back(name: str, vocabulary: Vocabulary) -> None:
    """Of those that another one stands for, the family decides; Llama has none of them."""
    file, given, expected = vocabulary
    if name in SAME:
        with pytest.raises(UnsupportedBake, match="how it cuts text is not in the table"):
            tokenizer_text(file, by_name()["llama"])
        return
    made = Tokenizer.from_str(tokenizer_text(file, by_name()["llama"]))
    assert [made.encode(text, add_special_tokens=False).ids for text in given] == expected
