"""From what a person typed to a Source."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import BadSource
from .base import Source
from .folder import ConfigSource, FolderSource
from .gguf import GgufSource
from .hub import HubSource
from .meta import MetaSource, is_meta

HUB_ID = r"(?:hf://)?([A-Za-z0-9][\w.-]*/[\w.-]+)(?:@([\w./-]+))?"


def open_source(reference: str) -> Source | GgufSource:
    """A GGUF file, a local folder, one in Meta's layout, a config.json, or `owner/name[@revision]` on the Hub.

    Raises BadSource when it is none of them.
    """
    path = Path(reference).expanduser()
    if path.suffix == ".gguf" or reference.endswith(".gguf"):
        return GgufSource(path)
    if path.is_dir():
        return MetaSource(path) if is_meta(name.name for name in path.iterdir()) else FolderSource(path)
    if path.is_file():
        return ConfigSource(path)
    match = re.fullmatch(HUB_ID, reference)
    if match and not reference.startswith((".", "/", "~")):
        source = HubSource(match[1], match[2])
        return MetaSource.from_hub(source) if is_meta(file.name for file in source.files()) else source
    raise BadSource(f"{reference} is neither a folder nor a Hub id; give a path, or owner/name[@revision]")


def open_checkpoint(reference: str) -> Source:
    """Like `open_source`, for commands that need a checkpoint in Hugging Face's layout."""
    source = open_source(reference)
    if isinstance(source, GgufSource):
        raise BadSource(f"{reference} is GGUF, and a checkpoint with config.json and safetensors is needed here")
    return source
