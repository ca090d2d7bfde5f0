"""Files that an output has and its plan does not: those that a runtime may load, and those that nobody does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

CODE = (".py", ".pyc", ".so", ".pyd", ".dll", ".dylib")
LOADED = (
    "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.vocab", "*.bpe", "*.spm", "*.safetensors", "*.bin",
    "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle", "*.h5", "*.msgpack", "*.npz", "*.npy", "*.gguf", "*.onnx", "*.ot",
    "*.onnx_data", "*.tflite", "*.yaml", "*.yml", "*.toml", "merges*", "vocab*", "tokenizer*", "chat_template*",
)  # fmt: skip
"""Names of files that some runtime loads: configs, tokenizers, templates, weights."""
DOCUMENTS = (
    "*.md", "LICENSE*", "NOTICE*", "USE_POLICY*", "*.rst", "*.html", "*.pdf", "*.png", "*.jpg", "*.jpeg", "*.gif",
    "*.svg", "*.webp", "requirements.txt",
)  # fmt: skip
"""Names of files for people."""


def is_document(name: str) -> bool:
    """Whether a file is for people, and no runtime loads it."""
    return any(fnmatch(Path(name).name, pattern) for pattern in DOCUMENTS)


def is_code(name: str) -> bool:
    """Whether Python may import a file."""
    return name.endswith(CODE)


def is_loaded(name: str) -> bool:
    """Whether some runtime may load a file."""
    plain = Path(name).name
    return is_code(name) or (not is_document(name) and any(fnmatch(plain, pattern) for pattern in LOADED))


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
