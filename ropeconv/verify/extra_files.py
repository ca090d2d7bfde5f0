"""Files that an output has and its plan does not: those that a runtime may load, and those that nobody does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from ..pretrained import CODE

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
