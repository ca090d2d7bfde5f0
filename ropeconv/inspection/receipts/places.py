"""Where the source of an output is. `find_source` is the function to read first.

A receipt names a local source without its folder, since it is published. `remember_source` notes
the folder in the user's state on this machine, by the digest of the receipt. Without this state,
people name the source with --against.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from glob import escape
from pathlib import Path, PurePath

import msgspec

from ...environment import user_folder
from ...errors import BadSource
from ...formats.disk import sample_digest
from ...formats.drafts import draft_of
from ...formats.files import expand_home, read_text
from ...models.gguf import GgufSource
from ...models.open import HUB_FILE
from ...models.source import RECEIPT, Origin
from ...rope.errors import RopeconvError, command_line
from .receipt import Receipt
from .storage import RESULTS, read_receipt

COMPUTED_SUFFIXES = (".json", ".safetensors", ".gguf", ".pth", ".bin", ".py")
"""Ends of the names of files that change what a model computes."""
PROFILES_BASE = "base"
"""The folder of the unchanged model beside the profiles of a GGUF file."""
MOST_PLACES = 8
"""The most places that are kept for one receipt, the newest last."""
MOST_RECEIPTS = 1000
"""The most receipts whose places are kept; the oldest are removed."""


class Place(msgspec.Struct, frozen=True):
    """A source on this disk, and an output that was made from it."""

    output: str
    """Absolute path of the output."""
    source: str
    """Absolute path of the source: a folder, or a GGUF file."""
    files: dict[str, tuple[int, str]]
    """Size in bytes and digest of each file of the source, by absolute path."""

    @property
    def contents(self) -> list[tuple[str, tuple[int, str]]]:
        """The files without their folder."""
        return sorted((PurePath(name).name, described) for name, described in self.files.items())

    @property
    def is_there(self) -> bool:
        """Whether the source is there, and every file of it as it was."""
        if not self.files:
            return False
        try:
            for name, size_and_digest in self.files.items():
                if _size_and_digest(Path(name)) != size_and_digest:
                    return False
        except OSError:
            return False
        return Path(self.source).exists()


class Places(msgspec.Struct, frozen=True):
    """The places of the sources of one receipt."""

    places: tuple[Place, ...] = ()


def remember_source(output: Path, source: Origin) -> None:
    """Note on this machine where the local source of an output is, so that later commands find it.

    Nothing is noted where that cannot be written, without an error.

    Args:
        output: The output, as `apply` wrote it.
        source: The source that it was made from. One on the Hub is not noted: the receipt names it.
    """
    if source.commit or source.kind == "config":
        return
    with suppress(OSError, RopeconvError):
        note = _note_path(read_receipt(output))
        place = Place(os.path.abspath(output), _absolute_path(source), _files_of(source))
        others = [other for other in _read_places(note) if other.output != place.output]
        newest_others = others[-(MOST_PLACES - 1) :]  # the newest is the last
        _write_places(note, (*newest_others, place))


def remember_converter(sha256: str, script: Path) -> None:
    """Note where a converter of llama.cpp is, by the digest of its code, as receipts have it."""
    with suppress(OSError, RopeconvError):
        _write_note(_digest_note("converters", sha256), os.fsencode(script.resolve()))


def remembered_converter(sha256: str) -> Path | None:
    """Return where a converter of llama.cpp was; None where that is not known."""
    with suppress(OSError, RopeconvError):
        path = Path(read_text(_digest_note("converters", sha256), sha256))
        return path if path.is_absolute() else None
    return None


def remember_imatrix(sha256: str, path: Path) -> None:
    """Note where an importance matrix is, by its digest, as receipts have it."""
    with suppress(OSError, RopeconvError):
        _write_note(_digest_note("imatrices", sha256), os.fsencode(path.resolve()))


def remembered_imatrix(sha256: str) -> Path | None:
    """Return where an importance matrix was; None where that is not known."""
    with suppress(OSError, RopeconvError):
        path = Path(read_text(_digest_note("imatrices", sha256), sha256))
        return path if path.is_absolute() else None
    return None


def _digest_note(kind: str, sha256: str) -> Path:
    """The file with the path of a file that a receipt names by its digest.

    Args:
        kind: The folder of such notes.
        sha256: The digest.

    Raises:
        BadSource: It is not a digest.
    """
    if not re.fullmatch("[0-9a-f]{64}", sha256):
        raise BadSource("a digest in the receipt is not a sha256; the receipt was edited")
    return user_folder("state") / kind / sha256


def find_source(output: Path, use_state: bool = True) -> str:
    """Return the source from which an output was made, as a command line names it.

    The source on the Hub comes first, then the place that `apply` has noted on this machine, then a
    model of the same name near the output. `validate` notices a wrong source, since it compares
    frequencies and weights.

    Args:
        output: An output with a receipt.
        use_state: Whether to use the notes on this machine (`remember_source`).

    Returns:
        The source, such as "Qwen/Qwen3-8B@9c925d6"; "" if it is not found.

    Raises:
        BadSource: The output has no receipt.
    """
    # on the Hub
    receipt = read_receipt(output)
    source = receipt.source
    if source.repository:
        revision = f"{source.repository}@{source.commit}"
        file = re.fullmatch(HUB_FILE, source.reference or "")
        if file is None:
            return revision
        return f"{revision}/{file[3]}"  # the third group is the name of a file in the repository

    # where the source was when this output was made
    output_path = os.path.abspath(output)
    noted_places = _read_notes(receipt) if use_state else []
    place_of_output = None
    for place in noted_places:
        if place.output == output_path:
            place_of_output = place
            break
    if place_of_output is not None and place_of_output.is_there:
        return place_of_output.source

    # near the output
    path_nearby = _find_nearby(output, receipt)
    if path_nearby is not None:
        return str(path_nearby)

    # Where the source was when another output with the same receipt was made, since this output may
    # be a copy. Two fine-tunes with the same names and settings give the same receipt: if the files
    # of this output's source were noted, the other source must have the same files.
    for place in noted_places:
        if not place.is_there or place.source == output_path:
            continue
        if place_of_output is None or place.contents == place_of_output.contents:
            return place.source
    return ""


def _find_nearby(output: Path, receipt: Receipt) -> Path | None:
    """The source of an output, by its name in a folder near the output; None if it is not there."""
    folder = Path(os.path.abspath(output)).parent
    folders = [
        folder,
        folder.parent / PROFILES_BASE,  # the model beside its profiles
        folder.parent,
    ]
    if receipt.source.kind == "gguf":
        folders.append(folder.parent.parent)  # GGUF profiles are one folder deeper
    for near in folders:
        for path in _possible_paths(near, receipt):
            if path.exists() and not output.samefile(path):
                return path
    return None


def why_not_found(output: Path) -> str:
    """Return why the source of an output is not found, with the fix, as a sentence without a stop.

    Raises:
        BadSource: The output has no receipt.
    """
    receipt = read_receipt(output)
    # a file that was changed in place has the path of its source
    paths_of_source = _possible_paths(output.parent, receipt)
    has_path_of_source = any(path.exists() and output.samefile(path) for path in paths_of_source)
    if output.is_file() and has_path_of_source:
        restore = command_line("restore", output, "-o", f"{output.stem}-source.gguf")
        return (
            f"{output} was changed in place, and is its own source; `{restore}` writes that for"
            " --against"
        )

    # `apply` has noted where the source was, but the source is not there any more
    reason = ""
    noted_places = _read_notes(receipt)  # the newest first
    if noted_places:
        path = noted_places[0].source
        reason = f", and {path}, from which it was made, was changed or removed since"
    return (
        f"the source of {output} is not beside it{reason}; add --against SOURCE, its path or its"
        " name on the Hub"
    )


def _read_notes(receipt: Receipt) -> list[Place]:
    """The places of the source of a receipt, the newest first."""
    with suppress(OSError, RopeconvError):
        return list(reversed(_read_places(_note_path(receipt))))
    return []


def _possible_paths(folder: Path, receipt: Receipt) -> list[Path]:
    """The paths that the source of an output may have in a folder.

    A file of several shards is named by its first one.
    """
    source = receipt.source
    if source.kind != "gguf":
        return [folder / source.name]
    shards = sorted(folder.glob(f"{escape(source.name)}-00001-of-*.gguf"))
    return [folder / f"{source.name}.gguf", *shards]


def state_folder() -> Path:
    """Return the folder of the state.

    It is `$XDG_STATE_HOME/ropeconv/sources`, by default in `~/.local/state`.

    Raises:
        RopeconvError: The user has no home.
    """
    return user_folder("state") / "sources"


def _absolute_path(source: Origin) -> str:
    """The absolute path of a local source."""
    path = source.path if isinstance(source, GgufSource) else expand_home(source.reference)
    return os.path.abspath(path)


def _files_of(source: Origin) -> dict[str, tuple[int, str]]:
    """The size in bytes and the digest of each file of a local source, by its absolute path.

    Only files that change what the model computes are there: weights and settings.
    """
    # a GGUF file may have any name, as the blobs of Ollama do
    if isinstance(source, GgufSource):
        return {os.path.abspath(path): _size_and_digest(path) for path in source.identities()}

    # only files directly in the folder; and not a receipt, which gets results later
    folder = _absolute_path(source)
    files = {}
    for path in source.identities():
        absolute = os.path.abspath(path)
        is_in_folder = os.path.dirname(absolute) == folder
        if is_in_folder and path.suffix in COMPUTED_SUFFIXES and path.name != RECEIPT:
            files[absolute] = _size_and_digest(path)
    return files


def _size_and_digest(path: Path) -> tuple[int, str]:
    """Size and digest of a file, in constant time: of parts of a large one."""
    return path.stat().st_size, sample_digest(path)


def _note_path(receipt: Receipt) -> Path:
    """The file with the places of a receipt, whose name stays when results are added to that."""
    document = {key: value for key, value in receipt.to_dict().items() if key not in RESULTS}
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    return state_folder() / f"{digest}.json"


def _read_places(note: Path) -> tuple[Place, ...]:
    """The places in a file; none where it is missing, damaged, or of another version."""
    if not note.is_file():
        return ()
    try:
        places = msgspec.json.decode(read_text(note, note.name), type=Places).places
    except (OSError, BadSource, msgspec.MsgspecError):
        return ()
    absolute = []
    for place in places:
        if os.path.isabs(place.source) and os.path.isabs(place.output):
            absolute.append(place)
    return tuple(absolute)


def _write_places(note: Path, places: Iterable[Place]) -> None:
    """Replace a file of places."""
    _write_note(note, msgspec.json.encode(Places(tuple(places))))
    _remove_oldest(note.parent)


def _write_note(note: Path, content: bytes) -> None:
    """Replace a file in a folder of notes, readable by its user only."""
    note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with draft_of(note) as draft:
        draft.write_bytes(content)
        draft.chmod(0o600)


def _remove_oldest(folder: Path) -> None:
    """Remove the oldest files of a folder beyond `MOST_RECEIPTS`."""
    files = list(folder.glob("*.json"))
    if len(files) <= MOST_RECEIPTS:
        return
    by_age = sorted(files, key=lambda path: path.stat().st_mtime_ns)
    for path in by_age[: len(files) - MOST_RECEIPTS]:
        path.unlink(missing_ok=True)
