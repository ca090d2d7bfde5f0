"""Opens a source by its path or its name on the Hub."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from ..errors import BadSource, UsageError
from ..formats.files import FROZEN, expand_home
from ..formats.kind import has_gguf_name, is_gguf, is_graph, kind_of
from ..rope.errors import shown
from . import ollama
from .folder import ConfigSource, FolderSource
from .gguf import GgufSource, HubGguf, HubShard, OllamaGguf
from .hub import HubSource
from .meta import PART, MetaSource
from .reference import modelfile_of, resolve_reference
from .source import Source

REPOSITORY = r"(?:hf://)?([A-Za-z0-9][\w.-]*/[\w.-]+)"
HUB_ID = REPOSITORY + r"(?:@([\w./-]+))?"
HUB_FILE = REPOSITORY + r"(?:@([\w.-]+))?/(.+\.(?i:gguf))"


def open_source(reference: str | os.PathLike[str], family: str = "") -> Source | GgufSource:
    """Open the source that a reference names. Nothing large is read or fetched.

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
    source = _open(resolve_reference(reference))
    if family and isinstance(source, GgufSource):
        raise UsageError(
            f"--family works only with checkpoints, and {reference} names its architecture; leave"
            " it out"
        )
    source.treat_as = family
    source.modelfile = modelfile_of(reference)
    return source


def _open(reference: str) -> Source | GgufSource:
    """Open the source of a reference: a path on this disk, or a name elsewhere.

    Args:
        reference: As `resolve_reference` returns it, so never the address of a page on the Hub.
    """
    # Web addresses are refused, such as https://example.com/model. Two of them name a model in
    # Ollama's store: https://ollama.com/library/llama3.1, and ollama://llama3.1.
    has_scheme = re.match("[a-z]+://", reference) is not None
    is_known_scheme = reference.startswith(("hf://", "ollama://"))
    if has_scheme and not is_known_scheme and ollama.find(reference) is None:
        raise BadSource(
            f"{reference} is not the address of a model on huggingface.co; download it, and give"
            " its path"
        )

    path = expand_home(reference)
    kind = kind_of(path)
    if kind == "missing":
        return _open_elsewhere(reference, path)
    # compiled graphs may be folders too, such as Llama.mlpackage of Core ML; FROZEN has the endings
    # of all compiled graphs
    is_graph_folder = path.suffix in FROZEN
    if kind == "folder" and not is_graph_folder:
        folder = FolderSource(path)
        if _has_meta_layout(place.name for place in path.iterdir()):
            return MetaSource(folder)  # params.json and consolidated.00.pth
        return folder

    if is_graph(reference):
        raise BadSource(
            f"{reference} is a compiled graph, which only the commands inspect, compare and apply"
            " open; give its checkpoint"
        )
    if is_gguf(path):
        return GgufSource(path)
    return ConfigSource(path)


def _open_elsewhere(reference: str, path: Path) -> Source | GgufSource:
    """Open a model in Ollama's store or on the Hub; raise BadSource if there is none.

    The forms overlap, so the order decides: `a/b/c.gguf` may be a file on the Hub or a missing
    path, and `a/b` may be a model of Ollama or a repository.

    Args:
        reference: As the user wrote it.
        path: The same as a path, at which nothing exists.
    """
    # 1. a model in Ollama's store
    stored = ollama.find(reference)
    if stored is not None:
        return OllamaGguf(stored)

    # 2. a GGUF file on the Hub, owner/name/file.gguf. If a folder "owner" is on this disk, the
    # reference is taken as the path of a missing file.
    hub_file = re.fullmatch(HUB_FILE, reference)
    owner_folder = Path(reference.split("/")[0])
    if hub_file and not owner_folder.exists():
        repository, revision, file = hub_file.groups()
        _check_address(reference, repository, revision, file)
        return HubGguf(HubShard.find(repository, file, revision))

    # 3. a path whose file is missing, by the end of its name
    if has_gguf_name(reference):
        return GgufSource(path)  # raises the error about a missing file
    if is_graph(reference):
        raise BadSource(
            f"{reference} does not exist; give the path of a graph, or of the folder of an export"
        )

    # 4. a repository on the Hub, owner/name[@revision]
    hub_id = re.fullmatch(HUB_ID, reference)
    looks_like_path = reference.startswith((".", "/", "~"))
    if hub_id and not looks_like_path:
        repository, revision = hub_id.groups()
        _check_address(reference, repository, revision)
        source = HubSource(repository, revision)
        if _has_meta_layout(file.name for file in source.files()):
            return MetaSource(source)
        return source

    not_in_ollama = ""
    if ollama.name_in(reference):
        not_in_ollama = ", and Ollama has no model of that name"
    raise BadSource(
        f"{reference} is neither a folder nor a Hub id{not_in_ollama}; give a path, or"
        " owner/name[@revision]"
    )


def _has_meta_layout(names: Iterable[str]) -> bool:
    """Whether files have Meta's layout: params.json and consolidated.NN.pth, no config.json."""
    files = set(names)
    if "params.json" not in files or "config.json" in files:
        return False
    return any(PART.fullmatch(name) for name in files)


def _check_address(reference: str, repository: str, *paths: str | None) -> None:
    """Refuse an address that the Hub cannot have, such as a file outside of its repository.

    Raises:
        BadSource: It is not an address.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    # the parts become a URL, in which ".." leads to another repository
    parts = []
    for path in paths:
        if path:
            parts += path.split("/")
    try:
        validate_repo_id(repository)
        is_valid = not any(part in ("", ".", "..") for part in parts)
    except HFValidationError:
        is_valid = False
    if not is_valid:
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
