"""Opens a source by its path or its name on the Hub."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from ..errors import BadSource, UsageError
from ..formats.files import FROZEN, expand_home
from ..formats.kind import is_gguf, is_graph, kind_of, named_gguf
from ..rope.errors import shown
from . import ollama
from .folder import ConfigSource, FolderSource
from .gguf import GgufSource, HubGguf, HubShard, OllamaGguf
from .hub import HubSource
from .meta import PART, MetaSource
from .reference import modelfile_of, resolved
from .source import Source

REPOSITORY = r"(?:hf://)?([A-Za-z0-9][\w.-]*/[\w.-]+)"
HUB_ID = REPOSITORY + r"(?:@([\w./-]+))?"
HUB_FILE = REPOSITORY + r"(?:@([\w.-]+))?/(.+\.(?i:gguf))"


def open_source(reference: str | os.PathLike[str], family: str = "") -> Source | GgufSource:
    """The source that a reference names. Nothing large is read or fetched.

    Args:
        reference: The path of a GGUF file, of a folder in the HF layout or in Meta's, of a
            config.json, or of a Modelfile, whose model is opened; a name in Ollama's store, such as
            `llama3.1:8b`; or on the Hub `owner/name[@revision]`, `owner/name[@revision]/file.gguf`,
            or the address of a page of these. A file is known by its first bytes.
        family: The name of the family that the model is of, whatever its model_type; empty to go
            by that.

    Raises:
        BadSource: Where the reference is none of these.
        UsageError: For a family beside a GGUF file.
    """
    reference = os.fspath(reference)
    source = _open(resolved(reference))
    if family and isinstance(source, GgufSource):
        raise UsageError(
            f"--family works only with checkpoints, and {reference} names its architecture; leave"
            " it out"
        )
    source.treat_as = family
    source.modelfile = modelfile_of(reference)
    return source


def _open(reference: str) -> Source | GgufSource:
    if re.match("(?!hf:|ollama:)[a-z]+://", reference) and ollama.find(reference) is None:
        raise BadSource(
            f"{reference} is not the address of a model on huggingface.co; download it, and give"
            " its path"
        )
    path = expand_home(reference)
    kind = kind_of(path)
    if kind == "missing":
        return _open_elsewhere(reference, path)
    if kind == "folder" and path.suffix not in FROZEN:
        folder = FolderSource(path)
        return MetaSource(folder) if _is_meta(name.name for name in path.iterdir()) else folder
    if is_graph(reference):
        raise BadSource(
            f"{reference} is a compiled graph, which only the commands inspect, compare and apply"
            " open; give its checkpoint"
        )
    if is_gguf(path):
        return GgufSource(path)
    return ConfigSource(path)


def _open_elsewhere(reference: str, path: Path) -> Source | GgufSource:
    """The source of a reference that is not a path here: in Ollama's store, or a file or repository
    on the Hub.
    """
    stored = ollama.find(reference)
    if stored is not None:
        return OllamaGguf(stored)
    on_hub = re.fullmatch(HUB_FILE, reference)
    if on_hub and not Path(reference.split("/")[0]).exists():
        _check_address(reference, on_hub[1], on_hub[2], on_hub[3])
        return HubGguf(HubShard.find(on_hub[1], on_hub[3], on_hub[2]))
    if named_gguf(reference):
        return GgufSource(path)
    if is_graph(reference):
        raise BadSource(
            f"{reference} does not exist; give the path of a graph, or of the folder of an export"
        )
    match = re.fullmatch(HUB_ID, reference)
    if match and not reference.startswith((".", "/", "~")):
        _check_address(reference, match[1], match[2])
        source = HubSource(match[1], match[2])
        return MetaSource(source) if _is_meta(file.name for file in source.files()) else source
    others = ", and Ollama has no model of that name" if ollama.name_in(reference) else ""
    raise BadSource(
        f"{reference} is neither a folder nor a Hub id{others}; give a path, or"
        " owner/name[@revision]"
    )


def _is_meta(names: Iterable[str]) -> bool:
    """Whether file names are those of Meta's layout: params.json and consolidated.NN.pth, without
    config.json.
    """
    files = set(names)
    return (
        "params.json" in files
        and "config.json" not in files
        and any(PART.fullmatch(name) for name in files)
    )


def _check_address(reference: str, repository: str, *paths: str | None) -> None:
    """Raises BadSource for what the Hub cannot have, such as a file outside of its repository."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
        good = all(
            part not in ("", ".", "..") for path in paths if path for part in path.split("/")
        )
    except HFValidationError:
        good = False
    if not good:
        raise BadSource(
            f"{shown(reference)} is not an address on the Hub; write"
            " owner/name[@revision][/FILE.gguf], without '.' or '..' as a part of it"
        )


def open_checkpoint(reference: str) -> Source:
    """Like `open_source`, for commands that need a checkpoint in the HF layout.

    Raises:
        BadSource: For GGUF too.
    """
    source = open_source(reference)
    if isinstance(source, GgufSource):
        raise BadSource(
            f"{reference} is a GGUF file; this command needs a checkpoint with config.json and"
            " safetensors"
        )
    return source
