"""Verified, the result of comparing an output with its plan, and Found, which gathers what differs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NoReturn

from ...errors import Disagreement
from ...formats.jsontext import JsonObject
from ...pretrained import CODE
from ...rope.errors import counted, shown

LONGEST = 3  # differences that a message names


@dataclass(frozen=True)
class Options:
    """How an output is compared.

    quick: leave out the bytes of the weights. edited: accept other files where these do not change what is computed, as
    --ignore-receipt says. code: accept other modelling code, as --trust-remote-code says.
    """

    quick: bool = False
    edited: bool = False
    code: bool = False


@dataclass(frozen=True)
class Verification:
    """What was compared, and agrees.

    files: number of files. bytes: of the weights that were compared. quick: whether the weights were left out. notes:
    sentences on files that are not from the plan, or not as there, and harmless. unverified: sentences on what could
    not be compared; empty without `quick`.
    """

    files: int
    bytes: int
    quick: bool = False
    notes: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()

    def to_dict(self) -> JsonObject:
        """The fields as JSON-ready data."""
        return {
            "files": self.files, "bytes": self.bytes, "quick": self.quick, "notes": list(self.notes),
            "unverified": list(self.unverified),
        }  # fmt: skip

    @property
    def sentence(self) -> str:
        """The result for people."""
        given = f"{counted(self.files, 'file matches', 'files match')} the source and the recipe"
        if self.quick:
            return f"{given}; --quick left out the weights."
        return f"{given} ({self.bytes:,} bytes of weights)."


@dataclass
class Findings:
    """What a comparison finds. wrong: clauses on what differs. The others: as in `Verification`."""

    options: Options
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unverified: list[str] = field(default_factory=list)
    files: int = 0
    bytes: int = 0

    def differs(self, what: str, *, harmless: bool = False) -> None:
        """Records a difference. what: a clause. harmless: whether it is only worth a note."""
        (self.notes if harmless else self.wrong).append(what)

    def result(self, baked: Path) -> Verification:
        """The result. baked: the output. Raises Disagreement where something differs."""
        if self.wrong:
            self._refuse(baked)
        return Verification(self.files, self.bytes, self.options.quick, tuple(self.notes), tuple(self.unverified))

    def _refuse(self, baked: Path) -> NoReturn:
        named, more = self.wrong[:LONGEST], len(self.wrong) - LONGEST
        what = "; ".join(named) + (f"; and {more} more" if more > 0 else "")
        raise Disagreement(f"{baked} is not what its recipe and source give: {what}; run apply again")


WITHOUT_EFFECT = ("_name_or_path", "transformers_version", "_commit_hash")
"""Keys that no runtime computes with."""
OF_CODE = ("auto_map", "architectures", "model_type")
"""Keys that name the code of a model."""


def json_differences(found: str, wanted: str) -> list[tuple[str, str]] | None:
    """Keys in which two JSON objects differ, as (key, clause); None where one of them is no JSON object.

    found: the text of the file. wanted: that of the plan. Keys inside of others are joined by points.
    """
    try:
        ours, theirs = (json.loads(text, object_pairs_hook=_unique) for text in (found, wanted))
    except (ValueError, RecursionError):
        return None
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return None
    return list(_differences(ours, theirs, ""))


def _unique(pairs: list[tuple[str, Any]]) -> JsonObject:
    """A JSON object. Raises ValueError for a key that is there twice, of which readers take one or the other."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


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
    """Whether a file is for people, and no runtime loads it."""
    plain = Path(name).name
    if _matches(plain, DOCUMENTS):
        return True
    return _matches(plain, LEGAL) and not is_code(plain) and not _matches(plain, LOADED)


def is_code(name: str) -> bool:
    """Whether Python may import a file."""
    return name.lower().endswith(CODE)


def is_loaded(name: str) -> bool:
    """Whether some runtime may load a file."""
    return is_code(name) or (not is_document(name) and _matches(Path(name).name, LOADED))


def _matches(plain: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(plain.lower(), pattern) for pattern in patterns)  # some filesystems take A for a


def files_of(folder: Path) -> Iterator[str]:
    """Names of all files of a folder that are not hidden, relative to it, also those behind links to folders."""
    seen: set[str] = set()
    for place, subfolders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            subfolders.clear()
            continue
        seen.add(real)
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        yield from (Path(place, name).relative_to(folder).as_posix() for name in names if not name.startswith("."))
