"""Verification, the result of comparing an output with its plan, and Findings, which gathers the differences."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ...errors import Disagreement
from ...formats.jsontext import JsonObject
from ...pretrained import CODE
from ...rope.errors import counted, shown

LONGEST = 3  # differences that a message names


@dataclass(frozen=True)
class Options:
    """How an output is compared.

    quick: leave out the bytes of the weights. edited: accept other files where these do not change the computation, as
    --ignore-receipt does. code: accept other modelling code, as --trust-remote-code does.
    """

    quick: bool = False
    edited: bool = False
    code: bool = False


@dataclass(frozen=True)
class Verification:
    """The result of a comparison without differences.

    files: their number. bytes: of the weights that were compared. quick: whether the weights were left out. notes:
    sentences on harmless differences. unverified: sentences on parts that could not be compared; empty without `quick`.
    """

    files: int
    bytes: int
    quick: bool = False
    notes: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()

    def to_dict(self) -> JsonObject:
        """Return the fields as JSON-ready data."""
        return {
            "files": self.files, "bytes": self.bytes, "quick": self.quick, "notes": list(self.notes),
            "unverified": list(self.unverified),
        }  # fmt: skip

    @property
    def sentence(self) -> str:
        """The result for people."""
        weights = "; --quick left out the weights." if self.quick else f" ({self.bytes:,} bytes of weights)."
        return f"{counted(self.files, 'file matches', 'files match')} the source and the recipe{weights}"


@dataclass
class Findings:
    """The differences of a comparison. wrong: clauses on what differs. The others: as in `Verification`."""

    options: Options
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unverified: list[str] = field(default_factory=list)
    files: int = 0
    bytes: int = 0

    def differs(self, what: str, *, harmless: bool = False) -> None:
        """Record a difference as a clause. harmless: only add a note."""
        (self.notes if harmless else self.wrong).append(what)

    def result(self, baked: Path) -> Verification:
        """Return the result for an output. Raises Disagreement where something differs."""
        if self.wrong:
            more = len(self.wrong) - LONGEST
            clauses = "; ".join(self.wrong[:LONGEST]) + (f"; and {more} more" if more > 0 else "")
            raise Disagreement(f"{baked} is not what its recipe and source give: {clauses}; run apply again")
        return Verification(self.files, self.bytes, self.options.quick, tuple(self.notes), tuple(self.unverified))


WITHOUT_EFFECT = ("_name_or_path", "transformers_version", "_commit_hash")
"""Keys that no runtime computes with."""
OF_CODE = ("auto_map", "architectures", "model_type")
"""Keys that name the code of a model."""


def json_differences(text: str, planned: str) -> list[tuple[str, str]] | None:
    """Return the keys in which two JSON objects differ, as (key, clause); None where one of them is not a JSON object.

    Nested keys are joined by points.
    """
    try:
        ours, theirs = (json.loads(data, object_pairs_hook=_unique) for data in (text, planned))
    except (ValueError, RecursionError):
        return None
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return None
    return list(_differences(ours, theirs, ""))


def _unique(pairs: list[tuple[str, Any]]) -> JsonObject:
    """A JSON object. Raises ValueError for a repeated key, of which readers use the first or the last value."""
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ValueError("repeated key")
    return data


def _differences(ours: JsonObject, theirs: JsonObject, prefix: str) -> Iterator[tuple[str, str]]:
    for key in dict.fromkeys((*theirs, *ours)):
        name = f"{prefix}{key}"
        if key not in ours:
            yield name, f"has no {name}, which is {shown(theirs[key])} there"
        elif key not in theirs:
            yield name, f"has {name} = {shown(ours[key])}, which is not there"
        elif isinstance(ours[key], dict) and isinstance(theirs[key], dict):
            yield from _differences(ours[key], theirs[key], f"{name}.")
        elif type(ours[key]) is not type(theirs[key]) or ours[key] != theirs[key]:
            yield name, f"has {name} = {shown(ours[key])}, where {shown(theirs[key])} belongs"


LOADED = (
    "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.vocab", "*.bpe", "*.spm", "*.safetensors", "*.bin",
    "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle", "*.h5", "*.msgpack", "*.npz", "*.npy", "*.gguf", "*.onnx", "*.ot",
    "*.onnx_data", "*.tflite", "*.yaml", "*.yml", "*.toml", "merges*", "vocab*", "tokenizer*", "chat_template*",
    "*.jsonl", "*.j2", "*.xml",
)  # fmt: skip
"""Names of files that some runtime loads: configs, tokenizers, templates, weights."""
DOCUMENTS = (
    "*.md", "*.rst", "*.html", "*.pdf", "*.png", "*.jpg", "*.jpeg", "*.gif", "*.svg", "*.webp", "requirements.txt",
    "license*.txt", "notice*.txt", "use_policy*.txt",
)  # fmt: skip
"""Names of files for people."""
LEGAL = ("license*", "notice*", "use_policy*")
"""Names of files for people, unless their ends are those of files that are loaded."""


def is_document(name: str) -> bool:
    """Return whether a file is for people, and no runtime loads it."""
    plain = Path(name).name
    if _matches(plain, DOCUMENTS):
        return True
    return _matches(plain, LEGAL) and not is_code(plain) and not _matches(plain, LOADED)


def is_code(name: str) -> bool:
    """Return whether Python may import a file."""
    return name.lower().endswith(CODE)


def is_loaded(name: str) -> bool:
    """Return whether some runtime may load a file."""
    return is_code(name) or (not is_document(name) and _matches(Path(name).name, LOADED))


def _matches(plain: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(plain.lower(), pattern) for pattern in patterns)  # some filesystems ignore case


def files_of(folder: Path) -> Iterator[str]:
    """Yield the names of all files of a folder that are not hidden, also those behind links to folders."""
    seen: set[str] = set()
    for place, subfolders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            subfolders.clear()
            continue
        seen.add(real)
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        yield from (Path(place, name).relative_to(folder).as_posix() for name in names if not name.startswith("."))
